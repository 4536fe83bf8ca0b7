"""From outputs of programs to what texts became, and from that to what an index takes."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    SPARSE,
    Entries,
    Representation,
)
from t5x_style.serving.service import Encoded

Part = TypeVar("Part")


def encoded(found: Mapping[str, np.ndarray], row: int, kinds: Sequence[str]) -> Encoded:
    """What a row of a batch became, of some kinds.

    Args:
      found: outputs of a program that embeds; see `saved_model` for the names.
      row: of the batch.
      kinds: of representations.

    Raises:
      KeyError: the program does not give a kind.
    """
    dense = sparse = several = None
    if DENSE in kinds:
        dense = found["embedding"][row]
    if SPARSE in kinds:
        there = found["sparse_segments"][row] > 0
        sparse = (found["sparse_tokens"][row][there], found["sparse_weights"][row][there])
    if MULTI_VECTOR in kinds:
        several = found["multi_vector_vectors"][row][found["multi_vector_segments"][row] > 0]
    return Encoded(dense, sparse, several)


def as_representations(texts: Sequence[Encoded]) -> dict[str, Representation]:
    """Kind -> what N texts became, as an index takes it, of the kinds that the first text has.

    Raises:
      ValueError: a text lacks a kind of the first.
    """
    found: dict[str, Representation] = {}
    first = texts[0]
    if first.dense is not None:
        found[DENSE] = np.stack([_there(one.dense) for one in texts]).astype(np.float32)
    if first.sparse is not None:
        pairs = [_there(one.sparse) for one in texts]
        arrays = {
            "tokens": np.concatenate([tokens for tokens, _ in pairs]).astype(np.int32),
            "weights": np.concatenate([weights for _, weights in pairs]).astype(np.float32),
        }
        found[SPARSE] = Entries(_offsets([len(tokens) for tokens, _ in pairs]), arrays)
    if first.multi_vector is not None:
        several = [_there(one.multi_vector) for one in texts]
        vectors = np.concatenate(several).astype(np.float32)
        found[MULTI_VECTOR] = Entries(_offsets(list(map(len, several))), {"vectors": vectors})
    return found


def _offsets(counts: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _there(one: Part | None) -> Part:
    if one is None:
        raise ValueError("expected texts that were encoded as the same kinds")
    return one
