"""Targets and their evidence in batches, by plans that are rebuilt as the model learns.

A plan is made of the similarities that the current model computes (`document_grouping`), and
defines the batches until the next one is made (`plan_batches`).
"""

import dataclasses
import hashlib
import json

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.packed_text import EncodeSource, open_stores
from input_pipelines.marge import document_grouping, plan_batches, sub_batch_tokens
from input_pipelines.marge.chunk_layout import ChunkTable, language_ids
from input_pipelines.marge.document_grouping import SubBatchRules
from input_pipelines.marge.plan_batches import Plan, PlannedBatches
from input_pipelines.store.token_store import StoreError, TokenStore

VERSION = 2  # part of every fingerprint: raise it when the same arguments give other batches


class SubBatchPipeline:
    """Makes plans, and batches of them.

    Attributes:
      store: of N chunks.
      table: what is known of them.
      languages: int32 [N], the token of each chunk's language.
      shape: of a batch.
      source: the chunks to embed for a plan.
      near_duplicate: see `SubBatchRules`.
      fingerprint: of everything but the plans that decides what is in a step.
    """

    def __init__(
        self,
        store: str | TokenStore,
        *,
        rows: int,
        length: int,
        segments: int,
        chunk_length: int,
        rules: SubBatchRules,
        only_first: bool,
        seed: int,
        tokenizer: str,
    ):
        """
        Args:
          store: token store folder, prepared with `chunk_layout.Chunks`.
          rows, length, segments: of the global batch, of targets and of evidence each. All of a
            sub-batch but one chunk has to fit a row.
          chunk_length: tokens of a chunk at most, for which the model was made.
          rules: which chunks are put together.
          only_first: whether a document's first chunk alone may be a target, as in news, whose
            first lines say what matters.
          seed: decides the order, and who is a target.
          tokenizer: folder of the tokenizer that made the store; has a token for each language.

        Raises:
          ValueError, StoreError: a size out of range, or a store that does not fit.
          TokenizerError: a language without a token.
        """
        packing_plan.check_sizes("SubBatchPipeline", rows=rows, length=length, segments=segments)
        (self.store,) = open_stores([store], tokenizer)
        self.table = ChunkTable.of(self.store)
        tokens = np.asarray(language_ids(tokenizer, self.table.languages), np.int32)
        self.languages = tokens[self.table.language]
        self.shape = token_groups.Rows(rows, length, segments)
        self.near_duplicate = rules.near_duplicate
        self._rules, self._only_first, self._seed = rules, only_first, seed
        self._check_lengths(chunk_length)
        self.source = EncodeSource(
            self.store, length, segments, rows, segment_length=self.store.max_length
        )
        self.fingerprint = self._hash()

    def _check_lengths(self, chunk_length: int) -> None:
        max_length, evidence = int(self.store.lengths.max()), self._rules.documents - 1
        if max_length > chunk_length:
            raise StoreError(
                f"token store {self.store.folder}: expected chunks of up to {chunk_length} tokens, "
                f"CHUNK_LENGTH, found {max_length}: prepare it with the CHUNK_LENGTH of the model"
            )
        if evidence * max_length > self.shape.length or self.shape.segments < evidence:
            raise ValueError(
                f"SubBatchPipeline: expected rows for {evidence} chunks of up to {max_length} "
                f"tokens, all of a sub-batch but one, found length {self.shape.length} and "
                f"segments {self.shape.segments}: make rows longer, sub-batches smaller, or chunks "
                "shorter"
            )

    def make(
        self, vectors: np.ndarray, neighbours: np.ndarray, similarity: np.ndarray, version: int
    ) -> tuple[Plan, dict[str, int]]:
        """A plan, and what became of the chunks.

        Args:
          vectors: float32 [N, D], of each chunk.
          neighbours: int [N, k], of each chunk, NONE where there are fewer.
          similarity: float [N, k], their cosines.
          version: number of the plan.

        Raises:
          StoreError: too few sub-batches for a batch.
        """
        texts = document_grouping.Texts(
            self.table.document,
            self.table.language,
            (self.table.number == 0) | (not self._only_first),
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        )
        found = document_grouping.build(
            texts, neighbours, similarity, self._rules, seed=self._seed, version=version
        )
        arrays = plan_batches.pack(found, self.store.lengths, self.shape, self._seed, version)
        count = len(arrays["target"])
        if count < self.shape.rows:
            raise StoreError(
                f"token store {self.store.folder}: expected sub-batches for {self.shape.rows} "
                f"rows of a batch, found {count} rows of them ({found.counts}). Make batches "
                "smaller, lower SubBatchRules.least, ask for more neighbours, or bring more text "
                "into a shard."
            )
        return arrays, found.counts | {"rows": count}

    def planned(self, arrays: Plan, version: int, first: int) -> PlannedBatches:
        """Batches of plan number `version`, which begins with step `first`."""
        return PlannedBatches(
            self.store, self.languages, arrays, self.shape, self._seed, version, first
        )

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        return sub_batch_tokens.spec_of(self.shape)

    def _hash(self) -> str:
        parts = {
            "version": VERSION,
            "store": self.store.fingerprint,
            "shape": dataclasses.astuple(self.shape),
            "rules": dataclasses.asdict(self._rules),
            "only_first": self._only_first,
            "seed": self._seed,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
