"""Texts for ssh that start a job on the hosts of a slice, and report, show and stop it.

`start_text(Job(...))` is run on all hosts alike. On each it makes the environment, starts a
supervisor that outlives ssh and the launcher (`launch.cloud.host`), and prints one line:

    {"host": "t1v-n-0-w-1", "run": "a", "state": "running", "job": "...", "exit_code": null, ...}

state      running; done; failed; absent: never started on this host
exit_code  null while it runs; 143 of a job that was stopped, 137 of one that its host took down
job        `Job.identity` of what was started; code and lock are hashes
attempt    how often it was started on this host

Run again it starts no second job. The exit code is not 0 if the host could not be set up.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launch.cloud.remote_shell import command_text

_HOST = Path(__file__).with_name("host.py")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


class JobError(ValueError):
    """A job that no host can run."""


@dataclass(frozen=True)
class Job:
    """What every host of a run does.

    Attributes:
      name: of the run, as a DNS label. A host runs one job of a name at a time.
      command: arguments of Python, as in ('-m', 'launch.recipe', '--gin_file=...'). It runs in the
        root of the code.
      code: hash of the archive; see `launch.cloud.code_archive`.
      archive: where a host finds it: gs://..., or a path on the host, relative to the home folder.
      environment: variables of the job. Other users of a host can see them in the list of its
        processes, so that secrets do not belong here.
    """

    name: str
    command: tuple[str, ...]
    code: str
    archive: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise JobError(
                "name of a job: expected lower-case letters, digits and dashes, a letter first, at "
                f"most 63 characters; found {self.name!r}"
            )

    @property
    def text(self) -> str:
        """All of it as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def identity(self) -> str:
        """SHA-256 of all of it: hosts report it as `job`."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def start_text(job: Job) -> str:
    """Sets a host up and starts the job there, unless it runs.

    Raises:
      RemoteShellError: a word cannot pass through ssh; see `command_text`.
    """
    return _text("start", job.text)


def status_text(name: str) -> str:
    """Prints the state of a job."""
    return _text("status", name)


def log_text(name: str, follow: bool = False, lines: int = 100) -> str:
    """Prints the last lines of a job's log.

    Args:
      name: of the job.
      follow: continue until the job ends.
      lines: how many.
    """
    return _text("log", name, str(lines), "follow" if follow else "once")


def stop_text(name: str, seconds: float = 60, kill: bool = False) -> str:
    """Sends SIGTERM, upon which the job saves and ends; prints its state then.

    Args:
      name: of the job.
      seconds: how long to wait for the end. The state is `running` if it did not come.
      kill: end it at once, without saving: a job that hangs.
    """
    return _text("stop", name, str(seconds), "kill" if kill else "term")


def _text(*words: str) -> str:
    return command_text(["python3", "-c", _HOST.read_text(encoding="utf-8"), *words])
