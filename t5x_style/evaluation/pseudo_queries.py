"""Pseudo-queries: queries made from the passages, where a collection has no development queries.

The title of a passage, or one of its sentences, is the query, and the passage without it is the
relevant one (inverse cloze: Lee et al. 2019, arXiv:1906.00300). The text is removed because a crop
that occurs word for word in its passage makes BM25 nearly perfect.

They overestimate a model that was trained on the same passages: it has seen which sentences belong
together. On five collections the best weight of such a model was 0.7 to 1.0 on pseudo-queries and
0.2 to 0.4 on the judged queries; of models that were hardly trained it was below 0.4 on both. So
pseudo-queries may lower the weight of a system, and never raise it above a prior; see
`retrieval_systems.Fusion`.
"""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.query_embedder import MakeSource
from t5x_style.interfaces.contract import TEXT, Contract
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.retrieval.beir_collection import Passage, Qrels

SPLIT = "pseudo-queries"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
_SPARE = 4  # passages looked at for each pseudo-query, since not every passage gives one


@dataclasses.dataclass(frozen=True)
class Made:
    """Pseudo-queries.

    Attributes:
      texts: query id -> text.
      qrels: query id -> the passage it was taken from.
      changed: passage id -> the passage without the query.
    """

    texts: dict[str, str]
    qrels: Qrels
    changed: Mapping[str, Passage]


@dataclasses.dataclass(frozen=True)
class PseudoQueries:
    """Settings of pseudo-queries; a pure function of the passages and the seed.

    Attributes:
      count: at most this many, half of them titles where titles name their passages.
      min_count: fewer than this many are not used.
      min_words, max_words: of a query.
      min_rest: words that the passage keeps without the query, at least.
      seed: chooses passages.
    """

    count: int = 300
    min_count: int = 20
    min_words: int = 3
    max_words: int = 40
    min_rest: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.min_count <= self.count or not 1 <= self.min_words <= self.max_words:
            raise ValueError(
                "PseudoQueries: expected 1 <= min_count <= count and 1 <= min_words <= max_words, "
                f"found min_count {self.min_count}, count {self.count}, words {self.min_words} to "
                f"{self.max_words}"
            )

    def make(self, suite: EvaluationSuite) -> Made:
        """The pseudo-queries of a collection; none if its passages are too short."""
        titles = collections.Counter(passage.title for passage in suite.passages)
        order = {name: place for place, name in enumerate(self._order(suite.passages.ids))}
        chosen = [passage for passage in suite.passages if passage.id in order]
        made = Made({}, {}, {})
        changed: dict[str, Passage] = {}
        for passage in sorted(chosen, key=lambda one: order[one.id]):
            kinds = [self._title(passage, titles), self._sentence(passage)]
            cuts = [cut for cut in kinds[:: 1 - 2 * (len(changed) % 2)] if cut is not None]
            if cuts and len(changed) < self.count:
                query = f"pseudo:{passage.id}"
                made.texts[query], changed[passage.id] = cuts[0]
                made.qrels[query] = {passage.id: 1}
        return dataclasses.replace(made, changed=changed)

    def _order(self, ids: list[str]) -> list[str]:
        return sorted(ids, key=self._hash)[: _SPARE * self.count]

    def _hash(self, name: str) -> bytes:
        return hashlib.sha256(f"{self.seed}:{name}".encode()).digest()

    def _title(self, passage: Passage, titles: Mapping[str, int]) -> tuple[str, Passage] | None:
        """The title as query; None where it is none, or another passage has the same."""
        if titles[passage.title] > 1 or not self._fits(passage.title, passage.text):
            return None
        return passage.title, dataclasses.replace(passage, title="")

    def _sentence(self, passage: Passage) -> tuple[str, Passage] | None:
        """A sentence as query; None where no sentence leaves enough."""
        found = []
        for sentence in _SENTENCE_END.split(passage.text):
            rest = passage.text.replace(sentence, " ") if sentence else ""
            if self._fits(sentence, rest):
                found.append((sentence, dataclasses.replace(passage, text=rest)))
        if not found:
            return None
        return found[int.from_bytes(self._hash(passage.id)[-4:], "big") % len(found)]

    def _fits(self, query: str, rest: str) -> bool:
        words = len(query.split())
        return self.min_words <= words <= self.max_words and len(rest.split()) >= self.min_rest


class PseudoBench(EvaluationSuite):
    """A suite whose one split is pseudo-queries over the changed passages."""

    def __init__(self, suite: EvaluationSuite, made: Made):
        """Args:
        suite: the collection and its systems.
        made: pseudo-queries of it.
        """
        # Not Bench.__init__, which would read the corpus again.
        self.__dict__.update(vars(suite))
        self._runs = {}
        self.changed = made.changed
        self._made = made

    def qrels(self, split: str) -> Qrels:
        """The passages that the pseudo-queries were taken from."""
        return self._made.qrels

    def texts(self, split: str) -> dict[str, str]:
        """The pseudo-queries."""
        return self._made.texts


class ChangedPassages(NamedTuple):
    """Passages of an index whose text has changed.

    Attributes:
      rows: [C] int32, of the index.
      source: their present texts, in this order.
    """

    rows: np.ndarray
    source: EncodeSource


def changed_passages(
    name: str,
    ids: Sequence[str],
    changed: Mapping[str, Passage],
    contract: Contract,
    texts: MakeSource | None,
    of_blocks: bool = False,
) -> ChangedPassages | None:
    """Those of the changed passages that an index holds; None if there are none.

    Args:
      name: of the system that asks, for messages.
      ids: of the index, by row.
      changed: id -> passage, of the collection.
      contract: of the model that embeds them.
      texts: makes sources of texts; needed where there are changed passages.
      of_blocks: whether the index holds blocks of documents.

    Raises:
      ValueError: passages of the index are not whole texts.
    """
    if not changed:
        return None
    if of_blocks or contract.passage_layout != TEXT:
        raise ValueError(
            f"{name}: pseudo-queries need passages of the layout {TEXT!r}, indexed whole. Give the "
            "collection development queries (gin_configs/runs/collections/split_queries.gin), or "
            "bind retrieval_systems.Fusion.method to 'reciprocal_rank'"
        )
    row_of = {one: row for row, one in enumerate(ids)}
    kept = [one for one in changed if one in row_of]
    if not kept:
        return None
    assert texts is not None  # who asks pseudo-queries makes sources of them
    present = [" ".join(filter(None, (changed[n].title, changed[n].text))) for n in kept]
    source = texts(kept, present, contract.passage_length, contract.passage_prefix)
    return ChangedPassages(np.array([row_of[one] for one in kept], np.int32), source)
