"""Systems to evaluate: BM25, a model with an index, re-rankers of their hits, fusions of two."""

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from t5x_style.evaluation import fusion, pseudo_queries, ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite as EvaluationSuite
from t5x_style.evaluation.evaluation_suite import System as System
from t5x_style.evaluation.query_embedder import MakeSource, QueryEmbedder
from t5x_style.evaluation.ranking import Run
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.joint_texts import JointTexts
from t5x_style.interfaces.representation import PASSAGE, Representation
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.mining import pair_scoring
from t5x_style.retrieval import analysis, bm25, exact_index, max_passage, similarity
from t5x_style.retrieval.analysis import Analyzer, LanguageAnalyzer
from t5x_style.retrieval.beir_collection import Passage
from t5x_style.retrieval.max_passage import Documents


class Bm25:
    """BM25 over titles and bodies, see `retrieval.bm25`."""

    check_arguments = staticmethod(analysis.require_known)

    def __init__(self, name: str, analyzer: Analyzer | None = None, language: str = "en"):
        """Args:
        name: of the system.
        analyzer: what its words are, where they are not those of `language`.
        language: of the texts, see `analysis.LanguageAnalyzer`.

        Raises:
          ValueError: a language that is not known.
        """
        self.name, self._language = name, language
        self._analyzer = LanguageAnalyzer(language) if analyzer is None else analyzer
        self._own = analyzer is not None
        self._index: bm25.Bm25Index | None = None

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`."""
        texts = suite.texts(split)
        index = self._index_of(suite)
        return ranking.make_run(
            list(texts), index.ids, *index.search(list(texts.values()), suite.depth)
        )

    def _index_of(self, suite: EvaluationSuite) -> bm25.Bm25Index:
        if not self._own:
            return _bm25_of(suite, self._language)
        if self._index is None:
            self._index = bm25.Bm25Index(suite.contents(), suite.passages.ids, self._analyzer)
        return self._index

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {"variant": "lucene", "k1": bm25.K1, "b": bm25.B, **self._analyzer.facts}


@functools.lru_cache(maxsize=1)
def _bm25_of(suite: EvaluationSuite, language: str) -> bm25.Bm25Index:
    return bm25.Bm25Index(suite.contents(), suite.passages.ids, LanguageAnalyzer(language))


class IndexSearch:
    """A trained model's queries against an index of its passages, of any kind."""

    def __init__(
        self,
        name: str,
        model: TextEncoder,
        index: index_lib.Index,
        queries: Sequence[EncodeSource],
        of_blocks: bool = False,
        texts: MakeSource | None = None,
    ):
        """Args:
        name: of the system.
        model: embeds the queries.
        index: of passages that the same model embedded; its kind is the queries', too.
        queries: sources that together hold the queries of every split that is asked for.
        of_blocks: whether these are blocks of the documents that are judged; see `documents`.
        texts: makes sources of queries that `queries` do not hold, such as pseudo-queries.

        Raises:
          ContractError: the index was made under another contract, or by another checkpoint.
        """
        where = f"the index of system {name!r}"
        index_lib.check_contract(index, model.contract, where, index.kind)
        index_lib.check_checkpoint(index, model.fingerprint, where)
        self.name = name
        self._model, self._index, self._texts = model, index, texts
        self._queries = QueryEmbedder(name, model, queries, (index.kind,), texts)
        self._documents = Documents(index.ids) if of_blocks else None

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`."""
        wanted = suite.texts(split)
        queries = self._queries.embed(wanted, split)[self._index.kind]
        search = functools.partial(self._index.search, queries)
        if suite.changed:
            search = functools.partial(self._search_changed, queries, suite.changed)
        found = max_passage.search(search, self._index.ids, self._documents, suite.depth)
        return ranking.make_run(list(wanted), *found)

    def _search_changed(
        self, queries: Representation, changed: Mapping[str, Passage], k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Index.search`, as if the index held the changed passages instead."""
        present = pseudo_queries.changed_passages(
            self.name,
            self._index.ids,
            changed,
            self._model.contract,
            self._texts,
            of_blocks=self._documents is not None,
        )
        if present is None:
            return self._index.search(queries, k)
        rows = present.rows
        embedded = self._model.encode(PASSAGE, present.source, self._index.kind)
        changed_scores = similarity.hits(self._index.kind, queries, embedded)  # [Q, C]
        scores, found = self._index.search(queries, min(len(self._index.ids), k + len(rows)))
        scores = np.where(np.isin(found, rows), -np.inf, scores)
        all_rows = np.concatenate([found, np.broadcast_to(rows, changed_scores.shape)], axis=1)
        return index_lib.padded(np.concatenate([scores, changed_scores], axis=1), all_rows, k)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {
            "index": type(self._index).__name__,
            "index_recall": self._index.recall,
            "contract": self._model.contract.facts(),
        }


def exact_search(
    name: str,
    model: TextEncoder,
    passages: EncodeSource,
    queries: Sequence[EncodeSource],
    of_blocks: bool = False,
    texts: MakeSource | None = None,
    kind: str = "dense",
) -> IndexSearch:
    """An `IndexSearch` over passages embedded on the spot; their collection fits in memory.

    Args:
      name: of the system.
      model: embeds passages and queries.
      passages: each exactly once.
      queries, of_blocks, texts: as for `IndexSearch`.
      kind: of representation that passages and queries are compared by.

    Raises:
      ContractError: texts were tokenized otherwise than the model's contract says.
      RepresentationError: the model does not offer the kind.
    """
    embedded = model.encode(PASSAGE, passages, kind)
    parts = passages.ids, model.contract, model.fingerprint, kind
    index = exact_index.ExactIndex(embedded, *parts)
    return IndexSearch(name, model, index, queries, of_blocks, texts)


class Scorer(Protocol):
    """A trained re-ranker, as `restored_model.Trained`."""

    @property
    def contract(self) -> Contract:
        """Contract of the model."""
        ...

    def score_parts(
        self,
        texts: JointTexts,
        parts: Iterable[pair_scoring.Pairs],
        count: int,
    ) -> Iterator[np.ndarray]:
        """Scores [n] of each part's pairs of query and passage."""
        ...


class Reranker:
    """Another system's best hits in the order of a re-ranker's scores; the other hits follow."""

    def __init__(self, name: str, model: Scorer, texts: JointTexts, base: str, reranked: int):
        """Args:
        name: of the system.
        model: scores pairs.
        texts: the stores of queries and passages.
        base: name of the system whose hits are put in order.
        reranked: how many of a query's hits.
        """
        self.check_arguments(name, reranked)
        self.name = name
        self._model, self._texts, self._base, self._reranked = model, texts, base, reranked

    @staticmethod
    def check_arguments(name: str, reranked: int) -> None:
        """Raises ValueError unless there is a hit to put in order."""
        if reranked < 1:
            raise ValueError(f"{name}: reranked: expected at least 1, found {reranked}")

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`."""
        if suite.changed:
            raise ValueError(
                f"{self.name}: a re-ranker cannot be asked pseudo-queries, its texts are in token "
                "stores. Give the collection development queries "
                "(gin_configs/runs/collections/split_queries.gin), or bind "
                "retrieval_systems.Fusion.method to 'reciprocal_rank'"
            )
        first = suite.run(self._base, split)
        longest = max(map(len, first.values()), default=0)
        if longest < min(self._reranked, len(suite.passages.ids)):
            print(
                f"{self.name}: puts at most {longest} hits of a query in order, and not "
                f"{self._reranked}: {self._base!r} lists no more (RETRIEVER_DEPTH)",
                file=sys.stderr,
            )
        pairs = [
            (query, passage)
            for query, hits in first.items()
            for passage, _ in hits[: self._reranked]
        ]
        sides: pair_scoring.Pairs = (
            [query for query, _ in pairs],
            [passage for _, passage in pairs],
        )
        (scores,) = self._model.score_parts(self._texts, [sides], len(pairs))
        given = iter(scores.tolist())
        ordered = {query: self._ordered(hits, given) for query, hits in first.items()}
        return fusion.with_rest(ordered, first, suite.depth)

    def _ordered(
        self, hits: list[tuple[str, float]], given: Iterator[float]
    ) -> list[tuple[str, float]]:
        scored = [(passage, next(given)) for passage, _ in hits[: self._reranked]]
        return sorted(scored, key=lambda hit: -hit[1])  # stable: ties as before

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {
            "of": self._base,
            "reranked": self._reranked,
            "contract": self._model.contract.facts(),
        }


class Fusion:
    """One list out of two systems'; a linear weight is never chosen on the queries of the test.

    The weight that is best on development queries, shrunk towards a prior where they are few. A
    collection without development queries is asked pseudo-queries, which can only lower the weight
    below the prior; see `pseudo_queries`.
    """

    def __init__(
        self,
        name: str,
        first: str,
        second: str,
        method: Literal["reciprocal_rank", "linear"],
        tune_split: str,
        metric: str,
        pseudo: pseudo_queries.PseudoQueries | None = None,
        prior: float = fusion.PRIOR,
        list_depth: int = 1000,
        reranked: int | None = None,
    ):
        """Args:
        name: of the system.
        first, second: names of two other systems.
        method: 'reciprocal_rank' has nothing to tune, 'linear' weighs scaled scores.
        tune_split: judgements that the weight is chosen on.
        metric: that the weight maximises.
        pseudo: makes pseudo-queries where `tune_split` has no judgements; None: that is an error.
        prior: weight of `first` where little is known; the default is for BM25 as `second`.
        list_depth: how many passages of each of the two are combined, at least.
        reranked: where `first` is a re-ranker of `second`, how many hits it puts in order: these
            are combined, and the other hits of `second` follow. None: all hits are combined.
        """
        self.check_arguments(name, prior, list_depth, metric, reranked)
        self.name, self.list_depth, self.tune_split = name, list_depth, tune_split
        self._pair, self._method, self._metric = (first, second), method, metric
        self._pseudo, self._prior, self._reranked = pseudo, prior, reranked
        self._depth = list_depth  # of the lists that were combined
        self._weight: float | None = None
        self._facts: dict[str, Any] = {}

    @staticmethod
    def check_arguments(
        name: str, prior: float, list_depth: int, metric: str, reranked: int | None = None
    ) -> None:
        """Raises ValueError, MetricError for settings that no systems would make right."""
        ranking.measure(metric)
        if reranked is not None and not 1 <= reranked <= list_depth:
            raise ValueError(
                f"{name}: reranked: expected from 1 to list_depth, {list_depth}, or None, found "
                f"{reranked}"
            )
        if not 0 <= prior <= 1 or list_depth < 1:
            raise ValueError(
                f"{name}: expected a prior in [0, 1] and a list_depth of at least 1, found {prior} "
                f"and {list_depth}"
            )

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`."""
        pair = self._runs(suite, split)
        if self._method == "reciprocal_rank":
            fused = fusion.reciprocal_rank(pair, suite.depth)
        else:
            fused = self._weighted(pair, suite, split)
        if self._reranked is None:
            return fused
        return fusion.with_rest(fused, suite.run(self._pair[1], split), suite.depth)

    def _runs(self, suite: EvaluationSuite, split: str) -> tuple[Run, Run]:
        """Of both systems, what is combined of them."""
        self._depth = suite.depth
        one, other = (suite.run(name, split) for name in self._pair)
        if self._reranked is None:
            return one, other
        return fusion.head(one, self._reranked), fusion.head(other, self._reranked)

    def _weighted(self, pair: tuple[Run, Run], suite: EvaluationSuite, split: str) -> Run:
        if split == self.tune_split:
            raise ValueError(
                f"{self.name}: the weight is chosen on split {split!r}, so its numbers there would "
                "flatter; evaluate on another split or tune on another"
            )
        if self._weight is None:
            self._weight = self._tuned(suite)
        return fusion.linear(*pair, self._weight, suite.depth)

    def _tuned(self, suite: EvaluationSuite) -> float:
        if self._pseudo is None or suite.has_qrels(self.tune_split):
            best, count = self._best(suite, self.tune_split, self._prior)
            self._facts = {"tuned_on": self.tune_split, "queries": count, "best_there": best}
            return fusion.shrink(best, count, self._prior)
        made = self._pseudo.make(suite)
        if len(made.texts) < self._pseudo.min_count:
            print(
                f"{self.name}: no judgements of split {self.tune_split!r}, and the passages give "
                f"{len(made.texts)} pseudo-queries, fewer than {self._pseudo.min_count}: the "
                f"weight of {self._pair[0]} is the prior {self._prior}",
                file=sys.stderr,
            )
            self._facts = {"tuned_on": "nothing", "queries": len(made.texts)}
            return self._prior
        asked = pseudo_queries.PseudoBench(suite, made)
        best, count = self._best(asked, pseudo_queries.SPLIT, 0.0)
        self._facts = {"tuned_on": pseudo_queries.SPLIT, "queries": count, "best_there": best}
        return min(best, self._prior)

    def _best(self, suite: EvaluationSuite, split: str, nearest: float) -> tuple[float, int]:
        """The best weight on a split, of equal ones the nearest to a number; its queries' count."""
        one, other = self._runs(suite, split)
        qrels = suite.qrels(split)
        best = fusion.choose_weight(one, other, qrels, self._metric, suite.depth, nearest)
        return best, len(qrels)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        found: dict[str, Any] = {"of": list(self._pair), "method": self._method}
        found["list_depth"] = self._depth
        if self._reranked is not None:
            found["reranked"] = self._reranked
        if self._method == "linear":
            found |= {"weight_of_first": self._weight, **self._facts}
        return found
