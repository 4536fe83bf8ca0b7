"""A collection with systems on it: queries, judgements, and the runs that were made."""

import functools
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from t5x_style.evaluation import ranking
from t5x_style.evaluation.ranking import Run
from t5x_style.retrieval.beir_collection import (
    QRELS_HEADER,
    Passage,
    Passages,
    Qrels,
    find,
    has_judgements,
    read_qrels,
    read_queries,
)


class EvaluationSuite:
    """A collection, the systems on it, and every run they made.

    Attributes:
      depth: how many passages each system lists for a query.
      passages: of the collection.
      systems: by name.
      changed: id -> passage, those whose text differs from the one that indexes were built from;
        empty but for pseudo-queries.
    """

    def __init__(self, corpus: str, systems: Sequence["System"], depth: int):
        """Args:
        corpus: folder in BEIR's layout.
        systems: with distinct names.
        depth: how many passages each system lists for a query, at least. A fusion may need longer
          lists of the systems that it combines; then all of them are longer.
        """
        require_systems([system.name for system in systems], depth)
        self._corpus = Path(corpus)
        self.depth = max([depth, *(int(getattr(one, "list_depth", 0)) for one in systems)])
        self.passages = Passages(corpus)
        self.systems = {system.name: system for system in systems}
        self.changed: Mapping[str, Passage] = {}
        self._qrels: dict[str, Qrels] = {}
        self._runs: dict[tuple[str, str], Run] = {}

    @functools.cached_property
    def queries(self) -> dict[str, str]:
        """Id -> text of all queries of the collection."""
        return read_queries(self._corpus)

    def qrels(self, split: str) -> Qrels:
        """The judgements of a split; read once."""
        if split not in self._qrels:
            known = (self.queries, self.passages)
            self._qrels[split] = read_qrels(self._corpus, split, *known)
        return self._qrels[split]

    def has_qrels(self, split: str) -> bool:
        """Whether the collection judges any query of a split."""
        try:
            return has_judgements(self._corpus, split)
        except FileNotFoundError:
            return False

    def judged(self) -> dict[str, int]:
        """Split ('train', 'dev', 'test') -> how many queries it judges, of those that are there."""
        found = {}
        for split in filter(self.has_qrels, ("train", "dev", "test")):
            path = find(self._corpus, f"qrels/{split}.tsv", f"qrels.{split}.tsv")
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as file:
                names = {line.partition("\t")[0] for line in file if line.strip()}
            found[split] = len(names - {QRELS_HEADER[0]})
        return found

    def texts(self, split: str) -> dict[str, str]:
        """Id -> text of the split's queries."""
        return {query: self.queries[query] for query in self.qrels(split)}

    def contents(self) -> Iterator[str]:
        """Title and body of every passage, in order, with what was changed."""
        for passage in self.passages:
            yield self.changed.get(passage.id, passage).content

    def run(self, name: str, split: str) -> Run:
        """The run of a system on a split; made once."""
        if name not in self.systems:
            raise ValueError(f"no system is called {name!r}; there are {sorted(self.systems)}")
        if (name, split) not in self._runs:
            run = self.systems[name].run(self, split)
            ranking.check_run(run, self.passages)
            self._runs[name, split] = run
        return self._runs[name, split]

    def made(self) -> dict[str, dict[str, Run]]:
        """Split -> system -> run, of the runs that were made so far."""
        found: dict[str, dict[str, Run]] = {}
        for (name, split), run in self._runs.items():
            found.setdefault(split, {})[name] = run
        return found


class System(Protocol):
    """Something that lists passages for queries.

    One with an attribute `list_depth` needs lists of that length of the systems that it combines.
    """

    @property
    def name(self) -> str:
        """Of the run file, in tables, and for fusions."""
        ...

    def run(self, suite: EvaluationSuite, split: str) -> Run:
        """Lists up to `suite.depth` passages for each query of the split."""
        ...

    def facts(self) -> dict[str, Any]:
        """Facts that explain its numbers; written next to them."""
        ...


def require_systems(names: Sequence[str], depth: int) -> None:
    """Raises ValueError unless systems of these names can be compared on lists of this depth."""
    if len(set(names)) != len(names) or not names or depth < 1:
        raise ValueError(
            f"expected at least one system, distinct names and a depth of at least 1, "
            f"found {list(names)} and {depth}"
        )
