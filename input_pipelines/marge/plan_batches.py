"""Batches of a plan of sub-batches: a row of the plan is a row of a batch.

What is in a step follows from the plan and the number of the step alone. Rows of `target` and
`evidence` belong together, and hold several sub-batches where they fit.
"""

import functools
from collections.abc import Mapping

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.packed_text import PREFETCH
from input_pipelines.batches.token_groups import NONE
from input_pipelines.marge import sub_batch_tokens
from input_pipelines.marge.document_grouping import SubBatches
from input_pipelines.marge.sub_batch_tokens import SIDES
from input_pipelines.store.token_store import TokenStore

_OPEN = 64  # rows that are tried before a new one is begun

# Which chunks are where, of R rows, by name: `target` and `evidence`, int64 [R, segments], NONE
# where free; `target_sub_batch` and `evidence_sub_batch`, int32 alike, numbers within the row.
Plan = Mapping[str, np.ndarray]


def pack(
    found: SubBatches, lengths: np.ndarray, shape: token_groups.Rows, seed: int, version: int
) -> dict[str, np.ndarray]:
    """A plan: sub-batches laid into rows, each into the first that has space on both sides.

    Args:
      found: sub-batches, of which each fits a row.
      lengths: int [N], of the chunks.
      shape: of a batch.
      seed, version: decide the order.
    """
    sides = (found.targets, found.evidence)
    tokens = np.stack([token_groups.at(lengths, side, 0).sum(1) for side in sides], 1)
    counts = np.stack([(side != NONE).sum(1) for side in sides], 1)
    needs = np.concatenate([tokens, counts], axis=1)  # [G, 4]
    room: list[np.ndarray] = []
    held: list[list[int]] = []
    open_rows: list[int] = []
    for number in packing_plan.permutation(seed, 0, version, len(needs)).tolist():
        need = needs[number]
        row = next((row for row in open_rows if np.all(room[row] >= need)), None)
        if row is None:
            row = len(room)
            room.append(np.array([shape.length] * 2 + [shape.segments] * 2))
            held.append([])
            open_rows.append(row)
            if len(open_rows) > _OPEN:
                open_rows.remove(min(open_rows, key=lambda row: int(room[row].min())))
        room[row] -= need
        held[row].append(number)
    return _placed(held, dict(zip(SIDES, sides, strict=True)), shape.segments)


def _placed(
    held: list[list[int]], sides: Mapping[str, np.ndarray], segments: int
) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, side in sides.items():
        slots = np.full((len(held), segments), NONE)
        numbers = np.full(slots.shape, NONE, np.int32)
        for row, sub_batches in enumerate(held):
            chunks = side[sub_batches]
            taken = chunks[chunks != NONE]
            slots[row, : len(taken)] = taken
            numbers[row, : len(taken)] = np.repeat(
                np.arange(len(sub_batches)), (chunks != NONE).sum(1)
            )
        arrays |= {name: slots, f"{name}_sub_batch": numbers}
    return arrays


class PlannedBatches:
    """Batches of a plan, without end.

    Attributes:
      store: of the chunks.
    """

    def __init__(
        self,
        store: TokenStore,
        languages: np.ndarray,
        arrays: Plan,
        shape: token_groups.Rows,
        seed: int,
        version: int = 0,
        first: int = 0,
    ):
        """
        Args:
          store: of N chunks.
          languages: int32 [N], the token of each chunk's language.
          arrays: the plan, of at least as many rows as a batch.
          shape: of a batch.
          seed, version: decide the order.
          first: step that the plan begins with.
        """
        self.store = store
        self._languages, self._shape = languages, shape
        self._first = first
        self._slots = {side: arrays[side].astype(np.int64) for side in SIDES}
        self._numbers = {side: arrays[f"{side}_sub_batch"].astype(np.int32) for side in SIDES}
        count = len(self._slots["target"])
        self._steps = count // shape.rows
        self._order = functools.lru_cache(maxsize=2)(
            lambda epoch: packing_plan.permutation(seed, 1 + version, epoch, count)
        )

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        return sub_batch_tokens.spec_of(self._shape)

    def chosen(self, step: int) -> np.ndarray:
        """Rows of the plan that are in a step: int64 [rows].

        As many whole batches as the plan has are seen before a row is seen again.
        """
        epoch, step = divmod(step - self._first, self._steps)
        return self._order(epoch)[step * self._shape.rows : (step + 1) * self._shape.rows]

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; see `models.objectives.marge.Marge`."""
        chosen = self.chosen(step)[prefetch.own_rows(rows, self._shape.rows)]
        slots = {side: of_plan[chosen] for side, of_plan in self._slots.items()}
        numbers = {side: of_plan[chosen] for side, of_plan in self._numbers.items()}
        passages = {side: self.store.read(chunks[chunks != NONE]) for side, chunks in slots.items()}
        return sub_batch_tokens.build(passages, slots, numbers, self._languages, self._shape.length)

    def batches(
        self, start_step: int, rows: np.ndarray | None = None, stop: int | None = None
    ) -> prefetch.Prefetched:
        """batch(start_step), ... to batch(stop - 1), None: without end, prefetched."""
        rows = prefetch.own_rows(rows, self._shape.rows)
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, stop, PREFETCH
        )
