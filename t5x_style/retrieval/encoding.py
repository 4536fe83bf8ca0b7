"""From packed token groups to one vector for each text, in memory or part by part."""

import collections
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import tqdm

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import TEXT, Contract, ContractError
from t5x_style.retrieval import embedding_shards

Group = Mapping[str, Any]
Embed = Callable[[Group], jax.Array]  # token group -> [B, S, D] float32
IN_FLIGHT = 2  # batches that the device has been given and the host has not fetched


class Batched(Protocol):
    """Texts as packed token groups, each text once; `example_id` is the place in `ids`."""

    @property
    def ids(self) -> Sequence[str]:
        """One for each text, in order."""
        ...

    def batches(self) -> Iterator[Group]:
        """Groups of one shape; free rows at the end are padding."""
        ...


class EncodeSource(Batched, Protocol):
    """Texts that can be embedded.

    Attributes:
      segment_length: tokens at which texts are cut.
      prefix: text that was put before each.
      layout: how titles stand in them, as in `Contract.passage_layout`.
      tokenizer_fingerprint: of the tokenizer that made the tokens.
      fingerprint: of the texts and of the shape of their batches.
    """

    @property
    def segment_length(self) -> int:
        """See above."""
        ...

    @property
    def prefix(self) -> str:
        """See above."""
        ...

    @property
    def layout(self) -> str:
        """See above."""
        ...

    @property
    def tokenizer_fingerprint(self) -> str:
        """See above."""
        ...

    @property
    def fingerprint(self) -> str:
        """See above."""
        ...

    def part(self, start: int, end: int) -> "EncodeSource":
        """The texts ids[start:end] as a source of their own, in batches of the same shape."""
        ...


class Encoder(Protocol):
    """A trained model, as `restored_model.Trained`."""

    @property
    def contract(self) -> Contract:
        """How the model turns text into vectors."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the checkpoint."""
        ...

    def encode(self, function: str, source: EncodeSource) -> np.ndarray:
        """Vectors [N, D] float32 of a source."""
        ...


class EncodingError(ValueError):
    """A text was not embedded exactly once, or its vector is not finite."""


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Vectors [N, D] float32 with their ids, in row order.

    Vectors read from a folder stay there: what is sliced is read.

    Attributes:
      contract: of the model.
      checkpoint: fingerprint of the one that made them, '' where that was not recorded.
    """

    vectors: index_lib.Vectors
    ids: list[str]
    contract: Contract
    checkpoint: str = ""


def check_source(source: EncodeSource, contract: Contract, function: str) -> None:
    """Raises ContractError unless the texts were tokenized as the contract says.

    Args:
      source: what will be encoded.
      contract: of the model.
      function: 'embed_query' or 'embed_passage'.
    """
    kind = {"embed_query": "query", "embed_passage": "passage"}[function]
    found = {
        "tokenizer_fingerprint": source.tokenizer_fingerprint,
        f"{kind}_prefix": source.prefix,
        f"{kind}_length": source.segment_length,
    }
    where = f"the token store of {len(source.ids)} texts for {function}"
    if kind == "passage":
        found["passage_layout"] = source.layout
    elif source.layout != TEXT:
        raise ContractError(
            f"{where}: expected the layout {TEXT!r}, which has no title, found {source.layout!r}. "
            "Prepare queries with runs/prepare.gin."
        )
    contract.require(dataclasses.replace(contract, **found), where)  # type: ignore[arg-type]


def encode(
    embed: Embed,
    source: Batched,
    partitioner: Partitioner | None = None,
    description: str = "encode",
    report: bool = False,
) -> np.ndarray:
    """Embeds every text of a source; for as many as fit into memory.

    Arguments and errors as for `encode_parts`.

    Returns:
      [N, D] float32, in the order of `source.ids`; [0, 0] of a source without texts, such as the
      development queries of a collection that has none.
    """
    if not source.ids:
        return np.zeros((0, 0), np.float32)
    (vectors,) = encode_parts(
        embed, [source], len(source.ids), partitioner, description, report=report
    )
    return vectors


def encode_parts(
    embed: Embed,
    parts: Iterable[Batched],
    count: int,
    partitioner: Partitioner | None = None,
    description: str = "encode",
    report: bool = False,
) -> Iterator[np.ndarray]:
    """Embeds the texts of one source after the other, holding one part's vectors at a time.

    Batches are dispatched ahead of those that are fetched, across the ends of parts too, so that
    the host packs, copies and writes while the device computes.

    Args:
      embed: jitted; token group -> [B, S, D] float32.
      parts: their batches cover each text exactly once.
      count: texts in all of them together.
      partitioner: spreads the rows of a batch over its mesh; None leaves the placing to `embed`.
      description: shown beside the progress bar.
      report: prints speed, share of padding, and how often the device had run out of work.

    Yields:
      [n, D] float32 of each part, in the order of its `ids`.

    Raises:
      EncodingError: a text is missing, repeated or unknown, or its vector holds NaN or Inf.
      PartitioningError: the rows of a batch do not divide by the mesh.
    """
    meter = _Meter(time.perf_counter())
    waiting: collections.deque[tuple[_Collected, Group | None, Any]] = collections.deque()
    with _progress(count, description) as bar:

        def fetch(most: int) -> Iterator[np.ndarray]:
            while len(waiting) > most or (waiting and waiting[0][1] is None):
                collected, group, vectors = waiting.popleft()
                if group is None:  # the end of a part
                    yield collected.finish()
                else:
                    bar.update(collected.add(group, vectors))
                    bar.set_postfix_str(meter.rate(), refresh=False)

        for part in parts:
            collected = _Collected(part.ids)
            for group in part.batches():
                meter.count(group, waiting[-1][2] if waiting else None)
                waiting.append((collected, group, embed(_place(group, partitioner))))
                yield from fetch(IN_FLIGHT)
            waiting.append((collected, None, waiting[-1][2] if waiting else None))
        yield from fetch(0)
    if report and jax.process_index() == 0:
        print(f"{description}: {count:,} texts, {meter.summary()}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class _Meter:
    """Counts what went to the device: tokens, places for tokens, batches."""

    begin: float  # seconds
    tokens: int = 0
    places: int = 0
    batches: int = 0
    starved: int = 0  # batches before which the device had finished all it was given

    def count(self, group: Group, last: jax.Array | None) -> None:
        """Before `group` is dispatched; `last` is the newest result asked for so far."""
        segment_ids = np.asarray(group["segment_ids"])
        self.tokens += int((segment_ids > 0).sum())
        self.places += segment_ids.size
        self.batches += 1
        self.starved += last is not None and last.is_ready()  # type: ignore[attr-defined]

    def rate(self) -> str:
        padding = 1 - self.tokens / max(self.places, 1)
        seconds = max(time.perf_counter() - self.begin, 1e-9)
        return f"{self.tokens / seconds:,.0f} tokens/s, padding {padding:.1%}"

    def summary(self) -> str:
        return (
            f"{self.rate()}; the device had run out of work before {self.starved} of "
            f"{self.batches} batches"
        )


class _Collected:
    """Scatters [B, S, D] into [N, D] by example_id and keeps the counts."""

    def __init__(self, ids: Sequence[str]):
        self._ids = ids
        self._seen = np.zeros(len(ids), np.int64)
        self._vectors: np.ndarray | None = None

    def add(self, group: Group, vectors: jax.Array) -> int:
        valid = np.asarray(group["segment_valid"])  # [B, S]
        fetched = np.asarray(_fetch(vectors))[valid]  # [n, D]
        at = self._known(np.asarray(group["example_id"])[valid])
        if self._vectors is None:
            self._vectors = np.zeros((len(self._ids), fetched.shape[-1]), np.float32)
        self._vectors[at] = fetched
        np.add.at(self._seen, at, 1)
        return len(at)

    def _known(self, example_ids: np.ndarray) -> np.ndarray:
        unknown = (example_ids < 0) | (example_ids >= len(self._ids))
        if unknown.any():
            raise EncodingError(
                f"a batch holds example_id {int(example_ids[unknown][0])}, but the source lists "
                f"{len(self._ids)} texts, 0 to {len(self._ids) - 1}"
            )
        return example_ids

    def finish(self) -> np.ndarray:
        if self._vectors is None:
            raise EncodingError("the source holds no texts; expected at least one")
        wrong = np.flatnonzero(self._seen != 1)
        if len(wrong):
            named = [f"{self._ids[i]!r} {self._seen[i]} times" for i in wrong[:5]]
            raise EncodingError(
                f"expected each text embedded once; {len(wrong)} of {len(self._ids)} were not: "
                + ", ".join(named)
            )
        broken = np.flatnonzero(~np.isfinite(self._vectors).all(axis=1))
        if len(broken):
            raise EncodingError(
                f"the vectors of {len(broken)} texts hold NaN or Inf, the first is "
                f"{self._ids[broken[0]]!r}; the checkpoint is broken, or the text has no tokens"
            )
        return self._vectors


def _place(group: Group, partitioner: Partitioner | None) -> Group:
    if partitioner is None:
        return group
    partitioner.check_rows(len(group["tokens"]), "a batch of the encoding source")
    # Every process packs the same batches, so each takes its devices' rows from its own copy.
    return {
        name: jax.make_array_from_callback(
            array.shape, partitioner.batch_sharding, array.__getitem__
        )
        for name, array in group.items()
    }


def _fetch(vectors: jax.Array) -> Any:
    if vectors.is_fully_addressable:
        return vectors
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(vectors, tiled=True)


def _progress(total: int, description: str) -> tqdm.tqdm:
    return tqdm.tqdm(
        total=total, desc=description, unit="text", disable=not sys.stderr.isatty(), leave=False
    )


def load_embeddings(folder: str | Path) -> Embeddings:
    """Reads what `encode_corpus` wrote; the vectors stay on disk.

    Raises:
      IndexDamaged: a file is missing or changed, or shards are of different models.
    """
    vectors, ids, contract, checkpoint = embedding_shards.read(folder)
    index_lib.check_embeddings(vectors, ids)
    return Embeddings(vectors, ids, contract, checkpoint)
