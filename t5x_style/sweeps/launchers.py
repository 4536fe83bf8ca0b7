"""Launchers of trials: an interface, and one for this machine."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.workflow import recipe_checks, stage_runner

MODULE = "launch.recipe"
NOT_RUN = 75  # in place of a recipe's exit code: the launcher had no machine; no trial failed


class Job(Protocol):
    """A trial that was started."""

    def ended(self) -> int | None:
        """The exit code of its recipe, see `launch.recipe`, or `NOT_RUN`; None while it runs."""

    def stop(self) -> None:
        """Asks it to save and end; may be called again."""

    def kill(self) -> None:
        """Ends it at once."""

    def waited(self) -> float:
        """Seconds so far for which it waited for a machine; they are not the trial's."""


class Launcher(Protocol):
    """Starts recipes, a few at a time.

    Attributes:
      devices: accelerators of each trial, for the account of device-seconds.
    """

    devices: int

    def free(self) -> int:
        """Number of further trials that can be started now."""

    def is_waiting(self) -> bool:
        """Whether more can be started once other drivers end."""

    def no_more(self) -> None:
        """No trial is left that waits to be started: machines without one may go."""

    def start(self, trial: str, arguments: Sequence[str], log: Path) -> Job:
        """Runs a recipe.

        Args:
          trial: its name.
          arguments: of `launch.recipe`.
          log: its output is appended there.
        """


class EndedJob:
    """A trial that could not be started."""

    def __init__(self, code: int):
        """Args:
        code: what its recipe would have ended with.
        """
        self._code = code

    def ended(self) -> int:
        """See `Job.ended`."""
        return self._code

    def stop(self) -> None:
        """See `Job.stop`."""

    def kill(self) -> None:
        """See `Job.kill`."""

    def waited(self) -> float:
        """See `Job.waited`."""
        return 0.0


class LocalJob:
    """A process of this machine, with the cores that it has."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]):
        self._process, self._log = process, log

    def ended(self) -> int | None:
        """See `Job.ended`."""
        code = self._process.poll()
        if code is not None and not self._log.closed:
            self._log.close()
        return code

    def stop(self) -> None:
        """See `Job.stop`."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """See `Job.kill`; its stage dies with it."""
        if self._process.poll() is None:
            self._process.kill()

    def waited(self) -> float:
        """See `Job.waited`: none, since this machine is there."""
        return 0.0


class LocalLauncher:
    """Processes of this machine, each with cores that no other trial of this launcher has.

    A driver that dies takes its trials along: two of them would write to one place.
    """

    def __init__(self, workers: int, cores: int | None = None):
        """Args:
        workers: trials at once.
        cores: of each; None: an equal part of those that this process may use, at least one.
          More than there are: trials share them all.
        """
        self.devices = 1
        there = _cores()
        each = cores or max(1, len(there) // workers)
        parts = [there[one * each : (one + 1) * each] for one in range(workers)]
        self._parts = [part if len(part) == each else there for part in parts]
        self._jobs: dict[int, LocalJob] = {}

    def free(self) -> int:
        """See `Launcher.free`."""
        return len(self._free_places())

    def _free_places(self) -> list[int]:
        ended = [place for place, job in self._jobs.items() if job.ended() is not None]
        for place in ended:
            del self._jobs[place]
        return [place for place in range(len(self._parts)) if place not in self._jobs]

    def is_waiting(self) -> bool:
        """See `Launcher.is_waiting`: drivers share this machine."""
        return False

    def no_more(self) -> None:
        """See `Launcher.no_more`: this machine stays."""

    def start(self, trial: str, arguments: Sequence[str], log: Path) -> LocalJob:
        """See `Launcher.start`."""
        del trial
        place = self._free_places()[0]
        file = begun_log(log)
        with _on(self._parts[place]):
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,  # Ctrl-C reaches the trials through the driver
            )
        self._jobs[place] = LocalJob(process, file)
        return self._jobs[place]


def begun_log(path: Path) -> IO[bytes]:
    """A trial's log, to which a new attempt is appended after a line with the time.

    The caller closes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "ab")  # noqa: SIM115  see above
    file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
    file.flush()
    return file


def _environment() -> Mapping[str, str]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    mine = {stage_runner.PARENT: str(os.getpid()), recipe_checks.CHECKED: "1"}
    return os.environ | {"PYTHONPATH": path} | mine


def _cores() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Run what starts meanwhile on these cores alone, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
