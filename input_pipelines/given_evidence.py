"""Targets with evidence that is given, not found: to see how much evidence helps to write a text.

true     the same part of the same document in another language
random   a chunk of another document, in the language of the true one
none     an empty text, "[CLS] [SEP]"
"""

import numpy as np

from input_pipelines import packing, plan, stream, sub_batch_groups
from input_pipelines.document_chunks import ChunkTable, language_ids
from input_pipelines.packing import NONE
from input_pipelines.pipeline import open_stores
from input_pipelines.sub_batch_groups import SIDES
from input_pipelines.token_store import StoreError, TokenStore

KINDS = ("true", "random", "none")


class GivenEvidence:
    """Batches of one target and one evidence a row, the same targets whatever the evidence.

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
        most: int = 10_000,
    ):
        """
        Args:
          store: token store folder, prepared with `document_chunks.Chunks`.
          kind: one of KINDS.
          rows, length, segments: of the batch; only the first segment of a row is used.
          seed: decides which translation is taken, and which other document.
          tokenizer: folder of the tokenizer that made the store.
          most: targets in all.

        Raises:
          ValueError, StoreError: a size or kind out of range, or no document in two languages.
        """
        plan.check_sizes("GivenEvidence", rows=rows, length=length, segments=segments, most=most)
        if kind not in KINDS:
            raise ValueError(f"GivenEvidence.kind: expected one of {KINDS}, found {kind!r}")
        (self._store,) = open_stores([store], tokenizer)
        self._table = ChunkTable.of(self._store)
        self._tokens = np.asarray(language_ids(tokenizer, self._table.languages), np.int32)
        self._shape, self._kind = packing.Rows(rows, length, segments), kind
        pairs = self._pairs(seed)
        pairs = pairs[plan.permutation(seed, 2, 0, len(pairs))[:most]]
        self._pairs_of = {"true": pairs, "none": pairs, "random": self._shifted(pairs)}[kind]
        self.batches_in_all = len(pairs) // rows
        if not self.batches_in_all:
            raise StoreError(
                f"token store {self._store.folder}: expected {rows} chunks that stand in another "
                f"language, too, for one batch, found {len(pairs)}"
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
                    pairs.append((one, int(same[plan.permutation(seed, one, 0, len(same))[0]])))
        return np.asarray(pairs, np.int64).reshape(-1, 2)

    def _shifted(self, pairs: np.ndarray) -> np.ndarray:
        """Evidence of the same language, of another name where there is one."""
        table, found = self._table, pairs.copy()
        for language in np.unique(table.language[pairs[:, 1]]).tolist():
            here = np.flatnonzero(table.language[pairs[:, 1]] == language)
            for row in here.tolist():
                others = here[table.name[pairs[here, 1]] != table.name[pairs[row, 0]]]
                if len(others):
                    found[row, 1] = pairs[others[row % len(others)], 1]
        return found

    def specs(self) -> stream.Spec:
        """As `SubBatchPipeline.specs`."""
        return sub_batch_groups.spec_of(self._shape)

    def batch(self, step: int, rows: np.ndarray | None = None) -> stream.Batch:
        """These rows of batch `step`, from 0 to batches_in_all - 1."""
        shape = self._shape
        own = stream.own_rows(rows, shape.rows)
        pairs = self._pairs_of[step * shape.rows : (step + 1) * shape.rows][own]
        slots, passages = {}, {}
        for column, side in enumerate(SIDES):
            slots[side] = np.full((len(own), shape.segments), NONE)
            slots[side][:, 0] = pairs[:, column]
            passages[side] = self._store.read(pairs[:, column])
        if self._kind == "none":
            passages["evidence"] = packing.truncate(passages["evidence"], 2)
        numbers = {
            side: np.where(filled == NONE, NONE, 0).astype(np.int32)
            for side, filled in slots.items()
        }
        languages = self._tokens[self._table.language]
        return sub_batch_groups.build(passages, slots, numbers, languages, shape.length)
