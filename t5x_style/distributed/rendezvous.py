"""Let processes meet before JAX joins them: names those that are absent, in bounded time.

`jax.distributed.initialize` waits too, but when time is up it aborts the process from C++, with a
stack trace and no word on whom it waited for. Process 0 listens at the meeting port; the others
say their number and the name of their host there, and hear `go` or why not. Where no meeting port
is set, it is that of the coordinator, which JAX's service uses afterwards. With automatic addresses
it is another port than JAX's, since that is the same one in every job of these hosts.
"""

import contextlib
import socket
import time
from collections.abc import Callable

from t5x_style.distributed.launch_flags import AbsentError, Processes, ProcessesError

RETRY_SECONDS = 0.2
GREETING = "kennel: process"
ABSENT = "absent: "  # begins the answer to those who came, where others did not

Guest = tuple[socket.socket, str]  # and the name of its host


def meet(processes: Processes, place: Callable[[int], str] = lambda number: "") -> None:
    """Returns once every process has come.

    Args:
      processes: numbered.
      place: number of a process -> where it should run, in words, or "".

    Raises:
      AbsentError: some did not come in time, with their numbers.
      ProcessesError: two have one number; one counts otherwise.
      OSError: process 0 cannot listen at the port.
    """
    if processes.count == 1:
        return
    host, _, port = str(processes.address).rpartition(":")
    address = host.strip("[]"), processes.meeting_port or int(port)
    if processes.number == 0:
        _host(processes, address, place)
    else:
        _visit(processes, address)


def _host(processes: Processes, address: tuple[str, int], place: Callable[[int], str]) -> None:
    deadline = time.monotonic() + processes.initialization_timeout
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("", address[1]), family=family, dualstack_ipv6=dual)
        )
        guests: dict[int, Guest] = {}
        wrong = absent = ""
        while not (wrong or absent) and len(guests) < int(processes.count or 1) - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                guest = stack.enter_context(server.accept()[0])
                greeting = _line(guest, min(5.0, processes.initialization_timeout))
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue  # someone who says nothing
                absent = _absent(processes, address, set(guests), place)
            else:
                wrong = _seat(guests, guest, greeting, processes)
        for visitor, _ in guests.values():
            with contextlib.suppress(OSError):  # it has gone: JAX's own time-out reports it
                visitor.sendall(f"{wrong or (absent and ABSENT + absent) or 'go'}\n".encode())
    if absent:
        raise AbsentError(absent)
    if wrong:
        raise ProcessesError(wrong)


def _seat(
    guests: dict[int, Guest], guest: socket.socket, greeting: str, processes: Processes
) -> str:
    """Notes who came; the error if this cannot be, or ""."""
    words = greeting.removeprefix(GREETING).split()
    if not greeting.startswith(GREETING) or len(words) != 5 or not words[0].isdecimal():
        return ""  # a stranger
    number, _, count, _, host = words
    before = guests.get(int(number))
    guests[int(number) if before is None else -1] = guest, host
    if count != str(processes.count):
        return (
            f"process {number} ({host}) has --num_processes={count}, "
            f"process 0 ({socket.gethostname()}) has {processes.count}"
        )
    if before is not None:
        return f"two processes have --process_id={number}: on {before[1]} and on {host}"
    return ""


def _absent(
    processes: Processes,
    address: tuple[str, int],
    present: set[int],
    place: Callable[[int], str],
) -> str:
    numbers = sorted(set(range(1, int(processes.count or 1))) - present)
    places = [f" Process {n} is {where}." for n in numbers if (where := place(n))]
    return (
        f"waited {processes.initialization_timeout} s for "
        f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} "
        f"of {processes.count} to come to {address[0]}:{address[1]}. Start all of them, or give "
        f"them longer: --initialization_timeout=SECONDS.{''.join(places)}"
    )


def _visit(processes: Processes, address: tuple[str, int]) -> None:
    deadline = time.monotonic() + processes.initialization_timeout
    answer = ""
    while not answer:
        left = deadline - time.monotonic()
        if left <= 0:
            raise AbsentError(
                f"process {processes.number} waited {processes.initialization_timeout} s for "
                f"process 0 at {address[0]}:{address[1]}, and nobody answered there. Start it, or "
                "give it longer: --initialization_timeout=SECONDS."
            )
        try:
            with socket.create_connection(address, left) as door:
                who = f"{processes.number} of {processes.count} at {socket.gethostname()}"
                door.sendall(f"{GREETING} {who}\n".encode())
                answer = _line(door, left)
        except OSError:
            pass  # not there yet, or gone again
        if not answer:
            time.sleep(RETRY_SECONDS)
    if answer.startswith(ABSENT):
        raise AbsentError(answer.removeprefix(ABSENT))
    if answer != "go":
        raise ProcessesError(answer)


def _line(connection: socket.socket, seconds: float) -> str:
    """Read a line from the other end; "" if it hangs up."""
    connection.settimeout(seconds)
    with connection.makefile("r", encoding="utf-8", errors="replace") as file:
        return file.readline(1000).strip()
