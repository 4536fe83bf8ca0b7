"""Configurations and trials of a sweep, and their records.

A configuration gives each axis a value; a trial is a configuration with one seed. Both are named by
a hash of what they bind, so that a name says what was run whatever the sweep file looks like later.
The recipe's own values are left out of it: an axis that is added later leaves old names alone.
"""

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from t5x_style.configuration.gin_reader import to_gin

DIGITS = 10  # of the hash, in a name
DEFAULT = "default"  # the configuration that binds nothing

# queued: no record. preempted: stopped, and continues when the driver runs again. done, failed and
# pruned are final; failed ones run again on request.
Status = Literal["queued", "running", "preempted", "failed", "pruned", "done"]
Curve = tuple[tuple[int, float], ...]  # (step, value) of the metric, steps rising


@dataclass(frozen=True)
class Configuration:
    """Values of the axes.

    Attributes:
      number: its place in the sweep, from 0.
      values: axis -> value, of the axes that apply (`when`).
      bindings: macro or parameter -> value, of the same; none of the recipe's own configuration.
      named: those of the bindings that are not the recipe's values.
    """

    number: int
    values: Mapping[str, Any]
    bindings: Mapping[str, Any]
    named: Mapping[str, Any]

    @functools.cached_property
    def name(self) -> str:
        """`default`, or a hash of what is not the recipe's."""
        return name_of(self.named)


def name_of(bindings: Mapping[str, Any]) -> str:
    """Name of a configuration with these bindings, in any order.

    >>> name_of({"A": 1, "B": 2}) == name_of({"B": 2, "A": 1}), name_of({})
    (True, 'default')
    """
    if not bindings:
        return DEFAULT
    text = "\n".join(f"{name} = {to_gin(value)}" for name, value in sorted(bindings.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True)
class Trial:
    """A configuration with a seed.

    Attributes:
      seed: None where the sweep has no seeds: the recipe's own.
    """

    configuration: Configuration
    seed: int | None = None

    @functools.cached_property
    def name(self) -> str:
        """That of the configuration, and the seed."""
        name = self.configuration.name
        return name if self.seed is None else f"{name}-seed{self.seed}"


@dataclass(frozen=True)
class Record:
    """Record of a trial.

    Attributes:
      status: see `Status`.
      value: of the metric, once it is done; of a pruned one, where it was pruned.
      step: of the training at which the metric had the value; None where it has no steps.
      curve: the metric at each evaluation so far.
      reason: why it failed or was pruned, in words.
      attempts: how often it was started.
      seconds: of all its attempts, waiting for stages of other trials included.
    """

    status: Status = "queued"
    value: float | None = None
    step: int | None = None
    curve: Curve = ()
    reason: str = ""
    attempts: int = 0
    seconds: float = 0.0

    @property
    def in_words(self) -> str:
        """Outcome of the trial, in a line."""
        parts: list[str] = [self.status]
        if self.value is not None:
            parts.append(f"{self.value:.4f}" + (f" at step {self.step}" if self.step else ""))
        if self.reason:
            parts.append(self.reason)
        return ", ".join(parts)


@dataclass(frozen=True)
class Stages:
    """Device-seconds of stage versions that trials made, each version counted once.

    Attributes:
      shared: of those that more than one trial reads.
      alone: trial -> of those that only it reads.
    """

    shared: float = 0.0
    alone: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """Input of a report.

    Attributes:
      title: of the sweep file.
      metric: as the sweep file names it.
      larger_is_better: which way it is compared.
      axes: names in the file's order.
      logarithmic: axes that a picture shows on a logarithmic scale.
      drawn: axes that are ranges, whose ends are no values of trials.
      seeds: of each configuration; () where the sweep has none.
      trials: in the order of the sweep; those of an earlier file last.
      records: trial's name -> record; a trial without one is queued.
      earlier: names of trials that the sweep file describes no more.
      seconds: of stages, see `Stages`.
    """

    title: str
    metric: str
    larger_is_better: bool
    axes: tuple[str, ...]
    logarithmic: frozenset[str]
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    records: Mapping[str, Record]
    earlier: frozenset[str] = frozenset()
    drawn: frozenset[str] = frozenset()
    seconds: Stages = field(default_factory=Stages)

    def record(self, trial: Trial) -> Record:
        """Record of a trial."""
        return self.records.get(trial.name, Record())
