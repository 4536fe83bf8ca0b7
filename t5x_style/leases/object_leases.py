"""Leases on object storage, by compare-and-swap on an object's generation.

A lease is one object. Whoever changes it names the generation that it read, so of two changes one
fails. A holder is silent when the generation has not changed for the expiry, by the clock of the
process that waits: no clock of another machine counts.

Object storage cannot lock. Between the renewal with which `guard` begins and the write of the
caller, a process may be stopped for longer than the expiry, and lose the lease: `guard` makes that
unlikely, not impossible. `publish` and `fence` exclude it. Both are conditional writes of one
object that carries the token of its writer:

    holder:    renew the lease; read the record's generation and token; refuse a higher token than
               the own one; write the record if it still has that generation
    follower:  take the lease with a higher token; write the record (or `{"fenced_by": token}` where
               there is none) under the own token; then read it

If the follower's write comes first, the holder's fails, or the holder sees the higher token. If the
holder's comes first, the follower reads a record that was published in time. Nothing is excluded
about other objects: a holder that wakes up may still write to the folder that it worked in, so a
follower works in another one.
"""

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from t5x_style.leases.lease import LeaseLost
from t5x_style.leases.swap_leases import BEAT_SECONDS, EXPIRY_SECONDS, SwapLeases
from t5x_style.storage import errors
from t5x_style.storage.connection import Patience
from t5x_style.storage.objects import Objects, Stat

TOKEN = "kennel-token"  # metadata: under which token a record was written
FENCED = "fenced_by"  # key of a record that was written by `fence` where there was none
PATIENCE = Patience(total=EXPIRY_SECONDS / 3, answer=EXPIRY_SECONDS / 6)


class ObjectLeases(SwapLeases):
    """Leases as objects of one remote folder, for processes anywhere."""

    poll = 2.0

    def __init__(
        self,
        folder: str | os.PathLike[str],
        beat: float = BEAT_SECONDS,
        expiry: float = EXPIRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        client: Objects | None = None,
    ):
        """Args:
        folder: for the objects, gs://BUCKET/NAME.
        beat, expiry, clock, sleep: see `SwapLeases`. Google accepts about one write a second of
          an object, and answers 429 above that.
        client: for the requests; it gives up well before a lease expires.
        """
        super().__init__(folder, beat, expiry, clock, sleep)
        self._client = client or Objects(PATIENCE)

    def _path(self, name: str) -> str:
        return f"{os.fspath(self.folder).rstrip('/')}/{name}.json"

    def _read(self, name: str) -> tuple[dict[str, Any], int]:
        try:
            data, generation = self._client.read(self._path(name))
        except errors.Missing:
            return {}, 0
        try:
            state = json.loads(data)
        except ValueError:
            state = None
        return (state if isinstance(state, dict) else {}), generation

    def _swap(self, name: str, stamp: int, state: dict[str, Any]) -> bool:
        try:
            self._client.write_if(self._path(name), _encoded(state), stamp)
        except errors.Conflict:
            return False
        return True

    def _age(self, name: str) -> float:
        found = self._client.find(self._path(name))
        return time.time() - found.updated.timestamp() if found else 0.0

    @contextlib.contextmanager
    def guard(self, name: str, token: int) -> Iterator[None]:
        """Renews the lease, so that it is the caller's for the expiry to come."""
        if not self.renew(name, token):
            raise self.lost(name, token)
        yield

    def publish(
        self, name: str, token: int, path: str | os.PathLike[str], record: Mapping[str, Any]
    ) -> None:
        """See `Lease.publish`."""
        with self.guard(name, token):
            found = self._client.find(path)
            if _token(found) > token:
                raise self.lost(name, token)
            generation = found.generation if found else 0
            try:
                self._client.write_if(path, _encoded(record), generation, {TOKEN: str(token)})
            except errors.Conflict as conflict:
                raise LeaseLost(
                    f"{name}: {conflict} What this process made is not recorded (token {token})."
                ) from None

    def fence(self, token: int, path: str | os.PathLike[str]) -> None:
        """See `Lease.fence`."""
        while not self._fenced(token, path):
            pass  # another process wrote it just now

    def _fenced(self, token: int, path: str | os.PathLike[str]) -> bool:
        """Tries once; False if another process wrote the record meanwhile."""
        found = self._client.find(path)
        if _token(found) >= token:
            return True
        file = io.BytesIO()
        try:
            if found is None:
                file.write(_encoded({FENCED: token}))
            else:
                self._client.download(found, file)
        except errors.Missing:
            return False
        generation = found.generation if found else 0
        try:
            self._client.write_if(path, file.getvalue(), generation, {TOKEN: str(token)})
        except errors.Conflict:
            return False
        return True


def _encoded(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()


def _token(found: Stat | None) -> int:
    return int(found.metadata.get(TOKEN, 0)) if found else 0
