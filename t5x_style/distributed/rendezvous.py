"""Processes meet before JAX joins them: who did not come is known by number, in bounded time.

`jax.distributed.initialize` waits too, but when time is up it aborts the process from C++, with a
stack trace and no word on whom it waited for. Process 0 listens at the coordinator's own port; the
others say their number there, and hear `go` or why not. JAX's service then takes the port over.
"""

import contextlib
import socket
import time

from t5x_style.distributed.launch_flags import Processes, ProcessesError

RETRY_SECONDS = 0.2
GREETING = "kennel: process"


def meet(processes: Processes) -> None:
    """Returns once every process has come.

    Raises:
      ProcessesError: some did not come in time, with their numbers; two have one number; one
        counts otherwise.
      OSError: process 0 cannot listen at the port.
    """
    if processes.address is None or processes.count == 1:
        return
    if processes.number == 0:
        _host(processes)
    else:
        _visit(processes)


def _host(processes: Processes) -> None:
    port = int(str(processes.address).rpartition(":")[2])
    deadline = time.monotonic() + processes.initialization_timeout
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        )
        guests: dict[int, socket.socket] = {}
        wrong = ""
        while not wrong and len(guests) < int(processes.count or 1) - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                guest = stack.enter_context(server.accept()[0])
                greeting = _line(guest, min(5.0, processes.initialization_timeout))
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue  # someone who says nothing
                wrong = _absent(processes, set(guests))
            else:
                wrong = _seat(guests, guest, greeting, processes)
        for guest in guests.values():
            with contextlib.suppress(OSError):  # it has gone: JAX's own time-out will tell
                guest.sendall(f"{wrong or 'go'}\n".encode())
    if wrong:
        raise ProcessesError(wrong)


def _seat(
    guests: dict[int, socket.socket], guest: socket.socket, greeting: str, processes: Processes
) -> str:
    """Notes who came; the error if this cannot be, or ""."""
    words = greeting.removeprefix(GREETING).split()
    if not greeting.startswith(GREETING) or len(words) != 3 or not words[0].isdecimal():
        return ""  # a stranger
    number, _, count = words
    twice = int(number) in guests
    guests[int(number) if not twice else -1] = guest
    if count != str(processes.count):
        return f"process {number} has --num_processes={count}, process 0 has {processes.count}"
    return f"two processes have --process_id={number}" if twice else ""


def _absent(processes: Processes, present: set[int]) -> str:
    numbers = sorted(set(range(1, int(processes.count or 1))) - present)
    return (
        f"waited {processes.initialization_timeout} s for "
        f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} "
        f"of {processes.count} to come to {processes.address}. Start all of them, or give them "
        "longer: --initialization_timeout=SECONDS."
    )


def _visit(processes: Processes) -> None:
    host, _, port = str(processes.address).rpartition(":")
    deadline = time.monotonic() + processes.initialization_timeout
    answer = ""
    while not answer:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ProcessesError(
                f"process {processes.number} waited {processes.initialization_timeout} s for "
                f"process 0 at {processes.address}, and nobody answered there. Start it, or give "
                "it longer: --initialization_timeout=SECONDS."
            )
        try:
            with socket.create_connection((host.strip("[]"), int(port)), left) as door:
                greeting = f"{GREETING} {processes.number} of {processes.count}\n"
                door.sendall(greeting.encode())
                answer = _line(door, left)
        except OSError:
            pass  # not there yet, or gone again
        if not answer:
            time.sleep(RETRY_SECONDS)
    if answer != "go":
        raise ProcessesError(answer)


def _line(connection: socket.socket, seconds: float) -> str:
    """What the other end says up to the end of its line; "" if it hangs up."""
    connection.settimeout(seconds)
    with connection.makefile("r", encoding="utf-8", errors="replace") as file:
        return file.readline(1000).strip()
