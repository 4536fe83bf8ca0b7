"""Processes that hold leases, and a check whether they are certainly dead."""

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """Holder of a lease.

    Attributes:
      host: name and machine id.
      boot: which boot of it, and which namespace of process ids.
      process: its id.
      started: when it started, in clock ticks since boot, "" where that is not known.
    """

    host: str
    boot: str
    process: int
    started: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host.split(':')[0]}"

    def is_dead(self) -> bool:
        """True only if that is certain: it ran on this host, which was booted since, or is gone."""
        host, boot = _here()
        if self.host != host or not host.partition(":")[2]:
            return False
        if self.boot.partition(":")[0] != boot.partition(":")[0]:
            return True
        return self.boot == boot and _started(self.process) != self.started


def myself() -> Holder:
    """The process that asks."""
    return of(os.getpid())


def of(process: int) -> Holder:
    """A process of this machine, by its id."""
    return Holder(*_here(), process, _started(process) or "")


def _here() -> tuple[str, str]:
    """(name and id of this machine, its boot and the namespace of its process ids)."""
    machine = boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        boot += f":{os.stat('/proc/self/ns/pid').st_ino}"
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            machine = machine or Path(path).read_text().strip()
    # Where there is no machine id the boot id identifies the machine, until it is booted again.
    return f"{socket.gethostname()}:{machine or boot}", boot


def _started(process: int) -> str | None:
    """Start time of a process of this host, "" if it is not known; None if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    try:  # no /proc, as on macOS
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
