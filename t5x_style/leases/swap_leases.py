"""Leases as records that are replaced by compare-and-swap; subclasses store them.

{"token": 3, "holder": {...}, "beat": 17}      the beat rises with each renewal
"""

import abc
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from t5x_style.leases.holders import Holder, myself
from t5x_style.leases.lease import Before, LeaseLost
from t5x_style.storage.errors import StorageError

BEAT_SECONDS = 5.0
EXPIRY_SECONDS = 60.0
POLL_SECONDS = 0.5


class SwapLeases(abc.ABC):
    """Leases as records, each of which is replaced only if nobody else replaced it meanwhile."""

    poll = POLL_SECONDS

    def __init__(
        self,
        folder: str | os.PathLike[str],
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
    def publish(
        self, name: str, token: int, path: str | os.PathLike[str], record: Mapping[str, Any]
    ) -> None:
        """See `Lease.publish`."""

    @abc.abstractmethod
    def fence(self, token: int, path: str | os.PathLike[str]) -> None:
        """See `Lease.fence`."""

    def acquire(
        self, name: str, waiting: Callable[[Holder], None], lost: Callable[[], None]
    ) -> "HeldLease":
        """See `Leases.acquire`."""
        seen, since, announced = None, self._clock(), False
        while True:
            state, stamp = self._read(name)
            if stamp != seen:
                seen, since = stamp, self._clock()
            before = _before(state, self._clock() - since >= self.expiry)
            if before is not None:
                lease = self._take(name, state, stamp, before, lost)
                if lease is not None:
                    return lease
                continue
            if not announced:
                waiting(Holder(**state["holder"]))
                announced = True
            self._sleep(min(self.poll, self.expiry / 4))

    def claim(self, name: str, lost: Callable[[], None]) -> "HeldLease | None":
        """See `Leases.claim`; a silent holder counts as one until ten times the expiry."""
        state, stamp = self._read(name)
        before = _before(state, expired=bool(state) and self._is_old(name))
        return None if before is None else self._take(name, state, stamp, before, lost)

    def _take(
        self,
        name: str,
        state: dict[str, Any],
        stamp: Any,
        before: Before,
        lost: Callable[[], None],
    ) -> "HeldLease | None":
        """Makes the lease ours; None if another process was faster."""
        # Above every token where the record is damaged.
        last = int(time.time()) if stamp and not state else int(state.get("token", 0))
        ours = {"token": last + 1, "holder": vars(myself()), "beat": 0}
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
        """One heartbeat; False if another process has acquired the lease."""
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
            f"{name}: {other} acquired the lease while this process was stopped (token {token}, "
            f"now {state.get('token')}). What this process made is not recorded."
        )


class HeldLease:
    """A lease of `SwapLeases`, renewed by a thread until it is released."""

    def __init__(
        self, leases: SwapLeases, name: str, token: int, before: Before, lost: Callable[[], None]
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
            except (OSError, StorageError):
                continue  # a full disk, an outage: the next beat may succeed, or the lease expire

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """See `Lease.guard`."""
        return self._leases.guard(self._name, self.token)

    def publish(self, path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
        """See `Lease.publish`."""
        self._leases.publish(self._name, self.token, path, record)

    def fence(self, path: str | os.PathLike[str]) -> None:
        """See `Lease.fence`."""
        self._leases.fence(self.token, path)

    def release(self) -> None:
        """See `Lease.release`."""
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError, StorageError):  # it expires by itself
            self._leases.release(self._name, self.token)


def _before(state: dict[str, Any], expired: bool) -> Before | None:
    """State of the previous holder; None if the lease is still held."""
    if "token" not in state:
        return "none"
    if state.get("holder") is None:
        return "released"
    if Holder(**state["holder"]).is_dead():
        return "dead"
    return "silent" if expired else None
