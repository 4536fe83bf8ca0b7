"""Retrieval metrics during training, on development queries and a sampled corpus."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.evaluation import ranking
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import ModelFunction, embedding_function
from t5x_style.interfaces.representation import (
    KINDS,
    PASSAGE,
    QUERY,
    Representation,
    function_name,
    require_kinds,
)
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.retrieval import beir_collection, encoding, exact_index, max_passage
from t5x_style.retrieval.beir_collection import Qrels, has_judgements, read_qrels
from t5x_style.retrieval.max_passage import Documents


class RetrievalEvaluator:
    """Embeds queries and passages with the current parameters, and searches exactly.

    The corpus should be a sample that contains every relevant passage: numbers are then higher than
    on the whole corpus, and good for comparing moments of one run, not runs on other corpora.
    """

    def __init__(
        self,
        name: str,
        queries: EncodeSource,
        passages: EncodeSource,
        corpus: str,
        split: str,
        depth: int = 100,
        partitioner: Partitioner | None = None,
        metrics: Sequence[str] = ranking.METRICS,
        of_blocks: bool = False,
        kind: str = "dense",
    ):
        """Args:
        name: prefix of the metrics' names.
        queries: holds at least the split's queries; others are left out.
        passages: the sampled corpus.
        corpus: folder in BEIR's layout, for its judgements.
        split: of development, never of the test.
        depth: how many passages are retrieved for each query.
        partitioner: of the training, to spread batches over its mesh.
        metrics: names like 'MRR@10', 'Recall@5'; none may look further than `depth`.
        of_blocks: whether `passages` are blocks of the documents that are judged; see `documents`.
        kind: of the representations that are compared.

        A split whose file holds no judgements has nothing to measure: `metrics` is empty, and so is
        what `evaluate` gives.

        Raises:
          MetricError: a metric that looks further.
          RepresentationError: there is no such kind.
          CollectionError: a judgement names a query or passage that the sources do not hold.
        """
        self.name = name
        self.check_arguments(metrics, depth, corpus, split, kind)
        self.metrics = tuple(metrics)  # known before the first evaluation
        self._queries, self._passages, self._depth = queries, passages, depth
        self._partitioner, self._kind = partitioner, kind
        self._documents = Documents(passages.ids) if of_blocks else None
        judged = passages.ids if self._documents is None else self._documents.ids
        self._qrels: Qrels = {}
        if has_judgements(corpus, split):
            self._qrels = read_qrels(corpus, split, set(queries.ids), set(judged), sampled=True)
        else:
            self.metrics = ()

    @staticmethod
    def check_arguments(
        metrics: Sequence[str], depth: int, corpus: str, split: str, kind: str = "dense"
    ) -> None:
        """Check arguments before texts are read; reads names of files only.

        Raises:
          MetricError: a metric that looks further than `depth`.
          RepresentationError: there is no such kind.
          FileNotFoundError: the collection has no such split.
        """
        require_kinds([kind], KINDS, "RetrievalEvaluator.kind")
        ranking.require_depth(metrics, depth, "RetrievalEvaluator.depth")
        beir_collection.find_qrels(corpus, split)

    def check_contract(self, contract: Contract) -> None:
        """Raises ContractError unless the texts were made as a contract says."""
        if self._qrels:
            encoding.check_source(self._queries, contract, QUERY)
            encoding.check_source(self._passages, contract, PASSAGE)

    @staticmethod
    def measures(name: str, metrics: Sequence[str]) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return name, metrics

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """`metrics`, means over the split's queries.

        Args:
          functions: those that embed queries and passages, jitted, with parameters.
          step: shown next to the progress bar.

        Raises:
          RepresentationError: the objective does not make the kind of one of the two.
        """
        return self.score(functions, step).means() if self._qrels else {}

    def score(self, functions: Mapping[str, ModelFunction], step: int) -> ranking.Scores:
        """As `evaluate`, for each query."""
        texts = {side: self._represented(functions, side, step) for side in (QUERY, PASSAGE)}
        queries = list(self._queries.ids)
        keep = np.array([row for row, name in enumerate(queries) if name in self._qrels], np.int64)

        def search(k: int) -> tuple[np.ndarray, np.ndarray]:
            return exact_index.top_k(texts[QUERY][keep], texts[PASSAGE], k, self._kind)

        found = max_passage.search(search, self._passages.ids, self._documents, self._depth)
        run = ranking.make_run([queries[row] for row in keep], *found)
        return ranking.score_run(run, self._qrels, self.metrics)

    def _represented(
        self, functions: Mapping[str, ModelFunction], side: str, step: int
    ) -> Representation:
        """Current representations of a side's texts."""
        source = self._queries if side == QUERY else self._passages
        embed = embedding_function(functions, side, (self._kind,))
        (found,) = encoding.represent_parts(
            functools.partial(embed, kinds=(self._kind,)),
            [source],
            len(source.ids),
            self._partitioner,
            f"step {step}: {function_name(side)}",
        )
        return found[self._kind]
