"""Sentences of a store of blocks, one a row: as queries of REALM, and with their blocks for ICT.

The batch of a step is a function of seed and step alone. Every epoch shows each sentence that fits
once, in a new order; those that are left over when an epoch does not divide into batches are not
shown in it.
"""

import abc

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.corpus_table import StoreCorpus
from input_pipelines.batches.epoch_plan import EpochPlan
from input_pipelines.batches.packed_text import PREFETCH, open_stores
from input_pipelines.store.token_store import StoreError, TokenStore


class _Sentences(abc.ABC):
    """Shared base of both pipelines: a store of blocks, its sentences, a plan over some of them.

    Attributes:
      store: of blocks.
      sentences: int32 [n, 3], see `blocks`.
      plan: which of them are in which step.
    """

    plan: EpochPlan

    def __init__(self, store: str | TokenStore, rows: int, length: int, tokenizer: str | None):
        packing_plan.check_sizes(type(self).__name__, rows=rows, length=length - 2)
        (self.store,) = open_stores([store], tokenizer)
        self.sentences = self.store.table("sentences")
        self._rows, self._length = rows, length

    @property
    def fingerprint(self) -> str:
        """Of the plan; two pipelines with the same one give the same batches."""
        return self.plan.fingerprint

    @abc.abstractmethod
    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""

    @abc.abstractmethod
    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; only their blocks are read."""

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )

    def sizes(self) -> np.ndarray:
        """Tokens of each sentence."""
        return self.sentences[:, 2] - self.sentences[:, 1]

    def group(self, numbers: np.ndarray) -> token_groups.Group:
        """Sentences as a token group: "[CLS] sentence [SEP]", cut to the length, one a row."""
        row, start, end = self.sentences[numbers].T.astype(np.int64)
        blocks = self.store.read(row)
        first = np.cumsum(blocks.lengths) - blocks.lengths  # where each block begins
        lengths = np.minimum(end - start, self._length - 2) + 2
        ends = np.cumsum(lengths)
        source = np.arange(ends[-1]) + np.repeat(first + start - 1 - (ends - lengths), lengths)
        source[ends - lengths] = first  # [CLS] and [SEP] as the blocks have them
        source[ends - 1] = first + blocks.lengths - 1
        cut = token_groups.Passages(blocks.tokens[source], blocks.word_starts[source], lengths)
        slots = np.arange(len(numbers))[:, None]
        return token_groups.build_group(cut, slots, self._length, numbers[:, None])


class SalientSentences(_Sentences):
    """Sentences with their salient spans: the pipeline of REALM."""

    def __init__(
        self,
        store: str | TokenStore,
        *,
        rows: int,
        length: int,
        spans: int,
        max_span_tokens: int,
        seed: int,
        require_spans: bool = True,
        corpus: StoreCorpus | None = None,
        tokenizer: str | None = None,
    ):
        """
        Args:
          store: a token store of blocks.
          rows: sentences of the global batch.
          length: tokens at which a sentence is cut, specials included.
          spans: how many spans a sentence lists at most, the first ones; 0: none.
          max_span_tokens: longer spans, and those that are cut, are no spans.
          seed: of the order.
          require_spans: whether sentences without a span are left out.
          corpus: what is retrieved from, whose rows `source_row` gives; it has to be of the same
            store. None: another text altogether, in which no sentence has a row.
          tokenizer: a tokenizer's folder that the store has to fit.

        Raises:
          StoreError: no store of blocks; one that is not the corpus'; or too few sentences, which
            says how many have no span.
        """
        if spans < 0 or (require_spans and not spans) or max_span_tokens < 1:
            raise ValueError(
                "SalientSentences: expected spans of 0 or more, at least 1 where they are required,"
                f" and max_span_tokens of at least 1; found {spans} and {max_span_tokens}"
            )
        super().__init__(store, rows, length, tokenizer)
        self._spans = spans
        self._in_corpus = corpus is not None
        if corpus is not None and corpus.fingerprint != self.store.fingerprint:
            raise StoreError(
                f"sentences are of {self.store.folder}, what is retrieved from is "
                f"{corpus.store}: expected one store. A row of one is no row of the other, and the "
                "block that a sentence is from, with the answer in it, would be retrieved."
            )
        table = self.store.table("spans")
        start = self.sentences[:, 1]
        place = table[:, 1] - start[table[:, 0]] + 1  # in "[CLS] sentence [SEP]"
        size = table[:, 2] - table[:, 1]
        fits = (size <= max_span_tokens) & (place + size <= length - 1)
        listed = np.stack([table[:, 0], place, place + size], axis=1)[fits]
        self._first = np.searchsorted(listed[:, 0], np.arange(len(start) + 1))
        self._table = np.concatenate([listed, np.zeros((1, 3), listed.dtype)])  # the last: none
        counts = np.diff(self._first)
        usable = np.flatnonzero(counts) if require_spans else np.arange(len(counts))
        about = [self.store.fingerprint, length, spans, max_span_tokens, require_spans]
        about.append(self._in_corpus)
        try:
            self.plan = EpochPlan(usable, rows, seed, about, "sentences")
        except StoreError as error:
            raise StoreError(
                f"{self.store.folder}: {error} {np.sum(counts == 0):,} of {len(counts):,} "
                f"sentences have no salient span of at most {max_span_tokens} tokens."
            ) from error

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        extra = {"source_row": ((self._rows, 1), np.dtype(np.int32))}
        if self._spans:
            shape = ((self._rows, self._spans), np.dtype(np.int32))
            extra |= {"span_start": shape, "span_end": shape}
        return {"query": {**token_groups.group_spec(self._rows, self._length, 1), **extra}}

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; only their blocks are read."""
        numbers = self.plan.step(step)[prefetch.own_rows(rows, self._rows)]
        group = self.group(numbers)
        row = self.sentences[numbers, :1].astype(np.int32)
        group["source_row"] = row if self._in_corpus else np.full_like(row, token_groups.NONE)
        if self._spans:
            column = self._first[numbers][:, None] + np.arange(self._spans)[None]
            there = column < self._first[numbers + 1][:, None]
            spans = self._table[np.where(there, column, len(self._table) - 1)]
            group["span_start"] = spans[:, :, 1].astype(np.int32)
            group["span_end"] = spans[:, :, 2].astype(np.int32)
        return {"query": group}


class SentencesInBlocks(_Sentences):
    """Sentences, and the blocks that they are from: the pipeline of ICT."""

    def __init__(
        self,
        store: str | TokenStore,
        *,
        rows: int,
        length: int,
        block_length: int,
        seed: int,
        min_tokens: int = 4,
        tokenizer: str | None = None,
    ):
        """
        Args:
          store: a token store of blocks.
          rows: sentences of the global batch.
          length: tokens at which a sentence is cut, specials included.
          block_length: of the rows of blocks; the longest has to fit.
          seed: of the order.
          min_tokens: of a sentence; shorter ones ask for nothing.
          tokenizer: a tokenizer's folder that the store has to fit.

        Raises:
          StoreError: no store of blocks, too few sentences, or a block that is too long.
        """
        super().__init__(store, rows, length, tokenizer)
        self._block_length = block_length
        if self.store.max_length > block_length:
            raise StoreError(
                f"{self.store.folder}: expected blocks of at most {block_length} tokens, "
                f"found one of {self.store.max_length}. Prepare shorter blocks, or raise "
                "the length."
            )
        usable = np.flatnonzero(self.sizes() >= min_tokens)
        about = [self.store.fingerprint, length, block_length, min_tokens]
        self.plan = EpochPlan(usable, rows, seed, about, "sentences")

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        one = ((self._rows, 1), np.dtype(np.int32))
        extra = {"document_id": one, "sentence_start": one, "sentence_end": one}
        return {
            "query": token_groups.group_spec(self._rows, self._length, 1),
            "passage": {**token_groups.group_spec(self._rows, self._block_length, 1), **extra},
        }

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; only their blocks are read."""
        numbers = self.plan.step(step)[prefetch.own_rows(rows, self._rows)]
        row, start, end = self.sentences[numbers].T.astype(np.int32)
        blocks = self.store.read(row)
        slots = np.arange(len(numbers))[:, None]
        passage = token_groups.build_group(blocks, slots, self._block_length, numbers[:, None])
        for name, values in (
            ("document_id", row),
            ("sentence_start", start),
            ("sentence_end", end),
        ):
            passage[name] = values[:, None]
        return {"query": self.group(numbers), "passage": passage}
