"""In which rows the queries and passages of a step stand: a pure function of (seed, step)."""

from collections.abc import Sequence

import numpy as np
from absl import logging

from input_pipelines import packing, plan
from input_pipelines.negatives import Pairs
from input_pipelines.pair_choice import PairChoice

PROBE = 32  # steps that are packed at once to see whether they fit


class RowPlan(PairChoice):
    """A choice of pairs whose texts are packed into the rows of one or more token groups.

    Subclasses say in `_sizes` how long the texts of each group are: [B], or [B, G] where a query
    has one for each of its passages.
    """

    def __init__(
        self,
        pairs: Pairs,
        query_lengths: np.ndarray,
        passage_lengths: np.ndarray,
        rows: dict[str, packing.Rows],
        *,
        owner: str,
        batch: int,
        group_size: int,
        seed: int,
    ):
        """
        Args:
          pairs, query_lengths, passage_lengths, batch, group_size, seed: see `PairChoice`.
          rows: group -> the rows that it has to fit.
          owner: whose arguments errors name; those of rows are called '<group>_rows'.

        Raises:
          ValueError: as `PairChoice`, or rows that the first steps do not fit.
        """
        super().__init__(
            pairs, query_lengths, passage_lengths, batch=batch, group_size=group_size, seed=seed
        )
        self._rows, self._owner = rows, owner
        self._check_rows()

    def slots(self, step: int) -> list[np.ndarray]:
        """Where a step's texts stand, as places in what `choose` gives; -1 where free.

        A query that does not fit, or whose passages do not, is left out with all of them, and it is
        reported. Those with the longest passages go first, and may go again in another epoch: give
        the rows room until none is left out.

        Returns:
          int64 [rows, segments] of each group: of one with a text for each query 0 to B - 1, of one
          with a text for each passage 0 to B * G - 1.
        """
        sizes = self._sizes(step)
        for count in range(self.batch, 0, -1):
            # The queries with the longest passages come last: leaving these out takes the fewest.
            placed = [
                place(of[:count].reshape(-1), rows)
                for of, rows in zip(sizes, self._rows.values(), strict=True)
            ]
            found = [slots for slots in placed if slots is not None]
            if len(found) == len(placed):
                break
        else:
            raise ValueError(f"{self._owner}: step {step}: not one query fits its rows")
        if count < self.batch:
            logging.warning(
                "step %d: %d of %d queries do not fit %s and are left out this time; with more "
                "rows they would not be",
                *(step, self.batch - count, self.batch),
                " and ".join(map(str, self._rows.values())),
            )
        return found

    def padding_shares(self, steps: Sequence[int]) -> list[float]:
        """Share of token positions of these steps that hold no token, for each group."""
        tokens = np.sum([[part.sum() for part in self._sizes(step)] for step in steps], axis=0)
        rooms = [rows.rows * rows.length * len(steps) for rows in self._rows.values()]
        shares: list[float] = (1 - tokens / np.array(rooms)).tolist()
        return shares

    def _sizes(self, step: int) -> list[np.ndarray]:
        raise NotImplementedError

    def _check_rows(self) -> None:
        """Packs the first steps: rows that are too few should be known before training."""
        needed = dict.fromkeys(self._rows, 0)
        for step in range(min(self.steps_per_epoch, PROBE)):
            for (name, rows), sizes in zip(self._rows.items(), self._sizes(step), strict=True):
                packed = plan.pack_rows(sizes.reshape(-1), rows.length, rows.segments)
                needed[name] = max(needed[name], len(packed))
        for name, need in needed.items():
            rows = self._rows[name]
            if need > rows.rows:
                raise ValueError(
                    f"{self._owner}.{name}_rows: {self.batch} queries with {self.group_size} "
                    f"passages each need up to {need} rows of {rows.length} tokens and "
                    f"{rows.segments} segments, found {rows.rows}. Give it {need + 1 + need // 32},"
                    " which leaves room for steps that need more than the first, or make the batch "
                    "smaller."
                )


class PairPlan(RowPlan):
    """Queries in rows of their own, passages in theirs: for a bi-encoder.

    Attributes:
      query_rows, passage_rows: the rows that a batch has to fit.
    """

    def __init__(
        self,
        pairs: Pairs,
        query_lengths: np.ndarray,
        passage_lengths: np.ndarray,
        *,
        batch: int,
        group_size: int,
        query_rows: packing.Rows,
        passage_rows: packing.Rows,
        seed: int,
    ):
        """Arguments and errors as for `RowPlan`."""
        self.query_rows, self.passage_rows = query_rows, passage_rows
        super().__init__(
            pairs,
            query_lengths,
            passage_lengths,
            {"query": query_rows, "passage": passage_rows},
            owner="PairsPipeline",
            batch=batch,
            group_size=group_size,
            seed=seed,
        )

    def _sizes(self, step: int) -> list[np.ndarray]:
        return list(self.lengths(step))


class JointPlan(RowPlan):
    """Each passage in one text with its query, [CLS] query [SEP] passage [SEP]: for a re-ranker.

    Attributes:
      rows: that a batch has to fit.
    """

    def __init__(
        self,
        pairs: Pairs,
        query_lengths: np.ndarray,
        passage_lengths: np.ndarray,
        *,
        batch: int,
        group_size: int,
        rows: packing.Rows,
        seed: int,
    ):
        """Arguments and errors as for `RowPlan`."""
        self.rows = rows
        super().__init__(
            pairs,
            query_lengths,
            passage_lengths,
            {"pair": rows},
            owner="JointPipeline",
            batch=batch,
            group_size=group_size,
            seed=seed,
        )

    def _sizes(self, step: int) -> list[np.ndarray]:
        queries, passages = self.lengths(step)
        return [queries[:, None] + passages - 1]  # the passage's [CLS] goes


def place(sizes: np.ndarray, rows: packing.Rows) -> np.ndarray | None:
    """Which text stands where: int64 [rows, segments], -1 where free; None if they do not fit."""
    if rows.segments == 1:
        slots = np.arange(len(sizes))[:, None]  # in order: a query and its passages stay together
    else:
        slots = plan.pack_rows(sizes, rows.length, rows.segments)
    if len(slots) > rows.rows:
        return None
    spare = np.full((rows.rows - len(slots), rows.segments), packing.NONE)
    return np.concatenate([slots, spare])
