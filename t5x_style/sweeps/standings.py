"""Compares the configurations of a sweep: means over seeds, tests against the default, the winner.

Seeds are the sample: an interval covers what another seed would have given, not another data set.
Two configurations are compared on the seeds that both finished, difference by difference.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.sweeps.trials import DEFAULT, Configuration, Results, Status, Trial

LEVEL = 0.95  # of intervals
ALPHA = 0.05  # a corrected p-value below it is a difference
ROUNDING = 1e-12  # share of the largest value; differences below it come from rounding

Verdict = Literal["better", "worse", "not distinguishable", "not tested"]
Seeds = Mapping[int | None, float]  # seed -> value of the trial, of those that are done


@dataclass(frozen=True)
class Summary:
    """A sample of values.

    Attributes:
      count: of values.
      mean: of them.
      deviation: sample standard deviation (n - 1); None for one value.
      interval: of the mean, by Student's t; None for one value.
    """

    count: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Row:
    """A configuration and how it compares with the default.

    Attributes:
      configuration: that the row is about.
      trials: that count, first seed first. Those of seeds that the sweep file does not list any
        more count only where all trials of the configuration are such.
      expected: number of seeds that it is to have.
      values: of its finished trials.
      summary: of the values; None where there are none.
      difference: to the default, on common seeds; None where there are none.
      p_value: of the paired t-test against the default; None where it was not tested.
      corrected: the p-value after Holm's correction over all rows that were tested.
      verdict: against the default.
      reason: why it was not tested, in words.
      earlier: whether the sweep file does not describe it any more.
    """

    configuration: Configuration
    trials: tuple[Trial, ...]
    expected: int
    values: Seeds
    summary: Summary | None
    difference: Summary | None = None
    p_value: float | None = None
    corrected: float | None = None
    verdict: Verdict = "not tested"
    reason: str = ""
    earlier: bool = False

    @property
    def name(self) -> str:
        """That of the configuration."""
        return self.configuration.name

    @property
    def is_complete(self) -> bool:
        """Whether each seed has a finished trial."""
        return len(self.values) == self.expected


@dataclass(frozen=True)
class Best:
    """The winner.

    Attributes:
      row: its configuration.
      second: the next complete configuration; None where there is none.
      p_value: of the paired t-test between the two; None below two common seeds.
    """

    row: Row
    second: Row | None
    p_value: float | None

    @property
    def name(self) -> str:
        """That of the configuration."""
        return self.row.name

    @property
    def trial(self) -> Trial:
        """The run that represents it: its first seed, whichever seed has the best value."""
        return self.row.trials[0]


def shown(value: Any, length: int) -> str:
    """A value of an axis for people to read: strings without quotes, long ones cut in the middle.

    Of a dictionary that is too long, the values alone: those of an axis have the same keys.

    >>> shown("a/long/path", 8), shown((1, None), 20), shown("", 20)
    ("a/l…path", '(1, None,)', "''")
    >>> shown({"crops": 0.6, "titles": 0.4}, 14)
    '0.6, 0.4'
    """
    plain = isinstance(value, str) and value != "" and value.isprintable()
    text = value if plain else to_gin(value)
    if len(text) > length and isinstance(value, dict):
        text = ", ".join(shown(one, length) for one in value.values())
    if len(text) <= length:
        return text
    return text[: (length - 1) // 2] + "…" + text[-(length // 2) :]


def counts(results: Results) -> dict[Status, int]:
    """Number of trials by status, each status included."""
    statuses = [results.record(trial).status for trial in results.trials]
    return {status: statuses.count(status) for status in get_args(Status)}


def ordered(results: Results) -> list[Trial]:
    """The trials in an order that depends on the sweep alone: those of earlier files last."""

    def key(trial: Trial) -> tuple[bool, int, str, tuple[int, int]]:
        one = trial.configuration
        return trial.name in results.earlier, one.number, one.name, _place(results, trial.seed)

    return sorted(results.trials, key=key)


def _place(results: Results, seed: int | None) -> tuple[int, int]:
    """Sorts seeds as the sweep file lists them, others after these."""
    known = seed is not None and seed in results.seeds
    place = results.seeds.index(seed) if known else len(results.seeds)
    return place, -1 if seed is None else seed


def rows(results: Results) -> list[Row]:
    """One row per configuration, the best first; incomplete ones after all complete ones."""
    found = list(_untested(results))
    default = next((row for row in found if row.name == DEFAULT), None)
    found = _corrected([_against(row, default) for row in found])
    found = [replace(row, verdict=_verdict(row, results.larger_is_better)) for row in found]
    sign = -1.0 if results.larger_is_better else 1.0

    def key(row: Row) -> tuple[bool, bool, float, str]:
        mean = 0.0 if row.summary is None else row.summary.mean
        return not row.is_complete, row.summary is None, sign * mean, row.name

    return sorted(found, key=key)


def best(results: Results) -> Best | None:
    """The configuration with the best mean of those that are complete; None without any."""
    complete = [row for row in rows(results) if row.is_complete]
    if not complete:
        return None
    if len(complete) == 1:
        return Best(complete[0], None, None)
    first, second = complete[:2]
    return Best(first, second, _paired(first.values, second.values))


def _untested(results: Results) -> Iterator[Row]:
    """Rows without comparisons."""
    groups: dict[str, list[Trial]] = {}
    for trial in ordered(results):
        groups.setdefault(trial.configuration.name, []).append(trial)
    for group in groups.values():
        present = [trial for trial in group if trial.name not in results.earlier]
        counted = sorted(present or group, key=lambda one: _place(results, one.seed))
        # An earlier file may have had fewer seeds: its configurations are not complete with these.
        expected = {*results.seeds, *(trial.seed for trial in counted)}
        values = {
            trial.seed: record.value
            for trial in counted
            if (record := results.record(trial)).status == "done" and record.value is not None
        }
        yield Row(
            configuration=counted[0].configuration,
            trials=tuple(counted),
            expected=len(expected),
            values=values,
            summary=summary(list(values.values())),
            earlier=not present,
        )


def summary(values: Sequence[float]) -> Summary | None:
    """Mean, standard deviation and interval of a sample; None of an empty one."""
    if not values:
        return None
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Summary(1, mean, None, None)
    from scipy import special  # not scipy.stats, which takes seconds to import

    deviation = statistics.stdev(values)
    quantile = float(special.stdtrit(count - 1, (1 + LEVEL) / 2))
    half = quantile * deviation / math.sqrt(count)
    return Summary(count, mean, deviation, (mean - half, mean + half))


def _against(row: Row, default: Row | None) -> Row:
    """The row with its difference to the default and the p-value of that, or why there is none."""
    if row.name == DEFAULT:
        return replace(row, reason="it is the default")
    if default is None:
        return replace(row, reason="the default is not among the trials")
    if not row.values:
        return replace(row, reason="none of its trials is done")
    if not default.values:
        return replace(row, reason="no trial of the default is done")
    difference = summary(_differences(row.values, default.values))
    p_value = _paired(row.values, default.values)
    reason = ""
    if difference is None:
        reason = "no seed that it and the default finished"
    elif p_value is None:
        reason = "one seed" if row.expected == 1 else "one seed that it and the default finished"
    return replace(row, difference=difference, p_value=p_value, reason=reason)


def _differences(values: Seeds, others: Seeds) -> list[float]:
    """Values minus others, on common seeds."""
    return [value - others[seed] for seed, value in values.items() if seed in others]


def _paired(values: Seeds, others: Seeds) -> float | None:
    """Two-sided p-value of a paired t-test over common seeds; None below two of them."""
    differences = _differences(values, others)
    if len(differences) < 2:
        return None
    slack = ROUNDING * max(map(abs, [*values.values(), *others.values()]))
    if max(map(abs, differences)) <= slack:
        return 1.0
    # t is the mean over its standard error, which is 0 if each seed differs by the same amount: as
    # the error goes to 0, t goes to infinity and the p-value to 0.
    if max(differences) - min(differences) <= slack:
        return 0.0
    from scipy import special

    error = statistics.stdev(differences) / math.sqrt(len(differences))
    t = statistics.fmean(differences) / error
    return float(2 * special.stdtr(len(differences) - 1, -abs(t)))


def _corrected(found: Sequence[Row]) -> list[Row]:
    """The rows with p-values after Holm's correction (Holm 1979) over those that have one."""
    p_values = sorted(row.p_value for row in found if row.p_value is not None)
    corrected: dict[float, float] = {}
    highest = 0.0
    for rank, p_value in enumerate(p_values):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_value))
        corrected.setdefault(p_value, highest)  # equal ones get that of the first
    return [
        row if row.p_value is None else replace(row, corrected=corrected[row.p_value])
        for row in found
    ]


def _verdict(row: Row, larger_is_better: bool) -> Verdict:
    if row.corrected is None or row.difference is None:
        return "not tested"
    if row.corrected >= ALPHA:
        return "not distinguishable"
    return "better" if (row.difference.mean > 0) == larger_is_better else "worse"
