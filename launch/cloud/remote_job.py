"""A job on the hosts of a run: started detached, asked for its state, its log followed.

The job outlives the launcher. Its state and exit code are in files on each host; a short command
over ssh prints them. That it is done is noted in RUN_DIR, too: without the note, a launcher that
was stopped after the slices were deleted would pay for new ones, to find nothing left to do.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from launch.cloud import queued_resources, reports
from launch.cloud.gcloud import Completed, Gcloud, GcloudError, last_lines
from launch.cloud.reports import Host
from launch.cloud.requests import Place

NoteState = Literal["asked", "done"]
STATUS_TIMEOUT = 300.0  # seconds; gcloud's ssh tries ten times, five seconds apart
SETUP_TIMEOUT = 3600.0  # Python and JAX are downloaded and installed
SAID_LINES = 3  # of gcloud's messages about hosts


@dataclass(frozen=True)
class HostCommands:
    """Shell texts for hosts, as `gcloud ... ssh --command` takes them.

    Attributes:
      identity: of the job: what runs, with which code.
      files: (path here, path on each host) of what `start` reads.
      start: sets a host up and starts the job detached, where it does not run yet.
      status: prints one JSON object: host, state, exit_code, job.
      log: prints the job's log, with `True` without end.
      stop: has the job save and end; prints as `status` does.
      kill: ends a job that does not end when asked; prints as `status` does.
    """

    identity: str
    files: Sequence[tuple[str, str]]
    start: str
    status: str
    log: Callable[[bool], str]
    stop: str
    kill: str = ""


@dataclass(frozen=True)
class RemoteJob:
    """A job at a place."""

    place: Place
    commands: HostCommands

    @property
    def identity(self) -> str:
        """See `HostCommands`."""
        return self.commands.identity

    def starting(self) -> list[list[str]]:
        """Argument lists for gcloud that set the hosts up and start the job, in order."""
        copies = [
            queued_resources.scp(self.place, [here], queued_resources.on_host(self.place, there))
            for here, there in self.commands.files
        ]
        return [*copies, queued_resources.ssh(self.place, self.commands.start)]

    def start(self, gcloud: Gcloud) -> Completed:
        """Sets the hosts up and starts the job; what failed first, or the last answer."""
        done = Completed(0, "", "")
        for arguments in self.starting():
            done = gcloud.on_hosts(arguments, SETUP_TIMEOUT)
            if done.code:
                break
        return done

    def asking(self) -> list[str]:
        """The argument list that asks all hosts for the job's state."""
        return queued_resources.ssh(self.place, self.commands.status)

    def hosts(self, gcloud: Gcloud) -> tuple[list[Host], str]:
        """The hosts that answer, and the end of what gcloud said: why others do not."""
        return self._reported(gcloud, self.asking())

    def stopping(self) -> list[str]:
        """The argument list that has the job save and end on all hosts."""
        return queued_resources.ssh(self.place, self.commands.stop)

    def stop(self, gcloud: Gcloud) -> tuple[list[Host], str]:
        """Has the job save and end; as `hosts`, after it."""
        return self._reported(gcloud, self.stopping())

    def kill(self, gcloud: Gcloud) -> tuple[list[Host], str]:
        """Ends a job that was asked to save and end, and did not; as `hosts`, after it."""
        return self._reported(gcloud, queued_resources.ssh(self.place, self.commands.kill))

    @staticmethod
    def _reported(gcloud: Gcloud, arguments: Sequence[str]) -> tuple[list[Host], str]:
        done = gcloud.on_hosts(arguments, STATUS_TIMEOUT)
        return reports.hosts(done.out), last_lines(done.err, SAID_LINES)

    def log(self, follow: bool, node: str = "0", worker: str = "0") -> list[str]:
        """The argument list that prints the log of a host."""
        return queued_resources.ssh(self.place, self.commands.log(follow), node, worker)


class LogFollower:
    """The log of the first host, in a process; see `recovery.Follower`."""

    def __init__(self, job: RemoteJob, gcloud: Gcloud, output: IO[bytes] | None = None) -> None:
        """Args:
        job: whose log.
        gcloud: the command.
        output: where it goes; None for our own output.
        """
        self._output = output
        self._argv = [gcloud.name, *job.log(follow=True)]
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            errors = None if self._output is None else subprocess.STDOUT
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=self._output, stderr=errors
            )

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._process = None


def note_address(run_dir: str, job: str, state: NoteState) -> str:
    """Where a note about a job is; two states are two objects, so that neither replaces "done"."""
    name = job if state == "done" else f"{job}-{state}"
    return f"{run_dir.rstrip('/')}/kennel-tpu/{name}.json"


def writing_note(here: str, run_dir: str, job: str, state: NoteState) -> list[str]:
    """The argument list that copies a note to its place."""
    return ["storage", "cp", here, note_address(run_dir, job, state), "--quiet"]


def reading_note(run_dir: str, job: str) -> list[str]:
    """The argument list that prints the note that a job is done."""
    return ["storage", "cat", note_address(run_dir, job, "done")]


def note(gcloud: Gcloud, run_dir: str, job: str, state: NoteState) -> None:
    """Notes that slices are about to be asked for, or that the job is done.

    A local RUN_DIR needs no note, since its host stays.

    Raises:
      GcloudError: the bucket did not take it.
    """
    if not run_dir.startswith("gs://"):
        return
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "note.json"
        here.write_text(json.dumps({"job": job, "state": state}), encoding="utf-8")
        gcloud.read_text(writing_note(str(here), run_dir, job, state))


def is_noted_done(gcloud: Gcloud, run_dir: str, job: str) -> bool:
    """Whether the job is noted as done.

    Raises:
      GcloudError: the bucket did not answer, or may not be read.
    """
    if not run_dir.startswith("gs://"):
        return False
    try:
        return gcloud.read(reading_note(run_dir, job)) == {"job": job, "state": "done"}
    except GcloudError as error:
        if error.kind == "not_found":
            return False
        raise
