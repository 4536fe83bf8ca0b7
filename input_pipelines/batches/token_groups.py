"""Builds the arrays of a token group from passages and the places they are given. NumPy only."""

from dataclasses import dataclass

import numpy as np

from input_pipelines.store.token_store import Passages

PAD = 0  # the token of padding; no model sees it, it only has to be a valid token
NONE = -1  # example_id, and place in a plan, of a segment that is free

Group = dict[str, np.ndarray]
GroupSpec = dict[str, tuple[tuple[int, ...], np.dtype]]


@dataclass(frozen=True)
class Rows:
    """`rows` rows of `length` tokens, each with up to `segments` texts."""

    rows: int
    length: int
    segments: int

    def __post_init__(self) -> None:
        group_spec(self.rows, self.length, self.segments)


def group_spec(rows: int, length: int, segments: int) -> GroupSpec:
    """Shape and dtype of each feature of a token group."""
    if rows < 1 or length < 1 or not 1 <= segments <= length:
        raise ValueError(
            "token group: expected at least 1 row, 1 token a row, 1 to `length` segments; found "
            f"rows={rows}, length={length}, segments={segments}"
        )
    per_token, per_segment = (rows, length), (rows, segments)
    return {
        "tokens": (per_token, np.dtype(np.int32)),
        "positions": (per_token, np.dtype(np.int32)),
        "segment_ids": (per_token, np.dtype(np.int32)),
        "word_starts": (per_token, np.dtype(np.bool_)),
        "cls_at": (per_segment, np.dtype(np.int32)),
        "segment_valid": (per_segment, np.dtype(np.bool_)),
        "example_id": (per_segment, np.dtype(np.int32)),
    }


def truncate(passages: Passages, length: int) -> Passages:
    """Cuts passages to `length` tokens; a passage that is cut keeps its last token, the [SEP].

    With length 3: [CLS] a b c [SEP] -> [CLS] a [SEP];   [CLS] a [SEP] stays.
    """
    if length < 2:
        raise ValueError(f"truncate: expected room for [CLS] and [SEP], found length {length}")
    if not np.any(passages.lengths > length):
        return passages
    ends = np.cumsum(passages.lengths)
    lengths = np.minimum(passages.lengths, length)
    source = within(lengths) + np.repeat(ends - passages.lengths, lengths)
    source[np.cumsum(lengths) - 1] = ends - 1
    return Passages(passages.tokens[source], passages.word_starts[source], lengths)


def reorder(passages: Passages, order: np.ndarray) -> Passages:
    """Passages order[0], order[1], ..."""
    lengths = passages.lengths[order]
    starts = np.cumsum(passages.lengths) - passages.lengths
    source = within(lengths) + np.repeat(starts[order], lengths)
    return Passages(passages.tokens[source], passages.word_starts[source], lengths)


def build_group(
    passages: Passages, slots: np.ndarray, length: int, example_id: np.ndarray | None = None
) -> Group:
    """Lays passages end to end in rows.

    A worked row, of length 8, with the segments [CLS] a ##b [SEP] and [CLS] c [SEP]:

        tokens        CLS  a  ##b SEP CLS  c  SEP PAD
        positions      0   1   2   3   0   1   2   0
        segment_ids    1   1   1   1   2   2   2   0
        word_starts    T   T   F   T   T   T   T   F
        cls_at         0   4

    Args:
      passages: those of the slots that are not free, in the order of the slots, row by row.
      slots: int [B, S], passage numbers, -1 where free; free ones follow those in use.
      length: L, tokens in a row.
      example_id: int [B, S] to put in place of the slots' own numbers.

    Returns:
      tokens, positions, segment_ids int32 [B, L], word_starts bool [B, L]; cls_at, example_id int32
      [B, S], segment_valid bool [B, S].

    Raises:
      ValueError: a row is given more tokens than it holds.
    """
    valid = slots != NONE  # [B, S]
    sizes = np.zeros(slots.shape, dtype=np.int64)
    sizes[valid] = passages.lengths
    starts = np.cumsum(sizes, axis=1) - sizes  # [B, S]
    filled = sizes.sum(axis=1)
    if np.any(filled > length):
        full = int(np.argmax(filled))
        raise ValueError(
            f"row {full} is given {int(filled[full])} tokens (passages "
            f"{slots[full][valid[full]].tolist()}), expected at most {length}"
        )
    row, segment = np.nonzero(valid)  # [N], in the order of `passages`
    inside = within(passages.lengths)  # [tokens]
    at = inside + np.repeat(row * length + starts[valid], passages.lengths)
    group = {
        name: np.zeros(shape, dtype)
        for name, (shape, dtype) in group_spec(len(slots), length, slots.shape[1]).items()
    }
    group["tokens"].fill(PAD)
    group["tokens"].reshape(-1)[at] = passages.tokens
    group["positions"].reshape(-1)[at] = inside
    group["segment_ids"].reshape(-1)[at] = np.repeat(segment + 1, passages.lengths)
    group["word_starts"].reshape(-1)[at] = passages.word_starts
    group["cls_at"][:] = np.where(valid, starts, 0)
    group["segment_valid"][:] = valid
    group["example_id"][:] = np.where(valid, slots if example_id is None else example_id, NONE)
    return group


def at(values: np.ndarray, slots: np.ndarray, fill: float = NONE) -> np.ndarray:
    """values[slots], `fill` where a slot is free; `values` may have further axes."""
    free = (slots == NONE).reshape(*slots.shape, *(1,) * (values.ndim - 1))
    return np.where(free, np.asarray(fill, values.dtype), values[slots])


def within(lengths: np.ndarray) -> np.ndarray:
    """[2, 3] -> [0, 1, 0, 1, 2]: each token's place in its passage, int64 [sum of lengths]."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
