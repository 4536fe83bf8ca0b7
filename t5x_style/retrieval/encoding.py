"""Encode packed token groups into the representations of each text, in memory or in parts."""

import collections
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_style.distributed import progress
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import MCLS, TEXT, Contract, ContractError
from t5x_style.interfaces.objective import Group
from t5x_style.interfaces.representation import DENSE, Representation, Representations
from t5x_style.interfaces.texts import Batched, EncodeSource
from t5x_style.retrieval import embedding_shards
from t5x_style.retrieval.text_collector import TextCollector

Embed = Callable[[Group], jax.Array]  # token group -> [B, S, D] float32
Represent = Callable[[Group], Representations]  # token group -> representations of its texts
IN_FLIGHT = 2  # batches that the device has been given and the host has not fetched


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """The representations of a corpus's passages, with their ids, in row order.

    What was read from a folder stays there until it is sliced.

    Attributes:
      passages: as `kind`: [N, D] float32, or `Entries` of N.
      ids: N.
      contract: of the model.
      checkpoint: fingerprint of the one that made them, '' where that was not recorded.
      kind: of the representation.
    """

    passages: Representation
    ids: list[str]
    contract: Contract
    checkpoint: str = ""
    kind: str = DENSE


def check_source(source: EncodeSource, contract: Contract, side: str) -> None:
    """Raises ContractError unless the texts were tokenized as the contract says.

    Args:
      source: what will be encoded.
      contract: of the model.
      side: 'query' or 'passage'.
    """
    found = {
        "tokenizer_fingerprint": source.tokenizer_fingerprint,
        f"{side}_prefix": source.prefix,
        f"{side}_length": source.segment_length,
    }
    where = f"the token store of {len(source.ids)} texts for {representation.function_name(side)}"
    if side == representation.PASSAGE:
        found["passage_layout"] = source.layout
    elif source.layout != TEXT:
        raise ContractError(
            f"{where}: expected the layout {TEXT!r}, which has no title, found {source.layout!r}. "
            "Prepare queries with runs/stores/texts.gin."
        )
    contract.require(dataclasses.replace(contract, **found), where)  # type: ignore[arg-type]
    _check_cls(source, contract, side, where)


def _check_cls(source: EncodeSource, contract: Contract, side: str, where: str) -> None:
    """Raises ContractError: pooling 'mcls' needs passages with several [CLS], and these need it.

    A query has one all the same: its vector does not differ if it is short.
    """
    pooled = contract.pooling == MCLS
    if pooled == (source.cls_every is not None) or (pooled and side == representation.QUERY):
        return
    raise ContractError(
        f"{where}: expected several [CLS] in a text (packed_text.EncodeSource.cls_every) with "
        f"pooling {MCLS!r} and only then, found cls_every {source.cls_every} and pooling "
        f"{contract.pooling!r}. Set both (docs/m3.md), or neither."
    )


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
    """`represent_parts` of a function that gives one array, [B, S, D] float32.

    Yields:
      [n, D] float32 of each part, in the order of its `ids`.
    """

    def represent(group: Group) -> Representations:
        return {DENSE: embed(group)}

    found = represent_parts(represent, parts, count, partitioner, description, report)
    return (part[DENSE] for part in found)


def represent_parts(
    represent: Represent,
    parts: Iterable[Batched],
    count: int,
    partitioner: Partitioner | None = None,
    description: str = "encode",
    report: bool = False,
) -> Iterator[Representations]:
    """Represents the texts of one source after the other, holding one part's arrays at a time.

    Batches are dispatched ahead of those that are fetched, across the ends of parts too, so that
    the host packs, copies and writes while the device computes.

    Args:
      represent: jitted; token group -> its representations by kind, on the device.
      parts: their batches cover each text exactly once.
      count: texts in all of them together.
      partitioner: spreads the rows of a batch over its mesh, after rows without texts where they
        do not divide; None leaves the placing to the function.
      description: shown next to the progress bar.
      report: prints speed, share of padding, and how often the device had run out of work.

    Yields:
      the representations of each part by kind, on the host, in the order of its `ids`.

    Raises:
      EncodingError: a text is missing, repeated or unknown, its numbers are NaN or Inf, or it has
        a sparse token twice.
    """
    meter = _Meter(time.perf_counter())
    waiting: collections.deque[tuple[TextCollector, Group | None, Any]] = collections.deque()
    with progress.progress(count, description, "texts") as bar:

        def fetch(max_waiting: int) -> Iterator[Representations]:
            while len(waiting) > max_waiting or (waiting and waiting[0][1] is None):
                collected, group, found = waiting.popleft()
                if group is None:  # the end of a part
                    yield collected.finish()
                else:
                    bar.update(collected.add(group, found))
                    bar.set_postfix_str(meter.rate(), refresh=False)

        for part in parts:
            collected = TextCollector(part.ids)
            for group in part.batches():
                group = fitting(group, partitioner)
                meter.count(group, waiting[-1][2] if waiting else None)
                waiting.append((collected, group, represent(_place(group, partitioner))))
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

    def count(self, group: Group, last: Representations | None) -> None:
        """Before `group` is dispatched; `last` is the newest result asked for so far."""
        segment_ids = np.asarray(group["segment_ids"])
        self.tokens += int((segment_ids > 0).sum())
        self.places += segment_ids.size
        self.batches += 1
        self.starved += last is not None and all(map(_ready, jax.tree.leaves(last)))

    def rate(self) -> str:
        padding = 1 - self.tokens / max(self.places, 1)
        seconds = max(time.perf_counter() - self.begin, 1e-9)
        return f"{self.tokens / seconds:,.0f} tokens/s, padding {padding:.1%}"

    def summary(self) -> str:
        return (
            f"{self.rate()}; the device had run out of work before {self.starved} of "
            f"{self.batches} batches"
        )


def _ready(array: jax.Array) -> bool:
    return bool(array.is_ready())  # type: ignore[attr-defined]


def fitting(group: Group, partitioner: Partitioner | None) -> Group:
    """A group with rows without texts at its end, as many as make its rows divide by the mesh.

    Args:
      group: of B rows, on the host.
      partitioner: None: the rows divide, whatever they are.
    """
    spare = 0 if partitioner is None else -len(group["tokens"]) % partitioner.ways
    if not spare:
        return group

    def extended(name: str, array: Any) -> np.ndarray:
        nothing = -1 if name == "example_id" else 0  # as in rows that a source leaves free
        rows = np.full((spare, *array.shape[1:]), nothing, array.dtype)
        return np.concatenate([array, rows])

    return {name: extended(name, array) for name, array in group.items()}


def _place(group: Group, partitioner: Partitioner | None) -> Group:
    if partitioner is None:
        return group
    # Every process packs the same batches, so each takes its devices' rows from its own copy.
    return {
        name: jax.make_array_from_callback(
            array.shape, partitioner.batch_sharding, array.__getitem__
        )
        for name, array in group.items()
    }


def load_embeddings(
    folder: str | Path, kind: str = "dense", expected: Mapping[str, Any] | None = None
) -> Embeddings:
    """Reads what `encode_corpus` wrote; it stays on disk.

    Args:
      folder: of the stage.
      kind: of the representation that is read.
      expected: how vectors of tokens must be kept, see `embedding_shards.read`.

    Raises:
      IndexDamaged: a file is missing or changed, or shards are of different models.
      RepresentationError: the folder does not hold the kind, or not as expected.
    """
    found, ids, contract, checkpoint = embedding_shards.read(folder, (kind,), expected)
    index_lib.check_passages(kind, found[kind], ids)
    return Embeddings(found[kind], ids, contract, checkpoint, kind)
