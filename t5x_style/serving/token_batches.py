"""Texts of many requests, encoded together: one thread owns the device, and shapes are few.

A text waits for no other: whatever waits when the device is free becomes the next batch, up to a
budget of tokens, padding included. Batches have one of a few shapes, all of which are compiled
before the first request, so that no request waits for a compilation.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, SPARSE, function_name
from t5x_style.serving.programs import Programs
from t5x_style.serving.service import Encoded, Overloaded, RequestError, Tokens

BUDGET = 4_096  # tokens of a batch, padding included
WAITING = 1 << 18  # tokens that may wait
_SHORTEST = 16
_ROWS = 4  # one more shape for each factor of rows


class Observer(Protocol):
    """Counts what batches cost; called in the thread that computes."""

    def batch(self, side: str, texts: int, tokens: int, seconds: float) -> None:
        """A batch.

        Args:
          side: 'query' or 'passage'.
          texts: how many it had.
          tokens: that it has room for, padding included.
          seconds: of the device.
        """
        ...

    def queue(self, seconds: float) -> None:
        """How long a text waited for its batch."""
        ...

    def compilation(self, seconds: float) -> None:
        """A program was compiled, and run once."""
        ...


@dataclasses.dataclass(frozen=True)
class _Text:
    """A text that waits: `ids` [n] int32, `begin` in seconds of `time.perf_counter`."""

    side: str
    ids: np.ndarray
    kinds: Sequence[str]
    future: "Future[Encoded]"
    begin: float


class TokenBatches:
    """See the module's docstring; may be called from any thread.

    Attributes:
      waiting: tokens that wait.
    """

    def __init__(
        self,
        programs: Programs,
        lengths: Mapping[str, int],
        pad: int,
        budget: int = BUDGET,
        most_waiting: int = WAITING,
        observer: Observer | None = None,
    ) -> None:
        """Starts the thread.

        Args:
          programs: of the model.
          lengths: side -> tokens of its longest text.
          pad: id of [PAD].
          budget: tokens of a batch, padding included; a longer text is a batch.
          most_waiting: tokens that may wait before a text is refused.
          observer: is given what batches cost.
        """
        self._programs, self._lengths, self._pad = programs, dict(lengths), pad
        self._budget, self._most_waiting, self._observer = budget, most_waiting, observer
        self._texts: collections.deque[_Text] = collections.deque()
        self._changed = threading.Condition()
        self.waiting = 0
        self._rate = 0.0  # tokens a second of the last batches
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="encode", daemon=True)
        self._thread.start()

    def submit(self, side: str, tokens: Tokens, kinds: Sequence[str]) -> "Future[Encoded]":
        """See `Service.submit`.

        Raises:
          Overloaded: too many tokens wait.
          RequestError: the model does not embed this side.
          RuntimeError: it is closed.
        """
        if side not in self._lengths:
            raise RequestError(
                f"side: expected one that the model embeds, {sorted(self._lengths)}, found {side!r}"
            )
        future: Future[Encoded] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("this version of the bundle is closed")
            if self.waiting and self.waiting + len(tokens.ids) > self._most_waiting:
                raise Overloaded(self.waiting / self._rate if self._rate else 1.0)
            self.waiting += len(tokens.ids)
            self._texts.append(_Text(side, tokens.ids, tuple(kinds), future, time.perf_counter()))
            self._changed.notify()
        return future

    def warm_up(self) -> int:
        """Compiles every shape of every side; returns how many there are. Before any request."""
        count = 0
        for side, length in self._lengths.items():
            for rows, columns in shapes(length, self._budget):
                ids = np.full((rows, columns), self._pad, np.int32)
                mask = np.ones((rows, columns), np.int32)
                self._computed(side, ids, mask)
                count += 1
        return count

    def close(self) -> None:
        """Ends the thread after what waits was encoded."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._texts and not self._closed:
                    self._changed.wait()
                if not self._texts:
                    return
                batch = self._next()
            running = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if running:
                self._encode(running)

    def _next(self) -> list[_Text]:
        """Takes the texts of one side that waited longest, as many as fit the budget."""
        side = self._texts[0].side
        taken: list[_Text] = []
        left: list[_Text] = []
        longest = 0
        for one in self._texts:
            width = width_of(max(longest, len(one.ids)), self._lengths[side])
            fits = not taken or (len(taken) + 1) * width <= self._budget
            if one.side == side and fits:
                taken.append(one)
                longest = max(longest, len(one.ids))
            else:
                left.append(one)
        self._texts = collections.deque(left)
        self.waiting -= sum(len(one.ids) for one in taken)
        return taken

    def _encode(self, texts: Sequence[_Text]) -> None:
        """Encodes texts of one side as one batch, and ends their futures."""
        side, begin = texts[0].side, time.perf_counter()
        columns = width_of(max(len(one.ids) for one in texts), self._lengths[side])
        rows = next(
            rows
            for rows, width in shapes(self._lengths[side], self._budget)
            if width == columns and rows >= len(texts)
        )
        ids = np.full((rows, columns), self._pad, np.int32)
        mask = np.zeros((rows, columns), np.int32)
        mask[:, 0] = 1  # of rows without a text: a row of padding alone may give NaN
        for row, one in enumerate(texts):
            ids[row, : len(one.ids)] = one.ids
            mask[row, : len(one.ids)] = 1
        try:
            found, seconds = self._computed(side, ids, mask)
        except Exception as error:  # of whatever the device raises: the requests get it
            for one in texts:
                one.future.set_exception(error)
            return
        self._rate = sum(len(one.ids) for one in texts) / max(seconds, 1e-6)
        if self._observer is not None:
            self._observer.batch(side, len(texts), rows * columns, seconds)
            for one in texts:
                self._observer.queue(begin - one.begin)
        for row, one in enumerate(texts):
            try:
                one.future.set_result(encoded(found, row, one.kinds))
            except KeyError as error:  # a kind that the programs do not give
                one.future.set_exception(error)

    def _computed(
        self, side: str, ids: np.ndarray, mask: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float]:
        """What a batch became, on the host, and the seconds it took."""
        begin, compiled = time.perf_counter(), self._programs.compiled
        outputs = self._programs(function_name(side), ids, mask)
        found = {name: np.asarray(array) for name, array in outputs.items()}
        seconds = time.perf_counter() - begin
        if self._observer is not None and self._programs.compiled > compiled:
            self._observer.compilation(seconds)
        return found, seconds


def width_of(length: int, longest: int) -> int:
    """Tokens of a row in which a text of `length` is encoded: a power of two, or the longest."""
    return min(longest, max(_SHORTEST, 1 << (length - 1).bit_length()))


def shapes(longest: int, budget: int) -> Iterator[tuple[int, int]]:
    """(rows, columns) of all batches of one side; of equal columns the fewest rows first."""
    lengths = [1 << power for power in range(longest.bit_length() + 1)]
    for columns in sorted({width_of(length, longest) for length in lengths}):
        most, rows = max(1, budget // columns), 1
        while rows < most:
            yield rows, columns
            rows *= _ROWS
        yield most, columns


def encoded(found: Mapping[str, np.ndarray], row: int, kinds: Sequence[str]) -> Encoded:
    """What a row of a batch became, of some kinds; see `saved_model` for the names."""
    dense = sparse = several = None
    if DENSE in kinds:
        dense = found["embedding"][row]
    if SPARSE in kinds:
        there = found["sparse_segments"][row] > 0
        sparse = (found["sparse_tokens"][row][there], found["sparse_weights"][row][there])
    if MULTI_VECTOR in kinds:
        several = found["multi_vector_vectors"][row][found["multi_vector_segments"][row] > 0]
    return Encoded(dense, sparse, several)
