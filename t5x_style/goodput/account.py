"""Account of one attempt's time, with every second in exactly one part.

The account belongs to the thread that made it, the one that runs the loop. What other threads do
runs next to the loop and takes none of its time.

The host is ahead of the device: calling a step returns at once, and its time appears where the host
waits for it. That is in the loop, outside of all parts, and counts as `step`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from t5x_style.goodput import attempts
from t5x_style.goodput.attempts import Attempt, Spent


class Account:
    """Seconds by part; `part` claims what passes inside, without the parts inside that."""

    def __init__(
        self,
        path: Path | None = None,
        begun: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ):
        """Starts an attempt; time counts as `start` until the loop.

        Args:
          path: file of the account, which may hold earlier attempts; None keeps nothing.
          begun: when the process started, in seconds since the epoch; None: now. Time before the
            last record of an earlier attempt is not counted again.
          clock: monotonic seconds.
          now: seconds since the epoch.

        Raises:
          GoodputError: the file holds no account.
        """
        self._path, self._clock, self._now = path, clock, now
        self._since, present = clock(), now()
        self._earlier = [] if path is None else attempts.read(path)
        self._begun = present if begun is None else min(begun, present)
        if self._earlier:
            self._begun = min(max(self._begun, self._earlier[-1].seen), present)
        self._reached = max((one.step for one in self._earlier), default=0)
        self._first: int | None = None
        self._step = 0
        self._kept: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        self._book = self._lost if self._earlier else self._kept
        self._open: list[list[Any]] = [["start", 0.0]]  # name, its seconds since it was opened
        self._thread = threading.get_ident()
        self._book["start"] = present - self._begun

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what passes inside as a part of `attempts.PARTS`, but for parts inside that."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._settle()
        self._open.append([name, 0.0])
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """The loop: what no part claims inside is `step`, and after it `other`."""
        with self.part("step"):
            yield
        self._open[0] = ["other", 0.0]

    def begin_step(self, step: int) -> None:
        """Called before each step; the first that no earlier attempt did ends what is lost.

        Args:
          step: updates so far.
        """
        if self._first is None:
            self._first = step
        if self._book is self._lost and step >= self._reached:
            self._settle()
            self._book = self._kept
            self._open = [[name, 0.0] for name, _ in self._open]

    def charge(self, name: str, seconds: float) -> None:
        """Moves seconds from the current part to another one.

        Args:
          name: of the part that they belong to.
          seconds: of them as many are moved as the current part has had since it was opened.
        """
        if threading.get_ident() != self._thread:
            return
        self._settle()
        current = self._open[-1]
        moved = max(0.0, min(seconds, current[1]))
        current[1] -= moved
        self._book[current[0]] -= moved
        self._book[name] = self._book.get(name, 0.0) + moved

    def seconds(self) -> tuple[dict[str, float], dict[str, float]]:
        """Part -> seconds so far; and those until the first new step of a restarted training."""
        self._settle()
        return dict(self._kept), dict(self._lost)

    def save(self, step: int | None = None) -> Spent:
        """Writes the account, so that a process which is killed afterwards leaves it.

        Args:
          step: updates so far; None: as in the call before.

        Returns:
          the sum of all attempts.
        """
        if step is not None:
            self._step = step
        kept, lost = self.seconds()
        latest = Attempt(self._begun, self._now(), self._first, self._step, kept, lost)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            attempts.write(self._path, [*self._earlier, latest])
        return attempts.total([*self._earlier, latest])

    def _settle(self) -> None:
        """Adds what has passed to the current part."""
        present, current = self._clock(), self._open[-1]
        passed, self._since = present - self._since, present
        current[1] += passed
        self._book[current[0]] = self._book.get(current[0], 0.0) + passed
