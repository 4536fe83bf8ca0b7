"""Targets with given evidence instead of retrieved: to measure how much evidence helps.

true     the same part of the same document in another language
random   a chunk of a document of another name, in the language of the true one
none     an empty text, "[CLS] [SEP]"

A target has one piece of evidence, and a row as many targets as always fit.
"""

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.packed_text import open_stores
from input_pipelines.batches.token_groups import NONE
from input_pipelines.marge import sub_batch_tokens
from input_pipelines.marge.chunk_layout import ChunkTable, language_ids
from input_pipelines.marge.sub_batch_tokens import SIDES
from input_pipelines.store.token_store import StoreError, TokenStore

KINDS = ("true", "random", "none")


class GivenEvidence:
    """Batches of targets with one piece of evidence each, the same targets whatever the evidence.

    Attributes:
      batches_in_all: how many there are.
    """

    def __init__(
        self,
        store: str | TokenStore,
        *,
        kind: str,
        rows: int,
        length: int,
        segments: int,
        seed: int,
        tokenizer: str,
        max_targets: int,
    ):
        """
        Args:
          store: token store folder, prepared with `chunk_layout.Chunks`.
          kind: one of KINDS.
          rows, length, segments: of the batch.
          seed: decides which translation is taken, and which other document.
          tokenizer: folder of the tokenizer that made the store.
          max_targets: targets in all, of which those of whole batches are taken.

        Raises:
          ValueError, StoreError: a size or kind out of range, chunks that do not fit a row, or too
            few whose document exists in another language, with others in that language.
        """
        packing_plan.check_sizes(
            "GivenEvidence", rows=rows, length=length, segments=segments, max_targets=max_targets
        )
        if kind not in KINDS:
            raise ValueError(f"GivenEvidence.kind: expected one of {KINDS}, found {kind!r}")
        (self._store,) = open_stores([store], tokenizer)
        self._table = ChunkTable.of(self._store)
        self._tokens = np.asarray(language_ids(tokenizer, self._table.languages), np.int32)
        self._shape, self._kind = token_groups.Rows(rows, length, segments), kind
        self._together = min(segments, length // self._store.max_length)
        if not self._together:
            raise ValueError(
                f"GivenEvidence: expected rows for chunks of up to {self._store.max_length} "
                f"tokens, found length {length}"
            )
        of_batch = rows * self._together
        if max_targets < of_batch:
            raise ValueError(
                f"GivenEvidence.max_targets: expected {of_batch} or more, the targets of a batch "
                f"of {rows} rows, found {max_targets}: raise DEVELOPMENT_TARGETS"
            )
        pairs = self._pairs(seed)
        pairs = pairs[packing_plan.permutation(seed, 2, 0, len(pairs))[:max_targets]]
        pairs, others = self._others(pairs)
        self._pairs_of = np.stack([pairs[:, 0], others], 1) if kind == "random" else pairs
        self.batches_in_all = len(pairs) // of_batch
        if not self.batches_in_all:
            raise StoreError(
                f"token store {self._store.folder}: expected {of_batch} chunks for a batch that "
                "exist in another language, too, in which there are documents of several names, "
                f"found {len(pairs)}: hold more documents out (DEVELOPMENT_SHARE)"
            )

    def _pairs(self, seed: int) -> np.ndarray:
        """Chunk and the same part in another language: int64 [P, 2], by chunk."""
        table, pairs = self._table, []
        for name in np.unique(table.name).tolist():
            chunks = np.flatnonzero(table.name == name)
            for one in chunks.tolist():
                same = chunks[
                    (table.language[chunks] != table.language[one])
                    & (table.number[chunks] == table.number[one])
                ]
                if len(same):
                    pairs.append(
                        (one, int(same[packing_plan.permutation(seed, one, 0, len(same))[0]]))
                    )
        return np.asarray(pairs, np.int64).reshape(-1, 2)

    def _others(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs whose evidence can be another's, and evidence of another name, int64 [P]."""
        names = self._table.name[pairs[:, 1]]
        found = np.full(len(pairs), NONE)
        languages = self._table.language[pairs[:, 1]]
        for language in np.unique(languages).tolist():
            here = np.flatnonzero(languages == language)
            for row in here.tolist():
                others = here[names[here] != names[row]]
                if len(others):
                    found[row] = pairs[others[row % len(others)], 1]
        return pairs[found != NONE], found[found != NONE]

    def specs(self) -> prefetch.Spec:
        """As `SubBatchPipeline.specs`."""
        return sub_batch_tokens.spec_of(self._shape)

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of batch `step`, from 0 to batches_in_all - 1."""
        shape, together = self._shape, self._together
        local = prefetch.own_rows(rows, shape.rows)
        of_batch = shape.rows * together
        pairs = self._pairs_of[step * of_batch : (step + 1) * of_batch]
        pairs = pairs.reshape(shape.rows, together, 2)[local]
        slots, passages = {}, {}
        for column, side in enumerate(SIDES):
            slots[side] = np.full((len(local), shape.segments), NONE)
            slots[side][:, :together] = pairs[:, :, column]
            passages[side] = self._store.read(pairs[:, :, column].ravel())
        if self._kind == "none":
            passages["evidence"] = token_groups.truncate(passages["evidence"], 2)
        place = np.arange(shape.segments, dtype=np.int32)
        numbers = {
            side: np.where(filled == NONE, np.int32(NONE), place) for side, filled in slots.items()
        }
        languages = self._tokens[self._table.language]
        return sub_batch_tokens.build(passages, slots, numbers, languages, shape.length)
