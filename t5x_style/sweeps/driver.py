"""Runs the trials of a sweep: claims them, starts them, watches them, records what became of them.

A trial belongs to whoever holds its lease, so that any number of drivers work on one sweep. What a
killed driver leaves is a record that says `running` and a lease whose holder is dead: the next one
starts the trial's recipe again, which continues from its checkpoint.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from t5x_style.leases.lease import Lease, LeaseLost, Leases
from t5x_style.storage.errors import StorageError, Unreachable
from t5x_style.storage.outages import Outage
from t5x_style.sweeps import measures, planning, settling, trial_records
from t5x_style.sweeps.launchers import NOT_RUN, Job, Launcher
from t5x_style.sweeps.outcomes import Outcomes
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.pruning import Pruner
from t5x_style.sweeps.remote_sweep import RemoteSweep
from t5x_style.sweeps.trial_records import LOG, Kept, TrialRecords
from t5x_style.sweeps.trials import Record, Trial
from t5x_style.workflow import remote_store

POLL_SECONDS = 0.5
LONGEST_POLL = 5.0  # seconds
BUSY_SHARE = 0.2  # of a core, that the driver takes at most while nothing happens
GRACE_SECONDS = 300.0  # after which a trial that does not save and end is killed
STOPS = 5  # times that somebody else may stop a trial; then it has failed
Records = dict[str, Record]


class Source(Protocol):
    """Source of trials."""

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
      asked: when it was asked to end, by the driver's clock.
      took: seconds of this attempt, once it has ended.
      ending: the record that it gets then.
      lost: another driver has taken it over, since this process was suspended for long.
    """

    trial: Trial
    kept: Kept
    lease: Lease
    job: Job
    began: float
    stopped: Record | None = None
    asked: float = 0.0
    took: float | None = None
    ending: Record | None = None
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
        remote: RemoteSweep,
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
        remote: what others have written to the sweep's folder.
        say: prints a line.
        sleep, clock: of the driver.
        """
        self._planner, self._sweep = planner, planner.sweep
        self._source, self._pruner, self._launcher = source, pruner, launcher
        self._leases, self._say, self._sleep, self._clock = leases, say, sleep, clock
        self.records = TrialRecords(self._sweep.folder)
        self._remote = remote
        self._outcomes = Outcomes(planner, self.records, self._remote)
        self._running: dict[str, Running] = {}
        self._viewed: Records = {}
        self._retried: set[str] = set()
        self._stops: dict[str, int] = {}  # trial -> how often somebody else has stopped it
        self._files = planner.files()
        self._read = planning.digest(self._files)
        self._said = False
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
        """Returns when every trial has ended, or none of the others may be started.

        Raises:
          Unreachable: object storage has not answered for an hour, or does not and the user has
            stopped the driver, whose trials have ended.
        """
        outage = Outage(self._say, self._clock)
        while True:
            began = self._clock()
            try:
                continues = self._work()
            except Unreachable as error:
                self._stop_early(self._viewed)
                ended = all(one.job.ended() is not None for one in self._running.values())
                outage.lasts(error, is_urgent=self.stopping and ended)
            else:
                outage.is_over()
                if not continues:
                    return
            busy = (self._clock() - began) / BUSY_SHARE
            self._sleep(min(max(POLL_SECONDS, busy), LONGEST_POLL))

    def _work(self) -> bool:
        """Looks after trials once; whether something is left to wait for."""
        self._collect()
        view = self._viewed = self.view()
        self._stop_early(view)
        started = self._start(view)
        left = self._left(view)
        if not left and self._source.is_complete():
            self._launcher.no_more()
        return bool(self._running) or started or self._must_wait_for_others(left)

    def has_ended(self) -> bool:
        """Whether every trial has ended, and no more will come."""
        return not self._left(self.view()) and self._source.is_complete()

    def was_stopped(self) -> bool:
        """Whether trials are left because of the user, and not of a limit of the sweep."""
        return self.stopping or self.changed

    def view(self) -> Records:
        """Trial's name -> its record, running ones with their curves, pruned where judged so."""
        self._remote.look()
        trials = self._source.trials()
        found = {trial.name: self._outcomes.seen(trial) for trial in trials}
        for name, one in self._running.items():
            if found[name].status == "running":
                seconds = one.kept.record.seconds + self._seconds(one)
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
            one.took = self._seconds(one)
            record = one.ending = one.ending or one.stopped or self._outcome(one, code)
            seconds = round(one.kept.record.seconds + one.took, 3)
            record = replace(record, attempts=one.kept.record.attempts, seconds=seconds)
            try:
                with one.lease.guard():
                    self.records.write(replace(one.kept, record=record))
                self._remote.publish(self.records.folder_of(name) / LOG)
                self._say(f"{name}: {record.in_words}")
            except LeaseLost as error:
                self._say(f"{name}: {error}")
            del self._running[name]  # not before: object storage may be away meanwhile
            one.lease.release()

    def _seconds(self, one: Running) -> float:
        """Seconds that this attempt has run."""
        return self._clock() - one.began - one.job.waited() if one.took is None else one.took

    def _outcome(self, one: Running, code: int) -> Record:
        """Outcome of a trial that ended by itself; stopped again and again, it has failed."""
        trial = one.trial
        found = self._outcomes.of(trial, one.kept.record, code)
        if found.status == "preempted" and not self.changed and code != NOT_RUN:
            self._stops[trial.name] = self._stops.get(trial.name, 0) + 1
            if self._stops[trial.name] > STOPS:
                reason = f"it was stopped {STOPS + 1} times, by nobody known"
                return replace(found, status="failed", reason=reason)
        return found

    def _stop_early(self, view: Records) -> None:
        """Asks trials to end that were pruned, have no usable value, or used up their minutes."""
        self._watch_files()
        for name, one in self._running.items():
            if one.stopped is not None:
                if self._clock() - one.asked > GRACE_SECONDS:
                    one.job.kill()
                continue
            seen = view[name]
            if seen.status in ("pruned", "failed"):
                one.stopped = seen
            elif self._is_over_time(seen):
                one.stopped = self._out_of_time(seen)
            elif self.stopping:
                one.stopped = replace(seen, status="preempted")
            if one.stopped is not None:
                one.asked = self._clock()
                one.job.stop()

    def _is_over_time(self, seen: Record) -> bool:
        minutes = self._sweep.limits.trial_minutes
        return minutes is not None and seen.seconds > 60 * minutes

    def _out_of_time(self, seen: Record) -> Record:
        last = seen.curve[-1] if seen.curve else (None, None)
        reason = f"trial_minutes = {self._sweep.limits.trial_minutes} were used up"
        return replace(seen, status="pruned", step=last[0], value=last[1], reason=reason)

    def _watch_files(self) -> None:
        if not self.changed and planning.digest(self._files) != self._read:
            self.changed = True
            self._say(
                f"{self._sweep.title}: the sweep file or a gin file of its recipe changed since "
                "this command read it. No further trial starts; those that run continue. The same "
                "command then continues with the new file."
            )

    def _start(self, view: Records) -> bool:
        """Starts what may start, or asks for another trial; whether it did."""
        if self.stopping or self.changed or self._is_unmeasured(view):
            return False
        did = spent = False
        for trial in self._source.trials():
            if not self._launcher.free():
                return did
            record = view[trial.name]
            again = record.status == "failed" and trial.name in self._retried
            ended = record.status in settling.ENDED and not again
            if trial.name in self._running or ended or self._must_wait(trial, view):
                continue
            # those after it are no shorter way to use up what is left
            spent = spent or self._is_spent(trial, view)
            if spent and (record.status == "queued" or self._is_out_of_minutes(view)):
                continue
            if self._claim(trial, record, again):
                view[trial.name] = replace(record, status="running")
                did = True
        if self._launcher.free() and not spent and not self._source.is_complete():
            return self._source.more(view) or did
        return did

    def _is_unmeasured(self, view: Records) -> bool:
        """Whether a trial has failed for a reason that would be that of all others."""
        found = any(
            one.status == "failed"
            and one.reason.startswith(measures.UNMEASURED)
            and name not in self._retried
            for name, one in view.items()
        )
        if found and not self._said:
            self._say(f"{measures.UNMEASURED} in a trial that ended: no further one starts")
            self._said = True
        return found

    def _left(self, view: Records) -> list[Trial]:
        """Trials that this driver does not run, and that have not ended; some may be newer."""
        ended = {name for name, one in view.items() if one.status in settling.ENDED}
        done = ended | self._running.keys()
        return [one for one in self._source.trials() if one.name not in done]

    def _must_wait_for_others(self, left: Sequence[Trial]) -> bool:
        """Whether another driver works on a trial that is left, or has machines for one."""
        if any(self._leases.holder(self.lease_name(one)) is not None for one in left):
            return True
        may_start = bool(left) and not (self.stopping or self.changed)
        return may_start and self._launcher.is_waiting()

    def _must_wait(self, trial: Trial, view: Records) -> bool:
        """Whether the trial's configuration may still be pruned with an earlier seed."""
        if self._pruner.name == "none":
            return False
        open_seeds: set[int | None] = set()  # with trials before this one that have not ended
        for one in self._source.trials():
            if one.name == trial.name:
                return False
            if view[one.name].status not in settling.ENDED:
                open_seeds.add(one.seed)
            if one.configuration.name == trial.configuration.name and one.seed in open_seeds:
                return True
        return False

    def _is_spent(self, trial: Trial, view: Records) -> bool:
        """Whether the trial would go beyond the limits of the sweep."""
        if self._is_out_of_minutes(view):
            return True
        limit = self._sweep.limits.steps
        if limit is None or view[trial.name].status != "queued":
            return False
        used = 0
        for one in self._source.trials():
            record = view[one.name]
            if record.status == "pruned":
                used += record.step or 0
            elif record.status != "queued":
                used += self._steps(one)
        return used + self._steps(trial) > limit

    def _is_out_of_minutes(self, view: Records) -> bool:
        limit = self._sweep.limits.minutes
        return limit is not None and sum(one.seconds for one in view.values()) >= 60 * limit

    def _steps(self, trial: Trial) -> int:
        return measures.steps(self._planner.of(trial).last) or 0

    def _claim(self, trial: Trial, viewed: Record, again: bool) -> bool:
        """Starts a trial that no other driver has; whether this one has it now.

        Args:
          trial: to start.
          viewed: its record in the view by which it was chosen, which may be old by now.
          again: it has failed, and is retried.
        """
        found: list[Running] = []
        lease = self._leases.claim(self.lease_name(trial), lambda: _lose(found))
        if lease is None:
            return False
        try:
            one = self._begin(trial, viewed, again, lease)
        except StorageError:
            lease.release()  # so that it can be claimed again
            raise
        if one is None:
            lease.release()  # another driver has ended it meanwhile
            return False
        found.append(one)
        self._running[trial.name] = one
        return True

    def _begin(self, trial: Trial, viewed: Record, again: bool, lease: Lease) -> Running | None:
        """Starts a trial whose lease this driver has; None where it has ended."""
        log = self.records.folder_of(trial.name) / LOG
        self._remote.look_at(self.records.file_of(trial.name), log)
        before = self._outcomes.seen(trial)
        retried = again and before.status == "failed"
        resumed = viewed.status == "preempted" and settling.by_pruner(before)
        if before.status in settling.ENDED and not retried and not resumed:
            return None
        self._retried.discard(trial.name)
        seconds = before.seconds
        if before.status == "running":  # its driver was killed
            seconds = round(seconds + self._outcomes.unrecorded_seconds(trial), 3)
        if before.status in ("queued", "failed"):
            # until the stage begins, a link of before would lead to another log
            remote_store.remove_link(self._outcomes.stage(trial))
        attempts = before.attempts + 1
        record = Record("running", curve=before.curve, attempts=attempts, seconds=seconds)
        kept = Kept(trial, self._planner.of(trial).last.fingerprint, record)
        with lease.guard():
            self.records.write(kept)
        job = self._launcher.start(trial.name, self.command(trial), log)
        self._say(f"{trial.name}: {'continues' if before.attempts else 'starts'}")
        return Running(trial, kept, lease, job, self._clock())

    def command(self, trial: Trial) -> list[str]:
        """Arguments of the recipe that runs a trial."""
        run_dir = self.records.run_dir(trial.name)
        return self._planner.command(self._planner.bindings(trial), run_dir).arguments()

    def lease_name(self, trial: Trial) -> str:
        """Of a trial, in a store that other sweeps use as well."""
        return f"sweep-{trial_records.folder_key(self._sweep.folder)}-{trial.name}"


def _lose(found: Iterable[Running]) -> None:
    for one in found:
        one.lost = True
