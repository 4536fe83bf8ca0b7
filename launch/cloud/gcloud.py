"""Runs gcloud, reads its JSON, and says what kind of error it met.

What is asked again and what is not depends on the kind alone. A call that may run twice, since it
only reads or deletes, is repeated after a transient error; `create` never is, since an unanswered
one may have been carried out: whoever called it looks at what Google has before it asks again.
"""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

PROGRAM = "KENNEL_GCLOUD"  # variable: a program to run in place of gcloud
Kind = Literal[
    "quota", "capacity", "not_found", "exists", "permission", "usage", "transient", "unanswered",
    "host", "program", "other",
]  # fmt: skip

ANSWER_TIMEOUT = 120.0  # seconds for a call that asks Google's servers
ATTEMPTS = 6  # of a call that only reads
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds between them; doubled each time
TIMED_OUT = 124  # exit code of `Gcloud.on_hosts` where ssh did not end; a lost host gives 255

# The first that matches a message decides. Texts of Google's servers and of gcloud 528.
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("exists", r"ALREADY_EXISTS|already exists"),
    ("not_found", r"NOT_FOUND|was not found|could not be found|matched no objects|not found: 404"),
    ("permission", r"PERMISSION_DENIED|UNAUTHENTICATED|do(es)? not (currently )?have (an active "
                   r"account|permission)|Reauthentication|has not been used in project|"
                   r"SERVICE_DISABLED|gcloud auth login|valid credentials|"
                   r"does not have storage\.\S+ access|denied on resource"),
    ("quota", r"[Qq]uota (limit|exceeded|.* exceeded)|QUOTA_EXCEEDED|exceeded (your |the )?quota|"
              r"insufficient quota"),
    ("capacity", r"no more capacity|not enough resources|[Ss]tockout|STOCKOUT|ZONE_RESOURCE_POOL|"
                 r"insufficient capacity|no available capacity|does not have enough"),
    ("transient", r"\b(UNAVAILABLE|INTERNAL|ABORTED|DEADLINE_EXCEEDED)\b|[Tt]oo many requests|"
                  r"HTTP(Error)? ?(429|500|502|503|504)|code[\"']?[:=] ?(429|500|502|503|504)|"
                  r"[Cc]onnection (reset|aborted|refused)|[Tt]emporar|Network is unreachable|"
                  r"Failed to establish|Name or service not known|currently unavailable"),
    ("usage", r"INVALID_ARGUMENT|FAILED_PRECONDITION|unrecognized arguments|Invalid value"),
    # After quota, which the servers of some APIs refuse with the same number.
    ("permission", r"HTTP(Error)? ?403|code[\"']?[:=] ?403|403 Forbidden|Access denied"),
)  # fmt: skip


class GcloudError(ValueError):
    """A call of gcloud that failed.

    Attributes:
      kind: what may be done about it.
    """

    def __init__(self, kind: Kind, message: str, argv: Sequence[str]) -> None:
        super().__init__(f"{message}\n  command: {shlex.join(argv)}")
        self.kind = kind
        self.short = message


@dataclass(frozen=True)
class Completed:
    """How a process ended."""

    code: int
    out: str
    err: str


class Runner(Protocol):
    """Runs a command to its end; `subprocess` or a fake.

    Raises:
      TimeoutError: it did not end within `timeout` seconds; it may have done its work.
    """

    def __call__(self, argv: Sequence[str], timeout: float) -> Completed: ...


def program() -> str:
    """The command to run: `$KENNEL_GCLOUD`, or gcloud."""
    return os.environ.get(PROGRAM) or "gcloud"


def run_process(argv: Sequence[str], timeout: float) -> Completed:
    """See `Runner`.

    Raises:
      GcloudError: there is no such program.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]} did not answer within {timeout:g} s") from error
    except (FileNotFoundError, PermissionError) as error:
        raise no_program(argv) from error
    return Completed(done.returncode, done.stdout, done.stderr)


def run_on_terminal(argv: Sequence[str]) -> int:
    """Runs a command line on our own terminal; returns its exit code.

    Raises:
      GcloudError: there is no such program.
    """
    try:
        return subprocess.run(argv).returncode
    except (FileNotFoundError, PermissionError) as error:
        raise no_program(argv) from error


def no_program(argv: Sequence[str]) -> GcloudError:
    """The error where a command line's program cannot be run: no repetition helps."""
    return GcloudError(
        "program",
        f"no program {argv[0]!r}: install the Google Cloud CLI "
        f"(cloud.google.com/sdk/docs/install), or name another in ${PROGRAM}",
        argv,
    )


def classify(message: str) -> Kind:
    """The kind of an error by gcloud's message, or the one that a FAILED resource carries."""
    for kind, pattern in _KINDS:
        if re.search(pattern, message):
            return kind
    return "other"


class Gcloud:
    """The gcloud command.

    Args:
      runner: runs a command line.
      sleep: waits so many seconds.
      clock: seconds since 1970.
      name: the program.
    """

    def __init__(
        self,
        runner: Runner = run_process,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        name: str = "",
    ) -> None:
        self._runner = runner
        self.sleep = sleep
        self.clock = clock
        self.name = name or program()

    def waiting(self, sleep: Callable[[float], None]) -> "Gcloud":
        """The same command, for a caller that waits in another way."""
        return Gcloud(self._runner, sleep, self.clock, self.name)

    def once(self, arguments: Sequence[str], timeout: float = ANSWER_TIMEOUT) -> str:
        """Runs one call, and returns its standard output.

        Raises:
          GcloudError: it failed, or did not end in time ("unanswered").
        """
        argv = [self.name, *arguments]
        try:
            done = self._runner(argv, timeout)
        except TimeoutError as error:
            raise GcloudError("unanswered", str(error), argv) from error
        if done.code:
            message = done.err.strip() or done.out.strip() or f"exit code {done.code}"
            kind = "usage" if done.code == 2 else classify(message)
            raise GcloudError(kind, last_lines(message), argv)
        return done.out

    def read(self, arguments: Sequence[str]) -> Any:
        """Runs a call that may run twice, again after a transient error; returns its JSON.

        Raises:
          GcloudError: it failed for another reason, or each time; its answer is no JSON.
        """
        text = self.read_text(arguments)
        try:
            return json.loads(text or "null")
        except ValueError as error:
            message = f"expected JSON from gcloud, found {text[:80]!r}"
            raise GcloudError("other", message, [self.name, *arguments]) from error

    def read_text(self, arguments: Sequence[str]) -> str:
        """As `read`, for an answer that is no JSON; a deletion may run twice, too."""
        for attempt in range(ATTEMPTS):
            try:
                return self.once(arguments)
            except GcloudError as error:
                if error.kind not in ("transient", "unanswered") or attempt == ATTEMPTS - 1:
                    raise
                self.sleep(min(FIRST_WAIT * 2**attempt, LONGEST_WAIT))
        raise AssertionError("the last attempt returns or raises")

    def on_hosts(self, arguments: Sequence[str], timeout: float) -> Completed:
        """Runs `ssh` or `scp` and returns what came back: some hosts may answer, others not.

        The exit code is `TIMED_OUT` where it did not end in time, and that of gcloud otherwise.
        """
        try:
            return self._runner([self.name, *arguments], timeout)
        except TimeoutError as error:
            return Completed(TIMED_OUT, "", str(error))

    def setting(self, name: str) -> str:
        """A property of gcloud's configuration, such as `project`; "" where it has none."""
        done = self._runner([self.name, "config", "get", name], ANSWER_TIMEOUT)
        value = done.out.strip()
        return "" if done.code or value == "(unset)" else value


def last_lines(message: str, most: int = 6) -> str:
    """The end of a message, without empty lines."""
    lines = [line for line in message.splitlines() if line.strip()]
    return "\n".join(lines[-most:])
