"""A system whose lists an earlier evaluation wrote: hits to fuse, or to put in another order."""

from pathlib import Path
from typing import Any

from t5x_style.evaluation import ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.ranking import Run


class GivenRun:
    """Reads a TREC run file; its model need not fit in memory next to others."""

    def __init__(self, name: str, folder: str, development: str | None = None):
        """Args:
        name: of the system, here and there.
        folder: with NAME.trec, the output `runs` of an evaluation of the same collection.
        development: the same of an evaluation on another split, for a fusion that is tuned there.
        """
        self.name = name
        given = filter(None, (folder, development))
        self._paths = [Path(one) / f"{name}.trec" for one in given]

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """As `System.run`; a query that the file lacks has no hits.

        Raises:
          ValueError: no file has a query of the split, or pseudo-queries are asked.
          RunError: a file is none.
        """
        if suite.changed:
            raise ValueError(
                f"{self.name}: {self._paths[0]} cannot answer pseudo-queries. Give the collection "
                "development queries (gin_configs/runs/collections/split_queries.gin)"
            )
        wanted = suite.texts(split)
        read = [ranking.read_run(path) for path in self._paths]
        found = next((run for run in read if wanted.keys() & run.keys()), None)
        if found is None:
            raise ValueError(
                f"{self.name}: expected hits for queries of split {split!r} in "
                f"{' or '.join(map(str, self._paths))}, found those of others, as "
                f"{next(iter(read[0]), 'none')!r}: evaluate there on this split"
            )
        return {query: found.get(query, [])[: suite.depth] for query in wanted}

    def facts(self) -> dict[str, Any]:
        """As `System.facts`."""
        return {"hits": "of an earlier evaluation"}
