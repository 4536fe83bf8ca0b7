"""A system whose lists an earlier evaluation wrote: hits to fuse, or to put in another order."""

from pathlib import Path
from typing import Any

from t5x_style.evaluation import ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.ranking import Run


class GivenRun:
    """Reads a TREC run file; its model need not fit in memory next to others."""

    def __init__(self, name: str, folder: str):
        """Args:
        name: of the system, here and there.
        folder: with NAME.trec, the output `runs` of an evaluation of the same collection.
        """
        self.name = name
        self._path = Path(folder) / f"{name}.trec"

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`; a query that the file lacks has no hits.

        Raises:
          ValueError: the file lacks every query of the split, or is asked pseudo-queries.
          RunError: the file is none.
        """
        if suite.changed:
            raise ValueError(
                f"{self.name}: {self._path} cannot answer pseudo-queries. Give the collection "
                "development queries (gin_configs/runs/collections/split_queries.gin)"
            )
        found, wanted = ranking.read_run(self._path), suite.texts(split)
        if not wanted.keys() & found.keys():
            raise ValueError(
                f"{self.name}: expected hits for queries of split {split!r} in {self._path}, found "
                f"those of others, as {next(iter(found), 'none')!r}: evaluate there on this split"
            )
        return {query: found.get(query, [])[: suite.depth] for query in wanted}

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {"hits": "of an earlier evaluation"}
