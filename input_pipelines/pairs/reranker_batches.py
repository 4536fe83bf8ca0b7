"""Queries with each of their passages: the pipeline for training a re-ranker."""

import dataclasses
import hashlib
import json

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, query_passage_concat, token_groups
from input_pipelines.batches.negatives import read_pairs
from input_pipelines.batches.packed_text import PREFETCH, open_stores
from input_pipelines.pairs.pair_packing import JointPlan
from input_pipelines.pairs.pair_sampler import require_enough
from input_pipelines.store.layouts import TEXT
from input_pipelines.store.token_store import TokenStore, count_of
from input_pipelines.tokenizers.tokenization import pair_separators

JOINT_VERSION = 1  # part of every fingerprint: raise it when the same arguments give other pairs


class JointPipeline:
    """Batches of B queries, each in one text with its positive and with G - 1 negatives.

    Which queries are in which step, and with which passages, is chosen as for a bi-encoder
    (`pair_sampler.PairChoice`); texts may be packed, and `example_id` says what belongs together.

    Attributes:
      pairs: what the negatives file says.
      plan: where each text is in which step.
      separators: [SEP] between query and passage.
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
        pair_rows: token_groups.Rows,
        seed: int,
        query_prefix: str = "",
        passage_prefix: str = "",
        tokenizer: str | None = None,
        made_by: str | None = None,
    ):
        """
        Args:
          queries, passages: token store folders.
          negatives: a jsonl file, see `negatives.read_pairs`.
          batch: B, queries of the global batch.
          group_size: G, passages for each query: 1 positive and G - 1 negatives; 2 or more.
          query_length, passage_length: tokens of a text; a longer one is cut and keeps its [SEP].
          pair_rows: of the global batch; 1 segment switches packing off and takes B * G rows, in
            which a query's are adjacent, its positive first.
          seed: decides order and random fill.
          query_prefix, passage_prefix: what the stores have to say was put before each text.
          tokenizer: a tokenizer's folder that both stores have to fit, and which says how pairs
            are joined; None: as BERT's.
          made_by: fingerprint of the model that has to have mined the file; None does not ask.

        Raises:
          ValueError, StoreError, PairsError: a size out of range, stores or a file that do not fit.
        """
        self.check_arguments(
            queries, passages, batch, group_size, query_length, passage_length, pair_rows, tokenizer
        )
        self.separators = pair_separators(tokenizer)
        self.query_store, self.passage_store = open_stores([queries, passages], tokenizer)
        _check_store("query", self.query_store, query_length, query_prefix)
        _check_store("passage", self.passage_store, passage_length, passage_prefix)
        self.pairs = read_pairs(negatives, self.query_store, self.passage_store, made_by=made_by)
        self.query_length, self.passage_length = query_length, passage_length
        self.plan = JointPlan(
            self.pairs,
            np.minimum(self.query_store.lengths, query_length),
            np.minimum(self.passage_store.lengths, passage_length),
            batch=batch,
            group_size=group_size,
            rows=pair_rows,
            seed=seed,
            separators=self.separators,
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
        pair_rows: token_groups.Rows,
        tokenizer: str | None = None,
    ) -> None:
        """Check arguments before stores are opened; reads their manifests only.

        Raises:
          ValueError, StoreError: a size out of range, a store that is too small for a batch.
        """
        packing_plan.check_sizes("JointPipeline", batch=batch, group_size=group_size)
        if group_size == 1:
            raise ValueError(
                "JointPipeline.group_size: a re-ranker compares a query's passages, and the "
                "loss of one alone would be 0: expected 2 or more, found 1"
            )
        query_passage_concat.check_lengths(
            "JointPipeline", query_length, passage_length, pair_rows, pair_separators(tokenizer)
        )
        require_enough(count_of(queries), count_of(passages), batch, group_size)

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        rows = self.plan.rows
        extra = {
            feature: ((rows.rows, rows.segments), np.dtype(np.int32))
            for feature in ("relevance", "document_id")
        }
        return {"pair": query_passage_concat.group_spec(rows) | extra}

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; no other texts are read.

        Args:
          step: 0 or more.
          rows: int [n]; None takes all.

        Returns:
          `pair`: example_id is the row in the query store, document_id that in the passage store,
          -1 where free; relevance is 1 for the positive, 0 for negatives.
        """
        picked, documents = self.plan.choose(step)
        (slots,) = self.plan.slots(step)
        slots = slots[prefetch.own_rows(rows, self.plan.rows.rows)]
        used = slots[slots != token_groups.NONE]
        asked = np.repeat(self.pairs.queries[picked], self.plan.group_size)
        found = documents.reshape(-1)
        group = query_passage_concat.build_group(
            token_groups.truncate(self.query_store.read(asked[used]), self.query_length),
            token_groups.truncate(self.passage_store.read(found[used]), self.passage_length),
            slots,
            self.plan.rows.length,
            token_groups.at(asked, slots),
            self.separators,
        )
        first = (slots != token_groups.NONE) & (slots % self.plan.group_size == 0)
        group["relevance"] = first.astype(np.int32)
        group["document_id"] = token_groups.at(found, slots).astype(np.int32)
        return {"pair": group}

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        rows = prefetch.own_rows(rows, self.plan.rows.rows)
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )

    def _hash(self) -> str:
        parts = {
            "version": JOINT_VERSION,
            "stores": [self.query_store.fingerprint, self.passage_store.fingerprint],
            "pairs": self.pairs.digests(),
            "batch": [self.plan.batch, self.plan.group_size],
            "lengths": [self.query_length, self.passage_length],
            "rows": dataclasses.astuple(self.plan.rows),
            "seed": self.plan.seed,
        }
        if self.separators > 1:
            parts["separators"] = self.separators
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def fitting_rows(
    queries: str,
    passages: str,
    negatives: str,
    *,
    batch: int,
    group_size: int,
    query_length: int,
    passage_length: int,
    length: int,
    segments: int,
    seed: int,
    multiple: int = 1,
    tokenizer: str | None = None,
) -> int:
    """Rows that the pairs of a batch need when they are packed: for PAIR_ROWS.

    The most that the first steps need, and one in 32 more.

    Args:
      queries, passages, negatives, batch, group_size, query_length, passage_length, seed,
        tokenizer: see `JointPipeline`.
      length: tokens of a row.
      segments: pairs in a row at most; 1 does not pack.
      multiple: devices: the rows divide by it.

    Raises:
      ValueError, StoreError, PairsError: as `JointPipeline`.
    """
    packing_plan.check_sizes("fitting_rows", segments=segments, multiple=multiple)
    most = batch * group_size
    pipeline = JointPipeline(
        queries, passages, negatives, batch=batch, group_size=group_size,
        query_length=query_length, passage_length=passage_length, seed=seed,
        pair_rows=token_groups.Rows(most, length, 1), tokenizer=tokenizer,
    )  # fmt: skip
    needed = most if segments == 1 else min(most, pipeline.plan.rows_with_room(length, segments))
    return needed + -needed % multiple


def _check_store(kind: str, store: TokenStore, length: int, prefix: str) -> None:
    """Check that a store has the length, prefix and layout of the model's contract."""
    cut, before = int(store.manifest["max_length"]), str(store.manifest["prefix"])
    if cut < length or before != prefix or store.manifest["layout"] != TEXT:
        raise ValueError(
            f"JointPipeline: {store.folder} was cut at {cut} tokens, with {before!r} before each "
            f"text and the layout {store.manifest['layout']!r}: expected {kind}_length of {length} "
            f"or more, {kind}_prefix {prefix!r} and the layout {TEXT!r}. Name what the store says, "
            "or prepare it again with runs/stores/texts.gin."
        )
