"""Which queries stand in which step, with which passages, and in which rows.

All of it is a pure function of (seed, step).

An epoch orders the queries by a hash of (seed, epoch); that order is cut into blocks of thousands
of queries, and a block is dealt out to its steps by length: the queries whose passages are about
as long, one for each step, are neighbours once sorted, and chance says which step gets which. Every
query is thus equally likely in every step of its block, while all steps hold nearly the same number
of tokens: a fixed number of queries then fits a fixed number of rows with little room to spare.
"""

import functools
from collections.abc import Sequence

import numpy as np
from absl import logging

from input_pipelines import packing, plan
from input_pipelines.negatives import Pairs

# Streams of random numbers, so that no two uses of a seed share any.
_ORDER = 0  # the order of an epoch
_FILL = 1  # + attempt: random passages where a query has too few negatives
_DEAL = 1 << 32  # which step of a block gets which of the queries with equally long passages
_ATTEMPTS = 64

BLOCK = 8192  # queries
PROBE = 32  # steps that are packed at once to see whether they fit


class PairPlan:
    """Batches of B queries with G passages each, packed into rows, without end.

    Attributes:
      steps_per_epoch: batches in an epoch.
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
        """
        Args:
          pairs: which passages a query may stand with.
          query_lengths, passage_lengths: int [rows of the store], tokens as they are cut.
          batch: B.
          group_size: G, 1 positive and G - 1 negatives.
          query_rows, passage_rows: the rows that a batch has to fit.
          seed: decides order and random fill.

        Raises:
          ValueError: fewer queries than a batch needs, or rows that they do not fit.
        """
        self.pairs, self.batch, self.group_size, self.seed = pairs, batch, group_size, seed
        self.query_rows, self.passage_rows = query_rows, passage_rows
        self._query_lengths, self._passage_lengths = query_lengths, passage_lengths
        self.steps_per_epoch = len(pairs.queries) // batch
        if not self.steps_per_epoch:
            raise ValueError(
                f"PairsPipeline.batch: a batch of {batch} queries needs as many different ones, "
                f"found {len(pairs.queries)}; make the batch smaller"
            )
        blocks = max(1, round(self.steps_per_epoch * batch / BLOCK))
        self._bounds = np.arange(blocks + 1) * self.steps_per_epoch // blocks
        self._block = functools.lru_cache(maxsize=2)(self._deal_block)
        self._check_rows()

    def choose(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a step, int64 [B], and their passages' rows, positive first, int64 [B, G]."""
        if step < 0:
            raise ValueError(f"PairsPipeline: step: expected 0 or more, found {step}")
        epoch, within = divmod(step, self.steps_per_epoch)
        block = int(np.searchsorted(self._bounds, within, side="right")) - 1
        picked, documents = self._block(epoch, block)
        at = within - int(self._bounds[block])
        return picked[at], documents[at]

    def slots(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a step's texts stand, as places in what `choose` gives; -1 where free.

        A query that does not fit, or whose passages do not, is left out with all of them and waits
        for another epoch, as those do that fill no batch; it is reported.

        Returns:
          int64 [rows, segments] of the queries, 0 to B - 1, and of the passages, 0 to B * G - 1.
        """
        query_sizes, passage_sizes = self._sizes(step)
        for count in range(self.batch, 0, -1):
            # The queries with the longest passages come last: leaving these out takes the fewest.
            queries = _place(query_sizes[:count], self.query_rows)
            passages = _place(passage_sizes[:count].reshape(-1), self.passage_rows)
            if queries is not None and passages is not None:
                break
        else:
            raise ValueError(f"PairsPipeline: step {step}: not one query fits its rows")
        if count < self.batch:
            logging.warning(
                "step %d: %d of %d queries do not fit %s and %s and are left out this time; with "
                "more rows they would not be",
                *(step, self.batch - count, self.batch, self.query_rows, self.passage_rows),
            )
        return queries, passages

    def padding_shares(self, steps: Sequence[int]) -> tuple[float, float]:
        """Share of token positions of these steps that hold no token: of queries, of passages."""
        tokens = np.sum([[part.sum() for part in self._sizes(step)] for step in steps], axis=0)
        rooms = [rows.rows * rows.length * len(steps) for rows in self._both()]
        query, passage = 1 - tokens / np.array(rooms)
        return float(query), float(passage)

    def _both(self) -> tuple[packing.Rows, packing.Rows]:
        return self.query_rows, self.passage_rows

    def _sizes(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the queries [B] and of the passages [B, G] of a step."""
        picked, documents = self.choose(step)
        return self._query_lengths[self.pairs.queries[picked]], self._passage_lengths[documents]

    def _check_rows(self) -> None:
        """Packs the first steps: rows that are too few should be known before training."""
        needed = [0, 0]
        for step in range(min(self.steps_per_epoch, PROBE)):
            for side, (sizes, rows) in enumerate(zip(self._sizes(step), self._both(), strict=True)):
                packed = plan.pack_rows(sizes.reshape(-1), rows.length, rows.segments)
                needed[side] = max(needed[side], len(packed))
        for name, need, rows in zip(("query", "passage"), needed, self._both(), strict=True):
            if need > rows.rows:
                raise ValueError(
                    f"PairsPipeline.{name}_rows: {self.batch} queries with {self.group_size} "
                    f"passages each need up to {need} rows of {rows.length} tokens and "
                    f"{rows.segments} segments, found {rows.rows}. Give it {need + 1 + need // 32},"
                    " which leaves room for steps that need more than the first, or make the batch "
                    "smaller."
                )

    def _deal_block(self, epoch: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs int64 [steps of the block, B] and documents int64 [steps, B, G]."""
        first, last = self._bounds[block : block + 2].tolist()
        order = plan.permutation(self.seed, _ORDER, epoch, len(self.pairs.queries))
        pairs = order[first * self.batch : last * self.batch]  # [N]
        number = epoch * (len(self._bounds) - 1) + block
        documents = self._documents(pairs, epoch, number)  # [N, G]
        sizes = self._passage_lengths[documents].sum(axis=1)
        # Row b: as many pairs as there are steps, about equally long. [B, steps]
        strata = np.argsort(sizes, kind="stable").reshape(self.batch, last - first)
        draw = plan.hashed(self.seed, _DEAL, number, strata.size).reshape(strata.shape)
        dealt = np.take_along_axis(strata, np.argsort(draw, axis=1, kind="stable"), axis=1).T
        return pairs[dealt], documents[dealt]

    def _documents(self, picked: np.ndarray, epoch: int, block: int) -> np.ndarray:
        """The passages of these pairs in an epoch, positive first: int64 [N, G]."""
        positives = self.pairs.positives[picked]  # [N, P]
        turn = epoch % (positives != packing.NONE).sum(axis=1)
        chosen = np.full((len(picked), self.group_size), packing.NONE, dtype=np.int64)
        chosen[:, 0] = positives[np.arange(len(picked)), turn]
        chosen[:, 1:] = self._window(self.pairs.negatives[picked], epoch)
        return self._fill(chosen, positives, block)

    def _window(self, negatives: np.ndarray, epoch: int) -> np.ndarray:
        """[N, all negatives] -> [N, G - 1], the next ones each epoch; -1 where too few."""
        wanted = self.group_size - 1
        count = (negatives != packing.NONE).sum(axis=1)[:, None]  # [N, 1]
        place = np.arange(wanted)[None, :]
        at = (epoch * wanted + place) % np.maximum(count, 1)
        return np.where(place < count, np.take_along_axis(negatives, at, axis=1), packing.NONE)

    def _fill(self, chosen: np.ndarray, positives: np.ndarray, block: int) -> np.ndarray:
        """Puts random passages where `chosen` [N, G] is free: no positive, none twice."""
        size = len(self._passage_lengths)
        for attempt in range(_ATTEMPTS):
            free = chosen == packing.NONE
            if not free.any():
                return chosen
            numbers = plan.hashed(self.seed, _FILL + attempt, block, chosen.size)
            draw = (numbers % np.uint64(size)).astype(np.int64).reshape(chosen.shape)
            trial = np.where(free, draw, chosen)
            taken = (trial[:, :, None] == positives[:, None, :]).any(axis=2)
            same = trial[:, :, None] == trial[:, None, :]  # [N, G, G]
            earlier = np.tri(self.group_size, k=-1, dtype=bool)
            taken |= (same & (earlier | ~free[:, None, :])).any(axis=2)
            chosen = np.where(free & ~taken, draw, chosen)
        return self._fill_in_order(chosen, positives)

    def _fill_in_order(self, chosen: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """What luck did not fill (a store with hardly more passages than a row needs)."""
        for row, column in np.argwhere(chosen == packing.NONE):
            used = np.concatenate([positives[row], chosen[row]])
            chosen[row, column] = np.setdiff1d(np.arange(len(self._passage_lengths)), used)[0]
        return chosen


def _place(sizes: np.ndarray, rows: packing.Rows) -> np.ndarray | None:
    """Which text stands where: int64 [rows, segments], -1 where free; None if they do not fit."""
    if rows.segments == 1:
        slots = np.arange(len(sizes))[:, None]  # in order: a query and its passages stay together
    else:
        slots = plan.pack_rows(sizes, rows.length, rows.segments)
    if len(slots) > rows.rows:
        return None
    spare = np.full((rows.rows - len(slots), rows.segments), packing.NONE)
    return np.concatenate([slots, spare])
