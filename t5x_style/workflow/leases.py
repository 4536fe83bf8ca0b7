"""Who may write a stage version: a lease with a heartbeat and a fencing token.

Two processes that want the same version must not both make it. The first acquires the version's
lease and renews it; the others wait. If the holder dies, the next takes over with a higher token.
A process that lost its lease while it was stopped (a suspended machine, SIGSTOP, a frozen disk)
still believes that it holds it: `Lease.guard` compares the token under a lock before a result
counts, so its result is refused.

`Leases` is the interface. `SwapLeases` implements it on records that are replaced by compare-and-
swap; `FileLeases` keeps these in local files, `object_leases.ObjectLeases` on object storage.

    leases/train-3f2a9c0d1e2b4a5c.json    token, holder, beat (a counter)
    leases/train-3f2a9c0d1e2b4a5c.lock    locked for as long as that file is read and replaced
"""

import abc
import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from t5x_style.storage.errors import StorageError
from t5x_style.workflow import records

BEAT_SECONDS = 5.0
EXPIRY_SECONDS = 60.0
POLL_SECONDS = 0.5
Before = Literal["none", "released", "dead", "silent"]
Lost = Callable[[], None]
PathLike = str | os.PathLike[str]


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
        """Raises LeaseLost on entering if the lease was lost. Inside, it cannot be lost in files.

        On object storage nothing can be locked: the lease is renewed on entering, and can be lost
        only to somebody who saw no heartbeat for the whole expiry. What must never count after that
        is written by `publish`.
        """

    def publish(self, path: PathLike, record: Mapping[str, Any]) -> None:
        """Writes a JSON record that counts only if the lease is held.

        All holders of a lease publish a record under that lease, and none writes it otherwise.

        Raises:
          LeaseLost: the lease was lost, or a later holder has fenced the record.
        """

    def fence(self, path: PathLike) -> None:
        """After this, no earlier holder of the lease can publish a record.

        Who follows a `silent` holder calls it for each record that the other may still publish,
        and looks at the record only then. On object storage a missing record becomes
        `{"fenced_by": token}`; files need nothing.
        """

    def release(self) -> None:
        """Lets others have it."""


class Leases(Protocol):
    """Leases by name."""

    def acquire(self, name: str, waiting: Callable[[Holder], None], lost: Lost) -> Lease:
        """Waits until nobody else holds the lease.

        Args:
          name: of the lease.
          waiting: called once with the holder that is waited for, if there is one.
          lost: called in another thread when a heartbeat finds that the lease was lost.
        """

    def claim(self, name: str, lost: Lost) -> Lease | None:
        """The same at once: None where somebody else holds the lease, or may still hold it."""

    def holder(self, name: str) -> Holder | None:
        """Who holds the lease, as far as can be known at once; None for nobody."""


class SwapLeases(abc.ABC):
    """Leases as records, each of which is replaced only if nobody else replaced it meanwhile."""

    poll = POLL_SECONDS

    def __init__(
        self,
        folder: PathLike,
        beat: float = BEAT_SECONDS,
        expiry: float = EXPIRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Args:
        folder: for the records; made when needed.
        beat: seconds between two heartbeats.
        expiry: a holder whose record has not changed for so many seconds, by the clock of who
          waits, has lost the lease.
        clock, sleep: of who waits.
        """
        self.folder, self.beat, self.expiry = folder, beat, expiry
        self._clock, self._sleep = clock, sleep

    @abc.abstractmethod
    def _read(self, name: str) -> tuple[dict[str, Any], Any]:
        """(record, stamp that changes with each write); an absent record has a false stamp.

        A damaged record is {} with a true stamp.
        """

    @abc.abstractmethod
    def _swap(self, name: str, stamp: Any, state: dict[str, Any]) -> bool:
        """Replaces the record that has this stamp; False if it has another one by now."""

    @abc.abstractmethod
    def _age(self, name: str) -> float:
        """Seconds since the record was written, by the time of day."""

    @abc.abstractmethod
    def guard(self, name: str, token: int) -> contextlib.AbstractContextManager[None]:
        """See `Lease.guard`."""

    @abc.abstractmethod
    def publish(self, name: str, token: int, path: PathLike, record: Mapping[str, Any]) -> None:
        """See `Lease.publish`."""

    @abc.abstractmethod
    def fence(self, token: int, path: PathLike) -> None:
        """See `Lease.fence`."""

    def acquire(self, name: str, waiting: Callable[[Holder], None], lost: Lost) -> "HeldLease":
        """See `Leases.acquire`."""
        seen, since, announced = None, self._clock(), False
        while True:
            state, stamp = self._read(name)
            if stamp != seen:
                seen, since = stamp, self._clock()
            before = _before(state, self._clock() - since >= self.expiry)
            if before is not None:
                lease = self._take(name, (state, stamp), before, lost)
                if lease is not None:
                    return lease
                continue
            if not announced:
                waiting(Holder(**state["holder"]))
                announced = True
            self._sleep(min(self.poll, self.expiry / 4))

    def claim(self, name: str, lost: Lost) -> "HeldLease | None":
        """See `Leases.claim`; a silent holder counts as one until ten times the expiry."""
        state, stamp = self._read(name)
        before = _before(state, expired=bool(state) and self._is_old(name))
        return None if before is None else self._take(name, (state, stamp), before, lost)

    def _take(
        self, name: str, found: tuple[dict[str, Any], Any], before: Before, lost: Lost
    ) -> "HeldLease | None":
        """Makes the lease ours; None if another process was faster."""
        state, stamp = found
        # Above every token where the record is damaged.
        last = int(time.time()) if stamp and not state else int(state.get("token", 0))
        ours = {"token": last + 1, "holder": vars(_myself()), "beat": 0}
        if not self._swap(name, stamp, ours):
            return None
        return HeldLease(self, name, last + 1, before, lost)

    def holder(self, name: str) -> Holder | None:
        """See `Leases.holder`; a holder that was silent for ten times the expiry is none."""
        state, _ = self._read(name)
        if _before(state, expired=False) is not None or self._is_old(name):
            return None
        return Holder(**state["holder"])

    def _is_old(self, name: str) -> bool:
        return self._age(name) > 10 * self.expiry

    def renew(self, name: str, token: int) -> bool:
        """One heartbeat; False if another process has taken over."""
        return self._update(name, token, lambda state: state | {"beat": int(state["beat"]) + 1})

    def release(self, name: str, token: int) -> None:
        """Frees the lease if it is still that token's."""
        self._update(name, token, lambda state: {"token": token, "holder": None, "beat": 0})

    def _update(
        self, name: str, token: int, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> bool:
        """Changes the record while the token holds the lease; False if it does not."""
        while True:
            state, stamp = self._read(name)
            if state.get("token") != token or state.get("holder") is None:
                return False
            if self._swap(name, stamp, change(state)):
                return True

    def lost(self, name: str, token: int) -> LeaseLost:
        """The error of a holder that has lost its lease."""
        state, _ = self._read(name)
        other = Holder(**state["holder"]) if state.get("holder") else "another process"
        return LeaseLost(
            f"{name}: {other} took over while this process was stopped (token {token}, now "
            f"{state.get('token')}). What this process made is not recorded."
        )


class FileLeases(SwapLeases):
    """Leases as files of one folder, for processes that share it."""

    def _path(self, name: str) -> Path:
        return Path(self.folder, f"{name}.json")

    def _read(self, name: str) -> tuple[dict[str, Any], str]:
        try:
            text = self._path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}, ""
        try:
            state = json.loads(text)
        except json.JSONDecodeError:
            state = None
        return (state if isinstance(state, dict) else {}), text or "cut short"

    def _swap(self, name: str, stamp: str, state: dict[str, Any]) -> bool:
        with self._locked(name):
            if self._read(name)[1] != stamp:
                return False
            records.write_json(self._path(name), state)
            return True

    def _age(self, name: str) -> float:
        try:
            return time.time() - self._path(name).stat().st_mtime
        except OSError:
            return 0.0

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        path = self._path(name).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        # flock, not lockf: a thread that closes the file must not drop another thread's lock.
        with open(path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def guard(self, name: str, token: int) -> Iterator[None]:
        """Holds the lock while the caller makes a result count."""
        with self._locked(name):
            if self._read(name)[0].get("token") != token:
                raise self.lost(name, token)
            yield

    def publish(self, name: str, token: int, path: PathLike, record: Mapping[str, Any]) -> None:
        """See `Lease.publish`."""
        with self.guard(name, token):
            records.write_json(Path(path), record)

    def fence(self, token: int, path: PathLike) -> None:
        """Nothing: `guard` compares the token under the lock."""


class HeldLease:
    """A lease of `SwapLeases`, renewed by a thread until it is released."""

    def __init__(self, leases: SwapLeases, name: str, token: int, before: Before, lost: Lost):
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
            except (OSError, StorageError):
                continue  # a full disk, an outage: the next beat may succeed, or the lease expire

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """See `Lease.guard`."""
        return self._leases.guard(self._name, self.token)

    def publish(self, path: PathLike, record: Mapping[str, Any]) -> None:
        """See `Lease.publish`."""
        self._leases.publish(self._name, self.token, path, record)

    def fence(self, path: PathLike) -> None:
        """See `Lease.fence`."""
        self._leases.fence(self.token, path)

    def release(self) -> None:
        """See `Lease.release`."""
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError, StorageError):  # it expires by itself
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
