"""A trial on the slices of a worker: `kennel tpu up` in a thread, with an end for the sweep.

The job on the hosts depends on no thread and no driver. Where the driver is killed, the next one
starts the same trial on the same worker, finds its job running there, and follows it.
"""

import re
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launch.cloud import decisions, recovery
from launch.cloud.decisions import End
from launch.cloud.endings import FINAL, MEANINGS, Ending
from launch.cloud.gcloud import Completed, Gcloud, GcloudError
from launch.cloud.recovery import Follower, Recovery
from launch.cloud.remote_job import STATUS_TIMEOUT, LogFollower, RemoteJob
from launch.cloud.reports import Host
from launch.cloud.requests import Request
from t5x_style.leases.lease import Lease, LeaseLost
from t5x_style.storage.errors import StorageError, Unreachable
from t5x_style.sweeps.launchers import NOT_RUN, begun_log
from t5x_style.sweeps.outcomes import STOPPED

Follow = Callable[[RemoteJob, Gcloud, IO[bytes]], Follower]
FAILED, KILLED = 1, 137  # exit codes of a recipe, see `launch.recipe`
ATTEMPT = r"(?m)^== {}, attempt \d+ on .*\n"  # in a host's log, see `launch.cloud.host`


class _Interrupted(Exception):
    """The thread is to end instead of waiting."""


@dataclass(frozen=True)
class LeasedJob(RemoteJob):
    """A job on the slices of a worker, for as long as this driver has their lease.

    A driver that was suspended for long does not touch the jobs of the next one.

    Attributes:
      lease: of the slices. Its `LeaseLost` is raised where another driver has them.
    """

    lease: Lease

    def start(self, gcloud: Gcloud) -> Completed:
        with self.lease.guard():
            return super().start(gcloud)

    def stop(self, gcloud: Gcloud) -> tuple[list[Host], str]:
        with self.lease.guard():
            return super().stop(gcloud)

    def kill(self, gcloud: Gcloud) -> tuple[list[Host], str]:
        with self.lease.guard():
            return super().kill(gcloud)


class SliceJob:
    """A trial that was started; see `t5x_style.sweeps.launchers.Job`.

    Attributes:
      unavailable: why its slices cannot run trials; "" while they can.
      runs_nothing: whether no job can run on these slices, where they are unavailable.
      reported: identity of its job on the hosts, if that failed; "" otherwise.
    """

    def __init__(
        self,
        request: Request,
        remote: "LeasedJob",
        log: Path,
        gcloud: Gcloud,
        say: Callable[[str], None],
        known: str = "",
        follow: Follow = LogFollower,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """Args:
        request: of the worker's slices.
        remote: the trial's recipe on their hosts.
        log: the trial's, to which that of the first host is appended.
        gcloud: the command.
        say: prints a line.
        known: identity of a job whose failure was reported before: it is started again.
        follow: shows the log.
        wait: for an event, so many seconds at most.
        """
        self._request, self._remote, self._log = request, remote, log
        self._gcloud, self._follow, self._known = gcloud, follow, known
        self._say, self._wait_for = say, wait
        self._leaving, self._stopping = threading.Event(), threading.Event()
        self._killing = threading.Event()
        self._code = NOT_RUN
        self._begun, self._over, self._running = time.monotonic(), 0.0, _Running()
        self.unavailable = self.reported = ""
        self.runs_nothing = False
        self._thread = threading.Thread(target=self._run, name=request.name, daemon=True)
        self._thread.start()

    def ended(self) -> int | None:
        """See `Job.ended`."""
        return None if self._thread.is_alive() else self._code

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended by itself, so that it runs on no host."""
        return not self._thread.is_alive() and self._code not in (NOT_RUN, STOPPED)

    def stop(self) -> None:
        """See `Job.stop`."""
        self._stopping.set()

    def kill(self) -> None:
        """See `Job.kill`: after it was asked to save and end."""
        self._killing.set()
        self._stopping.set()

    def leave(self) -> None:
        """Ends the thread, not the job: another driver has the worker now, or will have it."""
        self._leaving.set()
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Waits for the thread's end, so many seconds at most."""
        self._thread.join(seconds)

    def waited(self) -> float:
        """See `Job.waited`."""
        total = (self._over or time.monotonic()) - self._begun
        return max(0.0, total - self._running.seconds())

    def _run(self) -> None:
        try:
            with begun_log(self._log) as file:
                self._code = self._work(file)
        except Unreachable as error:  # the slices are there: a later start may find the bucket
            self._say(f"the trial's slices are left alone: {error}")
        except StorageError as error:
            self.unavailable = str(error)
        except Exception:  # whatever it is, the driver and its other trials continue
            self.unavailable = f"an error in Kennel:\n{traceback.format_exc()}"
        self._over = time.monotonic()

    def _work(self, file: IO[bytes]) -> int:
        """Runs the trial; its exit code."""
        remote, gcloud = self._remote, self._gcloud.waiting(self._wait)
        follower = _Timed(self._follow(remote, gcloud, file), self._running)
        up = Recovery(self._request, remote, gcloud, follower, self._say, replaces=True)
        up.guard = remote.lease.guard
        up.past.known = remote.identity == self._known
        try:
            try:
                return self._ended(up.up())
            except _Interrupted:
                if self._leaving.is_set():
                    return NOT_RUN
                self._end_on_hosts()
                return NOT_RUN if self._leaving.is_set() else STOPPED
        except LeaseLost:
            return NOT_RUN

    def _wait(self, seconds: float) -> None:
        if self._wait_for(self._stopping, seconds):
            raise _Interrupted

    def _ended(self, end: End) -> int:
        """The exit code of a recipe that ended by itself, or of slices that cannot run it."""
        if end.ending == Ending.DONE:
            return 0
        if end.ending in (Ending.JOB_FAILED, Ending.KILLED):
            self._append_log()
            self.reported = self._remote.identity
            return FAILED if end.ending == Ending.JOB_FAILED else KILLED
        self.unavailable = f"{MEANINGS[end.ending]}: {end.why}"
        self.runs_nothing = end.ending in FINAL
        return NOT_RUN

    def _append_log(self) -> None:
        """What the last attempt has printed on the first host: the stream may have lacked it."""
        done = self._gcloud.on_hosts(self._remote.log(follow=False), STATUS_TIMEOUT)
        with begun_log(self._log) as file:
            attempts = re.split(ATTEMPT.format(re.escape(self._request.name)), done.out)
            file.write(attempts[-1].encode() + b"\n")

    def _end_on_hosts(self) -> None:
        """Has the job save and end; one that does not is killed once the driver says so."""
        remote = self._remote
        try:
            found = recovery.find(self._gcloud, self._request.place)
            if found is None or found.state != "ACTIVE":
                return
            if why := decisions.foreign(self._request, found):
                self._say(why)
                return
            hosts, said = remote.stop(self._gcloud)
            while any(one.state == "running" for one in hosts):
                kill = self._wait_for(self._killing, decisions.Limits.poll)
                if self._leaving.is_set():
                    return
                hosts, said = remote.kill(self._gcloud) if kill else remote.stop(self._gcloud)
        except GcloudError as error:
            self._say(f"could not be asked to save and end: {error.short}")
            return
        if len(hosts) < self._request.hosts:
            silent = self._request.hosts - len(hosts)
            self._say(f"{silent} hosts did not answer, and may continue the trial: {said}")


class _Running:
    """For how long a job has run on its hosts."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        self._since = time.monotonic() if self._since is None else self._since

    def end(self) -> None:
        self._before, self._since = self.seconds(), None

    def seconds(self) -> float:
        since = self._since
        return self._before + (0.0 if since is None else time.monotonic() - since)


class _Timed:
    """A follower that notes when the job runs."""

    def __init__(self, follower: Follower, running: _Running) -> None:
        self._follower, self._running = follower, running

    def ensure(self) -> None:
        self._running.begin()
        self._follower.ensure()

    def stop(self) -> None:
        self._running.end()
        self._follower.stop()
