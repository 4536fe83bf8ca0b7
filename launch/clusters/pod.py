"""Runs a command as the main process of a pod: a command that was stopped has not succeeded.

    python -m launch.clusters.pod COMMAND ...

A recipe that SIGTERM stops saves and exits with 0. In a pod that would count as success, and a
preempted run as finished. After a SIGTERM an exit code of 0 becomes 143 here, which restarts the
run; it then continues, or finds that everything is done. A command that a signal killed exits with
128 plus its number, as in a shell. All other exit codes are the command's.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

STOPPED = 128 + signal.SIGTERM


def run(command: Sequence[str]) -> int:
    """Runs a command, passes SIGTERM and SIGINT on to it, and returns the pod's exit code.

    Raises:
      OSError: there is no such program.
    """
    stopped = False
    child: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        nonlocal stopped
        stopped = True
        if child is not None:
            child.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    child = subprocess.Popen(list(command))
    if stopped:  # before there was a child to pass it on to
        child.send_signal(signal.SIGTERM)
    code = child.wait()
    if code < 0:
        return 128 - code
    return STOPPED if stopped and code == 0 else code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
