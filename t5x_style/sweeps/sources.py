"""Sources of a sweep's trials: points that are known in advance, or a sampler.

What a sampler answered is kept in SWEEP_DIR/asked, a file each: asking again after a restart, with
other results, would give another answer.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import parse_value, to_gin
from t5x_style.leases.lease import Leases
from t5x_style.storage import records
from t5x_style.sweeps import points, samplers
from t5x_style.sweeps.points import NoChange
from t5x_style.sweeps.sweep_reader import Sweep
from t5x_style.sweeps.trials import Configuration, Record, Trial
from t5x_style.workflow import remote_store

ADAPTIVE = ("tpe",)
ATTEMPTS = 20  # points that are possible and new are asked for so often
AGAIN = 1_000_000  # added to a point's number for each further attempt


def by_seed(configurations: Sequence[Configuration], seeds: Sequence[int]) -> list[Trial]:
    """All configurations with the first seed, then all with the next.

    A sweep that is stopped early has seen each of them.
    """
    return [Trial(one, seed) for seed in (seeds or (None,)) for one in configurations]


def by_configuration(configurations: Sequence[Configuration], seeds: Sequence[int]) -> list[Trial]:
    """All seeds of a configuration, then the next one: a sampler learns from its mean."""
    return [Trial(one, seed) for one in configurations for seed in (seeds or (None,))]


class Known:
    """Trials of points that are known before the sweep runs."""

    def __init__(self, trials: Sequence[Trial]):
        self._trials = list(trials)

    def trials(self) -> Sequence[Trial]:
        """See `driver.Source`."""
        return self._trials

    def more(self, records: Mapping[str, Record]) -> bool:
        """See `driver.Source`."""
        return False

    def is_complete(self) -> bool:
        """See `driver.Source`."""
        return True


class Asked:
    """Trials that a sampler proposes, each from the results of those before."""

    def __init__(
        self,
        sweep: Sweep,
        first: Sequence[Configuration],
        no_change: NoChange,
        leases: Leases,
        lease: str,
        possible: Callable[[Configuration], bool],
    ):
        """Args:
        sweep: whose.
        first: configurations that are not asked for: the recipe's.
        no_change: values of axes that are the recipe's.
        leases: of the store.
        lease: name of that for asking.
        possible: whether a configuration can run.
        """
        self._sweep, self._no_change, self._possible = sweep, no_change, possible
        self._leases, self._lease = leases, lease
        self._folder = sweep.folder / "asked"
        self._configurations = list(first)
        self._given = len(self._configurations)
        self._is_exhausted = False
        self._read()

    def trials(self) -> Sequence[Trial]:
        """See `driver.Source`."""
        self._read()
        distinct = {one.name: one for one in reversed(self._configurations)}  # the first of equals
        known = sorted(distinct.values(), key=lambda one: one.number)
        return by_configuration(known, self._sweep.seeds)

    def is_complete(self) -> bool:
        """See `driver.Source`."""
        self._read()
        return len(self._configurations) - self._given >= (self._sweep.trials or 0)

    def more(self, records: Mapping[str, Record]) -> bool:
        """Asks for one configuration; see `driver.Source`."""
        if self._is_exhausted:
            return False
        lease = self._leases.claim(self._lease, lambda: None)
        if lease is None:
            return True
        try:
            known = len(self._configurations)
            remote_store.copy_record(self._path(known))
            self._read()
            if self.is_complete() or len(self._configurations) > known:
                return True  # another driver has asked
            return self._ask(records, lease.guard)
        finally:
            lease.release()

    def _ask(self, results: Mapping[str, Record], guard: Callable[[], Any]) -> bool:
        taken = {one.name for one in self._configurations}
        number = len(self._configurations)
        for attempt in range(ATTEMPTS):
            values = samplers.suggest(
                self._sweep.sampler,
                self._sweep.axes,
                [(one.values, self._mean(one, results)) for one in self._configurations],
                number - self._given + attempt * AGAIN,
                self._sweep.sampler_seed,
                self._sweep.larger_is_better,
            )
            made = points.of(self._sweep.axes, values, number, self._no_change)
            if made.name not in taken and self._possible(made):
                self._folder.mkdir(parents=True, exist_ok=True)
                text = {name: to_gin(value) for name, value in values.items()}
                with guard():
                    records.write_json(self._path(number), {"values": text})
                self._read()
                return True
        self._is_exhausted = True  # the axes have hardly any point left
        return False

    def _mean(self, one: Configuration, results: Mapping[str, Record]) -> float | None:
        """Over its seeds; None where one of them has failed, was pruned, or is not done yet."""
        found = [results[trial.name] for trial in by_configuration([one], self._sweep.seeds)]
        values = [record.value for record in found if record.status == "done"]
        done = [value for value in values if value is not None]
        return sum(done) / len(done) if len(done) == len(found) else None

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.json"

    def _read(self) -> None:
        """Adds what was asked for, by this driver or another."""
        while value := records.read_json(self._path(len(self._configurations))):
            values = {name: parse_value(text) for name, text in value["values"].items()}
            number = len(self._configurations)
            self._configurations.append(
                points.of(self._sweep.axes, values, number, self._no_change)
            )
