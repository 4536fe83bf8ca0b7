"""Representations of a text, by kind: a vector, token ids with weights, or several vectors.

A function that embeds texts returns a dict of representations by kind, all of one forward pass.
Letters: B rows, S segments a row, E entries a row, D and d vector sizes; N texts, T entries of all.

| kind | on the device, of a batch | on the host and on disk, of N texts |
|---|---|---|
| dense | [B, S, D] float32 | [N, D] float32 |
| sparse | segments, tokens [B, E] int32; weights [B, E] float32 | `Entries` of tokens and weights |
| multi_vector | segments [B, E] int32; vectors [B, E, d] float32 | `Entries` of vectors |

An entry of a row belongs to segment number `segments` - 1 of it, or to none where `segments` is 0,
as tokens do by `segment_ids`: so packed rows cost no more than others. A text has each sparse token
at most once.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

QUERY, PASSAGE = "query", "passage"
SIDES = (QUERY, PASSAGE)
DENSE, SPARSE, MULTI_VECTOR = "dense", "sparse", "multi_vector"
SEGMENTS = "segments"
# Kind -> arrays of an entry -> dtype; of a kind without entries an array for each text.
ENTRIES: Mapping[str, Mapping[str, str]] = {
    SPARSE: {"tokens": "int32", "weights": "float32"},
    MULTI_VECTOR: {"vectors": "float32"},
}
KINDS = (DENSE, *ENTRIES)
_NAME = "embed_"

Representation = Any  # of one kind: see the module's table; on the host `Vectors` or `Entries`
Representations = Mapping[str, Representation]  # by kind


class Vectors(Protocol):
    """[N, D] float32 in memory, or on disk until it is sliced: a dense representation."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, D)"""
        ...

    @property
    def ndim(self) -> int:
        """2"""
        ...

    @property
    def dtype(self) -> np.dtype:
        """float32"""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> np.ndarray: ...


class RepresentationError(ValueError):
    """A kind that something cannot handle, or arrays that are not of the kind they are given as."""


@dataclasses.dataclass(frozen=True)
class Entries:
    """Entries of each of N texts, in order: those of text n are offsets[n] to offsets[n + 1].

    Attributes:
      offsets: [N + 1] int64, from 0 to T.
      arrays: name -> [T, ...], in memory, or on disk until they are sliced.
    """

    offsets: np.ndarray
    arrays: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | np.ndarray) -> "Entries":
        """The entries of some texts, in memory: a slice with step 1, or rows int [n]."""
        if isinstance(rows, slice):
            start, end, step = rows.indices(len(self))
            if step != 1:
                raise IndexError(f"expected a slice with step 1, found {rows}")
            end = max(start, end)
            offsets = self.offsets[start : end + 1]
            at: Any = slice(int(offsets[0]), int(offsets[-1]))
            return self._of(offsets - offsets[0], at)
        rows = np.asarray(rows, np.int64)
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return self._of(offsets, at)

    def owners(self) -> np.ndarray:
        """[T] int64: the number of each entry's text."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def _of(self, offsets: np.ndarray, at: Any) -> "Entries":
        return Entries(offsets, {name: array[at] for name, array in self.arrays.items()})


def malformed(kind: str, given: Representation) -> str:
    """Error in the form of a representation on the host; '' if there is none.

    Reads offsets alone of what is on disk.
    """
    if kind not in KINDS:
        return f"expected one of the kinds {[*KINDS]}, found {kind!r}"
    if kind == DENSE:
        if isinstance(given, Entries):
            return f"expected vectors [N, D] float32, found entries of {sorted(given.arrays)}"
        if given.ndim != 2 or given.dtype != np.float32:
            return f"expected vectors [N, D] float32, found {_form(given)}"
        return ""
    rank = 2 if kind == MULTI_VECTOR else 1
    expected = f"{kind} entries of {dict(ENTRIES[kind])}, arrays of rank {rank}"
    if not isinstance(given, Entries):
        return f"expected {expected}, found {_form(given)}"
    found = {name: np.dtype(array.dtype).name for name, array in given.arrays.items()}
    if found != ENTRIES[kind] or any(len(a.shape) != rank for a in given.arrays.values()):
        return f"expected {expected}, found { ({n: _form(a) for n, a in given.arrays.items()}) }"
    offsets = np.asarray(given.offsets)
    counts = {name: len(array) for name, array in given.arrays.items()}
    rising = offsets.ndim == 1 and len(offsets) > 0 and (np.diff(offsets) >= 0).all()
    if not rising or offsets[0] != 0 or set(counts.values()) != {int(offsets[-1])}:
        return f"expected rising offsets from 0 to the number of entries, {counts}, found {offsets}"
    return ""


def _form(array: Any) -> str:
    """Dtype and shape, in words."""
    return (
        f"{np.dtype(array.dtype).name}{list(array.shape)}"
        if hasattr(array, "dtype")
        else str(array)
    )


def blocks(
    representation: Representation, texts: int = 65_536, entries: int = 1 << 18
) -> Iterator[slice]:
    """Texts in order, in slices that fit into memory.

    Args:
      representation: on the host, perhaps on disk.
      texts: in a slice, at most.
      entries: in a slice, at most, unless one text has more; of a kind with entries.
    """
    start = 0
    while start < len(representation):
        end = min(start + texts, len(representation))
        if isinstance(representation, Entries):
            limit = representation.offsets[start] + entries
            fitting = int(np.searchsorted(representation.offsets, limit, side="right")) - 1
            end = min(end, max(start + 1, fitting))
        yield slice(start, end)
        start = end


def none_of(kind: str) -> Representation:
    """The representation of no texts, on the host."""
    if kind == DENSE:
        return np.zeros((0, 0), np.float32)
    shape = (0, 0) if kind == MULTI_VECTOR else (0,)
    arrays = {name: np.zeros(shape, dtype) for name, dtype in ENTRIES[kind].items()}
    return Entries(np.zeros(1, np.int64), arrays)


def joined(kind: str, parts: Sequence[Representation]) -> Representation:
    """One after the other, in memory; parts without texts may have vectors of another size."""
    parts = [part[:] for part in parts if len(part)]
    if not parts:
        return none_of(kind)
    if kind == DENSE:
        return np.concatenate(parts)
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    arrays = {name: np.concatenate([part.arrays[name] for part in parts]) for name in ENTRIES[kind]}
    return Entries(np.concatenate([[0], np.cumsum(counts)]), arrays)


def not_finite(representation: Representation) -> np.ndarray:
    """Numbers of the texts that have NaN or Inf, ascending; of texts in memory."""
    if not isinstance(representation, Entries):
        return np.flatnonzero(~np.isfinite(representation).all(axis=1))
    broken = np.zeros(int(representation.offsets[-1]), bool)
    for array in representation.arrays.values():
        broken |= ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    return np.unique(representation.owners()[broken])


def function_name(side: str) -> str:
    """Name of the function that embeds a side, in exported programs and in settings."""
    return f"{_NAME}{side}"


def side_of(name: str) -> str:
    """The side that a function embeds, given its `function_name`.

    Raises:
      RepresentationError: it is the name of no such function.
    """
    names = {function_name(side): side for side in SIDES}
    if name not in names:
        raise RepresentationError(f"function: expected one of {sorted(names)}, found {name!r}")
    return names[name]


def require_kinds(kinds: Iterable[str], possible: Iterable[str], what: str) -> None:
    """Raises RepresentationError unless there is a kind, each one once and among the possible.

    Args:
      kinds: that are asked for.
      possible: that can be handled.
      what: names whatever handles them.
    """
    asked, possible = list(kinds), list(possible)
    if not asked or len(set(asked)) < len(asked) or not set(asked) <= set(possible):
        raise RepresentationError(
            f"{what}: expected representations of the kinds {possible}, each at most once, "
            f"found {asked}"
        )


def named_arrays(kind: str, representation: Any) -> dict[str, Any]:
    """Name -> array, of a representation on the device; 'vectors' is the array of a dense one.

    Raises:
      RepresentationError: there are others than the kind has.
    """
    if kind == DENSE:
        return {"vectors": representation}
    expected = {SEGMENTS, *ENTRIES[kind]}
    if not isinstance(representation, Mapping) or set(representation) != expected:
        found = sorted(representation) if isinstance(representation, Mapping) else "one array"
        raise RepresentationError(
            f"a {kind} representation: expected the arrays {sorted(expected)}, found {found}"
        )
    return dict(representation)
