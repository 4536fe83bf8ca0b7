"""Runs the trials of a sweep on slices: see `t5x_style.sweeps.launchers.Launcher`.

A worker's slices belong to the driver that has the lease of their name, so that two drivers never
use one resource. SWEEP_DIR/workers/NAME.json notes which trial ran there last: a trial goes back to
the slices that may still run its job.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.cloud import recipe_job
from launch.cloud.gcloud import ANSWER_TIMEOUT, Gcloud, GcloudError
from launch.cloud.remote_job import LogFollower
from launch.cloud.requests import FOLDER_LABEL, Request
from launch.cloud.slice_jobs import FAILED, Follow, LeasedJob, SliceJob
from launch.cloud.sweep_fleet import Fleet
from t5x_style.leases.lease import Lease, LeaseLost, Leases
from t5x_style.storage import records
from t5x_style.storage.errors import StorageError
from t5x_style.sweeps.launchers import NOT_RUN, EndedJob, Job, begun_log
from t5x_style.workflow import remote_store

NOTES = "workers"  # folder of SWEEP_DIR
CLAIM_SECONDS = 15.0  # between two attempts to get slices that another driver has
CLOSE_SECONDS = ANSWER_TIMEOUT + 10.0  # for jobs' threads, which may just ask for slices
DELETE_SECONDS = 60.0  # between two attempts to delete slices, after one that failed


@dataclass
class _Worker:
    """A place for one trial at a time.

    Attributes:
      request: for its slices.
      lease: of the slices; None while another driver has them.
      job: that runs there, if one does.
      trial: the last one that was started there.
      has_ended: whether that one has ended by itself: its job runs on no host.
      reported: identity of the last job that failed there.
      retired: why no trial can run there any more.
      is_gone: whether its slices were deleted since the last trial.
    """

    request: Request
    lease: Lease | None = None
    job: SliceJob | None = None
    trial: str = ""
    has_ended: bool = True
    reported: str = ""
    retired: str = ""
    is_gone: bool = False

    @property
    def is_free(self) -> bool:
        return self.lease is not None and self.job is None and not self.retired


class SliceLauncher:
    """Starts trials on slices, one on those of each worker.

    Attributes:
      devices: chips of a worker's slices.
      fleet: the slices of all workers.
      gcloud: the command.
      undeleted: names of slices that should have been deleted, and were not.
    """

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        leases: Leases,
        gcloud: Gcloud,
        say: Callable[[str], None],
        delete_idle: bool = False,
        follow: Follow = LogFollower,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        fleet: the slices of all workers.
        folder: of the sweep.
        leases: of the store.
        gcloud: the command.
        say: prints a line.
        delete_idle: whether slices that no trial will need are deleted.
        follow, wait: see `SliceJob`.
        clock: seconds.
        """
        self.devices, self.fleet = fleet.request.slices.all_chips, fleet
        self._workers = [_Worker(one) for one in fleet.requests]
        self._folder, self._leases = folder / NOTES, leases
        self.gcloud, self._say, self._follow = gcloud, say, follow
        self._wait, self._clock, self._claimed = wait, clock, -CLAIM_SECONDS
        self._delete_idle, self._failed = delete_idle, -DELETE_SECONDS
        self.undeleted: set[str] = set()

    @property
    def retired(self) -> list[str]:
        """Names of slices that can run no trial any more, each with the reason."""
        return [f"{one.request.name}: {one.retired}" for one in self._workers if one.retired]

    def free(self) -> int:
        """See `Launcher.free`."""
        for worker in self._workers:
            if worker.job is not None and worker.job.ended() is not None:
                self._collect(worker, worker.job)
        if self._clock() - self._claimed >= CLAIM_SECONDS:
            self._claimed = self._clock()
            self._claim()
        return sum(one.is_free for one in self._workers)

    def is_waiting(self) -> bool:
        """See `Launcher.is_waiting`."""
        return any(one.lease is None and not one.retired for one in self._workers)

    def no_more(self) -> None:
        """See `Launcher.no_more`."""
        if not self._delete_idle or self._clock() - self._failed < DELETE_SECONDS:
            return
        for worker in self._workers:
            if worker.lease is not None and worker.is_free and not worker.is_gone:
                worker.is_gone = self._delete(worker.request.name, worker.lease)
                if not worker.is_gone:
                    self._failed = self._clock()

    def start(self, trial: str, arguments: Sequence[str], log: Path) -> Job:
        """See `Launcher.start`."""
        free = [one for one in self._workers if one.is_free]
        if not free:  # another driver has taken the slices since `free`
            return EndedJob(NOT_RUN)
        worker = min(free, key=lambda one: (one.trial != trial, not one.has_ended))
        request, lease = worker.request, worker.lease
        if lease is None:
            return EndedJob(NOT_RUN)
        try:
            job = recipe_job.read(arguments)
            commands = recipe_job.host_commands(request.name, job, request.hosts)
        except ValueError as error:  # a recipe that hosts cannot run: the trial has failed
            with begun_log(log) as file:
                file.write(f"error: {error}\n".encode())
            return EndedJob(FAILED)
        worker.trial, worker.has_ended, worker.is_gone = trial, False, False
        if not self._note(worker):
            return EndedJob(NOT_RUN)
        worker.job = SliceJob(
            request, LeasedJob(request.place, commands, lease), log, self.gcloud,
            lambda line: self._say(f"{request.name}: {line}"),
            worker.reported, self._follow, self._wait,
        )  # fmt: skip
        return worker.job

    def close(self, delete: bool = False) -> None:
        """Lets other drivers have the slices; jobs on hosts do not notice.

        Args:
          delete: whether the sweep's slices are deleted before, those of more workers than now
            included. Slices that another driver has stay.
        """
        self._leave_jobs()
        if delete:
            self._delete_all()
        for worker in self._workers:
            self._release(worker)

    def _leave_jobs(self) -> None:
        """Ends the threads of jobs: one that continued could ask for slices after this driver."""
        jobs = [(one, one.job) for one in self._workers if one.job is not None]
        for _, job in jobs:
            job.leave()
        until = time.monotonic() + CLOSE_SECONDS
        for worker, job in jobs:
            job.join(max(0.0, until - time.monotonic()))
            if job.ended() is not None:
                self._collect(worker, job)
            else:  # it can change nothing once the lease is released
                self._say(f"{worker.request.name}: a call of gcloud has not ended yet")

    def _delete_all(self) -> None:
        held = {one.request.name: one.lease for one in self._workers if one.lease is not None}
        try:
            for one in self.fleet.found(self.gcloud):
                if one.name in held:
                    self._delete(one.name, held[one.name])
                elif lease := self._leases.claim(self._lease_name(one.name), lambda: None):
                    self._delete(one.name, lease)
                    lease.release()
                else:
                    self._say(f"{one.name} is not deleted: another driver has it")
        except (GcloudError, StorageError) as error:
            self.undeleted.update(held)
            self._say(f"not all slices could be deleted: {error}")

    def _delete(self, name: str, lease: Lease) -> bool:
        """Deletes slices; whether nothing is left to do about them."""
        try:
            with lease.guard():
                said = self.fleet.delete(self.gcloud, name)
        except LeaseLost as error:
            self._say(f"{name} is not deleted: {error}")
            return True
        except (GcloudError, StorageError) as error:
            self.undeleted.add(name)
            self._say(f"{name} could not be deleted: {error}")
            return False
        self.undeleted.discard(name)
        if said:
            self._say(said)
        return True

    def _collect(self, worker: _Worker, job: SliceJob) -> None:
        """Notes how a trial ended."""
        worker.job = None
        worker.has_ended = job.has_ended
        worker.reported = job.reported or worker.reported
        self._note(worker)
        if worker.lease is None:
            return
        if job.unavailable:
            worker.retired = job.unavailable
            self._say(f"{worker.request.name} runs no further trial: {worker.retired}")
            if self._delete_idle and job.runs_nothing:
                self._delete(worker.request.name, worker.lease)
            for line in self.fleet.costs(self.gcloud, worker.request.name):
                self._say(line)
            self._release(worker)

    def _claim(self) -> None:
        """Takes the slices that no other driver has."""
        for worker in self._workers:
            if worker.lease is None and worker.job is None and not worker.retired:
                name = self._lease_name(worker.request.name)
                worker.lease = self._leases.claim(name, functools.partial(_lose, worker))
                try:
                    self._read_note(worker)
                except StorageError:
                    self._release(worker)  # claimed again once the note can be read
                    raise

    def _lease_name(self, name: str) -> str:
        return f"slices-{self.fleet.request.all_labels[FOLDER_LABEL]}-{name}"

    def _release(self, worker: _Worker) -> None:
        if worker.lease is not None:
            worker.lease.release()
        worker.lease = None

    def _path(self, worker: _Worker) -> Path:
        return self._folder / f"{worker.request.name}.json"

    def _read_note(self, worker: _Worker) -> None:
        if worker.lease is None:
            return
        remote_store.copy_record(self._path(worker))
        note: dict[str, Any] = records.read_json(self._path(worker)) or {}
        worker.trial = str(note.get("trial", ""))
        worker.has_ended = bool(note.get("has_ended", True))
        worker.reported = str(note.get("reported", ""))

    def _note(self, worker: _Worker) -> bool:
        """Writes what ran there last; whether that was possible: another driver may have it."""
        lease = worker.lease
        if lease is None:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        note = {
            "trial": worker.trial,
            "has_ended": worker.has_ended,
            "reported": worker.reported,
        }
        try:
            with lease.guard():
                records.write_json(self._path(worker), note)
        except LeaseLost:
            self._release(worker)
            return False
        except StorageError as error:
            self._say(f"{worker.request.name}: {error}")
            return False
        return True


def _lose(worker: _Worker) -> None:
    """Another driver has the slices now, since this process was suspended for long."""
    worker.lease = None
    if worker.job is not None:
        worker.job.leave()
