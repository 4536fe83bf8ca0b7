"""Retrieval on the host, ahead of the training: the protocol of REALM's paper.

A training that retrieves in its step has one program (`device_index`). Here another process builds
the index (`refresher`), from checkpoints, and publishes versions of it; the training takes the
newest between two steps, once it has been read beside them. What is hidden in a batch is decided
first, by the training's own key; then queries are embedded by the parameters of the version,
searched, and the blocks that are found go into the batch. Several batches are made ahead, so that
the device does not wait.

Which version a step saw is written down before the step: a run that is stopped and goes on sees the
same ones, as long as they are kept. Of several processes the first decides; each retrieves for its
own rows of the batch, from an index of its own.
"""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Annotated, Any, Literal, Protocol

import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import NO_ROW
from t5x_style.model_dependent_data import versioned_index
from t5x_style.model_dependent_data.version_log import Record, RemoteLog
from t5x_style.model_dependent_data.version_selector import VersionChoice
from t5x_style.model_dependent_data.versioned_index import Parameters, Version, VersionError

Batch = dict[str, dict[str, np.ndarray]]
Spec = Mapping[str, Mapping[str, tuple[tuple[int, ...], Any]]]
# (parameters of a version, clean batch, step) -> what the step hides of it, and vectors [B, D]
Prepare = Callable[[Parameters, Batch, int], tuple[Batch, np.ndarray]]

GROUP = "evidence"
_POLL_SECONDS = 0.5
_SPARE = 8  # rows that are asked for beyond k, for those that are barred


class Corpus(Protocol):
    """The rows of an index, as `device_index.Corpus`, by number."""

    @property
    def rows(self) -> int:
        """How many."""
        ...

    @property
    def length(self) -> int:
        """L, tokens of the longest."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the content."""
        ...

    @property
    def ids(self) -> list[str]:
        """Of the rows, in order."""
        ...

    def tokens_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [n, L] int32, padding behind a row's end, and lengths [n] int32."""
        ...

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """[end - start] int32: 'page' or 'duplicate'; equal numbers belong together."""
        ...


class Pipeline(Protocol):
    """A training's, see `trainer.Pipeline`."""

    fingerprint: str

    def specs(self) -> Spec:
        """group -> feature -> (global shape, dtype)."""

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """These rows of the batch of a step."""


@dataclasses.dataclass(frozen=True)
class HostRetrieval:
    """What is retrieved, and how stale it may be.

    Attributes:
      folder: where versions of the index are published.
      corpus: what is indexed.
      hits: K, blocks that a query gets.
      length: L, tokens of a block in a batch; as many as the longest has, or more.
      exclude: which rows a query never gets, as `DeviceIndexConfig.exclude`.
      max_staleness_steps: how many steps older than the step a version's parameters may be.
      when_stale: 'pause' waits for a newer version, 'warn' says so and goes on.
      ahead: batches that are made before they are needed.
    """

    folder: Annotated[str, "operational"]
    corpus: Corpus
    hits: int
    length: int
    exclude: tuple[str, ...] = ("row",)
    max_staleness_steps: int | None = None
    when_stale: Literal["pause", "warn"] = "pause"
    ahead: int = 2

    def __post_init__(self) -> None:
        if self.hits < 1 or self.ahead < 1:
            raise ValueError(
                f"HostRetrieval: expected hits and ahead of at least 1, found {self.hits} and "
                f"{self.ahead}"
            )
        if self.max_staleness_steps is not None and self.max_staleness_steps < 1:
            raise ValueError(
                "HostRetrieval.max_staleness_steps: expected 1 or more, or None for no bound, "
                f"found {self.max_staleness_steps}"
            )
        if self.when_stale not in ("pause", "warn"):
            raise ValueError(
                f"HostRetrieval.when_stale: expected 'pause' or 'warn', found {self.when_stale!r}"
            )
        if unknown := set(self.exclude) - {"row", "page", "duplicate"}:
            raise ValueError(
                "HostRetrieval.exclude: expected names among 'row', 'page' and 'duplicate', found "
                f"{sorted(unknown)}"
            )
        if self.corpus is None:
            raise ValueError(
                "HostRetrieval.corpus: expected a corpus, found None: bind CORPUS_TABLE of the "
                "training to its blocks (None is for the builder of the index)"
            )
        if self.corpus.length > self.length:
            raise ValueError(
                f"HostRetrieval.length: expected {self.corpus.length} or more, the tokens of the "
                f"longest block, found {self.length}"
            )
        if self.corpus.rows <= self.hits:
            raise ValueError(
                f"HostRetrieval.hits: expected a corpus of more than {self.hits} rows, so that a "
                f"query can get as many that are not its own, found {self.corpus.rows}"
            )

    def spec(self, queries: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        """The group that joins a batch of so many queries."""
        int32 = np.dtype(np.int32)
        per_hit = ((queries, self.hits), int32)
        tokens = ((queries, self.hits, self.length), int32)
        return {"tokens": tokens, "lengths": per_hit, "row": per_hit, "age": per_hit}


class Searched:
    """A version, and what a query may not get of it."""

    def __init__(self, retrieval: HostRetrieval, version: Version):
        """Raises VersionError if the index is not of this corpus."""
        self.version = version
        self._retrieval = retrieval
        corpus, ids = retrieval.corpus, list(version.index.ids)
        if ids != corpus.ids:
            raise VersionError(
                f"version {version.number} of {retrieval.folder} holds {len(ids)} blocks of "
                f"another corpus: expected the {corpus.rows} that are trained on, in their order"
            )
        self._columns = {
            name: corpus.column(name, 0, corpus.rows) if name != "row" else np.arange(corpus.rows)
            for name in retrieval.exclude
        }

    def evidence(self, vectors: np.ndarray, source: np.ndarray, step: int) -> dict[str, np.ndarray]:
        """The group `evidence` of some queries: see `HostRetrieval.spec`.

        Args:
          vectors: [B, D] float32.
          source: [B] int32, the row each was taken from, NO_ROW for none.
          step: of the training.
        """
        rows = self._rows(vectors, source)
        flat = rows.reshape(-1)
        tokens, lengths = self._retrieval.corpus.tokens_of(np.maximum(flat, 0))
        tokens = np.pad(tokens, ((0, 0), (0, self._retrieval.length - tokens.shape[1])))
        there = flat != NO_ROW
        age = np.where(rows != NO_ROW, step - self.version.step, 0)
        return {
            "tokens": np.where(there[:, None], tokens, 0).reshape(*rows.shape, -1),
            "lengths": np.where(there, lengths, 0).reshape(rows.shape).astype(np.int32),
            "row": rows,
            "age": age.astype(np.int32),
        }

    def _rows(self, vectors: np.ndarray, source: np.ndarray) -> np.ndarray:
        """[B, K] int32, best first, none that is barred; NO_ROW where there are fewer."""
        hits, count = self._retrieval.hits, self._retrieval.corpus.rows
        asked = min(hits + _SPARE, count)
        while True:
            _, found = self.version.index.search(vectors, asked)
            good = (found != NO_ROW) & ~self._barred(found, source)
            if asked == count or (good.sum(axis=1) >= hits).all():
                break
            asked = min(2 * asked, count)
        order = np.argsort(~good, axis=1, kind="stable")[:, :hits]
        rows = np.take_along_axis(found, order, axis=1)
        return np.where(np.take_along_axis(good, order, axis=1), rows, NO_ROW).astype(np.int32)

    def _barred(self, found: np.ndarray, source: np.ndarray) -> np.ndarray:
        """[B, k] bool of rows [B, k]."""
        barred = np.zeros(found.shape, bool)
        for column in self._columns.values():
            own = np.where(source == NO_ROW, -1, column[np.maximum(source, 0)])
            barred |= (column[np.maximum(found, 0)] == own[:, None]) & (source != NO_ROW)[:, None]
        return barred


class StoppedWaiting(Exception):
    """The training was asked to stop while it waited for a batch."""


class RetrievalBatches:
    """A pipeline whose batches bring what was retrieved for them; a `trainer.Pipeline`.

    Attributes:
      fingerprint: of the pipeline that gives clean batches.
      stop_asked: whether to stop, asked while a batch is waited for.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        retrieval: HostRetrieval,
        prepared: Spec,
        contract: Contract,
        prepare: Prepare,
    ):
        """`begin` has to be called before a batch is asked for.

        Args:
          pipeline: gives clean batches with a group `query`, one query a row.
          retrieval: what is retrieved.
          prepared: what `prepare` makes of the pipeline's batches.
          contract: of the model.
          prepare: see `Prepare`.

        Raises:
          ValueError: queries say which row they are from and would get it, or rows are barred that
            they do not say.
        """
        if ("source_row" in prepared["query"]) != ("row" in retrieval.exclude):
            raise ValueError(
                "HostRetrieval.exclude: expected 'row' exactly where queries say which row they "
                f"are from (source_row): found {retrieval.exclude} and queries with "
                f"{sorted(prepared['query'])}"
            )
        self._pipeline, self._retrieval = pipeline, retrieval
        self._prepared, self._contract, self._prepare = prepared, contract, prepare
        self.fingerprint = pipeline.fingerprint
        self.stop_asked: Callable[[], bool] = lambda: False
        self._versions = VersionChoice(
            retrieval.folder, retrieval.max_staleness_steps, retrieval.when_stale, self._read
        )

    def begin(self, run: str, record: Record | RemoteLog) -> None:
        """Before the first batch.

        Args:
          run: which training this is; versions of others do not count.
          record: which versions its steps saw; `RemoteLog` for a process that does not decide it.
        """
        self._versions.begin(run, record)

    def specs(self) -> Spec:
        """group -> feature -> (global shape, dtype)."""
        queries = self._prepared["query"]["tokens"][0][0]
        return {**self._prepared, GROUP: self._retrieval.spec(queries)}

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """These rows of the batch of a step, with what its version of the index finds."""
        searched = self._versions.of(step)
        clean = self._pipeline.batch(step, rows)
        batch, vectors = self._prepare(searched.version.parameters, clean, step)
        nowhere = np.full((len(vectors), 1), NO_ROW, np.int32)
        source = clean["query"].get("source_row", nowhere)  # see `__init__`
        return {**batch, GROUP: searched.evidence(vectors, source[:, 0], step)}

    def batches(self, start_step: int, rows: np.ndarray) -> Generator[Batch, None, None]:
        """The batches of all steps from `start_step` on, some of them made ahead.

        Raises:
          StoppedWaiting: `stop_asked` said so before a batch was there.
        """
        executor = concurrent.futures.ThreadPoolExecutor(1, "retrieval")  # one: in order
        self._versions.start()
        waiting: collections.deque[concurrent.futures.Future[Batch]] = collections.deque()
        step = start_step
        try:
            while True:
                while len(waiting) < 1 + self._retrieval.ahead:
                    waiting.append(executor.submit(self.batch, step, rows))
                    step += 1
                yield self._result(waiting.popleft())
        finally:
            self._versions.stop_waiting()
            executor.shutdown(wait=True, cancel_futures=True)
            self._versions.close()

    def _result(self, future: concurrent.futures.Future[Batch]) -> Batch:
        while True:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except TimeoutError:
                if future.done():
                    raise  # it is the batch's own
                if self.stop_asked():
                    raise StoppedWaiting from None

    def _read(self, number: int) -> Searched:
        retrieval = self._retrieval
        return Searched(retrieval, versioned_index.read(retrieval.folder, number, self._contract))
