"""Builds token groups from passages, in any packing, for the tests of maskers and objectives."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from tests.kits.tiny_models import VOCABULARY


@dataclasses.dataclass(frozen=True)
class Passage:
    """`[CLS] ... [SEP]` with its word starts and its number in the store."""

    tokens: tuple[int, ...]
    word_starts: tuple[bool, ...]
    example_id: int


def passage(length: int, example_id: int, seed: int = 0) -> Passage:
    """A passage of `length` tokens, specials included, with words of one to four pieces."""
    rng = np.random.default_rng([seed, example_id])
    inner = rng.integers(5, VOCABULARY.size, length - 2)
    starts = rng.random(length - 2) < 0.6
    return Passage((2, *inner.tolist(), 3), (True, *starts.tolist(), True), example_id)


def group(rows: list[list[Passage]], length: int, segments: int) -> dict[str, jnp.ndarray]:
    """A token group with these passages in these rows."""
    shape, per_segment = (len(rows), length), (len(rows), segments)
    made = {n: np.zeros(shape, np.int32) for n in ("tokens", "positions", "segment_ids")}
    made["word_starts"] = np.zeros(shape, bool)
    made["cls_at"] = np.zeros(per_segment, np.int32)
    made["segment_valid"] = np.zeros(per_segment, bool)
    made["example_id"] = np.full(per_segment, -1, np.int32)
    for row, passages in enumerate(rows):
        at = 0
        for segment, one in enumerate(passages):
            here = slice(at, at + len(one.tokens))
            made["tokens"][row, here] = one.tokens
            made["word_starts"][row, here] = one.word_starts
            made["positions"][row, here] = np.arange(len(one.tokens))
            made["segment_ids"][row, here] = segment + 1
            made["cls_at"][row, segment] = at
            made["segment_valid"][row, segment] = True
            made["example_id"][row, segment] = one.example_id
            at += len(one.tokens)
        assert at <= length, f"row {row} holds {at} tokens, more than {length}"
    return {name: jnp.asarray(array) for name, array in made.items()}


def places(rows: list[list[Passage]]) -> dict[int, tuple[int, slice]]:
    """example_id -> (row, columns)."""
    found = {}
    for row, passages in enumerate(rows):
        at = 0
        for one in passages:
            found[one.example_id] = (row, slice(at, at + len(one.tokens)))
            at += len(one.tokens)
    return found
