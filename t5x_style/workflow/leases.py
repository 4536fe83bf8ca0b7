"""Who may write a stage version: a lease with a heartbeat and a fencing token.

Two processes that want the same version must not both make it. The first acquires the version's
lease and renews it; the others wait. If the holder dies, the next takes over with a higher token.
A process that lost its lease while it was stopped (a suspended machine, SIGSTOP, a frozen disk)
still believes that it holds it: `Lease.guard` compares the token under a lock before a result
counts, so its result is refused.

`Leases` is the interface; `FileLeases` keeps leases in local files. Object storage has
compare-and-swap on an object's generation in place of the lock.

    leases/train-3f2a9c0d1e2b4a5c.json    token, holder, beat (a counter)
    leases/train-3f2a9c0d1e2b4a5c.lock    locked for as long as that file is read and replaced
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from t5x_style.workflow import records

BEAT_SECONDS = 5.0
EXPIRY_SECONDS = 60.0
POLL_SECONDS = 0.5
Before = Literal["none", "released", "dead", "silent"]


class LeaseLost(ValueError):
    """Another process has taken the lease over; what this one made does not count."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease.

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


class Lease(Protocol):
    """A lease that this process holds, or has lost without knowing it yet.

    Attributes:
      token: higher than that of every holder before.
      before: what became of the holder before: `silent` may still wake up, and write.
    """

    token: int
    before: Before

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the lease cannot be lost. Raises LeaseLost on entering if it was."""

    def release(self) -> None:
        """Lets others have it."""


class Leases(Protocol):
    """Leases by name."""

    def acquire(
        self, name: str, waiting: Callable[[Holder], None], lost: Callable[[], None]
    ) -> Lease:
        """Waits until nobody else holds the lease.

        Args:
          name: of the lease.
          waiting: called once with the holder that is waited for, if there is one.
          lost: called in another thread when a heartbeat finds that the lease was lost.
        """

    def claim(self, name: str, lost: Callable[[], None]) -> Lease | None:
        """The same at once: None where somebody else holds the lease, or may still hold it."""

    def holder(self, name: str) -> Holder | None:
        """Who holds the lease, as far as can be known at once; None for nobody."""


class FileLeases:
    """Leases as files of one folder, for processes that share it."""

    def __init__(
        self,
        folder: Path,
        beat: float = BEAT_SECONDS,
        expiry: float = EXPIRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Args:
        folder: for the files; made when needed.
        beat: seconds between two heartbeats.
        expiry: a holder whose heartbeat has not changed for so many seconds, by the clock of who
          waits, has lost the lease.
        clock, sleep: of who waits.
        """
        self.folder, self.beat, self.expiry = folder, beat, expiry
        self._clock, self._sleep = clock, sleep

    def acquire(
        self, name: str, waiting: Callable[[Holder], None], lost: Callable[[], None]
    ) -> "FileLease":
        """See `Leases.acquire`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        seen, since, announced = None, self._clock(), False
        while True:
            with self._locked(name):
                state = self._read(name)
                now = (state.get("token"), state.get("beat"))
                if now != seen:
                    seen, since = now, self._clock()
                before = _before(state, self._clock() - since >= self.expiry)
                if before is not None:
                    return self._take(name, state, before, lost)
            if not announced:
                waiting(Holder(**state["holder"]))
                announced = True
            self._sleep(min(POLL_SECONDS, self.expiry / 4))

    def claim(self, name: str, lost: Callable[[], None]) -> "FileLease | None":
        """See `Leases.claim`; a silent holder counts as one until ten times the expiry."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked(name):
            state = self._read(name)
            before = _before(state, expired=self.holder(name) is None)
            return None if before is None else self._take(name, state, before, lost)

    def _take(
        self, name: str, state: dict[str, Any], before: Before, lost: Callable[[], None]
    ) -> "FileLease":
        """Makes the lease ours; the caller holds the lock."""
        token = self._last_token(name, state) + 1
        self._write(name, {"token": token, "holder": vars(_myself()), "beat": 0})
        return FileLease(self, name, token, before, lost)

    def holder(self, name: str) -> Holder | None:
        """See `Leases.holder`; a holder that was silent for ten times the expiry is none."""
        state = self._read(name)
        with contextlib.suppress(OSError):
            if time.time() - self._path(name).stat().st_mtime > 10 * self.expiry:
                return None
        return None if _before(state, False) is not None else Holder(**state["holder"])

    def _last_token(self, name: str, state: dict[str, Any]) -> int:
        """0 where there was no holder; above every token where the record is damaged."""
        damaged = not state and self._path(name).exists()
        return int(time.time()) if damaged else int(state.get("token", 0))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read(self, name: str) -> dict[str, Any]:
        try:
            state = json.loads(self._path(name).read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write(self, name: str, state: dict[str, Any]) -> None:
        records.write_json(self._path(name), state)

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        # flock, not lockf: a thread that closes the file must not drop another thread's lock.
        with open(self.folder / f"{name}.lock", "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def renew(self, name: str, token: int) -> bool:
        """One heartbeat; False if another process has taken over."""
        with self._locked(name):
            state = self._read(name)
            if state.get("token") != token or state.get("holder") is None:
                return False
            self._write(name, state | {"beat": int(state["beat"]) + 1})
            return True

    @contextlib.contextmanager
    def guard(self, name: str, token: int) -> Iterator[None]:
        """Holds the lock while the caller makes a result count."""
        with self._locked(name):
            state = self._read(name)
            if state.get("token") != token:
                other = Holder(**state["holder"]) if state.get("holder") else "another process"
                raise LeaseLost(
                    f"{name}: {other} took over while this process was stopped (token {token}, "
                    f"now {state.get('token')}). What this process made is not recorded."
                )
            yield

    def release(self, name: str, token: int) -> None:
        """Frees the lease if it is still that token's."""
        with self._locked(name):
            if self._read(name).get("token") == token:
                self._write(name, {"token": token, "holder": None, "beat": 0})


class FileLease:
    """A lease of `FileLeases`, renewed by a thread until it is released."""

    def __init__(
        self, leases: FileLeases, name: str, token: int, before: Before, lost: Callable[[], None]
    ):
        self.token, self.before = token, before
        self._leases, self._name, self._lost = leases, name, lost
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {name}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._released.wait(self._leases.beat):
            try:
                if not self._leases.renew(self._name, self.token):
                    self._lost()
                    return
            except OSError:
                continue  # a full or vanished disk: the next beat may succeed, or the lease expire

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """See `Lease.guard`."""
        return self._leases.guard(self._name, self.token)

    def release(self) -> None:
        """See `Lease.release`."""
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # it expires by itself
            self._leases.release(self._name, self.token)


def _before(state: dict[str, Any], expired: bool) -> Before | None:
    """What became of the holder before; None if the lease is still held."""
    if "token" not in state:
        return "none"
    if state.get("holder") is None:
        return "released"
    if Holder(**state["holder"]).is_dead():
        return "dead"
    return "silent" if expired else None


def _myself() -> Holder:
    return Holder(*_here(), os.getpid(), _started(os.getpid()) or "")


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
    """When a process of this host started, "" if that is not known; None if there is none."""
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
