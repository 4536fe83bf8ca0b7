"""Retrieval on the host, ahead of the training: the protocol of REALM's paper.

A training that retrieves in its step has one program (`device_index`). Here another process builds
the index (`refresher`), from checkpoints, and publishes versions of it; the training takes the
newest between two steps, once it has been read in the background. The masks of a batch are drawn
first, by the training's own key; then queries are embedded by the parameters of the version,
searched, and the blocks that are found go into the batch. Several batches are made ahead, so that
the device does not wait.

Which version a step saw is written down before the step: a run that is stopped and resumed sees the
same ones, as long as they are kept. Of several processes the first decides; each retrieves for its
own rows of the batch, from its own copy of the index.
"""

import dataclasses
from collections.abc import Generator
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np

from t5x_style.interfaces.batch_source import (
    Batch,
    BatchSource,
    ModelDependentSource,
    ModelView,
    SourceError,
    Specs,
    require_complete,
)
from t5x_style.interfaces.index import NO_ROW
from t5x_style.model_dependent_data import (
    batches_ahead,
    host_query_encoder,
    staleness,
    version_log,
    versioned_index,
)
from t5x_style.model_dependent_data.version_selector import VersionChoice
from t5x_style.model_dependent_data.versioned_index import Version, VersionError

GROUP = "evidence"
_SPARE = 8  # rows that are asked for beyond k, for those that are barred


class SearchedCorpus(Protocol):
    """The rows of an index, by number."""

    @property
    def rows(self) -> int:
        """Number of rows."""
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
        """Tokens [n, L] int32, padding after a row's end, and lengths [n] int32."""
        ...

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """[end - start] int32: 'page' or 'duplicate'; equal numbers belong together."""
        ...


@dataclasses.dataclass(frozen=True)
class HostRetrieval(ModelDependentSource):
    """Batches of another source, corrupted, with the evidence that the host retrieved for them.

    Attributes:
      source: gives clean batches with a group `query`, one query a row.
      folder: where versions of the index are published; they are copied to this disk first if
        that is on object storage.
      corpus: what is indexed.
      hits: K, blocks that a query gets.
      length: L, tokens of a block in a batch; as many as the longest has, or more.
      exclude: which rows a query never gets, as `DeviceIndexConfig.exclude`.
      max_staleness_steps: how many steps older than the step a version's parameters may be.
      when_stale: 'pause' waits for a newer version, 'warn' prints a warning and continues.
      ahead: batches that are made before they are needed.
    """

    corrupts: ClassVar[bool] = True  # queries are embedded without what the loss asks for
    not_continued: ClassVar[str] = (
        "what the host retrieved depends on indexes that were built while that training ran, "
        "which belong to it alone"
    )
    decides: ClassVar[tuple[str, ...]] = ("cadence.save_every",)  # an index of each checkpoint

    source: BatchSource
    folder: Annotated[str, "operational"]
    corpus: SearchedCorpus
    hits: int
    length: int
    exclude: tuple[str, ...] = ("row",)
    max_staleness_steps: int | None = None
    when_stale: Literal["pause", "warn"] = "pause"
    ahead: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.source, ModelDependentSource):
            raise SourceError(
                "HostRetrieval.source: expected a source that needs no model, found "
                f"{type(self.source).__name__}"
            )
        require_complete(self.source, "HostRetrieval.source")
        if self.hits < 1:
            raise ValueError(f"HostRetrieval.hits: expected at least 1, found {self.hits}")
        staleness.check("HostRetrieval", self.max_staleness_steps, self.when_stale, self.ahead)
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

    def bind(self, view: ModelView) -> "RetrievalBatches":
        """See `ModelDependentSource`.

        Raises:
          ValueError: a bound of staleness that training would wait for without end; queries say
            which row they are from and would get it, or rows are barred that they do not say.
        """
        self.require_patience(view.save_every)
        return RetrievalBatches(self, view)

    @property
    def clean(self) -> BatchSource:
        """See `ModelDependentSource`: needs no index."""
        return self.source

    def require_patience(self, save_every: int) -> None:
        """See `ModelDependentSource`."""
        staleness.require_patience(
            *("HostRetrieval", self.max_staleness_steps, self.when_stale, self.ahead), save_every
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
            values = np.where(source == NO_ROW, -1, column[np.maximum(source, 0)])
            barred |= (column[np.maximum(found, 0)] == values[:, None]) & (source != NO_ROW)[
                :, None
            ]
        return barred


class RetrievalBatches:
    """`HostRetrieval` for one training; a `BatchSource`.

    Attributes:
      fingerprint: of the source that gives clean batches.
    """

    def __init__(self, retrieval: HostRetrieval, view: ModelView):
        """See `HostRetrieval.bind`."""
        self._source, self._retrieval, self._view = retrieval.source, retrieval, view
        self._corrupted = host_query_encoder.specs(view, self._source.specs())
        if ("source_row" in self._corrupted["query"]) != ("row" in retrieval.exclude):
            raise ValueError(
                "HostRetrieval.exclude: expected 'row' exactly where queries say which row they "
                f"are from (source_row): found {retrieval.exclude} and queries with "
                f"{sorted(self._corrupted['query'])}"
            )
        self._contract = view.module().contract()
        self.fingerprint = self._source.fingerprint
        self._encoder: host_query_encoder.HostQueryEncoder | None = None
        self._versions = VersionChoice(
            *("HostRetrieval", "the index", retrieval.folder),
            *(retrieval.max_staleness_steps, retrieval.when_stale, self._read),
        )

    def specs(self) -> Specs:
        """See `BatchSource`."""
        queries = self._corrupted["query"]["tokens"][0][0]
        return {**self._corrupted, GROUP: self._retrieval.spec(queries)}

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """See `BatchSource`; with what the version of the index that the step saw finds."""
        encoder = self._begun()
        searched = self._versions.of(step)
        clean = self._source.batch(step, rows)
        batch, vectors = encoder(searched.version.parameters, clean, step)
        nowhere = np.full((len(vectors), 1), NO_ROW, np.int32)
        source = clean["query"].get("source_row", nowhere)  # see `__init__`
        return {**batch, GROUP: searched.evidence(vectors, source[:, 0], step)}

    def batches(self, start_step: int, rows: np.ndarray) -> Generator[Batch, None, None]:
        """See `BatchSource`; the process that builds indexes finds a first checkpoint.

        `next` raises StopAsked where the training was asked to stop before a batch was there.
        """
        self._begun()
        self._view.snapshot()
        return batches_ahead.made_ahead(
            lambda step: self.batch(step, rows),
            start_step,
            self._retrieval.ahead,
            self._versions,
            self._view,
        )

    def _begun(self) -> host_query_encoder.HostQueryEncoder:
        """Once the training has its parameters and its key; first called by all processes alike."""
        if self._encoder is None:
            self._encoder = host_query_encoder.HostQueryEncoder(self._view)
            self._versions.begin(*version_log.begin(self._view.folder))
        return self._encoder

    def _read(self, number: int) -> Searched:
        retrieval = self._retrieval
        return Searched(retrieval, versioned_index.read(retrieval.folder, number, self._contract))
