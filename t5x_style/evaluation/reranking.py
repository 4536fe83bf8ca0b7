"""A re-ranker's metrics in the middle of training, on candidates of development queries."""

from collections.abc import Callable, Mapping
from typing import Any

from t5x_style.evaluation import ranking
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import scoring


class RerankingEvaluator:
    """Orders each query's positives and mined negatives by the scores of the moment.

    The positives are always among the candidates: numbers are higher than those of a whole search,
    and good for comparing moments of one run.
    """

    metrics = ("MRR@10", "nDCG@10")  # names, known before the first evaluation

    def __init__(
        self,
        name: str,
        texts: scoring.JointTexts,
        negatives: str,
        depth: int,
        partitioner: Partitioner | None = None,
    ):
        """Args:
        name: stands before the metrics' names.
        texts: the stores of queries and passages.
        negatives: a file of negatives that was mined for development queries.
        depth: how many negatives of a query are candidates, from the top.
        partitioner: of the training, to spread batches over its mesh.

        Raises:
          ScoreError, ValueError: as `scoring.read_lines`.
        """
        self.name = name
        self._texts, self._partitioner = texts, partitioner
        self._lines = scoring.read_lines(texts, negatives, depth)
        self._qrels = {line.query_id: dict.fromkeys(line.positive_ids, 1) for line in self._lines}

    def evaluate(self, functions: Mapping[str, Callable[..., Any]], step: int) -> dict[str, float]:
        """MRR@10 and nDCG@10, means over the queries.

        Args:
          functions: `score`, jitted, with parameters.
          step: shown beside the progress bar.
        """
        if "score" not in functions:
            raise ValueError(
                f"{self.name}: the objective offers {sorted(functions)}, but re-ranking is "
                "evaluated with 'score'"
            )
        pairs = scoring.pairs_of(self._lines)
        settings = (len(pairs[0]), self._partitioner, f"step {step}: score")
        (scores,) = scoring.score_parts(functions["score"], self._texts, [pairs], *settings)
        given = iter(scores.tolist())
        run: ranking.Run = {}
        for line in self._lines:
            hits = [(name, next(given)) for name in line.passages]
            # A tie counts against the positives, which stand first in a line.
            run[line.query_id] = sorted(reversed(hits), key=lambda hit: -hit[1])
        return ranking.score_run(run, self._qrels, self.metrics).means()
