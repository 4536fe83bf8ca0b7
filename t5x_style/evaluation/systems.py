"""What is evaluated: BM25, dense retrieval, re-rankers of their hits, fusions of two."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from t5x_style.contract import Contract
from t5x_style.evaluation import fusion, ranking
from t5x_style.evaluation.ranking import Run
from t5x_style.retrieval import bm25, documents, exact, scoring
from t5x_style.retrieval import encoding as encoding_lib
from t5x_style.retrieval import index as index_lib
from t5x_style.retrieval.documents import Documents
from t5x_style.retrieval.passages import Passages, Qrels, read_qrels, read_queries


class Bench:
    """A collection, the systems on it, and every run they made."""

    def __init__(self, corpus: str, systems: Sequence["System"], depth: int):
        """Args:
        corpus: folder in BEIR's layout.
        systems: with distinct names.
        depth: how many passages each system lists for a query.
        """
        names = [system.name for system in systems]
        if len(set(names)) != len(names) or not names or depth < 1:
            raise ValueError(
                f"expected at least one system, distinct names and a depth of at least 1, "
                f"found {names} and {depth}"
            )
        self._corpus, self.depth = Path(corpus), depth
        self.passages = Passages(corpus)
        self.systems = {system.name: system for system in systems}
        self._runs: dict[tuple[str, str], Run] = {}

    @functools.cached_property
    def queries(self) -> dict[str, str]:
        """Id -> text of all queries of the collection."""
        return read_queries(self._corpus)

    @functools.cache  # noqa: B019 - a bench lives as long as the stage
    def qrels(self, split: str) -> Qrels:
        """The judgements of a split."""
        return read_qrels(self._corpus, split, self.queries, self.passages)

    def texts(self, split: str) -> dict[str, str]:
        """Id -> text of the split's queries."""
        return {query: self.queries[query] for query in self.qrels(split)}

    def run(self, name: str, split: str) -> Run:
        """The run of a system on a split; made once."""
        if name not in self.systems:
            raise ValueError(f"no system is called {name!r}; there are {sorted(self.systems)}")
        if (name, split) not in self._runs:
            run = self.systems[name].run(self, split)
            ranking.check_run(run, self.passages)
            self._runs[name, split] = run
        return self._runs[name, split]


class System(Protocol):
    """Something that lists passages for queries."""

    @property
    def name(self) -> str:
        """Of the run file, in tables, and for fusions."""
        ...

    def run(self, bench: Bench, split: str) -> Run:
        """Lists up to `bench.depth` passages for each query of the split."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a reader of its numbers should know; written beside them."""
        ...


class Bm25:
    """BM25 over titles and bodies, see `retrieval.bm25`."""

    def __init__(self, name: str):
        self.name = name

    def run(self, bench: Bench, split: str) -> Run:
        """As `System.run`."""
        texts = bench.texts(split)
        index = _bm25_of(bench)
        return ranking.make_run(
            list(texts), index.ids, *index.search(list(texts.values()), bench.depth)
        )

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {"variant": "lucene", "k1": bm25.K1, "b": bm25.B, "stemmer": "english"}


@functools.lru_cache(maxsize=1)
def _bm25_of(bench: Bench) -> bm25.Bm25Index:
    return bm25.build(bench.passages)


class Dense:
    """A trained model's query vectors against an index of its passage vectors."""

    def __init__(
        self,
        name: str,
        model: encoding_lib.Encoder,
        index: index_lib.Index,
        queries: Sequence[encoding_lib.EncodeSource],
        of_blocks: bool = False,
    ):
        """Args:
        name: of the system.
        model: embeds the queries.
        index: of passages that the same model embedded.
        queries: sources that together hold the queries of every split that is asked for.
        of_blocks: whether these are blocks of the documents that are judged; see `documents`.

        Raises:
          ContractError: the index was made under another contract, or by another checkpoint.
        """
        where = f"the index of system {name!r}"
        index_lib.check_contract(index, model.contract, where)
        index_lib.check_checkpoint(index, model.fingerprint, where)
        self.name = name
        self._model, self._index, self._sources = model, index, queries
        self._documents = Documents(index.ids) if of_blocks else None

    def run(self, bench: Bench, split: str) -> Run:
        """As `System.run`."""
        wanted, vectors = list(bench.texts(split)), self._vectors
        missing = [query for query in wanted if query not in vectors]
        if missing:
            raise ValueError(
                f"{self.name}: {len(missing)} queries of split {split!r} are in none of the query "
                f"sources, the first is {missing[0]!r}; add the store of that split"
            )
        queries = np.stack([vectors[query] for query in wanted])
        search = functools.partial(self._index.search, queries)
        found = documents.search(search, self._index.ids, self._documents, bench.depth)
        return ranking.make_run(wanted, *found)

    @functools.cached_property
    def _vectors(self) -> Mapping[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for source in self._sources:
            found.update(zip(source.ids, self._model.encode("embed_query", source), strict=True))
        return found

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {
            "index": type(self._index).__name__,
            "index_recall": self._index.recall,
            "contract": dataclasses.asdict(self._model.contract),
        }


def exact_dense(
    name: str,
    model: encoding_lib.Encoder,
    passages: encoding_lib.EncodeSource,
    queries: Sequence[encoding_lib.EncodeSource],
    of_blocks: bool = False,
) -> Dense:
    """A `Dense` over passages embedded on the spot, for a collection that fits in memory.

    Args:
      name: of the system.
      model: embeds passages and queries.
      passages: each exactly once.
      queries, of_blocks: as for `Dense`.

    Raises:
      ContractError: texts were tokenized otherwise than the model's contract says.
    """
    vectors = model.encode("embed_passage", passages)
    index = exact.ExactIndex(vectors, passages.ids, model.contract, model.fingerprint)
    return Dense(name, model, index, queries, of_blocks)


class Scorer(Protocol):
    """A trained re-ranker, as `trained.Trained`."""

    @property
    def contract(self) -> Contract:
        """How the model reads texts."""
        ...

    def score_parts(
        self,
        texts: scoring.JointTexts,
        parts: Iterable[scoring.Pairs],
        count: int,
    ) -> Iterator[np.ndarray]:
        """Scores [n] of each part's pairs of query and passage."""
        ...


class Reranker:
    """Another system's best hits in the order of a re-ranker's scores; the others stay behind."""

    def __init__(self, name: str, model: Scorer, texts: scoring.JointTexts, of: str, reranked: int):
        """Args:
        name: of the system.
        model: scores pairs.
        texts: the stores of queries and passages.
        of: name of the system whose hits are put in order.
        reranked: how many of a query's hits.
        """
        if reranked < 1:
            raise ValueError(f"{name}: reranked: expected at least 1, found {reranked}")
        self.name = name
        self._model, self._texts, self._of, self._reranked = model, texts, of, reranked

    def run(self, bench: Bench, split: str) -> Run:
        """As `System.run`."""
        first = bench.run(self._of, split)
        pairs = [
            (query, passage)
            for query, hits in first.items()
            for passage, _ in hits[: self._reranked]
        ]
        sides: scoring.Pairs = ([query for query, _ in pairs], [passage for _, passage in pairs])
        (scores,) = self._model.score_parts(self._texts, [sides], len(pairs))
        given = iter(scores.tolist())
        return {query: self._ordered(hits, given) for query, hits in first.items()}

    def _ordered(
        self, hits: list[tuple[str, float]], given: Iterator[float]
    ) -> list[tuple[str, float]]:
        head = [(passage, next(given)) for passage, _ in hits[: self._reranked]]
        head.sort(key=lambda hit: -hit[1])  # stable: ties as before
        rest = hits[self._reranked :]
        # Scores have to fall, and those of two systems cannot be compared.
        below = (head[-1][1] if head else 0.0) - 1
        return head + [(passage, below - place) for place, (passage, _) in enumerate(rest)]

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {
            "of": self._of,
            "reranked": self._reranked,
            "contract": dataclasses.asdict(self._model.contract),
        }


class Fusion:
    """One list out of two systems'; a linear weight is chosen on development queries only."""

    def __init__(
        self,
        name: str,
        first: str,
        second: str,
        method: Literal["reciprocal_rank", "linear"],
        tune_split: str,
        metric: str,
    ):
        """Args:
        name: of the system.
        first, second: names of two other systems.
        method: 'reciprocal_rank' has nothing to tune, 'linear' weighs scaled scores.
        tune_split: judgements that the weight is chosen on.
        metric: that the weight maximises.
        """
        self.name = name
        self._pair, self._method = (first, second), method
        self._tune_split, self._metric = tune_split, metric
        self._weight: float | None = None

    def run(self, bench: Bench, split: str) -> Run:
        """As `System.run`."""
        one, other = (bench.run(name, split) for name in self._pair)
        if self._method == "reciprocal_rank":
            return fusion.reciprocal_rank([one, other], bench.depth)
        if split == self._tune_split:
            raise ValueError(
                f"{self.name}: the weight is chosen on split {split!r}, so its numbers there would "
                "flatter; evaluate on another split or tune on another"
            )
        if self._weight is None:
            first, second = (bench.run(name, self._tune_split) for name in self._pair)
            qrels = bench.qrels(self._tune_split)
            self._weight = fusion.choose_weight(first, second, qrels, self._metric, bench.depth)
        return fusion.linear(one, other, self._weight, bench.depth)

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        tuned = {"weight_of_first": self._weight, "tuned_on": self._tune_split}
        return {"of": list(self._pair), "method": self._method} | (
            tuned if self._method == "linear" else {}
        )
