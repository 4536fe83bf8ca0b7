"""Candidates for a query's negatives: the best hits of BM25, or of a trained bi-encoder."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import QUERY
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.retrieval import analysis, bm25, encoding, similarity
from t5x_style.retrieval.beir_collection import Passages

STEMMED = 16_384  # passages whose stems are remembered, some kilobytes each


class CandidatesError(ValueError):
    """Model, index, embeddings, queries and corpus do not belong together."""


@dataclasses.dataclass(frozen=True)
class Hits:
    """Hits of one query.

    Attributes:
      scores: [depth] float32, best first; -inf past the last hit.
      rows: [depth] int32, of the corpus; NO_ROW past the last hit.
      positive_scores: [P] float32, of the query's positives, whether they were found or not.
    """

    scores: np.ndarray
    rows: np.ndarray
    positive_scores: np.ndarray


class Candidates(Protocol):
    """A way to search a whole corpus for some queries.

    Attributes:
      ids: of the passages, by row.
      made_by: 'bm25', or the fingerprint of the checkpoint that searched.
      version: changes whenever the hits in the same corpus may.
    """

    ids: Sequence[str]
    made_by: str
    version: str

    def search(
        self, queries: Sequence[str], positives: Sequence[Sequence[int]], depth: int
    ) -> Iterable[Hits]:
        """The `depth` best hits of each query.

        Args:
          queries: ids.
          positives: rows of each query's positives.
          depth: at least 1.
        """
        ...

    def stems(self, rows: Sequence[int]) -> list[frozenset[str]]:
        """The distinct stems of these passages."""
        ...


# Passages and the texts of the queries, by id -> what searches them; gin binds the rest.
MakeCandidates = Callable[[Passages, Mapping[str, str]], Candidates]


class Bm25:
    """BM25 over titles and bodies, see `retrieval.bm25`."""

    made_by = "bm25"
    check_arguments = staticmethod(analysis.require_known)

    def __init__(self, passages: Passages, queries: Mapping[str, str], language: str = "en"):
        """Args:
        passages: all of them are indexed.
        queries: id -> text.
        language: of both, see `analysis.LanguageAnalyzer`.

        Raises:
          ValueError: a language that is not known.
        """
        self.version = f"bm25 k1={bm25.K1} b={bm25.B}{_of(language)}"
        self.ids = passages.ids
        self._index = bm25.build(passages, language)
        self._queries = queries

    def search(
        self, queries: Sequence[str], positives: Sequence[Sequence[int]], depth: int
    ) -> Iterator[Hits]:
        """As `Candidates.search`."""
        for query, rows in zip(queries, positives, strict=True):
            scores = self._index.score(self._queries[query])
            yield Hits(*bm25.best(scores, depth), scores[rows])

    def stems(self, rows: Sequence[int]) -> list[frozenset[str]]:
        """As `Candidates.stems`."""
        return [self._index.stems(row) for row in rows]


class IndexSearch:
    """A trained model's queries against an index of the whole corpus, of any kind.

    The representations of all queries are in memory, those of the corpus stay on disk.
    """

    check_arguments = staticmethod(analysis.require_known)

    def __init__(
        self,
        passages: Passages,
        queries: Mapping[str, str],
        model: TextEncoder,
        index: index_lib.Index,
        embeddings: encoding.Embeddings,
        source: EncodeSource,
        language: str = "en",
    ):
        """Embeds the queries, on all processes together.

        Args:
          passages: the corpus.
          queries: id -> text, of the split that is mined.
          model: embeds the queries.
          index: of the corpus, as the same checkpoint embedded it; its kind is the queries', too.
          embeddings: what the index was built from; a positive that the search does not find gets
            its score from here.
          source: holds every one of the queries, and may hold more.
          language: of the corpus, whose stems say what nearly repeats an answer.

        Raises:
          ValueError: a language that is not known.
          ContractError: the index or the source was made under another contract than the model's.
          CandidatesError: the index or the embeddings are of another checkpoint or of another
            corpus, or of two kinds, or the source lacks a query.
          RepresentationError: the model does not embed queries as the kind of the index.
        """
        self.check_arguments(language)
        index_lib.check_contract(index, model.contract, "the index that is mined from", index.kind)
        if embeddings.kind != index.kind:
            raise CandidatesError(
                f"expected embeddings of kind {index.kind!r}, that of the index, found "
                f"{embeddings.kind!r}: bind encoding.load_embeddings.kind = {index.kind!r}"
            )
        _check_checkpoint("the index", index.checkpoint, model.fingerprint)
        _check_checkpoint("the embeddings", embeddings.checkpoint, model.fingerprint)
        self.ids: Sequence[str] = passages.ids
        self.made_by = model.fingerprint
        of = f"{model.fingerprint}{_of(language)}"
        self.version = f"{type(index).__name__} recall={index.recall} of {of}"
        self._passages, self._index, self._embeddings = passages, index, embeddings
        self._row_of_hit = np.append(_rows("the index", index.ids, passages), index_lib.NO_ROW)
        self._embedding_of_row = np.argsort(_rows("the embeddings", embeddings.ids, passages))
        self._place = {query: place for place, query in enumerate(source.ids)}
        missing = [query for query in queries if query not in self._place]
        if missing:
            raise CandidatesError(
                f"{len(missing)} of the {len(queries)} queries that are mined for are not in the "
                f"query source, the first is {missing[0]!r}; it holds {len(source.ids)} others. "
                "Give it the store of this corpus's queries, and the ids of this split."
            )
        self._asked = model.encode(QUERY, source, index.kind)
        self._stemmed: dict[int, frozenset[str]] = {}
        self._language = language

    def search(
        self, queries: Sequence[str], positives: Sequence[Sequence[int]], depth: int
    ) -> Iterator[Hits]:
        """As `Candidates.search`."""
        asked = self._asked[np.array([self._place[query] for query in queries], np.int64)]
        scores, hits = self._index.search(asked, depth)  # [Q, depth]
        rows = self._row_of_hit[hits]  # NO_ROW, -1, is last
        for number, answers in enumerate(positives):
            embedded = self._embeddings.passages[self._embedding_of_row[answers]]
            query = asked[number : number + 1]
            of_positives = similarity.scores(self._index.kind, query, embedded)[0]  # [P]
            yield Hits(scores[number], rows[number], of_positives)

    def stems(self, rows: Sequence[int]) -> list[frozenset[str]]:
        """As `Candidates.stems`; reads the passages."""
        if len(self._stemmed) > STEMMED:
            self._stemmed.clear()
        unseen = [row for row in dict.fromkeys(rows) if row not in self._stemmed]
        texts = (self._passages.passage(row).content for row in unseen)
        stemmed = bm25.stem(texts, self._language)
        self._stemmed.update(zip(unseen, map(frozenset, stemmed), strict=True))
        return [self._stemmed[row] for row in rows]


def _of(language: str) -> str:
    """The part of a version that says so; parts of earlier versions, all English, stay valid."""
    return "" if language == "en" else f" {language}"


def _check_checkpoint(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise CandidatesError(
            f"{what}: expected vectors of checkpoint {expected}, which embeds the queries, found "
            f"those of {found or 'a checkpoint that was not recorded'}. Vectors of two "
            "checkpoints cannot be compared: run encode_corpus and build_index with this one."
        )


def _rows(what: str, ids: Sequence[str], passages: Passages) -> np.ndarray:
    """The corpus's row of each of these ids, int64 [N]; they are the corpus in some order."""
    unknown = [name for name in ids if name not in passages]
    if unknown or len(ids) != len(passages):
        strangers = f", of which that file lacks {len(unknown)}: {unknown[:3]}" if unknown else ""
        raise CandidatesError(
            f"{what}: expected the {len(passages)} passages of {passages.path}, found {len(ids)}"
            f"{strangers}. Run prepare, encode_corpus and build_index on this corpus."
        )
    return np.asarray([passages.row(name) for name in ids], np.int64)
