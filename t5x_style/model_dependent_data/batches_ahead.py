"""Batches that wait for versions of their data, made in a thread ahead of their steps."""

import collections
import concurrent.futures
import contextlib
from collections.abc import Callable, Generator
from typing import TypeVar

from t5x_style.interfaces.batch_source import Batch, ModelView, StopAsked
from t5x_style.model_dependent_data.version_prefetcher import Opened
from t5x_style.model_dependent_data.version_selector import VersionChoice

_POLL_SECONDS = 0.5

T = TypeVar("T", bound=Opened)


def made_ahead(
    make: Callable[[int], Batch],
    step: int,
    ahead: int,
    versions: VersionChoice[T],
    view: ModelView,
) -> Generator[Batch, None, None]:
    """make(step), make(step + 1), ... without end.

    `next` raises StopAsked where the training was asked to stop before a batch was there.

    Args:
      make: makes the batch of a step; it may wait for a version.
      step: the first.
      ahead: batches that are made before they are needed.
      versions: what `make` asks; started and closed here.
      view: of the training.
    """
    executor = concurrent.futures.ThreadPoolExecutor(1, "retrieval")  # one: in order
    versions.start()
    waiting: collections.deque[concurrent.futures.Future[Batch]] = collections.deque()
    try:
        while True:
            while len(waiting) < 1 + ahead:
                waiting.append(executor.submit(make, step))
                step += 1
            yield _result(waiting.popleft(), versions, view)
    finally:
        versions.stop_waiting()
        executor.shutdown(wait=True, cancel_futures=True)
        versions.close()


def _result(
    future: concurrent.futures.Future[Batch], versions: VersionChoice[T], view: ModelView
) -> Batch:
    while True:
        waits = view.refreshing() if versions.waiting else contextlib.nullcontext()
        try:
            with waits:
                return future.result(timeout=_POLL_SECONDS)
        except TimeoutError:
            if future.done():
                raise  # `make` raised it
            if view.stop_asked():
                raise StopAsked from None
