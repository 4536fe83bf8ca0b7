"""Runs the trials of a sweep: claims them, starts them, watches them, records what became of them.

A trial belongs to whoever holds its lease, so that any number of drivers work on one sweep. What a
killed driver leaves is a record that says `running` and a lease whose holder is dead: the next one
starts the trial's recipe again, which continues from its own checkpoint.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from t5x_style.sweeps import measures, settling
from t5x_style.sweeps.launchers import Job, Launcher
from t5x_style.sweeps.outcomes import Outcomes
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.pruning import Pruner
from t5x_style.sweeps.trial_records import Kept, TrialRecords
from t5x_style.sweeps.trials import Record, Trial
from t5x_style.workflow.leases import Lease, LeaseLost, Leases

POLL_SECONDS = 0.5
Records = dict[str, Record]


class Source(Protocol):
    """Where trials come from."""

    def trials(self) -> Sequence[Trial]:
        """Those that are known, in order; the order never changes."""

    def more(self, records: Mapping[str, Record]) -> bool:
        """Adds trials, where what is known of the others says which; False for none."""

    def is_complete(self) -> bool:
        """Whether no more will come."""


@dataclass
class Running:
    """A trial of this driver.

    Attributes:
      kept: its record.
      began: by the driver's clock.
      stopped: the record that it gets once it has ended, because the driver stopped it.
      lost: another driver has taken it over, since this process was suspended for long.
    """

    trial: Trial
    kept: Kept
    lease: Lease
    job: Job
    began: float
    stopped: Record | None = None
    lost: bool = False


class Driver:
    """Works on a sweep until nothing is left that it could start or wait for."""

    def __init__(
        self,
        planner: Planner,
        source: Source,
        pruner: Pruner,
        launcher: Launcher,
        leases: Leases,
        say: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Args:
        planner: of the sweep.
        source: of trials.
        pruner: stops trials early.
        launcher: starts them.
        leases: who works on which.
        say: prints a line.
        sleep, clock: of the driver.
        """
        self._planner, self._sweep = planner, planner.sweep
        self._source, self._pruner, self._launcher = source, pruner, launcher
        self._leases, self._say, self._sleep, self._clock = leases, say, sleep, clock
        self.records = TrialRecords(self._sweep.folder)
        self._outcomes = Outcomes(planner, self.records)
        self._running: dict[str, Running] = {}
        self._retried: set[str] = set()
        self._files = _digest(planner.files())
        self.stopping = False
        self.changed = False

    def retry_failed(self) -> int:
        """Lets what has failed so far run again, with the parameters that it had; how many."""
        view = self.view()
        self._retried = {name for name, one in view.items() if one.status == "failed"}
        return len(self._retried)

    def stop(self) -> None:
        """No further trial starts; those that run save and end."""
        self.stopping = True

    def run(self) -> None:
        """Returns when every trial has ended, or none of the others may be started."""
        while True:
            self._collect()
            view = self.view()
            self._stop_early(view)
            waits = self._start(view)
            if not self._running and not waits:
                return
            self._sleep(POLL_SECONDS)

    def view(self) -> Records:
        """Trial's name -> its record, running ones with their curves, pruned where judged so."""
        trials = self._source.trials()
        found = {trial.name: self._outcomes.seen(trial) for trial in trials}
        for name, one in self._running.items():
            if found[name].status == "running":
                seconds = one.kept.record.seconds + self._clock() - one.began
                found[name] = replace(found[name], seconds=seconds)
        return settling.settled(trials, found, self._pruner, self._sweep.larger_is_better)

    def _collect(self) -> None:
        """Records the trials that have ended."""
        for name, one in list(self._running.items()):
            code = one.job.ended()
            if one.lost:
                one.job.stop()
            if code is None:
                continue
            del self._running[name]
            seconds = round(one.kept.record.seconds + self._clock() - one.began, 3)
            record = one.stopped or self._outcomes.of(one.trial, code)
            record = replace(record, attempts=one.kept.record.attempts, seconds=seconds)
            try:
                with one.lease.guard():
                    self.records.write(replace(one.kept, record=record))
            except LeaseLost as error:
                self._say(f"{name}: {error}")
                continue
            one.lease.release()
            self._say(f"{name}: {in_words(record)}")

    def _stop_early(self, view: Records) -> None:
        """Asks trials to end that were pruned, have no usable value, or used up their minutes."""
        self._watch_files()
        for name, one in self._running.items():
            seen = view[name]
            if one.stopped is None:
                if seen.status == "pruned" or seen.status == "failed":
                    one.stopped = seen
                elif self._is_over_time(seen):
                    one.stopped = self._out_of_time(seen)
                elif self.stopping:
                    one.stopped = replace(seen, status="preempted")
                if one.stopped is not None:
                    one.job.stop()

    def _is_over_time(self, seen: Record) -> bool:
        minutes = self._sweep.limits.trial_minutes
        return minutes is not None and seen.seconds > 60 * minutes

    def _out_of_time(self, seen: Record) -> Record:
        last = seen.curve[-1] if seen.curve else (None, None)
        reason = f"trial_minutes = {self._sweep.limits.trial_minutes} were used up"
        return replace(seen, status="pruned", step=last[0], value=last[1], reason=reason)

    def _watch_files(self) -> None:
        if not self.changed and _digest(self._planner.files()) != self._files:
            self.changed = True
            self._say(
                f"{self._sweep.title}: the sweep file or a gin file of its recipe changed since "
                "this command read it. No further trial starts; those that run go on. The same "
                "command then continues with the new file."
            )

    def _start(self, view: Records) -> bool:
        """Starts what may start; whether there is something to wait for that this driver lacks."""
        if self.stopping or self.changed:
            return False
        waits = False
        for trial in self._source.trials():
            record = view[trial.name]
            again = record.status == "failed" and trial.name in self._retried
            if trial.name in self._running or (record.status in settling.ENDED and not again):
                continue
            if self._must_wait(trial, view):
                waits = True
                continue
            if self._is_spent(trial, view):
                return waits or self._others_run(view)
            if not self._launcher.free():
                return True
            if self._claim(trial, again):
                view[trial.name] = replace(record, status="running")
            else:
                waits = True
        if self._launcher.free() and not self._source.is_complete():
            return self._source.more(view) or waits or self._others_run(view)
        return waits

    def _others_run(self, view: Records) -> bool:
        return any(
            one.status == "running" and name not in self._running for name, one in view.items()
        )

    def _must_wait(self, trial: Trial, view: Records) -> bool:
        """Whether an earlier seed of its configuration may still be pruned."""
        if self._pruner.name == "none":
            return False
        for one in self._source.trials():
            if one.name == trial.name:
                break
            same = one.configuration.name == trial.configuration.name
            if same and view[one.name].status not in settling.ENDED:
                return True
        return False

    def _is_spent(self, trial: Trial, view: Records) -> bool:
        """Whether the trial would go beyond the limits of the sweep."""
        limits = self._sweep.limits
        seconds = sum(one.seconds for one in view.values())
        if limits.minutes is not None and seconds >= 60 * limits.minutes:
            return True
        if limits.steps is None or view[trial.name].status != "queued":
            return False
        used = 0
        for name, one in view.items():
            if one.status == "pruned":
                used += one.step or 0
            elif one.status != "queued":
                used += self._steps(name)
        return used + self._steps(trial.name) > limits.steps

    def _steps(self, name: str) -> int:
        trial = next(one for one in self._source.trials() if one.name == name)
        return measures.steps(self._planner.of(trial).last) or 0

    def _claim(self, trial: Trial, again: bool) -> bool:
        """Starts a trial that no other driver has; whether this one has it now."""
        found: list[Running] = []
        lease = self._leases.claim(self.lease_name(trial), lambda: _lose(found))
        if lease is None:
            return False
        before = self._outcomes.seen(trial)  # another driver may have ended it meanwhile
        if before.status in settling.ENDED and not again and not settling.by_pruner(before):
            lease.release()
            return False
        self._retried.discard(trial.name)
        record = replace(
            before, status="running", attempts=before.attempts + 1, reason="", value=None, step=None
        )
        kept = Kept(trial, self._planner.of(trial).last.fingerprint, record)
        with lease.guard():
            self.records.write(kept)
        run_dir = str(self.records.run_dir(trial.name))
        flags = self._planner.command(self._planner.bindings(trial), run_dir)
        job = self._launcher.start(
            flags.arguments(), self.records.folder_of(trial.name) / "log.txt"
        )
        one = Running(trial, kept, lease, job, self._clock())
        found.append(one)
        self._running[trial.name] = one
        self._say(f"{trial.name}: {'continues' if before.attempts else 'starts'}")
        return True

    def lease_name(self, trial: Trial) -> str:
        """Of a trial, in a store that other sweeps use as well."""
        return f"sweep-{folder_key(self._sweep.folder)}-{trial.name}"


def _lose(found: list[Running]) -> None:
    for one in found:
        one.lost = True


def in_words(record: Record) -> str:
    """What became of a trial, in a line."""
    parts: list[str] = [record.status]
    if record.value is not None:
        parts.append(f"{record.value:.4f}" + (f" at step {record.step}" if record.step else ""))
    if record.reason:
        parts.append(record.reason)
    return ", ".join(parts)


def _digest(paths: Iterable[Path]) -> str:
    """Of the contents of files; one that is gone counts as empty."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(path.read_bytes())
        except OSError:
            digest.update(b"gone")
        digest.update(b"\0")
    return digest.hexdigest()


def folder_key(folder: Path) -> str:
    """Twelve digits that stand for a sweep's folder in the names of leases."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
