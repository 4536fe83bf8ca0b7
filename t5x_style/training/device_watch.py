"""Measure how long the device still worked while the host waited for input.

The host asks for the next batch while the last step runs. Only what it waits after that step has
ended costs time. The host cannot see the end while it waits, so a thread waits for the step.
"""

import contextlib
import queue
import threading
import time
from types import TracebackType
from typing import Any

import jax


class DeviceWatch:
    """The end of the newest step; a context, outside of which nothing is watched."""

    def __init__(self) -> None:
        self._steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._given = self._seen = 0
        self._end = 0.0

    def __enter__(self) -> "DeviceWatch":
        # a daemon: a step that waits for a process which is gone never ends
        threading.Thread(target=self._watch, name="device", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps.put(None)

    def now(self) -> float:
        """Seconds on the clock of this watch."""
        return time.monotonic()

    def step(self, result: Any) -> None:
        """Called with an array of a step that was started, and that nobody donates."""
        self._given += 1
        self._steps.put(result)

    def busy(self, since: float) -> float:
        """Seconds from a moment of `now` to this one in which the newest step still ran."""
        with self._lock:
            end = self._end if self._seen == self._given else self.now()
        return max(0.0, end - since)

    def _watch(self) -> None:
        while (result := self._steps.get()) is not None:
            with contextlib.suppress(Exception):  # the loop meets the same error, and reports it
                jax.block_until_ready(result)
            with self._lock:
                self._seen, self._end = self._seen + 1, self.now()
