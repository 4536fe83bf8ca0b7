"""Recall against queries a second, of settings that take turns: what index benchmarks share."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_style.interfaces import index as index_lib

K = 10
Queries = Any  # [Q, D] float32, or Entries of Q
Search = Callable[[Queries], np.ndarray]  # queries -> rows [Q, K]


class Setting(NamedTuple):
    """One way to search one index; settings of a family share a line in the picture."""

    family: str
    name: str
    build_seconds: float
    search: Search


class Row(NamedTuple):
    """What was measured of a setting."""

    setting: Setting
    recall: float
    rate: float  # queries a second


def measured(
    settings: Sequence[Setting], queries: Queries, truth: np.ndarray, batch: int, rounds: int
) -> list[Row]:
    """Each setting's share of the exact ten, and the median of its speeds.

    Args:
        settings: that take their turns in each round.
        queries: that are asked, `batch` at a time.
        truth: [Q, K] rows of the exact ten.
        batch: queries at a time.
        rounds: of which the median counts.
    """
    rates: list[list[float]] = [[] for _ in settings]
    found = [setting.search(queries) for setting in settings]  # and warms up
    for _ in range(rounds):
        for setting, speeds in zip(settings, rates, strict=True):
            started = time.perf_counter()
            for first in range(0, len(queries), batch):
                setting.search(queries[first : first + batch])
            speeds.append(len(queries) / (time.perf_counter() - started))
    return [
        Row(setting, index_lib.recall_against(rows, truth), statistics.median(speeds))
        for setting, rows, speeds in zip(settings, found, rates, strict=True)
    ]


def show(rows: Sequence[Row], passages: str, queries: int, batch: int) -> None:
    """Prints the table; `passages` says what was searched."""
    cores = len(os.sched_getaffinity(0))
    print(f"{passages}, {queries:,} queries by {batch}, {cores} cores")
    print(f"{'':<48}{'recall@10':>11}{'queries/s':>11}{'build s':>9}")
    for setting, recall, rate in rows:
        print(f"{setting.name:<48}{recall:>11.4f}{rate:>11,.0f}{setting.build_seconds:>9.1f}")
