"""Queries with their positive and hard negatives: the pipeline for fine-tuning a bi-encoder."""

import dataclasses
import hashlib
import json

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.negatives import NO_SCORE, read_pairs
from input_pipelines.batches.packed_text import PREFETCH, open_stores
from input_pipelines.pairs.pair_packing import PairPlan, base_rows, pair_specs, slots_of
from input_pipelines.pairs.pair_sampler import require_enough
from input_pipelines.store.token_store import TokenStore, count_of

PAIRS_VERSION = 2  # part of every fingerprint: raise it when the same arguments give other pairs


class PairsPipeline:
    """Batches of B queries, and for each its positive and G - 1 negatives, without end.

    An epoch shows every query once, in a new order (the last queries that fill no batch wait for
    another epoch, so that a batch never holds a query twice). A query with several positives takes
    the next one each epoch; its negatives are a window that slides over the list in the file; where
    the list is too short, random passages that are no positive of the query fill up.

    Texts are packed: several are in a row, in any order, and a query's passages may be in other
    rows than the query; `example_id` says what belongs together. What is in a step does not depend
    on the rows, so packed and unpacked training see the same.

    Attributes:
      pairs: what the negatives file says.
      plan: where each text is in which step.
      fingerprint: of everything that decides what is in a step.
    """

    def __init__(
        self,
        queries: str | TokenStore,
        passages: str | TokenStore,
        negatives: str,
        *,
        batch: int,
        group_size: int,
        query_length: int,
        passage_length: int,
        query_rows: token_groups.Rows,
        passage_rows: token_groups.Rows,
        seed: int,
        tokenizer: str | None = None,
        known_positives: int = 0,
        teacher: bool = False,
        made_by: str | None = None,
    ):
        """
        Args:
          queries: token store folder of the queries.
          passages: token store folder of the passages.
          negatives: a jsonl file, see `negatives.read_pairs`.
          batch: B, queries of the global batch.
          group_size: G, passages for each query: 1 positive and G - 1 negatives.
          query_length, passage_length: tokens of a text; a longer one is cut and keeps its [SEP].
          query_rows, passage_rows: the rows of the global batch; 1 segment switches packing off and
            takes B rows of queries, B * G of passages. One has to be a multiple of the other, so
            that both can be cut over processes alike.
          seed: decides order and random fill.
          tokenizer: a tokenizer's folder that both stores have to fit.
          known_positives: K, the most passages that answer a query; each query then says which
            they are, so that none is its negative when another query brings it. 0: it does not.
          teacher: whether passages carry a teacher's scores, which the file then has to have.
          made_by: fingerprint of the model that has to have mined the file; None does not ask.

        Raises:
          ValueError, StoreError, PairsError: a size out of range, stores or a file that do not fit.
        """
        self.check_arguments(
            queries,
            passages,
            batch,
            group_size,
            query_length,
            passage_length,
            query_rows,
            passage_rows,
            teacher,
        )
        self.query_store, self.passage_store = open_stores([queries, passages], tokenizer)
        self.teacher = teacher
        self.pairs = read_pairs(
            negatives, self.query_store, self.passage_store, teacher=teacher, made_by=made_by
        )
        self.query_length, self.passage_length = query_length, passage_length
        self.known_positives = known_positives
        self._check_known(negatives)
        self._base = base_rows("PairsPipeline", query_rows, passage_rows)
        self.plan = PairPlan(
            self.pairs,
            np.minimum(self.query_store.lengths, query_length),
            np.minimum(self.passage_store.lengths, passage_length),
            batch=batch,
            group_size=group_size,
            query_rows=query_rows,
            passage_rows=passage_rows,
            seed=seed,
        )
        self.fingerprint = self._hash()

    @staticmethod
    def check_arguments(
        queries: str | TokenStore,
        passages: str | TokenStore,
        batch: int,
        group_size: int,
        query_length: int,
        passage_length: int,
        query_rows: token_groups.Rows,
        passage_rows: token_groups.Rows,
        teacher: bool,
    ) -> None:
        """Check arguments before stores are opened; reads their manifests only.

        Raises:
          ValueError, StoreError: a size out of range, a store that is too small for a batch.
        """
        packing_plan.check_sizes("PairsPipeline", batch=batch, group_size=group_size)
        _check_group(batch, group_size, teacher)
        _check_length("query", query_length, query_rows)
        _check_length("passage", passage_length, passage_rows)
        require_enough(count_of(queries), count_of(passages), batch, group_size)

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        rows = (self.plan.query_rows, self.plan.passage_rows)
        return pair_specs(*rows, self.known_positives, self.teacher)

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; no other texts are read.

        Args:
          step: 0 or more.
          rows: int [n], rows of the group that has fewer; of the other, as many times more go with
            each as there are. None takes all.

        Returns:
          `query`: example_id is the row in the query store; with known_positives, `known`
          [R, S, K] holds the rows in the passage store of all that answer it, -1 where fewer.
          `passage`: example_id is that of the query, document_id the row in the passage store, -1
          where free; relevance is 1 for the positive, 0 for negatives. With a teacher,
          `teacher_score` float32, -inf where it has not seen the passage (random ones).
        """
        rows = prefetch.own_rows(rows, self._base)
        picked, documents = self.plan.choose(step)
        query_slots, passage_slots = self.plan.slots(step)
        query_slots = slots_of(query_slots, rows, self._base)
        passage_slots = slots_of(passage_slots, rows, self._base)
        query_id = self.pairs.queries[picked]  # [B]
        asked = token_groups.at(query_id, query_slots)
        document_id = token_groups.at(documents.reshape(-1), passage_slots)
        owner = token_groups.at(np.repeat(query_id, self.plan.group_size), passage_slots)
        row_length = self.plan.query_rows.length
        query = _group(self.query_store, asked, asked, self.query_length, row_length)
        row_length = self.plan.passage_rows.length
        passage = _group(self.passage_store, document_id, owner, self.passage_length, row_length)
        first = (passage_slots != token_groups.NONE) & (passage_slots % self.plan.group_size == 0)
        passage["relevance"] = first.astype(np.int32)
        passage["document_id"] = document_id.astype(np.int32)
        if self.teacher:
            scores = self.pairs.teacher_scores(picked, documents).reshape(-1)
            passage["teacher_score"] = token_groups.at(scores, passage_slots, NO_SCORE)
        if self.known_positives:
            known = self.pairs.positives[picked]  # [B, at most K]
            missing = self.known_positives - known.shape[1]
            known = np.pad(known, [(0, 0), (0, missing)], constant_values=token_groups.NONE)
            query["known"] = token_groups.at(known, query_slots).astype(np.int32)
        return {"query": query, "passage": passage}

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        rows = prefetch.own_rows(rows, self._base)
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )

    def _check_known(self, negatives: str) -> None:
        needed = self.pairs.positives.shape[1]
        if self.known_positives < 0 or 0 < self.known_positives < needed:
            raise ValueError(
                "PairsPipeline.known_positives: expected 0, or the most positives that a query of "
                f"{negatives} has, {needed}, or more; found {self.known_positives}"
            )

    def _hash(self) -> str:
        shapes = [dataclasses.astuple(r) for r in (self.plan.query_rows, self.plan.passage_rows)]
        parts = {
            "version": PAIRS_VERSION,
            "stores": [self.query_store.fingerprint, self.passage_store.fingerprint],
            "pairs": self.pairs.digests(),
            "batch": [self.plan.batch, self.plan.group_size],
            "lengths": [self.query_length, self.passage_length],
            "rows": shapes,
            "seed": self.plan.seed,
        }
        if self.known_positives:  # without, what earlier versions gave
            parts["known"] = self.known_positives
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _check_group(batch: int, group_size: int, teacher: bool) -> None:
    if batch == group_size == 1:
        raise ValueError(
            "PairsPipeline: a batch of one query with one passage has no negative, and its loss "
            "would be 0: expected group_size or batch of 2 or more"
        )
    if teacher and group_size == 1:
        raise ValueError(
            "PairsPipeline.group_size: a teacher's scores compare the passages of a query, and the "
            "loss of one alone would be 0: expected 2 or more, found 1"
        )


def _check_length(name: str, length: int, rows: token_groups.Rows) -> None:
    if not 2 <= length <= rows.length:
        raise ValueError(
            f"PairsPipeline.{name}_length: expected room for [CLS] and [SEP], 2 or more tokens, "
            f"and at most {rows.length}, the length of a row; found {length}"
        )


def _group(
    store: TokenStore, rows: np.ndarray, example_id: np.ndarray, length: int, row_length: int
) -> token_groups.Group:
    """The passages with these rows of the store, int64 [R, S], cut to `length` tokens."""
    passages = token_groups.truncate(store.read(rows[rows != token_groups.NONE]), length)
    return token_groups.build_group(passages, rows, row_length, example_id)
