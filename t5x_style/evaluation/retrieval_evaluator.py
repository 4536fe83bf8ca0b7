"""Retrieval metrics in the middle of training, on development queries and a sampled corpus."""

from collections.abc import Mapping, Sequence

import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.evaluation import ranking
from t5x_style.interfaces.objective import ModelFunction, embedder
from t5x_style.interfaces.representation import PASSAGE, QUERY, function_name
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.retrieval import beir_collection, encoding, exact_index, max_passage
from t5x_style.retrieval.beir_collection import Qrels, has_judgements, read_qrels
from t5x_style.retrieval.max_passage import Documents


class RetrievalEvaluator:
    """Embeds queries and passages with the parameters of the moment, and searches exactly.

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
    ):
        """Args:
        name: stands before the metrics' names.
        queries: holds at least the split's queries; others are left out.
        passages: the sampled corpus.
        corpus: folder in BEIR's layout, for its judgements.
        split: of development, never of the test.
        depth: how many passages are retrieved for each query.
        partitioner: of the training, to spread batches over its mesh.
        metrics: names like 'MRR@10', 'Recall@5'; none may look further than `depth`.
        of_blocks: whether `passages` are blocks of the documents that are judged; see `documents`.

        A split whose file holds no judgements has nothing to measure: `metrics` is empty, and so is
        what `evaluate` gives.

        Raises:
          MetricError: a metric that looks further.
          CollectionError: a judgement names a query or passage that the sources do not hold.
        """
        self.name = name
        self.check_arguments(metrics, depth, corpus, split)
        self.metrics = tuple(metrics)  # known before the first evaluation
        self._queries, self._passages, self._depth = queries, passages, depth
        self._partitioner = partitioner
        self._documents = Documents(passages.ids) if of_blocks else None
        judged = passages.ids if self._documents is None else self._documents.ids
        self._qrels: Qrels = {}
        if has_judgements(corpus, split):
            self._qrels = read_qrels(corpus, split, set(queries.ids), set(judged), sampled=True)
        else:
            self.metrics = ()

    @staticmethod
    def check_arguments(metrics: Sequence[str], depth: int, corpus: str, split: str) -> None:
        """What can be known to be wrong before texts are read; reads names of files only.

        Raises:
          MetricError: a metric that looks further than `depth`.
          FileNotFoundError: the collection has no such split.
        """
        ranking.require_depth(metrics, depth, "RetrievalEvaluator.depth")
        beir_collection.find_qrels(corpus, split)

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
          RepresentationError: the objective makes no dense vectors of one of the two.
        """
        return self.score(functions, step).means() if self._qrels else {}

    def score(self, functions: Mapping[str, ModelFunction], step: int) -> ranking.Scores:
        """As `evaluate`, for each query."""
        vectors = {}
        for side, source in ((QUERY, self._queries), (PASSAGE, self._passages)):
            vectors[side] = encoding.encode(
                *(embedder(functions, side), source, self._partitioner),
                f"step {step}: {function_name(side)}",
            )
        queries = list(self._queries.ids)
        keep = [row for row, name in enumerate(queries) if name in self._qrels]

        def search(k: int) -> tuple[np.ndarray, np.ndarray]:
            return exact_index.top_k(vectors[QUERY][keep], vectors[PASSAGE], k)

        found = max_passage.search(search, self._passages.ids, self._documents, self._depth)
        run = ranking.make_run([queries[row] for row in keep], *found)
        return ranking.score_run(run, self._qrels, self.metrics)
