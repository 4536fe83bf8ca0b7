"""Texts for ssh that start a job on the hosts of a slice, and report, show and stop it.

`start_text(Job(...))` is run on all hosts alike. On each it starts a supervisor that outlives ssh
and the launcher (`launch.cloud.host`), and prints one line:

    {"kennel": 1, "host": "t1v-n-0-w-1", "run": "a", "state": "running", "phase": "code", ...}

Run again it starts no second job. `statuses` finds these lines in what gcloud prints.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

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
      archive: where a host finds it: gs://..., or a path on the host, which may begin with ~/.
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


@dataclass(frozen=True)
class HostStatus:
    """The state of a job on one host.

    Attributes:
      host: its name.
      run: the job's name.
      state: running; done (exit code 0); failed; stopped (asked to, and saved); absent (never
        started on this host).
      phase: what it runs, or ran last: code, environment or job. What fails before `job` is not
        the user's program.
      exit_code: None while it runs, and where the host went down with it.
      error: why it did not come to run; "" where the log says it.
      attempt: how often it was started on this host.
      code: hash of its code.
      lock: hash of the lock of its packages; "" until the code is there.
      job: hash of all that was started; differs where command or environment do.
    """

    host: str
    run: str
    state: str
    phase: str = ""
    exit_code: int | None = None
    error: str = ""
    attempt: int = 0
    code: str = ""
    lock: str = ""
    job: str = ""


def start_text(job: Job) -> str:
    """Starts the job, unless it runs; exit code 1 if another one of this name does.

    Raises:
      RemoteShellError: a word cannot pass through ssh; see `command_text`.
    """
    described = {one.name: getattr(job, one.name) for one in fields(job)}
    described["environment"] = dict(job.environment)
    return _text("start", json.dumps(described, ensure_ascii=False))


def status_text(name: str) -> str:
    """Prints the state of a job."""
    return _text("status", name)


def log_text(name: str, follow: bool = False, lines: int = 100) -> str:
    """Prints the last lines of a job's log.

    Args:
      name: of the job.
      follow: go on until the job ends.
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


def statuses(output: str) -> dict[str, HostStatus]:
    """Host -> state, of the lines that the texts above printed; other lines are skipped."""
    known = {one.name for one in fields(HostStatus)}
    found = {}
    for line in output.splitlines():
        values: dict[str, Any] = json.loads(line) if line.startswith('{"kennel": 1,') else {}
        if values:
            status = HostStatus(**{k: v for k, v in values.items() if k in known})
            found[status.host] = status
    return found


def _text(*words: str) -> str:
    return command_text(["python3", "-c", _HOST.read_text(encoding="utf-8"), *words])
