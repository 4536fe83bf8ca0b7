"""Turns "batch of step s" into an iterator that tf.data prefetches. Holds no state of its own."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from input_pipelines.token_store import hidden_tensorflow

Batch = dict[str, dict[str, np.ndarray]]
Spec = dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]]

_FOREVER = np.iinfo(np.int64).max


def prefetched(
    make: Callable[[int], Batch], spec: Spec, start: int, stop: int | None, prefetch: int
) -> Iterator[Batch]:
    """make(start), make(start + 1), ... up to stop - 1 (None: without end), made ahead of use.

    The batches are those that `make` gives: tf.data decides only when they are made.

    Args:
      make: step -> batch.
      spec: names and dtypes of what it makes.
      prefetch: batches that are made ahead.

    Raises:
      whatever `make` raised, as it raised it.
    """
    tf = hidden_tensorflow()
    names = [(group, feature) for group in spec for feature in spec[group]]
    failures: list[Exception] = []

    def load(step: np.int64) -> list[np.ndarray]:
        try:
            batch = make(int(step))
        except Exception as error:  # tf.data would keep the text and lose the type
            failures.append(error)
            raise
        return [batch[group][feature] for group, feature in names]

    types = [tf.as_dtype(spec[group][feature][1]) for group, feature in names]
    dataset = tf.data.Dataset.range(start, _FOREVER if stop is None else stop)
    dataset = dataset.map(lambda step: tf.numpy_function(load, [step], types))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2  # the cores belong to the compiled step
    options.deterministic = True
    options.autotune.enabled = False
    return _named(dataset.prefetch(prefetch).with_options(options), names, failures)


def _named(
    dataset: object, names: Sequence[tuple[str, str]], failures: Sequence[Exception]
) -> Iterator[Batch]:
    try:
        for arrays in dataset.as_numpy_iterator():  # type: ignore[attr-defined]
            batch: Batch = {}
            for (group, feature), array in zip(names, arrays, strict=True):
                batch.setdefault(group, {})[feature] = array
            yield batch
    except hidden_tensorflow().errors.OpError:
        if failures:
            raise failures[0] from None
        raise


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
