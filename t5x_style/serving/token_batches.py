"""Texts of many requests, computed together, in batches of few shapes.

A text waits for no other: whatever waits when a thread is free becomes its next batch, up to a
budget of tokens, padding included. A few threads each have a batch on the device, since one program
alone leaves a part of the processors, or the copies of an accelerator, idle. Batches have one of a
few shapes (`batch_shapes`), which are compiled before they are used, so that no request waits for a
compilation: those of one text before the first request, the others then or meanwhile.
"""

import collections
import dataclasses
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from t5x_style.serving import batch_shapes
from t5x_style.serving.batch_shapes import BatchShapes
from t5x_style.serving.programs import Programs
from t5x_style.serving.service import Overloaded, RequestError, Tokens, Unavailable


class Stopped(RuntimeError):
    """A warm-up ended early, since somebody asked for that."""


T = TypeVar("T")
WAITING = 1 << 18  # tokens that may wait
Arrays = Mapping[str, np.ndarray]  # output of a program -> [b, ...], of a batch


class Observer(Protocol):
    """Counts what batches cost; called in the threads that compute."""

    def batch(self, program: str, texts: int, tokens: int, seconds: float) -> None:
        """A batch.

        Args:
          program: its name.
          texts: how many it had.
          tokens: that it has room for, padding included.
          seconds: until it was on the host; other batches may have run meanwhile.
        """
        ...

    def queue(self, seconds: float) -> None:
        """How long a text waited for its batch."""
        ...


@dataclasses.dataclass(frozen=True)
class _Text:
    """A text that waits: `ids` [n] int32, `begin` in seconds of `time.perf_counter`."""

    program: str
    ids: np.ndarray
    take: Callable[[Arrays, int], Any]
    future: "Future[Any]"
    begin: float


class TokenBatches:
    """See the module's docstring; may be called from any thread.

    Attributes:
      budget: tokens of a batch.
      waiting: tokens that wait.
      to_compile: shapes of `warm_up` that are not compiled yet.
    """

    def __init__(
        self,
        programs: Programs,
        lengths: Mapping[str, int],
        pad: int,
        budget: int | None = None,
        most_waiting: int = WAITING,
        observer: Observer | None = None,
        most_rows: Mapping[str, int] | None = None,
        parallel: int | None = None,
    ) -> None:
        """Starts the threads.

        Args:
          programs: of the model.
          lengths: name of a program -> tokens of its longest text.
          pad: id of [PAD].
          budget: tokens of a batch, padding included; a longer text is a batch. None: what suits
            the device.
          most_waiting: tokens that may wait before a text is refused.
          observer: is given what batches cost.
          most_rows: name of a program -> texts of a batch, at most; others are limited by the
            budget alone.
          parallel: batches that are computed at the same time; None: what suits the device.
        """
        backend = jax.default_backend()
        if budget is None:
            budget = batch_shapes.BUDGETS.get(backend, batch_shapes.OTHER_BUDGET)
        self.budget = budget
        full = batch_shapes.FULL.get(backend, 0.0)
        self._shapes = {
            name: BatchShapes(length, budget, full, (most_rows or {}).get(name))
            for name, length in lengths.items()
        }
        self._single = {name: BatchShapes(length, 0) for name, length in lengths.items()}
        self._used = dict(self._shapes)  # of which batches have one now
        self.to_compile = 0
        self._compiling: threading.Thread | None = None
        self._programs, self._pad = programs, pad
        self._most_waiting, self._observer = most_waiting, observer
        self._texts: collections.deque[_Text] = collections.deque()
        self._changed = threading.Condition()
        self.waiting = 0
        self._rate = 0.0  # tokens a second of the last batches
        self._computing = 0  # batches
        self._closed = False
        count = batch_shapes.parallel_batches(backend) if parallel is None else parallel
        self._threads = [
            threading.Thread(target=self._run, name=f"encode {number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, program: str, tokens: Tokens, take: Callable[[Arrays, int], T]) -> "Future[T]":
        """Computes one text in a batch with others; a future that is cancelled is left out.

        Args:
          program: its name.
          tokens: of the text.
          take: what is wanted of a batch's outputs and the text's row in it. An error of it ends
            the future.

        Raises:
          Overloaded: too many tokens wait.
          RequestError: the model has no such program.
          Unavailable: it is closed.
        """
        if program not in self._shapes:
            raise RequestError(
                f"expected something that the model offers, {sorted(self._shapes)}, found "
                f"{program!r}"
            )
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise Unavailable("this version of the bundle is closed; try again")
            if self.waiting and self.waiting + len(tokens.ids) > self._most_waiting:
                raise Overloaded(self.waiting / self._rate if self._rate else 1.0)
            self.waiting += len(tokens.ids)
            self._texts.append(_Text(program, tokens.ids, take, future, time.perf_counter()))
            self._changed.notify()
        return future

    def warm_up(
        self,
        threads: int | None = None,
        meanwhile: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Compiles all shapes of all programs; returns how many there are. Once, before any text.

        Args:
          threads: that compile; None: one for each processor.
          meanwhile: whether it returns as soon as any text can be encoded, alone in its batch. One
            thread then compiles the other shapes, and texts share batches of a program from when
            it has all of its shapes. An error there is printed on stderr, and texts for that
            program stay alone.
          stopped: asked before each shape.

        Raises:
          Stopped: `stopped` said yes.
        """
        every = [(name, shape) for name, shapes in self._shapes.items() for shape in shapes]
        single = [(name, shape) for name, shapes in self._single.items() for shape in shapes]
        first = single if meanwhile else every
        self.to_compile = len(every)
        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:  # XLA compiles outside the GIL
            list(pool.map(lambda one: self._compile_unless(stopped, *one), first))
        self.to_compile -= len(first)
        if self.to_compile:
            self._used = dict(self._single)
            self._compiling = threading.Thread(target=self._compile_others, daemon=True)
            self._compiling.start()
        return len(every)

    def close(self, wait: bool = True) -> None:
        """Ends the threads after what waits was encoded.

        Args:
          wait: also for the program that is compiled now, seconds; else its thread ends later.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if wait and self._compiling is not None:
            self._compiling.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._texts and not self._closed:
                    self._changed.wait()
                if not self._texts:
                    return
                batch = self._next()
                self._computing += 1
            try:
                running = [one for one in batch if one.future.set_running_or_notify_cancel()]
                if running:
                    self._compute(running)
            except Exception:  # of an observer: a thread less would be a slower server
                traceback.print_exc()
            finally:
                with self._changed:
                    self._computing -= 1

    def _next(self) -> list[_Text]:
        """Takes the text that waited longest, and others for its program."""
        first = [self._texts.popleft() for _ in range(min(len(self._texts), batch_shapes.WINDOW))]
        program = first[0].program
        waiting = [one for one in first if one.program == program]
        chosen = self._used[program].chosen([len(one.ids) for one in waiting])
        taken = [waiting[number] for number in chosen]
        gone = set(map(id, taken))
        self._texts.extendleft(one for one in reversed(first) if id(one) not in gone)
        self.waiting -= sum(len(one.ids) for one in taken)
        return taken

    def _compute(self, texts: Sequence[_Text]) -> None:
        """Computes texts for one program as one batch, and ends their futures."""
        program, begin = texts[0].program, time.perf_counter()
        try:
            ids, mask = self._padded(texts)
            found, seconds = self._computed(program, ids, mask)
        except Exception as error:  # of whatever the device raises: the requests get it
            for one in texts:
                one.future.set_exception(error)
            return
        tokens = sum(len(one.ids) for one in texts)
        self._rate = self._computing * tokens / max(seconds, 1e-6)
        if self._observer is not None:
            self._observer.batch(program, len(texts), ids.size, seconds)
            for one in texts:
                self._observer.queue(begin - one.begin)
        for row, one in enumerate(texts):
            try:
                one.future.set_result(one.take(found, row))
            except Exception as error:  # for instance of a kind that the program does not give
                one.future.set_exception(error)

    def _padded(self, texts: Sequence[_Text]) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask, int32 [b, s], of texts for one program."""
        # More shapes may be in use by now; a batch that was chosen before fits into them.
        shapes = self._used[texts[0].program]
        shape = shapes.room(len(texts), max(len(one.ids) for one in texts))
        ids, mask = np.full(shape, self._pad, np.int32), np.zeros(shape, np.int32)
        mask[:, 0] = 1  # of rows without a text: a row of padding alone may give NaN
        for row, one in enumerate(texts):
            ids[row, : len(one.ids)] = one.ids
            mask[row, : len(one.ids)] = 1
        return ids, mask

    def _computed(
        self, program: str, ids: np.ndarray, mask: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float]:
        """What a batch became, on the host, and the seconds it took."""
        self._programs.compile(program, ids.shape)
        begin = time.perf_counter()
        outputs = self._programs(program, ids, mask)
        found = {name: np.asarray(array) for name, array in outputs.items()}
        return found, time.perf_counter() - begin

    def _compile_others(self) -> None:
        """Compiles the shapes of more than one text, and lets batches have them."""
        for name, shapes in self._shapes.items():
            left = sorted(set(shapes) - set(self._single[name]))
            try:
                while left:
                    if self._closed:
                        return
                    self._programs.compile(name, left[0])
                    del left[0]
                    self.to_compile -= 1
                self._used[name] = shapes
            except Exception as error:  # XLA raises whatever it meets
                self.to_compile -= len(left)
                print(
                    f"serve: {name}: no program for batches of {left[0]}, so that each text is a "
                    f"batch: {error}",
                    file=sys.stderr,
                    flush=True,
                )

    def _compile_unless(
        self, stopped: Callable[[], bool], program: str, shape: tuple[int, ...]
    ) -> None:
        if stopped():
            raise Stopped(f"{self.to_compile} programs were to be compiled")
        self._programs.compile(program, shape)
