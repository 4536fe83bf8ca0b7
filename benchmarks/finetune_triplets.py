"""The texts that a `kennel finetune` trained on, step by step, for another trainer, too."""

import dataclasses
from typing import Any

import numpy as np

from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.pairs import pair_packing
from input_pipelines.pairs.retriever_batches import PairsPipeline

SEGMENTS = 16


@dataclasses.dataclass(frozen=True)
class Triplets:
    """Queries with an answer and mined negatives each.

    Attributes:
        run: folder of the run.
        queries: in a batch.
        group_size: passages of a query: one answers, the rest do not.
        length: tokens at which texts are cut, and of a row of queries.
        row_length: tokens of a row of passages; None: as of queries.
        negatives: the file, relative to the run.
        seed: of the order.
    """

    run: str
    queries: int
    group_size: int
    length: int
    row_length: int | None = None
    negatives: str = "negatives/negatives.jsonl"
    seed: int = 0

    def pipeline(
        self, query_rows: token_groups.Rows, passage_rows: token_groups.Rows
    ) -> PairsPipeline:
        """Which texts are in which step does not depend on the rows."""
        return PairsPipeline(
            f"{self.run}/queries/store", f"{self.run}/passages/store",
            f"{self.run}/{self.negatives}", batch=self.queries, group_size=self.group_size,
            query_length=self.length, passage_length=self.length, query_rows=query_rows,
            passage_rows=passage_rows, seed=self.seed,
        )  # fmt: skip

    def unpacked(self) -> PairsPipeline:
        """A text a row."""
        counts = (self.queries, self.queries * self.group_size)
        return self.pipeline(*(token_groups.Rows(count, self.length, 1) for count in counts))

    def chosen(self, pairs: PairsPipeline, step: int) -> list[tuple[Any, np.ndarray]]:
        """Queries, positives, and each column of negatives: (their store, rows in it [B])."""
        picked, documents = pairs.plan.choose(step)
        queries = (pairs.query_store, pairs.pairs.queries[picked])
        return [queries, *((pairs.passage_store, documents[:, g]) for g in range(self.group_size))]

    def fitting_rows(self, multiple: int) -> tuple[token_groups.Rows, token_groups.Rows]:
        """Rows of queries and of passages that take the first steps, as the recipe chooses them."""
        pairs, needed = self.unpacked(), [0, 0]
        row_lengths = (self.length, self.row_length or self.length)
        for step in range(pair_packing.PROBE):
            (_, queries), *passages = self.chosen(pairs, step)
            sides = (pairs.query_store.lengths[queries], np.concatenate(
                [store.lengths[rows] for store, rows in passages]
            ))  # fmt: skip
            for side, lengths in enumerate(sides):
                cut = np.minimum(lengths, self.length)
                packed = packing_plan.pack_rows(cut, row_lengths[side], SEGMENTS)
                needed[side] = max(needed[side], len(packed))
        queries = -(-needed[0] // multiple) * multiple
        passages = -(-pair_packing.with_room(needed[1]) // queries) * queries
        return (
            token_groups.Rows(queries, row_lengths[0], SEGMENTS),
            token_groups.Rows(passages, row_lengths[1], SEGMENTS),
        )
