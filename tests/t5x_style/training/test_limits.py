"""Limits of metrics: a training warns once, and stops."""

from typing import Any

import jax.numpy as jnp
import pytest

from t5x_style.interfaces.metrics import MetricLimit, MetricSum
from t5x_style.training.hooks import StepContext
from t5x_style.training.limits import LimitError, WatchLimits

LIMIT = MetricLimit("empty", 0.05, 0.5, "the share of texts without a weight", "Do this.")


def seen(values: list[float], every: int = 1, last: int = 0) -> list[str]:
    """The warnings of a training whose metric has these values, step by step."""
    warnings: list[str] = []
    watch = WatchLimits(every, [LIMIT], warnings.append)
    for step, value in enumerate(values, 1):
        metrics = {"empty": MetricSum.of(jnp.asarray([value]))}
        state: Any = None
        watch(StepContext(step, state, metrics, 0.0, last=step == last))
    return warnings


def test_it_warns_where_the_metric_rises_above_the_first_limit() -> None:
    warnings = seen([0.0, 0.04, 0.06, 0.2, 0.01, 0.3])
    assert [one.split(":")[0] for one in warnings] == ["step 3", "step 6"]
    assert (
        "the share of texts without a weight is 6.0% (empty), more than 5%. Do this."
        in (warnings[0])
    )


def test_it_stops_above_the_second() -> None:
    with pytest.raises(LimitError, match=r"step 2: .* is 51\.0% \(empty\), more than 50%.*Do this"):
        seen([0.5, 0.51])


def test_it_looks_at_steps_that_are_logged_and_at_the_last() -> None:
    assert seen([0.9, 0.9, 0.9, 0.0], every=4) == []
    with pytest.raises(LimitError, match="step 3"):
        seen([0.9, 0.9, 0.9], every=4, last=3)
