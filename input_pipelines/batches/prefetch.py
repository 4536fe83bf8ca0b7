"""Turn "batch of step s" into an iterator that tf.data prefetches; holds no state."""

import atexit
import functools
import weakref
from collections.abc import Callable, Iterator

import numpy as np

from input_pipelines.sources.cpu_only_tensorflow import cpu_only_tensorflow

Batch = dict[str, dict[str, np.ndarray]]
Spec = dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]]

_FOREVER = np.iinfo(np.int64).max


class _Maker:
    """Job of tf.data's thread; it does not refer to the iterator, so it keeps none alive."""

    def __init__(self, make: Callable[[int], Batch], names: list[tuple[str, str]]):
        self.make, self.names = make, names
        self.more = True
        self.failures: list[Exception] = []

    def load(self, step: np.int64) -> list[np.ndarray]:
        """A batch as a list of arrays."""
        try:
            batch = self.make(int(step))
        except Exception as error:  # tf.data would keep the text and lose the type
            self.failures.append(error)
            raise
        return [batch[group][feature] for group, feature in self.names]


class Prefetched(Iterator[Batch]):
    """make(start), make(start + 1), ... up to stop - 1 (None: without end), made ahead of use.

    The batches are those that `make` gives: tf.data decides only when they are made. An error in
    `make` is raised by `next` as it was raised there.
    """

    def __init__(
        self,
        make: Callable[[int], Batch],
        spec: Spec,
        start: int,
        stop: int | None,
        prefetch: int,
    ):
        """
        Args:
          make: step -> batch; called in another thread.
          spec: names and dtypes of what it makes.
          prefetch: batches that are made ahead.
        """
        self._iterator: Iterator[tuple[np.ndarray, ...]] | None = None
        tf = cpu_only_tensorflow()
        self._op_error = tf.errors.OpError
        self._names = [(group, feature) for group in spec for feature in spec[group]]
        self._maker = maker = _Maker(make, self._names)
        types = [tf.as_dtype(spec[group][feature][1]) for group, feature in self._names]
        steps = tf.data.Dataset.range(start, _FOREVER if stop is None else stop)
        steps = steps.take_while(lambda _: tf.numpy_function(lambda: maker.more, [], tf.bool))
        batches = steps.map(lambda step: tf.numpy_function(maker.load, [step], types))
        options = tf.data.Options()
        options.deterministic = True
        options.threading.private_threadpool_size = 2  # the cores belong to the compiled step
        options.autotune.enabled = False
        self._iterator = batches.prefetch(prefetch).with_options(options).as_numpy_iterator()
        _close_at_exit().add(self)

    def __next__(self) -> Batch:
        """The batch of the next step.

        Raises:
          whatever `make` raised.
        """
        if self._iterator is None:
            raise StopIteration
        try:
            arrays = next(self._iterator)
        except StopIteration:
            self._iterator = None  # gives its threads back
            raise
        except self._op_error:
            if self._maker.failures:
                raise self._maker.failures[0] from None
            raise
        batch: Batch = {}
        for (group, feature), array in zip(self._names, arrays, strict=True):
            batch.setdefault(group, {})[feature] = array
        return batch

    def close(self) -> None:
        """Waits until nothing is being made any more.

        A thread that is still in Python while the interpreter shuts down hangs the process.
        """
        if self._iterator is not None:
            self._maker.more = False
        while self._iterator is not None:
            try:
                next(self._iterator)
            except StopIteration:
                self._iterator = None
            except self._op_error:
                continue

    def __del__(self) -> None:
        self.close()


@functools.cache
def _close_at_exit() -> weakref.WeakSet[Prefetched]:
    """Iterators to close at exit; asked for after TensorFlow is imported, so before it goes."""
    alive: weakref.WeakSet[Prefetched] = weakref.WeakSet()

    def close_all() -> None:
        for iterator in list(alive):
            iterator.close()

    atexit.register(close_all)
    return alive


def own_rows(rows: np.ndarray | None, count: int) -> np.ndarray:
    """Rows of the global batch that a process asks for, checked; None asks for all.

    Raises:
      ValueError: rows that the batch does not have, or none at all.
    """
    if rows is None:
        return np.arange(count)
    rows = np.asarray(rows)
    whole = rows.ndim == 1 and rows.size and np.issubdtype(rows.dtype, np.integer)
    if not whole or rows.min() < 0 or rows.max() >= count:
        raise ValueError(
            f"rows of the batch: expected a list of numbers from 0 to {count - 1} (the batch has "
            f"{count} rows), found {rows.tolist()}"
        )
    return rows
