"""A map of a corpus: its passages on the plane of the first two principal components.

The covariance of the vectors is summed over chunks of rows, so that memory holds [D, D] and a
chunk, whatever the number of passages.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np

from t5x_style.interfaces.representation import Vectors
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving.opened.passage_sources import Sources
from t5x_style.serving.service import CorpusMap

LIMIT = 20_000  # passages on a map
CHARACTERS = 80  # of a title, and of the beginning of a text
DECIMALS = 4
_AXES = 2
_CHUNK = 4096  # rows that are read at a time
_FLAT = 1e-6  # of the length of the mean: points that are no farther from it are one point


class LazyMap:
    """The map of one version. The first call starts to compute it in a new thread.

    All calls return the same future, so that those who wait occupy no thread. A computation that
    failed starts again with the next call.
    """

    def __init__(self, compute: Callable[[], CorpusMap]) -> None:
        """compute: what takes long; called once, unless it fails."""
        self._compute = compute
        self._lock = threading.Lock()
        self._future: Future[CorpusMap] | None = None

    def __call__(self) -> "Future[CorpusMap]":
        """The map, once it is there. The future cannot be cancelled, as others wait for it too."""
        with self._lock:
            future = self._future
            if future is None or (future.done() and future.exception() is not None):
                future = self._future = Future()
                future.set_running_or_notify_cancel()
                thread = threading.Thread(
                    target=self._run, args=(future,), name="corpus map", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads: the next call tries again
                    future.set_exception(error)
            return future

    def _run(self, future: "Future[CorpusMap]") -> None:
        try:
            future.set_result(self._compute())
        except BaseException as error:  # the callers raise it
            future.set_exception(error)


def draw(vectors: Vectors, passages: Passages, sources: Sources, limit: int = LIMIT) -> CorpusMap:
    """The map of passages.

    Args:
      vectors: [N, D] float32, one of each passage; may be memory-mapped.
      passages: the N passages.
      sources: of the passages.
      limit: points at most; of more passages, evenly spaced ones.
    """
    rows = spaced_rows(len(vectors), limit)
    points, explained = project(vectors, rows)
    shown = [passages.passage(row) for row in rows.tolist()]
    groups = [sources.listed_of(one.source) for one in shown]
    names = sorted(set(groups))
    numbers = {name: number for number, name in enumerate(names)}
    return CorpusMap(
        points=points,
        explained=explained,
        ids=[one.id for one in shown],
        titles=[beginning(one.title) for one in shown],
        texts=[beginning(one.text) for one in shown],
        sources=names,
        groups=np.asarray([numbers[name] for name in groups], np.int32),
    )


def spaced_rows(passages: int, limit: int = LIMIT) -> np.ndarray:
    """int64 [n], ascending: all rows, or `limit` evenly spaced ones.

    >>> spaced_rows(3).tolist(), spaced_rows(10, 4).tolist()
    ([0, 1, 2], [0, 2, 5, 7])
    """
    if passages <= limit:
        return np.arange(passages, dtype=np.int64)
    return np.arange(limit, dtype=np.int64) * passages // limit


def project(vectors: Vectors, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of vectors along their first two principal components.

    The sign of a component is that with which its largest entry is positive. Both axes have one
    scale: the coordinate farthest from 0, which is the mean, is 1 or -1.

    Args:
      vectors: [N, D] float32; may be memory-mapped.
      rows: int64 [n], n at least 1, those that are projected.

    Returns:
      Coordinates, [n, 2] float32 with 4 decimals, and the shares of the variance that the two
      components explain, [2] float32. All are 0 where the vectors are all the same.
    """
    mean = sum(part.sum(axis=0) for part in _chunks(vectors, rows)) / len(rows)
    covariance = np.zeros((vectors.shape[1], vectors.shape[1]))
    for part in _chunks(vectors, rows):
        covariance += (part - mean).T @ (part - mean) / len(rows)
    values, axes = np.linalg.eigh(covariance)  # ascending
    axes = _signed(axes[:, ::-1][:, :_AXES])
    parts = [(part - mean) @ axes for part in _chunks(vectors, rows)]
    points, explained = np.zeros((len(rows), _AXES)), np.zeros(_AXES)
    points[:, : axes.shape[1]] = np.concatenate(parts)
    farthest, total = np.abs(points).max(), np.trace(covariance)
    if farthest <= _FLAT * np.linalg.norm(mean) or total <= 0:
        return np.zeros(points.shape, np.float32), np.zeros(_AXES, np.float32)
    explained[: axes.shape[1]] = values[::-1][:_AXES] / total
    points = np.round(points / farthest, DECIMALS) + 0.0  # no -0.0
    return points.astype(np.float32), np.clip(explained, 0, 1).astype(np.float32)


def beginning(text: str, characters: int = CHARACTERS) -> str:
    """A text in one line, cut at a word where it is longer than that.

    >>> beginning("one two three", 9)
    'one two…'
    """
    line = " ".join(text[: 4 * characters].split())
    if len(line) <= characters:
        return line
    cut = line[:characters]
    word = cut.rpartition(" ")[0]
    return f"{word if len(word) > characters // 2 else cut[:-1]}…"


def _chunks(vectors: Vectors, rows: np.ndarray) -> Iterator[np.ndarray]:
    """[at most _CHUNK, D] float64, of the rows in their order."""
    for start in range(0, len(rows), _CHUNK):
        yield np.asarray(vectors[rows[start : start + _CHUNK]], np.float64)


def _signed(axes: np.ndarray) -> np.ndarray:
    """[D, 2]: each column with the sign that makes its largest entry positive."""
    largest = np.abs(axes).argmax(axis=0)
    signs: np.ndarray = np.sign(axes[largest, np.arange(axes.shape[1])])
    return axes * np.where(signs == 0, 1.0, signs)
