"""Leases as files of one folder, for processes that share its disk.

leases/train-3f2a9c0d1e2b4a5c.json    token, holder, beat (a counter)
leases/train-3f2a9c0d1e2b4a5c.lock    locked for as long as that file is read and replaced
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5x_style.leases.swap_leases import SwapLeases
from t5x_style.storage import records


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

    def publish(
        self, name: str, token: int, path: str | os.PathLike[str], record: Mapping[str, Any]
    ) -> None:
        """See `Lease.publish`."""
        with self.guard(name, token):
            records.write_json(Path(path), record)

    def fence(self, token: int, path: str | os.PathLike[str]) -> None:
        """Nothing: `guard` compares the token under the lock."""
