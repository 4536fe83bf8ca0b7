"""Metrics of a re-ranker during training, on candidates of development queries."""

import sys
from collections.abc import Mapping, Sequence

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.evaluation import ranking
from t5x_style.interfaces.joint_texts import JointTexts
from t5x_style.interfaces.objective import SCORE, ModelFunction, function_of
from t5x_style.mining import pair_scoring

METRICS = ("MRR@10", "nDCG@10")


class RerankingEvaluator:
    """Ranks each query's positives and mined negatives by the current scores.

    The positives are always among the candidates: numbers are higher than those of a whole search,
    and good for comparing moments of one run. `*_as_mined` are those of the order that the search
    had them in: a re-ranker below it makes worse what it is to put in order, or to teach.

    Attributes:
      metrics: names of what is measured, known before the first evaluation.
    """

    def __init__(
        self,
        name: str,
        texts: JointTexts,
        negatives: str,
        depth: int,
        partitioner: Partitioner | None = None,
    ):
        """Args:
        name: prefix of the metrics' names.
        texts: the stores of queries and passages.
        negatives: a file of negatives that was mined for development queries.
        depth: how many negatives of a query are candidates, from the top.
        partitioner: of the training, to spread batches over its mesh.

        A file whose lines lack scores, such as one that was made by hand, has no `*_as_mined`.

        Raises:
          ScoreError, ValueError: as `pair_scoring.read_lines`.
        """
        self.name = name
        self._texts, self._partitioner = texts, partitioner
        self._lines = pair_scoring.read_lines(texts, negatives, depth)
        self._qrels = {line.query_id: dict.fromkeys(line.positive_ids, 1) for line in self._lines}
        self._as_mined = self._mined(negatives)
        self.metrics = (*METRICS, *self._as_mined)

    @staticmethod
    def measures(name: str) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return name, (*METRICS, *(f"{metric}_as_mined" for metric in METRICS))

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """`metrics`, means over the queries.

        Args:
          functions: one of kind `score`, jitted, with parameters.
          step: shown next to the progress bar.
        """
        score = function_of(functions, SCORE, f"{self.name}: a re-ranker")
        pairs = pair_scoring.pairs_of(self._lines)
        settings = (len(pairs[0]), self._partitioner, f"step {step}: score")
        (scores,) = pair_scoring.score_parts(score, self._texts, [pairs], *settings)
        return self._measure(scores.tolist()) | self._as_mined

    def _mined(self, negatives: str) -> dict[str, float]:
        """`*_as_mined`; empty if some lines lack the scores."""
        searched = self._texts.searched(negatives)
        lacking = sum(line.query_id not in searched for line in self._lines)
        if lacking:
            print(
                f"{self.name}: {lacking} of {len(self._lines)} lines of {negatives} lack the "
                "search's scores: the metrics of its own order are not reported",
                file=sys.stderr,
            )
            return {}
        scores = [searched[line.query_id][name] for line in self._lines for name in line.passages]
        return {f"{metric}_as_mined": value for metric, value in self._measure(scores).items()}

    def _measure(self, scores: Sequence[float]) -> dict[str, float]:
        """The metrics of an order, given a score of each pair of a query and a candidate."""
        given = iter(scores)
        run: ranking.Run = {}
        for line in self._lines:
            hits = [(name, next(given)) for name in line.passages]
            # A tie counts against the positives, which come first in a line.
            run[line.query_id] = sorted(reversed(hits), key=lambda hit: -hit[1])
        return ranking.score_run(run, self._qrels, METRICS).means()
