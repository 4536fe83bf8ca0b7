"""Kinds of pairs that follow from the structure of articles (Chang et al. 2020, arXiv:2002.03932).

The query is a sentence of an article's first section. Body First Selection takes a passage of the
same article, Wiki Link Prediction a passage of another article that links to it (section 3). The
paper trains on both next to the Inverse Cloze Task, `pair_kinds.Sentences`.
"""

import dataclasses
from typing import Literal

import numpy as np

from input_pipelines.pairs.equal_numbers import equal
from input_pipelines.pairs.pair_articles import Articles, articles_of
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.pairs.pair_cuts import Words, assemble, framed
from input_pipelines.pairs.pair_kinds import Cut, Examples, Uniform
from input_pipelines.pairs.pair_turns import shown_in_turn, without_negatives


class FirstSentences:
    """The sentences of first sections, by article and then by passage.

    Attributes:
      row: int64 [S], the passage of each.
      span: int64 [S, 2], its tokens start to end - 1.
    """

    def __init__(self, corpus: PairCorpus, articles: Articles, min_tokens: int):
        """
        Args:
          corpus, articles: the passages.
          min_tokens: of a sentence.

        Raises:
          StoreError: the store does not say where sentences are.
        """
        table = corpus.sentences()
        size = table[:, 2] - table[:, 1]
        table = table[articles.in_first[table[:, 0]] & (size >= min_tokens)]
        keys = self._key(articles.number[table[:, 0]], table[:, 0], len(corpus))
        order = np.argsort(keys, kind="stable")
        self._keys, self._rows = keys[order], len(corpus)
        self.row, self.span = table[order, 0], table[order, 1:]

    def others(self, article: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Number of sentences of each article that are not of a passage: int64 [n]."""
        first, hole, after, end = self._places(article, row)
        count: np.ndarray = (end - first) - (after - hole)
        return count

    def pick(self, article: np.ndarray, row: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """A sentence of each article that is not of a passage, of which there is one: int64 [n].

        Args:
          article, row: int64 [n], articles and the passages that are left out.
          uniform: float64 [n] in [0, 1): which.
        """
        first, hole, after, end = self._places(article, row)
        count = (end - first) - (after - hole)
        at = first + np.floor(uniform * count).astype(np.int64)
        return np.where(at >= hole, at + (after - hole), at)

    def _places(self, article: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, ...]:
        """Starts and ends of an article's sentences, and of those of the passage."""
        return (
            self._find(article, 0, "left"), self._find(article, row, "left"),
            self._find(article, row, "right"), self._find(article + 1, 0, "left"),
        )  # fmt: skip

    def _find(
        self, article: np.ndarray, row: np.ndarray | int, side: Literal["left", "right"]
    ) -> np.ndarray:
        return np.searchsorted(self._keys, self._key(article, row, self._rows), side)

    @staticmethod
    def _key(article: np.ndarray, row: np.ndarray | int, rows: int) -> np.ndarray:
        return article * rows + row


@dataclasses.dataclass(frozen=True)
class ArticleExamples(Examples):
    """Examples that are articles.

    Attributes:
      article: int64 [n], of each.
      sentences: where queries are cut from.
    """

    article: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    sentences: FirstSentences | None = None


@dataclasses.dataclass(frozen=True)
class _FirstSectionPairs:
    """Pairs of a sentence of an article's first section.

    Attributes:
      min_tokens: of a sentence; shorter ones ask for nothing.
      links: the file that `pair_articles` describes; None: there is none.
    """

    min_tokens: int
    links: str | None = None

    def __post_init__(self) -> None:
        if self.min_tokens < 1:
            raise ValueError(
                f"{type(self).__name__}.min_tokens: expected 1 or more, found {self.min_tokens}"
            )

    @property
    def files(self) -> tuple[str, ...]:
        """See `pair_kinds.ReadsFiles`."""
        return (self.links,) if self.links else ()

    def cut(
        self, corpus: PairCorpus, all_of_them: Examples, picked: np.ndarray, documents: np.ndarray,
        uniform: Uniform,
    ) -> Cut:  # fmt: skip
        """See `pair_kinds.PairKind`; a sentence that is longer than a query is cut."""
        assert isinstance(all_of_them, ArticleExamples) and all_of_them.sentences is not None
        sentences, rows = all_of_them.sentences, documents[:, 0]
        at = sentences.pick(all_of_them.article[picked], rows, uniform(0))
        passages = corpus.texts.take(sentences.row[at])
        words = Words(passages)
        start, end = words.first + sentences.span[at].T
        stop = words.at_most(start, end, corpus.query_room)
        queries = assemble(passages, framed(words, start, stop))
        return Cut(queries, corpus.texts.take(rows), sentences.row[at])

    def _examples(
        self, articles: Articles, sentences: FirstSentences, article: np.ndarray, rows: np.ndarray,
        found: str,
    ) -> ArticleExamples:  # fmt: skip
        """Examples of int64 [n] articles and the rows that answer them.

        Whichever kind asks, passages of the article and passages that link to it are no negatives:
        a batch may hold pairs of both kinds.
        """
        which, positives = shown_in_turn(article, rows)

        def answered(picked: np.ndarray, here: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            asked = which[picked]
            found = equal(asked, articles.number[here]), linked(articles, asked, here)
            places, rows = zip(*found, strict=True)
            return np.concatenate(places), np.concatenate(rows)

        return ArticleExamples(
            without_negatives(positives[:, 0], positives), found.format(len(which)),
            [type(self).__name__, self.min_tokens, articles.digest()],
            answered=answered, article=which, sentences=sentences,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BodyFirst(_FirstSectionPairs):
    """A sentence of the first section, with another passage of the article.

    An example is an article: 16 of its passages at most, evenly spread, are shown in turn. The
    passage that the sentence is from is never the answer, and an article with one passage makes no
    pair.
    """

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> ArticleExamples:
        """See `pair_kinds.PairKind`."""
        articles = articles_of(corpus, self.links)
        sentences = FirstSentences(corpus, articles, self.min_tokens)
        rows = np.flatnonzero(corpus.ends > corpus.bodies)
        rows = rows[sentences.others(articles.number[rows], rows) > 0]
        total = int(articles.number.max(initial=-1)) + 1
        found = (
            f"{{:,}} of {total:,} articles with a sentence of {self.min_tokens} tokens or more in "
            "the first section and another passage"
        )
        return self._examples(articles, sentences, articles.number[rows], rows, found)


@dataclasses.dataclass(frozen=True)
class WikiLinks(_FirstSectionPairs):
    """A sentence of the first section, with a passage of another article that links to this one.

    An example is an article: 16 of the passages that link to it at most, evenly spread, are shown
    in turn.
    """

    def examples(self, corpus: PairCorpus, group_size: int, teacher: bool) -> ArticleExamples:
        """See `pair_kinds.PairKind`; none without a file of links."""
        articles = articles_of(corpus, self.links)
        sentences = FirstSentences(corpus, articles, self.min_tokens)
        rows, targets = articles.link_rows, articles.link_targets
        usable = (corpus.ends > corpus.bodies)[rows] & (sentences.others(targets, rows) > 0)
        found = (
            f"{{:,}} articles with a sentence of {self.min_tokens} tokens or more in the first "
            f"section that a passage of another one links to, by {len(rows):,} links in LINKS "
            f"({self.links!r}; gin_configs/runs/collections/article_passages.gin writes this file)"
        )
        return self._examples(articles, sentences, targets[usable], rows[usable], found)


def linked(
    articles: Articles, article: np.ndarray, here: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the passages that link to each article.

    Args:
      articles: with links.
      article: int64 [n].
      here: int64 [U], rows of passages.

    Returns:
      Places in `article` int64 [k], and places in `here` of passages that link to it, int64 [k].
    """
    column, link = equal(here, articles.link_rows)
    place, which = equal(article, articles.link_targets[link])
    return place, column[which]
