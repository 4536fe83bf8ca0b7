"""Processes that a recipe starts: its stages, and companions of these."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType

from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.distributed.launch_flags import Processes
from t5x_style.workflow import stage_runner

Process = subprocess.Popen[bytes]
_DEVICE_COUNT = "--xla_force_host_platform_device_count"


class Children:
    """The process that runs now, and whether we were asked to stop.

    Attributes:
      described: of several processes, those that every stage joins.
      cpu_devices: see `virtual_devices`.
      stopping: whether we were asked.
    """

    def __init__(self, described: Processes | None = None, cpu_devices: int = 1) -> None:
        self.described, self.cpu_devices = described, cpu_devices
        self.stopping = False
        self._child: Process | None = None

    def watch(self) -> None:
        """Hands Ctrl-C, SIGTERM and a closed terminal on to the stage, which saves."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)

    def start(self, entry: str, flags: gin_checks.Flags) -> Process:
        """Runs `python -m entry` with the flags, its output on our terminal; stopped with us."""
        joins = self.described.environment() if self.described else {}
        self._child = started(entry, flags, joins | virtual_devices(self.cpu_devices))
        if self.stopping:
            self._child.send_signal(signal.SIGTERM)
        return self._child

    def call(
        self, entry: str, flags: gin_checks.Flags, wait: Callable[[Process], int] = Process.wait
    ) -> int:
        """Runs what `start` does, and waits for it; its exit code, which `wait` returns."""
        return wait(self.start(entry, flags))


def started(entry: str, flags: gin_checks.Flags, variables: dict[str, str]) -> Process:
    """Runs `python -m entry` with the flags and these variables; it ends when we are killed."""
    command = [sys.executable, "-m", entry, *flags.arguments()]
    # its own session: Ctrl-C reaches it once, through us
    return subprocess.Popen(command, env=_environment() | variables, start_new_session=True)


def virtual_devices(most: int) -> dict[str, str]:
    """XLA_FLAGS with which a CPU counts as several devices, a power of two.

    Of one device, XLA shares large matrix products over all cores, and does most of the rest on
    one: of two cores, 1.4 are at work. With a device for each, both are, and a step of a published
    encoder is 1.2 to 1.3 times as fast (docs/results/finetune.md).

    Args:
      most: devices; not more than the cores that this process may use.

    Returns:
      {} for one device, and where the user's XLA_FLAGS say how many.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    count = 1 << (min(most, len(os.sched_getaffinity(0))).bit_length() - 1)
    if count == 1 or _DEVICE_COUNT in flags:
        return {}
    return {"XLA_FLAGS": f"{flags} {_DEVICE_COUNT}={count}".strip()}


def _environment() -> dict[str, str]:
    """Our sources come first, output is not buffered, compiled programs are kept, and memory is in
    huge pages, unless the user's own variables say otherwise.
    """
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    defaults = stage_runner.HUGE_PAGES | {
        "JAX_COMPILATION_CACHE_DIR": str(REPOSITORY / ".jax_cache"),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    forced = {"PYTHONPATH": path, stage_runner.PARENT: str(os.getpid())}
    return {**defaults, **os.environ, **forced}
