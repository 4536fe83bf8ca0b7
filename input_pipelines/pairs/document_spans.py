"""Pairs of spans of one document: the data of coCondenser (Gao and Callan 2021, arXiv:2108.05540).

The official code draws two spans of a document, and leaves out documents of one span. Here the
passages of a document are its spans; a document of a single passage is divided at a random word.
"""

import dataclasses

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.batches.negatives import Pairs
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.pairs.pair_cuts import Words, assemble, framed
from input_pipelines.pairs.pair_kinds import Cut, Examples, Uniform
from input_pipelines.store.token_store import Passages


@dataclasses.dataclass(frozen=True)
class Documents(Examples):
    """Examples that are documents, named by the row of their first span.

    Attributes:
      detail: int64 [n, 2], entries start to end - 1 of `rows` are the spans of a document.
      rows: int64 [m], rows of the store that are spans, document by document.
    """

    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


@dataclasses.dataclass(frozen=True)
class DocumentSpans:
    """Two spans of a document; a `PairKind`.

    The passages of a document follow each other in the store, as `PairCorpus.following` finds them.
    A span is a passage's body, since a title that both share would give the pair away, where the
    store says where titles are. A document with one body is divided: the words before a random
    word are one span, the others are the second.

    Attributes:
      min_tokens: of a span, [CLS] and [SEP] aside; shorter bodies are no spans.
    """

    min_tokens: int

    def __post_init__(self) -> None:
        if self.min_tokens < 1:
            raise ValueError(
                f"DocumentSpans.min_tokens: expected 1 or more, found {self.min_tokens}"
            )

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Documents:
        """See `PairKind`: documents with two spans, or with one that can be divided."""
        document = np.cumsum(np.append(1, corpus.following[:-1] == token_groups.NONE)) - 1  # [N]
        bodies = corpus.ends - corpus.bodies >= self.min_tokens
        alone = np.bincount(document[bodies], minlength=document[-1] + 1)[document] == 1
        rows = np.flatnonzero(bodies & (~alone | self._divisible(corpus)))
        _, first, count = np.unique(document[rows], return_index=True, return_counts=True)
        found = (
            f"{len(first):,} of {document[-1] + 1:,} documents with two spans of "
            f"{self.min_tokens} tokens or more (min_tokens), {np.sum(count == 1):,} of them a "
            "passage that is divided"
        )
        named = rows[first]
        pairs = Pairs(named, named[:, None], np.full((len(named), 1), token_groups.NONE))
        detail = np.stack([first, first + count], axis=1).astype(np.int64)
        return Documents(pairs, found, [repr(self)], detail=detail, rows=rows)

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `PairKind`; a span that is longer than its side may be loses its end."""
        assert isinstance(all_of_them, Documents) and all_of_them.detail is not None
        start, end = all_of_them.detail[picked].T
        one = np.floor(uniform(0) * (end - start)).astype(np.int64)
        other = np.floor(uniform(1) * np.maximum(end - start - 1, 1)).astype(np.int64)
        other += (other >= one) & (end - start > 1)
        divided = end - start == 1

        def side(place: np.ndarray, second: bool, room: int) -> Passages:
            rows = all_of_them.rows[start + place]
            passages = corpus.texts.take(rows)
            words = Words(passages)
            at = words.pick(*self._between(corpus, words, rows), uniform(2))
            begin = np.where(divided & second, at, words.first + corpus.bodies[rows])
            stop = np.where(divided & (not second), at, words.last)
            return assemble(passages, framed(words, begin, words.at_most(begin, stop, room)))

        queries = side(one, False, corpus.query_room)
        return Cut(queries, side(other, True, corpus.passage_room), documents[:, 0])

    def _divisible(self, corpus: PairCorpus) -> np.ndarray:
        """bool [N]: whether a word of a passage leaves a span before it and one from it on."""
        found = np.zeros(len(corpus), np.bool_)
        for rows, passages in corpus.texts.chunks():
            words = Words(passages)
            found[rows] = words.count(*self._between(corpus, words, rows)) > 0
        return found

    def _between(
        self, corpus: PairCorpus, words: Words, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of where a passage may be divided, int64 [n] each; equal if nowhere."""
        start = words.first + corpus.bodies[rows] + self.min_tokens
        end = words.last - self.min_tokens + 1
        return np.minimum(start, words.last), np.maximum(np.minimum(start, words.last), end)
