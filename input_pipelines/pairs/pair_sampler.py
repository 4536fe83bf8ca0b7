"""Choose the queries of a step and their passages: a pure function of (seed, step).

An epoch orders the queries by a hash of (seed, epoch); that order is cut into blocks of thousands
of queries, and a block is dealt out to its steps by length: the queries whose passages are about
as long, one for each step, are neighbours once sorted, and chance says which step gets which. Every
query is thus equally likely in every step of its block, while all steps hold nearly the same number
of tokens: a fixed number of queries then fits a fixed number of rows with little padding.
Where similar queries belong together (`similar_queries`), their groups are ordered and dealt out.
"""

import functools

import numpy as np
from absl import logging

from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.batches.negatives import Pairs
from input_pipelines.pairs import similar_queries

# Streams of random numbers, so that no two uses of a seed share any.
_ORDER = 0  # the order of an epoch
_FILL = 1  # + attempt: random passages where a query has too few negatives
_GROUPS = 1 << 31  # the order of groups of similar queries
_DEAL = 1 << 32  # which step of a block gets which of the queries with equally long passages
_REDRAW = 1 << 30  # which of other negatives a query gets
_REFILL = _REDRAW + 1  # + attempt: random passages where there are too few of them
_ATTEMPTS = 64

BLOCK = 8192  # queries


@functools.cache
def _warn_once(text: str) -> None:
    """Logs a warning that this process has not logged yet.

    A stage makes several samplers of the same pairs: for its length, and for its batches.
    """
    logging.warning("%s", text)


class PairChoice:
    """Batches of B queries with G passages each, without end.

    An epoch shows every query once, in a new order (the last queries that fill no batch wait for
    another epoch, so that a batch never holds a query twice). A query with several positives takes
    the next one each epoch; its negatives are a window that slides over the list in the file; where
    the list is too short, random passages that are no positive of the query fill up.

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
        seed: int,
        similar: int = 1,
    ):
        """
        Args:
          pairs: which passages a query may be paired with.
          query_lengths, passage_lengths: int [rows of the store], tokens after truncation.
          batch: B.
          group_size: G, 1 positive and G - 1 negatives.
          seed: decides order and random fill.
          similar: how many queries of a batch belong together at most, see `similar_queries`; the
            largest number up to it that divides the batch.

        Raises:
          ValueError: fewer queries than a batch needs, fewer passages than a query does, or no
            query with a negative where groups ask for some.
        """
        self.pairs, self.batch, self.group_size, self.seed = pairs, batch, group_size, seed
        self._query_lengths, self._passage_lengths = query_lengths, passage_lengths
        self._similar = next(n for n in range(min(similar, batch), 0, -1) if batch % n == 0)
        if self._similar < similar:
            logging.warning(
                "pairs: %d similar queries together instead of %d, a number that divides the batch "
                "of %d",
                *(self._similar, similar, batch),
            )
        self.steps_per_epoch = len(pairs.queries) // batch
        require_enough(
            len(pairs.queries), len(passage_lengths), batch, group_size, pairs.positives.shape[1]
        )
        self._check_negatives()
        blocks = max(1, round(self.steps_per_epoch * batch / BLOCK))
        self._bounds = np.arange(blocks + 1) * self.steps_per_epoch // blocks
        self._block = functools.lru_cache(maxsize=2)(self._deal_block)
        self._order = functools.lru_cache(maxsize=1)(self._order_of)

    def choose(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a step, int64 [B], and their passages' rows, positive first, int64 [B, G]."""
        if step < 0:
            raise ValueError(f"pairs: step: expected 0 or more, found {step}")
        epoch, within = divmod(step, self.steps_per_epoch)
        block = int(np.searchsorted(self._bounds, within, side="right")) - 1
        picked, documents = self._block(epoch, block)
        at = within - int(self._bounds[block])
        return picked[at], documents[at]

    def redrawn(
        self, step: int, picked: np.ndarray, documents: np.ndarray, negatives: np.ndarray
    ) -> np.ndarray:
        """The passages of a step with other negatives, drawn uniformly without replacement.

        A pure function of the seed, the step and the arguments. A passage that is a positive of its
        query is never drawn; where too few are left, random passages fill up.

        Args:
          step: 0 or more.
          picked, documents: what `choose` gives for the step.
          negatives: int64 [Q, N], rows that each query of `pairs` may get, -1 where fewer; no row
            twice.

        Returns:
          int64 [B, G]; the positives stay.
        """
        positives = self.pairs.positives[picked]  # [B, P]
        listed = negatives[picked]  # [B, N]
        barred = (listed[:, :, None] == positives[:, None, :]).any(axis=2)
        barred |= listed == token_groups.NONE
        draw = packing_plan.hashed(self.seed, _REDRAW, step, listed.size).reshape(listed.shape)
        order = np.lexsort((draw, barred), axis=1)[:, : self.group_size - 1]
        drawn = np.where(
            np.take_along_axis(barred, order, axis=1),
            token_groups.NONE,
            np.take_along_axis(listed, order, axis=1),
        )
        chosen = np.full_like(documents, token_groups.NONE)
        chosen[:, 0] = documents[:, 0]
        chosen[:, 1 : 1 + drawn.shape[1]] = drawn
        return self._fill(chosen, positives, _REFILL, step)

    def lengths(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the queries [B] and of the passages [B, G] of a step."""
        picked, documents = self.choose(step)
        return self._query_lengths[self.pairs.queries[picked]], self._passage_lengths[documents]

    def _check_negatives(self) -> None:
        """Says how many places random passages fill, and refuses a file that fills none."""
        wanted = self.group_size - 1
        if not wanted:
            return
        counts = (self.pairs.negatives != token_groups.NONE).sum(axis=1)  # [Q]
        if not counts.any():
            raise ValueError(
                f"pairs: not one of {len(counts)} queries has a negative, and group_size asks for "
                f"{wanted} each. Mine again with looser settings, or set group_size to 1 to learn "
                "from the batch's other passages alone."
            )
        if self.pairs.teacher is not None and counts.max() < wanted:
            raise ValueError(
                f"pairs: group_size {self.group_size} asks for {wanted} negatives of each query, "
                f"but the teacher has scored {counts.max()} at most, and others teach nothing. "
                "Score more of them (depth), or make the groups smaller."
            )
        short = np.maximum(wanted - counts, 0)
        if short.any():
            few, none = np.count_nonzero(short), np.count_nonzero(counts == 0)
            share = short.sum() / (wanted * len(counts))
            _warn_once(
                f"{few} of {len(counts)} queries have fewer than {wanted} negatives, "
                f"{none} of them none: random passages fill {share:.1%} of the places"
            )

    def _deal_block(self, epoch: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs int64 [steps of the block, B] and documents int64 [steps, B, G]."""
        first, last = self._bounds[block : block + 2].tolist()
        pairs = self._order(epoch)[first * self.batch : last * self.batch]  # [N]
        number = epoch * (len(self._bounds) - 1) + block
        documents = self._documents(pairs, epoch, number)  # [N, G]
        together = self._similar
        sizes = self._passage_lengths[documents].reshape(len(pairs) // together, -1).sum(axis=1)
        # Row b: as many groups as there are steps, about equally long. [B / together, steps]
        strata = np.argsort(sizes, kind="stable").reshape(-1, last - first)
        draw = packing_plan.hashed(self.seed, _DEAL, number, strata.size).reshape(strata.shape)
        dealt = np.take_along_axis(strata, np.argsort(draw, axis=1, kind="stable"), axis=1).T
        dealt = (dealt[:, :, None] * together + np.arange(together)).reshape(-1, self.batch)
        return pairs[dealt], documents[dealt]

    def _order_of(self, epoch: int) -> np.ndarray:
        order = packing_plan.permutation(self.seed, _ORDER, epoch, len(self.pairs.queries))
        if self._similar == 1:
            return order
        positives = self._answers(self.pairs.positives, epoch)
        found = similar_queries.grouped(order, positives, self.pairs.negatives, self._similar)
        return found[packing_plan.permutation(self.seed, _GROUPS, epoch, len(found))].reshape(-1)

    def _documents(self, picked: np.ndarray, epoch: int, block: int) -> np.ndarray:
        """The passages of these pairs in an epoch, positive first: int64 [N, G]."""
        positives = self.pairs.positives[picked]  # [N, P]
        chosen = np.full((len(picked), self.group_size), token_groups.NONE, dtype=np.int64)
        chosen[:, 0] = self._answers(positives, epoch)
        chosen[:, 1:] = self._window(self.pairs.negatives[picked], epoch)
        return self._fill(chosen, positives, _FILL, block)

    def _answers(self, positives: np.ndarray, epoch: int) -> np.ndarray:
        """[N, P] -> [N], the next positive each epoch."""
        turn = epoch % (positives != token_groups.NONE).sum(axis=1)
        return positives[np.arange(len(positives)), turn]

    def _window(self, negatives: np.ndarray, epoch: int) -> np.ndarray:
        """[N, all negatives] -> [N, G - 1], the next ones each epoch; -1 where too few."""
        wanted = self.group_size - 1
        count = (negatives != token_groups.NONE).sum(axis=1)[:, None]  # [N, 1]
        place = np.arange(wanted)[None, :]
        at = (epoch * wanted + place) % np.maximum(count, 1)
        return np.where(place < count, np.take_along_axis(negatives, at, axis=1), token_groups.NONE)

    def _fill(
        self, chosen: np.ndarray, positives: np.ndarray, stream: int, number: int
    ) -> np.ndarray:
        """Puts random passages where `chosen` [N, G] is free: no positive, none twice."""
        size = len(self._passage_lengths)
        for attempt in range(_ATTEMPTS):
            free = chosen == token_groups.NONE
            if not free.any():
                return chosen
            numbers = packing_plan.hashed(self.seed, stream + attempt, number, chosen.size)
            draw = (numbers % np.uint64(size)).astype(np.int64).reshape(chosen.shape)
            trial = np.where(free, draw, chosen)
            taken = (trial[:, :, None] == positives[:, None, :]).any(axis=2)
            same = trial[:, :, None] == trial[:, None, :]  # [N, G, G]
            earlier = np.tri(self.group_size, k=-1, dtype=bool)
            taken |= (same & (earlier | ~free[:, None, :])).any(axis=2)
            chosen = np.where(free & ~taken, draw, chosen)
        return self._fill_in_order(chosen, positives)

    def _fill_in_order(self, chosen: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """Fill places that random draws left free (in a store with hardly enough passages)."""
        for row, column in np.argwhere(chosen == token_groups.NONE):
            used = np.concatenate([positives[row], chosen[row]])
            chosen[row, column] = np.setdiff1d(np.arange(len(self._passage_lengths)), used)[0]
        return chosen


def require_enough(
    queries: int, passages: int, batch: int, group_size: int, positives: int = 1
) -> None:
    """Refuses a collection that is too small for a batch.

    Args:
      queries, passages: that there are.
      batch: queries of a batch.
      group_size: passages of a query.
      positives: the most that a query has.

    Raises:
      ValueError: fewer queries than a batch needs, fewer passages than a query does.
    """
    if queries < batch:
        raise ValueError(
            f"pairs: a batch of {batch} queries needs as many different ones, found {queries}. Set "
            f"QUERIES to {queries} or fewer, and PASSAGES to {group_size} times as many; "
            "data/pairs/training_pairs.gin, as in recipes/beir.gin, does it by itself"
        )
    needed = positives + group_size - 1
    if passages < needed:
        raise ValueError(
            f"pairs: the store holds {passages} passages: expected {needed} or more, all positives "
            f"of a query and {group_size - 1} negatives"
        )
