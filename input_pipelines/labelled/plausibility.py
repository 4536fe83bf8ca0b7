"""Detect implausible data: swapped columns, a single pair, one query for all."""

import statistics
from collections.abc import Sequence

from input_pipelines.labelled.examples import LayoutError
from input_pipelines.labelled.gathering import Labelled

LONGER = 3.0  # times the median passage: queries that are probably passages
_MEANT = (
    "If queries are meant to be longer than what they find, name the columns: "
    "COLUMNS=\"{'query': 'NAME', 'positive': 'NAME'}\""
)


def check(found: Labelled, guessed: bool) -> list[str]:
    """Return warnings about implausible data.

    Args:
      found: the data.
      guessed: whether only the order of columns says which is the query.

    Raises:
      LayoutError: fewer than two pairs; all queries or all passages are equal; columns are swapped
        by all that can be seen, and nobody said which is which.
    """
    pairs = sum(map(len, found.labels.values()))
    if pairs < 2:
        raise LayoutError(f"expected at least two pairs of a query and a passage, found {pairs}")
    if len(found.queries) == 1:
        raise LayoutError(
            f"expected different queries, found {found.rows.total()} rows with the same one, "
            f"{next(iter(found.queries.values()))!r:.80}. Check which column is the query"
        )
    positives = {name for judged in found.labels.values() for name in judged}
    if len(positives) == 1:
        raise LayoutError(
            f"expected different passages, found one for all {len(found.queries)} queries. Check "
            "which column is the passage"
        )
    return _swapped(found, len(positives), guessed) if found.query_sizes else []


def _swapped(found: Labelled, positives: int, guessed: bool) -> list[str]:
    """Queries are short and often share a passage, and they ask: the reverse is evidence."""
    query, positive = _median(found.query_sizes), _median(found.positive_sizes)
    if query < LONGER * positive:
        return []
    rows = len(found.query_sizes)
    asked = {side: found.questions[side] / rows for side in ("query", "positive")}
    seen = f"in the median a query has {query:.0f} characters, and its passage {positive:.0f}"
    evidence = []
    if len(found.queries) < positives:
        evidence.append(f"{len(found.queries)} different queries have {positives} passages")
    if asked["positive"] > 0.5 > 0.1 > asked["query"]:
        evidence.append(f"{asked['positive']:.0%} of the passages end in a question mark")
    if evidence and guessed:
        raise LayoutError(
            f"the columns seem to be swapped: {seen}, and {' and '.join(evidence)}. Write the "
            f"query first and the passage second. {_MEANT}"
        )
    return [f"queries are long: {seen}" + (f". {_MEANT}" if guessed else "")]


def _median(sizes: Sequence[int]) -> float:
    return float(statistics.median(sizes))
