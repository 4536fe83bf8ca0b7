"""Kinds of training pairs: how a query and a passage that answers it are cut from a passage.

Each kind is a small frozen configuration; `pair_mixture` asks it which examples there are, and to
cut those of a step. A text is "[CLS] ... [SEP]", and cuts are where words start. docs/pairs.md says
where each kind comes from.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.batches.negatives import Pairs, PairsError, read_pairs
from input_pipelines.batches.packed_text import open_stores
from input_pipelines.pairs.equal_numbers import equal
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.pairs.pair_cuts import Words, assemble, framed, without
from input_pipelines.pairs.pair_turns import shown_in_turn, without_negatives
from input_pipelines.pairs.text_arrays import TextArrays
from input_pipelines.store.store_writer import MANIFEST
from input_pipelines.store.token_store import Passages

Uniform = Callable[[int], np.ndarray]  # which one -> float64 [n] in [0, 1), one for each pair
# Picked examples int64 [n], rows int64 [U] -> int64 [k] places of examples, int64 [k] of answers
Answered = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples from which a kind makes pairs.

    Attributes:
      pairs: for each example, rows of the passages that answer it, shown in turn, and hard
        negatives. `pairs.queries` holds whatever row a kind makes the query of.
      group_size: G, passages that come with a query: 1 positive and G - 1 negatives.
      found: what there is, in words, for the message where it does not suffice.
      about: what decides them, for the fingerprint.
      detail: int64 [n, 2], of sentences: their start and end.
      answered: which passages answer an example's query; None: its positives alone.
      queries: of labelled pairs, the texts of queries.
    """

    pairs: Pairs
    found: str
    about: Sequence[Any]
    group_size: int = 1
    detail: np.ndarray | None = None
    answered: Answered | None = None
    queries: TextArrays | None = None

    def __len__(self) -> int:
        return len(self.pairs.queries)

    @functools.cached_property
    def shared(self) -> bool:
        """Whether a query may be answered by a passage other than the positive of a step."""
        if self.answered is not None or self.pairs.positives.shape[1] > 1:
            return True
        moved = self.pairs.positives[:, 0] != self.pairs.queries
        return self.queries is None and bool(moved.any())


@dataclasses.dataclass(frozen=True)
class Cut:
    """Pairs of one kind in one step.

    Attributes:
      queries: n texts.
      passages: n * G texts, those of a query together, the positive first.
      source: int64 [n], the row that the query was cut from; -1: from none.
    """

    queries: Passages
    passages: Passages
    source: np.ndarray


class PairKind(Protocol):
    """Frozen, so that its repr says what it does."""

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Examples:
        """All examples of this kind, however few; `teacher`: whether its scores are needed."""
        ...

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """The pairs of some examples.

        Args:
          corpus, all_of_them: as in `examples`, and what that gave.
          picked: int64 [n], which examples.
          documents: int64 [n, G], rows of their passages, the positive first.
          uniform: random numbers.
        """
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """A kind whose examples follow from more than the passages."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths: pairs that are open are made again when one of these changes."""
        ...


@dataclasses.dataclass(frozen=True)
class RandomCrops:
    """Random runs of words: with the passage that they are from, or two of one passage.

    Two independent crops are Contriever's pairs (arXiv:2112.09118). A crop with its passage, the
    crop removed from it in most cases, is the Inverse Cloze Task (arXiv:1906.00300) with crops in
    place of sentences.

    Attributes:
      min_tokens, max_tokens: of a crop, [CLS] and [SEP] aside; the length is uniform between them,
        then the end moves back to a word start. A first word that is longer is taken whole.
      independent: whether the other side is another crop instead of the passage.
      remove_probability: how often the crop is removed from the passage; 0 for independent crops.
    """

    min_tokens: int
    max_tokens: int
    independent: bool
    remove_probability: float

    def __post_init__(self) -> None:
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(
                "RandomCrops: expected min_tokens of at least 1, and max_tokens not below, found "
                f"{self.min_tokens} and {self.max_tokens}"
            )
        _check_probability("RandomCrops", self.remove_probability)
        if self.independent and self.remove_probability:
            raise ValueError(
                "RandomCrops: nothing is removed from independent crops: expected "
                f"remove_probability 0, found {self.remove_probability}"
            )

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Examples:
        """See `PairKind`: passages of two words or more that are longer than the shortest crop."""
        sizes = corpus.ends - corpus.texts_from
        rows = np.flatnonzero((corpus.words >= 2) & (sizes > self.min_tokens))
        found = (
            f"{len(rows):,} of {len(corpus):,} passages with two words or more and more than "
            f"{self.min_tokens} tokens (min_tokens)"
        )
        return Examples(without_negatives(rows, rows[:, None]), found, [repr(self)])

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `PairKind`."""
        rows = documents[:, 0]
        passages = corpus.texts.take(rows)
        words = Words(passages)
        first = words.first + corpus.texts_from[rows]

        def crop(limit: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
            sizes = min(self.min_tokens, limit), min(self.max_tokens, limit)
            uniforms = uniform(stream), uniform(stream + 1)
            return words.crop(first, words.last, *sizes, limit, uniforms)

        start, end = crop(corpus.query_room, 0)
        queries = assemble(passages, framed(words, start, end))
        if self.independent:
            other = framed(words, *crop(corpus.passage_room, 2), head=1 + corpus.prompt)
            return Cut(queries, assemble(passages, other), rows)
        kept = uniform(2) >= self.remove_probability
        others = without(words, np.where(kept, end, start), end)
        return Cut(queries, assemble(passages, others), rows)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """A sentence with the passage that it is from: the Inverse Cloze Task (arXiv:1906.00300).

    Attributes:
      min_tokens: of a sentence; shorter ones ask for nothing.
      remove_probability: how often the sentence is removed from its passage; 0.9 in the paper.
    """

    min_tokens: int
    remove_probability: float

    def __post_init__(self) -> None:
        if self.min_tokens < 1:
            raise ValueError(f"Sentences.min_tokens: expected 1 or more, found {self.min_tokens}")
        _check_probability("Sentences", self.remove_probability)

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Examples:
        """See `PairKind`: sentences that are not the only one of their body."""
        table = corpus.sentences()
        row, start, end = table.T
        whole = corpus.ends[row] - corpus.bodies[row]
        usable = (end - start >= self.min_tokens) & (end - start < whole)
        found = (
            f"{usable.sum():,} of {len(table):,} sentences with {self.min_tokens} tokens or more "
            "and another sentence next to them"
        )
        detail = table[usable, 1:]
        pairs = without_negatives(row[usable], row[usable, None])
        return Examples(pairs, found, [repr(self)], detail=detail)

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `PairKind`; a sentence that is longer than a query is cut, and removed whole."""
        assert all_of_them.detail is not None
        rows = documents[:, 0]
        passages = corpus.texts.take(rows)
        words = Words(passages)
        start, end = words.first + all_of_them.detail[picked].T
        stop = words.at_most(start, end, corpus.query_room)
        kept = uniform(0) >= self.remove_probability
        others = without(words, np.where(kept, end, start), end)
        queries = assemble(passages, framed(words, start, stop))
        return Cut(queries, assemble(passages, others), rows)


@dataclasses.dataclass(frozen=True)
class TitleToBody:
    """A title, or heading, with a passage of that title, without it (E5, arXiv:2212.03533).

    An example is a title: passages that share one are shown in turn, epoch after epoch (16 of them
    at most, evenly spread), so that no batch has a query twice. All of them answer it.
    """

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Examples:
        """See `PairKind`: titles of passages that have a body, too."""
        corpus.required_titles()
        rows = np.flatnonzero((corpus.title_numbers >= 0) & (corpus.ends > corpus.bodies))
        numbers = corpus.title_numbers
        titles, positives = shown_in_turn(numbers[rows], rows)
        found = f"{len(titles):,} titles, of {len(rows):,} of {len(corpus):,} passages with a body"

        def answered(picked: np.ndarray, here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return equal(titles[picked], numbers[here])

        shared = len(titles) < len(rows)
        pairs = without_negatives(positives[:, 0], positives)
        return Examples(pairs, found, [repr(self)], answered=answered if shared else None)

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `PairKind`; with layout 'title_and_body' the title's place stays, empty."""
        rows = documents[:, 0]
        passages = corpus.texts.take(rows)
        words = Words(passages)
        start, end = words.first + corpus.required_titles()[rows].T
        stop = words.at_most(start, end, corpus.query_room)
        queries = assemble(passages, framed(words, start, stop))
        return Cut(queries, assemble(passages, without(words, start, end)), rows)


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """A passage with the next one of its document, as `PairCorpus.following` finds it.

    The query is the body of the first (its title, where the store says where that is, would give
    the second away), or as much of it as a query holds, from a random word on.
    """

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Examples:
        """See `PairKind`: passages with a body and a next one."""
        rows = np.flatnonzero((corpus.following >= 0) & (corpus.ends > corpus.bodies))
        found = f"{len(rows):,} of {len(corpus):,} passages with a next one of the same document"
        return Examples(without_negatives(rows, corpus.following[rows, None]), found, [repr(self)])

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `PairKind`."""
        rows = all_of_them.pairs.queries[picked]
        passages = corpus.texts.take(rows)
        words = Words(passages)
        start, end = words.first + corpus.bodies[rows], words.last
        room = corpus.query_room
        crop = words.crop(start, end, room, room, room, (uniform(0), uniform(1)))
        fits = end - start <= room
        spans = framed(words, np.where(fits, start, crop[0]), np.where(fits, end, crop[1]))
        return Cut(assemble(passages, spans), corpus.texts.take(documents[:, 0]), rows)


@dataclasses.dataclass(frozen=True)
class LabelledPairs:
    """Training queries with their positives, and the hard negatives that a file names.

    Attributes:
      queries: token store folder of the queries; None: there are none.
      negatives: a jsonl file, see `negatives.read_pairs`; None likewise.
      made_by: fingerprint of the model that has to have mined the file; None does not ask.
    """

    queries: str | None
    negatives: str | None
    made_by: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """See `ReadsFiles`."""
        if not self.queries or not self.negatives:
            return ()
        return os.path.join(self.queries, MANIFEST), self.negatives

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> Examples:
        """See `PairKind`: the lines of the file."""
        if not self.queries or not self.negatives or not os.path.getsize(self.negatives):
            found = f"no labelled query (queries {self.queries!r}, negatives {self.negatives!r})"
            none = np.zeros(0, np.int64)
            return Examples(without_negatives(none, none[:, None]), found, [])
        store, _ = open_stores([self.queries, corpus.store], None)
        pairs = read_pairs(
            self.negatives, store, corpus.store,
            teacher=teacher, partial=True, made_by=self.made_by,
        )  # fmt: skip
        found = f"{len(pairs.queries):,} labelled queries"
        queries = TextArrays(store, corpus.query_length)
        about = [store.fingerprint, pairs.digests()]

        def answered(picked: np.ndarray, here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            wanted = pairs.positives[picked]  # [n, most]
            place, row = equal(wanted.reshape(-1), here)
            return place // wanted.shape[1], row

        answers = answered if pairs.positives.shape[1] > 1 else None
        return Examples(pairs, found, about, group_size, answered=answers, queries=queries)

    def other_negatives(
        self, corpus: PairCorpus, all_of_them: Examples, negatives: str
    ) -> np.ndarray:
        """Negatives of another file for the same queries: int64 [n, N], -1 where fewer.

        Args:
          corpus, all_of_them: as in `examples`, and what that gave.
          negatives: a jsonl file, see `negatives.read_pairs`; it may hold more queries.

        Raises:
          PairsError: it lacks a query, or does not fit the stores.
        """
        assert self.queries is not None
        store, _ = open_stores([self.queries, corpus.store], None)
        found, wanted = read_pairs(negatives, store, corpus.store), all_of_them.pairs.queries
        order = np.argsort(found.queries)
        place = np.searchsorted(found.queries, wanted, sorter=order)
        line = order[np.minimum(place, len(order) - 1)]
        lacking = np.flatnonzero(found.queries[line] != wanted)
        if len(lacking):
            raise PairsError(
                f"{negatives}: expected a line for each query of {self.negatives}, found none for "
                f"{len(lacking)} of {len(wanted)}, the first is {store.ids[wanted[lacking[0]]]!r}: "
                "mine both for the same queries"
            )
        return found.negatives[line]

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `PairKind`; texts are whole."""
        assert all_of_them.queries is not None
        queries = all_of_them.queries.take(all_of_them.pairs.queries[picked])
        passages = corpus.texts.take(documents.reshape(-1))
        return Cut(queries, passages, np.full(len(picked), token_groups.NONE))


def _check_probability(owner: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{owner}.remove_probability: expected 0 to 1, found {value}")
