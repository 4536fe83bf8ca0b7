"""From packed token groups to one vector for each text, and the folder they are kept in."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import tqdm

from t5x_style.contract import Contract
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import index as index_lib
from t5x_style.retrieval import publish

Group = Mapping[str, Any]
Embed = Callable[[Group], jax.Array]  # token group -> [B, S, D] float32


class EncodeSource(Protocol):
    """Texts as packed token groups, each text once; `example_id` is the place in `ids`.

    Attributes:
      segment_length: tokens at which texts are cut.
      prefix: text that was put before each.
      tokenizer_fingerprint: of the tokenizer that made the tokens.
    """

    ids: Sequence[str]

    @property
    def segment_length(self) -> int:
        """See above."""
        ...

    @property
    def prefix(self) -> str:
        """See above."""
        ...

    @property
    def tokenizer_fingerprint(self) -> str:
        """See above."""
        ...

    def batches(self) -> Iterator[Group]:
        """Groups of one shape; free rows at the end are padding."""
        ...


class EncodingError(ValueError):
    """A text was not embedded exactly once, or its vector is not finite."""


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Vectors [N, D] float32 with their ids, in row order, and the model's contract."""

    vectors: np.ndarray
    ids: list[str]
    contract: Contract


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
    contract.require(dataclasses.replace(contract, **found), where)  # type: ignore[arg-type]


def encode(
    embed: Embed,
    source: EncodeSource,
    partitioner: Partitioner | None = None,
    description: str = "encode",
    report: bool = False,
) -> np.ndarray:
    """Embeds every text of a source.

    The next batch is dispatched before the vectors of the last are fetched, so that the host packs
    and copies while the device computes.

    Args:
      embed: jitted; token group -> [B, S, D] float32.
      source: its batches cover each text exactly once.
      partitioner: spreads the rows of a batch over its mesh; None leaves the placing to `embed`.
      description: shown beside the progress bar.
      report: prints the speed and the share of padding at the end.

    Returns:
      [N, D] float32, in the order of `source.ids`.

    Raises:
      EncodingError: a text is missing, repeated or unknown, or its vector holds NaN or Inf.
      PartitioningError: the rows of a batch do not divide by the mesh.
    """
    collected = _Collected(source)
    waiting: tuple[Group, jax.Array] | None = None
    begin = time.perf_counter()
    with _progress(len(source.ids), description) as bar:
        for group in source.batches():
            vectors = embed(_place(group, partitioner))
            if waiting is not None:
                bar.update(collected.add(*waiting))
                bar.set_postfix_str(collected.rate(time.perf_counter() - begin), refresh=False)
            waiting = (group, vectors)
        if waiting is not None:
            bar.update(collected.add(*waiting))
        summary = collected.rate(time.perf_counter() - begin)
    if report and jax.process_index() == 0:
        print(f"{description}: {len(source.ids):,} texts, {summary}", file=sys.stderr, flush=True)
    return collected.finish()


class _Collected:
    """Scatters [B, S, D] into [N, D] by example_id and keeps the counts."""

    def __init__(self, source: EncodeSource):
        self._ids = list(source.ids)
        self._seen = np.zeros(len(self._ids), np.int64)
        self._vectors: np.ndarray | None = None
        self._tokens = self._places = 0

    def add(self, group: Group, vectors: jax.Array) -> int:
        valid = np.asarray(group["segment_valid"])  # [B, S]
        fetched = np.asarray(_fetch(vectors))[valid]  # [n, D]
        at = self._known(np.asarray(group["example_id"])[valid])
        if self._vectors is None:
            self._vectors = np.zeros((len(self._ids), fetched.shape[-1]), np.float32)
        self._vectors[at] = fetched
        np.add.at(self._seen, at, 1)
        segment_ids = np.asarray(group["segment_ids"])
        self._tokens += int((segment_ids > 0).sum())
        self._places += segment_ids.size
        return len(at)

    def _known(self, example_ids: np.ndarray) -> np.ndarray:
        unknown = (example_ids < 0) | (example_ids >= len(self._ids))
        if unknown.any():
            raise EncodingError(
                f"a batch holds example_id {int(example_ids[unknown][0])}, but the source lists "
                f"{len(self._ids)} texts, 0 to {len(self._ids) - 1}"
            )
        return example_ids

    def rate(self, seconds: float) -> str:
        padding = 1 - self._tokens / max(self._places, 1)
        return f"{self._tokens / max(seconds, 1e-9):,.0f} tokens/s, padding {padding:.1%}"

    def finish(self) -> np.ndarray:
        if not self._ids or self._vectors is None:
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


def save_embeddings(folder: str | Path, embeddings: Embeddings) -> None:
    """Writes embeddings.npy, ids.json, contract.json and, last, manifest.json."""
    index_lib.check_embeddings(embeddings.vectors, embeddings.ids)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / publish.MANIFEST).unlink(missing_ok=True)
    np.save(folder / "embeddings.npy", embeddings.vectors, allow_pickle=False)
    (folder / "ids.json").write_text(json.dumps(embeddings.ids), encoding="utf-8")
    embeddings.contract.save(folder)
    count, dimension = embeddings.vectors.shape
    publish.write_manifest(
        folder,
        {"count": count, "dimension": dimension},
        ["embeddings.npy", "ids.json", "contract.json"],
    )


def load_embeddings(folder: str | Path) -> Embeddings:
    """Reads what `save_embeddings` wrote; vectors are memory-mapped.

    Raises:
      IndexDamaged: a file is missing or changed.
    """
    folder = Path(folder)
    publish.read_manifest(folder)
    vectors = np.load(folder / "embeddings.npy", mmap_mode="r", allow_pickle=False)
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    index_lib.check_embeddings(vectors, ids)
    return Embeddings(vectors, ids, Contract.load(folder))
