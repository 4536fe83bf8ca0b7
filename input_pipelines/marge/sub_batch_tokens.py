"""Targets and their evidence as the token groups that `models.objectives.marge.Marge` reads."""

from collections.abc import Mapping

import numpy as np

from input_pipelines.batches import prefetch, token_groups
from input_pipelines.store.token_store import Passages

SIDES = ("target", "evidence")


def spec_of(shape: token_groups.Rows) -> prefetch.Spec:
    """Group -> feature -> shape and dtype of a batch of this shape."""
    group = token_groups.group_spec(shape.rows, shape.length, shape.segments)
    number = ((shape.rows, shape.segments), np.dtype(np.int32))
    evidence = group | {"sub_batch": number}
    return {"target": evidence | {"language": number}, "evidence": evidence}


def build(
    passages: Mapping[str, Passages],
    slots: Mapping[str, np.ndarray],
    numbers: Mapping[str, np.ndarray],
    languages: np.ndarray,
    length: int,
) -> prefetch.Batch:
    """The groups, of each side:

    Args:
      passages: the chunks that fill its slots, row by row.
      slots: which chunk is where, int [B, S], NONE where free.
      numbers: of the sub-batches in them, int32 [B, S].
      languages: int [N], token of each chunk's language.
      length: of a row.
    """
    groups = {}
    for side in SIDES:
        groups[side] = token_groups.build_group(passages[side], slots[side], length)
        groups[side]["sub_batch"] = numbers[side]
    groups["target"]["language"] = token_groups.at(languages, groups["target"]["example_id"], 0)
    return groups
