"""Pack the queries and passages of a step into rows: a pure function of (seed, step)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from absl import logging

from input_pipelines.batches import packing_plan, prefetch, query_passage_concat, token_groups
from input_pipelines.batches.negatives import Pairs
from input_pipelines.pairs.pair_sampler import PairChoice

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
        rows: dict[str, token_groups.Rows],
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
        """Places of a step's texts, as indices into the result of `choose`; -1 where free.

        A query that does not fit, or whose passages do not, is left out with all of them, and it is
        reported. Those with the longest passages go first, and may go again in another epoch: make
        the rows larger until none is left out.

        Returns:
          int64 [rows, segments] of each group: of one with a text for each query 0 to B - 1, of one
          with a text for each passage 0 to B * G - 1.
        """
        where = f"{self._owner}: step {step}"
        return fitted(self._sizes(step), list(self._rows.values()), where, "queries")

    def padding_shares(self, steps: Sequence[int]) -> list[float]:
        """Share of token positions of these steps that hold no token, for each group."""
        tokens = np.sum([[part.sum() for part in self._sizes(step)] for step in steps], axis=0)
        rooms = [rows.rows * rows.length * len(steps) for rows in self._rows.values()]
        shares: list[float] = (1 - tokens / np.array(rooms)).tolist()
        return shares

    def _sizes(self, step: int) -> list[np.ndarray]:
        raise NotImplementedError

    def _check_rows(self) -> None:
        steps = range(min(self.steps_per_epoch, PROBE))
        about = f"{self.batch} queries with {self.group_size} passages each"
        require_rows(self._owner, self._rows, map(self._sizes, steps), about)


class PairPlan(RowPlan):
    """Queries and passages in separate rows: for a bi-encoder.

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
        query_rows: token_groups.Rows,
        passage_rows: token_groups.Rows,
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
    """Each passage in one text with its query, for a re-ranker: see `query_passage_concat`.

    Attributes:
      rows: that a batch has to fit.
      separators: [SEP] between query and passage.
    """

    def __init__(
        self,
        pairs: Pairs,
        query_lengths: np.ndarray,
        passage_lengths: np.ndarray,
        *,
        batch: int,
        group_size: int,
        rows: token_groups.Rows,
        seed: int,
        separators: int = 1,
    ):
        """Arguments and errors as for `RowPlan`; `separators`: see `query_passage_concat.join`."""
        self.rows, self.separators = rows, separators
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

    def rows_with_room(self, length: int, segments: int) -> int:
        """Rows of `length` tokens, each of at most `segments` pairs, that fit the steps.

        The most that the first `PROBE` steps need, and a little more.
        """
        steps = range(min(self.steps_per_epoch, PROBE))
        packed = [
            packing_plan.pack_rows(self._sizes(step)[0].reshape(-1), length, segments)
            for step in steps
        ]
        return with_room(max(map(len, packed)))

    def _sizes(self, step: int) -> list[np.ndarray]:
        queries, passages = self.lengths(step)
        return [query_passage_concat.pair_lengths(queries[:, None], passages, self.separators)]


def fitted(
    sizes: Sequence[np.ndarray], rows: Sequence[token_groups.Rows], where: str, what: str
) -> list[np.ndarray]:
    """Places of a step's texts in the rows of each group; -1 where free.

    What comes last is left out, in all groups, where not all fit, and that is reported: the rows
    should be large enough for all.

    Args:
      sizes: of each group, tokens of its texts, [B] or [B, G].
      rows: of each group.
      where, what: the step, and what it has a batch of, for messages.

    Returns:
      int64 [rows, segments] of each group: places in its sizes, flat.

    Raises:
      ValueError: not one fits.
    """
    batch = len(sizes[0])
    for count in range(batch, 0, -1):
        placed = [
            place(lengths[:count].reshape(-1), shape)
            for lengths, shape in zip(sizes, rows, strict=True)
        ]
        found = [slots for slots in placed if slots is not None]
        if len(found) == len(placed):
            break
    else:
        raise ValueError(f"{where}: not one of the {what} fits its rows")
    if count < batch:
        logging.warning(
            "%s: %d of %d %s do not fit %s and are left out this time; with more rows they would "
            "not be",
            *(where, batch - count, batch, what, " and ".join(map(str, rows))),
        )
    return found


def pair_specs(
    query_rows: token_groups.Rows, passage_rows: token_groups.Rows, known: int, teacher: bool
) -> prefetch.Spec:
    """Group -> feature -> shape and dtype of a global batch of queries with their passages.

    Args:
      query_rows, passage_rows: of the global batch.
      known: K, passages known to answer a query; 0: batches have no feature `known`.
      teacher: whether passages carry `teacher_score`.
    """
    query = token_groups.group_spec(*dataclasses.astuple(query_rows))
    passage = token_groups.group_spec(*dataclasses.astuple(passage_rows))
    shape = (passage_rows.rows, passage_rows.segments)
    for feature in ("relevance", "document_id"):
        passage[feature] = (shape, np.dtype(np.int32))
    if teacher:
        passage["teacher_score"] = (shape, np.dtype(np.float32))
    if known:
        query["known"] = ((query_rows.rows, query_rows.segments, known), np.dtype(np.int32))
    return {"query": query, "passage": passage}


def base_rows(
    owner: str, query_rows: token_groups.Rows, passage_rows: token_groups.Rows, advice: str = ""
) -> int:
    """Rows of the smaller group, which the larger group's have to be a multiple of.

    Args:
      owner: whose rows these are, for the message.
      query_rows, passage_rows: of the global batch.
      advice: ends the message.

    Raises:
      ValueError: they are not; names the next number that is.
    """
    base, other = sorted((query_rows.rows, passage_rows.rows))
    if other % base:
        raise ValueError(
            f"{owner}: {query_rows.rows} rows of queries, {passage_rows.rows} of passages: "
            f"expected a multiple of {base}, so that both can be cut alike; the next is "
            f"{other + base - other % base}{advice}"
        )
    return base


def slots_of(slots: np.ndarray, rows: np.ndarray, base: int) -> np.ndarray:
    """The slots of a group that belong to these of its `base` rows: int64 [n, segments].

    Args:
      slots: int64 [rows of the group, segments].
      rows: int64, among 0 to base - 1.
      base: see `base_rows`.
    """
    return slots.reshape(base, -1, slots.shape[1])[rows].reshape(-1, slots.shape[1])


def require_rows(
    owner: str,
    rows: Mapping[str, token_groups.Rows],
    sizes: Iterable[Sequence[np.ndarray]],
    about: str,
) -> None:
    """Raises ValueError if steps need more rows than there are, which is best known at once.

    Args:
      owner: whose argument '<group>_rows' the message names.
      rows: of each group.
      sizes: of some steps, see `fitted`.
      about: what a step holds, for the message.
    """
    needed = dict.fromkeys(rows, 0)
    for step in sizes:
        for (name, shape), lengths in zip(rows.items(), step, strict=True):
            packed = packing_plan.pack_rows(lengths.reshape(-1), shape.length, shape.segments)
            needed[name] = max(needed[name], len(packed))
    for name, need in needed.items():
        shape = rows[name]
        if need > shape.rows:
            raise ValueError(
                f"{owner}.{name}_rows: {about} need up to {need} rows of {shape.length} tokens and "
                f"{shape.segments} segments, found {shape.rows}. Give it {with_room(need)}, "
                "which leaves room for steps that need more than the first, or make the batch "
                "smaller."
            )


def with_room(needed: int) -> int:
    """Rows for steps that need more than the first `PROBE`, which needed so many."""
    return needed + 1 + needed // 32


def place(sizes: np.ndarray, rows: token_groups.Rows) -> np.ndarray | None:
    """Place of each text: int64 [rows, segments], -1 where free; None if they do not fit."""
    if rows.segments == 1:
        slots = np.arange(len(sizes))[:, None]  # in order: a query and its passages stay together
    else:
        slots = packing_plan.pack_rows(sizes, rows.length, rows.segments)
    if len(slots) > rows.rows:
        return None
    spare = np.full((rows.rows - len(slots), rows.segments), token_groups.NONE)
    return np.concatenate([slots, spare])
