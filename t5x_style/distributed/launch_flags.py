"""Flags of several processes that share one stage: number, index, and time limits.

Flags, on every entry point, or JAX's own variables in their place; a flag wins:

    --coordinator_address=HOST:PORT   JAX_COORDINATOR_ADDRESS   where process 0 listens
    --num_processes=N                 JAX_NUM_PROCESSES
    --process_id=K                    JAX_PROCESS_ID            0 to N-1
    --processes=auto|1                KENNEL_PROCESSES          in place of those three, see below
    --meeting_port=PORT               KENNEL_MEETING_PORT       where they meet, see `rendezvous`
    --initialization_timeout=SECONDS  KENNEL_INITIALIZATION_TIMEOUT   for all to start, 300
    --heartbeat_timeout=SECONDS       KENNEL_HEARTBEAT_TIMEOUT        until one is given up, 30

`auto` is for hosts of a TPU slice, which JAX numbers: see `numbering`. `1` runs one such host
alone. The first three win over both. Imports no JAX: flags are read before it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ADDRESS, COUNT, NUMBER = "coordinator_address", "num_processes", "process_id"
PROCESSES, MEETING = "processes", "meeting_port"
INITIALIZATION, HEARTBEAT = "initialization_timeout", "heartbeat_timeout"
AUTOMATIC, ALONE = "auto", "1"
VARIABLES = {
    ADDRESS: "JAX_COORDINATOR_ADDRESS",
    COUNT: "JAX_NUM_PROCESSES",
    NUMBER: "JAX_PROCESS_ID",
    PROCESSES: "KENNEL_PROCESSES",
    MEETING: "KENNEL_MEETING_PORT",
    INITIALIZATION: "KENNEL_INITIALIZATION_TIMEOUT",
    HEARTBEAT: "KENNEL_HEARTBEAT_TIMEOUT",
}


AGAIN = 143  # exit code where nobody is wrong, and the same command may succeed


class ProcessesError(ValueError):
    """Processes that cannot start or continue together; the message says which, and why."""


class AbsentError(ProcessesError):
    """Processes that did not come in time: a host may be slow, or on its way. See `AGAIN`."""


@dataclass(frozen=True)
class Processes:
    """The processes of one stage, as described to this one.

    Attributes:
      address: HOST:PORT of process 0, where JAX's service listens; None where JAX has still to
        find out the first three (`--processes=auto`).
      count: how many there are.
      number: which one this is.
      meeting_port: of process 0, where all meet before that; None: the port of `address`.
      initialization_timeout: seconds that each waits for the others to start.
      heartbeat_timeout: seconds without a sign of life until a process counts as dead.
    """

    address: str | None
    count: int | None
    number: int | None
    meeting_port: int | None = None
    initialization_timeout: int = 300
    heartbeat_timeout: int = 30

    def environment(self) -> dict[str, str]:
        """The same as variables, for a child process."""
        values = {
            ADDRESS: self.address,
            COUNT: self.count,
            NUMBER: self.number,
            MEETING: self.meeting_port,
            INITIALIZATION: self.initialization_timeout,
            HEARTBEAT: self.heartbeat_timeout,
        }
        return {VARIABLES[name]: str(v) for name, v in values.items() if v is not None}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of this module's docstring."""
    for name, variable in VARIABLES.items():
        parser.add_argument(f"--{name}", help=f"of several processes; default: ${variable}")


def given(argv: Sequence[str]) -> list[str]:
    """Those of these flags that a command line has, as in `--num_processes`."""
    return [f"--{name}" for name, text in _values(argv, {}).items() if text]


def read(argv: Sequence[str], env: Mapping[str, str]) -> Processes | None:
    """The processes that flags or variables describe; None if there is only this one.

    Raises:
      ProcessesError: only some are set, or one has a value that cannot be.
    """
    found = _values(argv, env)
    asked = _asked(found)
    others = {
        name: _integer(name, found[name], 1, 65535 if name == MEETING else None)
        for name in (MEETING, INITIALIZATION, HEARTBEAT)
        if found[name]
    }
    missing = [name for name in (ADDRESS, COUNT, NUMBER) if not found[name]]
    if len(missing) == 3:
        return Processes(None, None, None, **others) if asked == AUTOMATIC else None
    if missing:
        raise ProcessesError(
            f"to run in several processes set all of --{ADDRESS}, --{COUNT} and --{NUMBER}; "
            "missing: " + ", ".join(f"--{name} (or {VARIABLES[name]})" for name in missing)
        )
    count = _integer(COUNT, found[COUNT], 1, None)
    number = _integer(NUMBER, found[NUMBER], 0, count - 1)
    host, _, port = found[ADDRESS].rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ProcessesError(f"--{ADDRESS}: expected HOST:PORT, found {found[ADDRESS]!r}")
    return Processes(found[ADDRESS], count, number, **others)


def alone(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether this process is asked to run alone, though it may be on a host of several."""
    return _asked(_values(argv, env)) == ALONE


def _values(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Name -> text of its flag, or else of its variable; "" where neither is set."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add_flags(parser)
    flags = vars(parser.parse_known_args(list(argv))[0])
    return {name: flags[name] or env.get(variable, "") for name, variable in VARIABLES.items()}


def _asked(found: Mapping[str, str]) -> str:
    if found[PROCESSES] not in ("", AUTOMATIC, ALONE):
        raise ProcessesError(
            f"--{PROCESSES} (or {VARIABLES[PROCESSES]}): expected {AUTOMATIC!r} or {ALONE!r}, "
            f"found {found[PROCESSES]!r}. To number processes yourself set --{ADDRESS}, --{COUNT} "
            f"and --{NUMBER}."
        )
    return found[PROCESSES]


def _integer(name: str, text: str, low: int, high: int | None) -> int:
    if not text.isdecimal() or int(text) < low or (high is not None and int(text) > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ProcessesError(
            f"--{name} (or {VARIABLES[name]}): expected a whole number {bounds}, found {text!r}"
        )
    return int(text)
