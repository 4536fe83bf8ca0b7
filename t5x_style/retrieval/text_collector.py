"""Gathers the representations of a part's texts out of batches, by example_id, and checks them."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from t5x_style.interfaces.objective import Group
from t5x_style.interfaces.representation import (
    DENSE,
    ENTRIES,
    SEGMENTS,
    SPARSE,
    Entries,
    Representations,
    named_arrays,
    not_finite,
)


class EncodingError(ValueError):
    """A text was not embedded exactly once, or what it became is not finite or not of its kind."""


class TextCollector:
    """See the module's docstring."""

    def __init__(self, ids: Sequence[str]):
        """Args:
        ids: of the part's texts; `example_id` is the place among them.
        """
        self._ids = ids
        self._seen = np.zeros(len(ids), np.int64)
        self._by_kind: dict[str, _PerText | _PerEntry] = {}

    def add(self, group: Group, found: Representations) -> int:
        """Fetches what a batch gave; returns how many texts it had.

        Raises:
          EncodingError: a text that is none of the part, or a segment that the batch lacks.
          RepresentationError: arrays that are not those of their kind.
        """
        valid = np.asarray(group["segment_valid"])  # [B, S]
        texts = np.where(valid, np.asarray(group["example_id"]), -1)
        at = self._known(texts[valid])
        for kind, given in found.items():
            arrays = {
                name: np.asarray(_fetch(array)) for name, array in named_arrays(kind, given).items()
            }
            if kind not in self._by_kind:
                count = len(self._ids)
                self._by_kind[kind] = (
                    _PerText(count) if kind == DENSE else _PerEntry(count, ENTRIES[kind])
                )
            self._by_kind[kind].add(texts, arrays)
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

    def finish(self) -> Representations:
        """Representations by kind, on the host, in the order of the ids.

        Raises:
          EncodingError: a text is missing or repeated, its numbers are NaN or Inf, or it has a
            sparse token twice.
        """
        if not self._by_kind:
            raise EncodingError("the source holds no texts; expected at least one")
        wrong = np.flatnonzero(self._seen != 1)
        if len(wrong):
            named = [f"{self._ids[i]!r} {self._seen[i]} times" for i in wrong[:5]]
            raise EncodingError(
                f"expected each text embedded once; {len(wrong)} of {len(self._ids)} were not: "
                + ", ".join(named)
            )
        found = {kind: collected.finish() for kind, collected in self._by_kind.items()}
        for kind, one in found.items():
            self._require_none(
                not_finite(one),
                "hold NaN or Inf; the checkpoint is broken, or the text has no tokens",
                kind,
            )
            if isinstance(one, Entries) and kind == SPARSE:
                self._require_none(_repeating(one), "have a token twice; expected each once", kind)
        return found

    def _require_none(self, wrong: np.ndarray, what: str, kind: str) -> None:
        if len(wrong):
            raise EncodingError(
                f"the {kind} representations of {len(wrong)} texts {what}. The first is of "
                f"{self._ids[wrong[0]]!r}"
            )


class _PerText:
    """[N, D] float32 out of one array [B, S, D] of each batch."""

    def __init__(self, count: int):
        self._count = count
        self._vectors: np.ndarray | None = None

    def add(self, texts: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """`texts` [B, S]: the number of each segment's text, or -1."""
        fetched = arrays["vectors"][texts >= 0]  # [n, D]
        if self._vectors is None:
            self._vectors = np.zeros((self._count, fetched.shape[-1]), np.float32)
        self._vectors[texts[texts >= 0]] = fetched

    def finish(self) -> np.ndarray:
        assert self._vectors is not None
        return self._vectors


class _PerEntry:
    """`Entries` of N texts out of [B, E, ...] of each batch, of every text in the batch's order."""

    def __init__(self, count: int, dtypes: Mapping[str, str]):
        self._count, self._dtypes = count, dtypes
        self._texts: list[np.ndarray] = []
        self._arrays: dict[str, list[np.ndarray]] = collections.defaultdict(list)

    def add(self, texts: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """`texts` as of `_PerText`."""
        segments, last = arrays[SEGMENTS], texts.shape[1]
        if (outside := (segments < 0) | (segments > last)).any():
            raise EncodingError(
                f"an entry of a row belongs to segment {int(segments[outside][0])}, expected 1 to "
                f"{last}, the segments of a row, or 0 for none"
            )
        none = np.full((len(texts), 1), -1, texts.dtype)
        owners = np.take_along_axis(  # [B, E]; segment 0 is none
            np.concatenate([none, texts], axis=1), segments, axis=1
        )
        self._texts.append(owners[owners >= 0])
        for name, dtype in self._dtypes.items():
            self._arrays[name].append(arrays[name][owners >= 0].astype(dtype, copy=False))

    def finish(self) -> Entries:
        texts = np.concatenate(self._texts)
        order = np.argsort(texts, kind="stable")
        counts = np.bincount(texts, minlength=self._count)
        arrays = {name: np.concatenate(parts)[order] for name, parts in self._arrays.items()}
        return Entries(np.concatenate([[0], np.cumsum(counts)]), arrays)


def _repeating(found: Entries) -> np.ndarray:
    """Numbers of the texts that have a sparse token more than once, ascending."""
    # One number of 64 bits for each pair: far faster to sort than rows of two.
    keys = found.owners() << 32 | found.arrays["tokens"].astype(np.uint32)
    different, counts = np.unique(keys, return_counts=True)
    return np.unique(different[counts > 1] >> 32)


def _fetch(vectors: jax.Array) -> Any:
    if vectors.is_fully_addressable:
        return vectors
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(vectors, tiled=True)
