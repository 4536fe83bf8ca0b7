"""Group queries, for intervals and tests over groups of queries.

A rule names the group of a query by its most relevant passage: the passage itself, the file that it
comes from, or its title. Bind one to `evaluate.evaluate.group_of`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from t5x_style.retrieval.beir_collection import Passage, Passages, Qrels


class GroupError(ValueError):
    """A passage without the field that names its group."""


class GroupRule(Protocol):
    """Names the group of a query; its repr is written next to the results."""

    def __call__(self, passage: Passage) -> str:
        """The name of the group of a query whose most relevant passage is `passage`.

        Raises:
          GroupError: the passage lacks the field.
        """
        ...


@dataclasses.dataclass(frozen=True)
class BySource:
    """The file of the relevant passage: `source` up to its line number or anchor.

    The source 'numpy/linalg/_linalg.py:123' gives the group 'numpy/linalg/_linalg.py', or 'numpy'
    with one level.

    Attributes:
      levels: how many leading parts of the path count; None: all of them.
    """

    levels: int | None = None

    def __post_init__(self) -> None:
        if self.levels is not None and self.levels < 1:
            raise ValueError(f"BySource.levels: expected at least 1 or None, found {self.levels}")

    def __call__(self, passage: Passage) -> str:
        """See `GroupRule`."""
        path = passage.source.partition("#")[0]
        head, colon, line = path.rpartition(":")
        if colon and line.isdigit():
            path = head
        if not path:
            raise GroupError(
                f"BySource: expected passages with a 'source' such as 'folder/file.py:12' in "
                f"corpus.jsonl, found {passage.source!r} in passage {passage.id!r}. Bind "
                "query_groups.ByTitle to evaluate.evaluate.group_of, or None"
            )
        return "/".join(path.split("/")[: self.levels])


@dataclasses.dataclass(frozen=True)
class ByTitle:
    """The title of the relevant passage, where passages are paragraphs of titled articles."""

    def __call__(self, passage: Passage) -> str:
        """See `GroupRule`."""
        title = " ".join(passage.title.split())
        if not title:
            raise GroupError(
                f"ByTitle: expected passages with a 'title' in corpus.jsonl, found none in passage "
                f"{passage.id!r}. Set evaluate.evaluate.group_of to None"
            )
        return title


@dataclasses.dataclass(frozen=True)
class ByPassage:
    """The relevant passage itself, where several queries ask for one passage."""

    def __call__(self, passage: Passage) -> str:
        """See `GroupRule`."""
        return passage.id


def numbers(
    rule: GroupRule, queries: Sequence[str], qrels: Qrels, passages: Passages
) -> np.ndarray:
    """The group of each query: [n] int64, numbered from 0.

    Of several relevant passages the one with the highest grade decides, among those the first.

    Args:
      rule: names groups.
      queries: ids, in the order of the result.
      qrels: their judgements.
      passages: of the collection.

    Raises:
      GroupError: a relevant passage lacks what the rule reads.
    """
    best = best_passages(queries, qrels)
    wanted = set(best)
    names = {one.id: rule(one) for one in passages if one.id in wanted}  # one reading of the file
    found = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    return np.array([found[names[passage]] for passage in best], np.int64)


def best_passages(queries: Sequence[str], qrels: Qrels) -> list[str]:
    """The id of each query's most relevant passage, of several with the highest grade the first."""
    return [max(qrels[query], key=qrels[query].__getitem__) for query in queries]
