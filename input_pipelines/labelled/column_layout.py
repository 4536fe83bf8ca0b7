"""Columns in sentence-transformers' layouts: pairs, triplets, n-tuples, and these with scores.

    anchor, positive                            pairs
    anchor, positive, negative                  triplets; negative_1, negative_2, ...: n-tuples
    query, passage, label                       scored pairs: 1 and 0, or grades
    query, passages, labels                     lists of passages and of their labels
    query, positive, negative_1, ..., scores    a teacher's scores of all passages, or its margins

Columns count in their order, as there: the first is the query, the second its positive. Names say
which column is a label or an id, and that the order is wrong.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from input_pipelines.labelled import examples
from input_pipelines.labelled.examples import Cells, Judged, LayoutError, Text
from input_pipelines.sources.text_sources import FieldError

SCORES = ("label", "labels", "score", "scores")
ROW_NUMBERS = ("id", "_id", "idx", "index")  # passed over: a row may be any pair of its texts
QUERY_IDS, PASSAGE_IDS = ("query_id", "qid"), ("passage_id", "positive_id", "docid", "pid")
ROLES = ("query", "positive", "negative", "score", "query_id", "positive_id")
QUERIES = {"anchor", "query", "queries", "question", "sentence1", "sentence_a", "claim", "search"}
PASSAGES = {
    *("positive", "positives", "pos", "answer", "answers", "passage", "passages", "document"),
    *("documents", "docs", "doc", "context", "sentence2", "sentence_b", "text", "paragraph"),
}
_NEGATIVE = re.compile(r"(hard_?)?neg(ative)?s?([_ -]?\d+)?|contradiction")


@dataclass(frozen=True)
class Columns:
    """Roles of the columns.

    Attributes:
      query, positive: names of columns.
      negatives: names of columns; may be none.
      score: name of the column of labels or scores, "" where there is none.
      query_id, positive_id: names of columns, "" where there are none.
      guessed: see `RowLayout`.
    """

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    score: str = ""
    query_id: str = ""
    positive_id: str = ""
    guessed: bool = True

    @property
    def name(self) -> str:
        """See `RowLayout`."""
        kind = ("pairs", "triplets", "n-tuples")[min(len(self.negatives), 2)]
        scored = "scored " if self.score and not self.negatives else ""
        return f"columns of {scored}{kind}" + (" with scores" if self.score and not scored else "")

    @property
    def roles(self) -> Mapping[str, str]:
        """See `RowLayout`."""
        named = {role: getattr(self, role) for role in ROLES if role != "negative"}
        named["negative"] = ", ".join(self.negatives)
        return {role: named[role] for role in ROLES if named[role]}

    def read(self, cells: Cells) -> tuple[Text, tuple[Judged, ...]]:
        """See `RowLayout`."""
        query = Text(
            examples.filled(cells, self.query), examples.optional_id(cells, self.query_id or "")
        )
        if isinstance(cells.get(self.positive), list):
            return query, self._listed(cells)
        name = examples.optional_id(cells, self.positive_id)
        positive = Text(examples.filled(cells, self.positive), name)
        negatives = [
            Text(examples.filled(cells, column))
            for column in self.negatives
            if cells.get(column) not in (None, "")  # shorter tuples leave the last ones empty
        ]
        if self.score and cells.get(self.score) is None:
            raise FieldError(
                "missing_field", f"field {self.score!r}: expected a number, found none"
            )
        if self.score and not self.negatives:
            return query, (Judged(positive, examples.number(cells[self.score], self.score)),)
        teacher = self._teacher(cells, 1 + len(negatives))
        labels = [examples.POSITIVE] + [examples.NEGATIVE] * len(negatives)
        return query, tuple(map(Judged, [positive, *negatives], labels, teacher))

    def _listed(self, cells: Cells) -> tuple[Judged, ...]:
        texts = examples.listed(cells, self.positive)
        if not texts:
            raise FieldError("empty_field", f"field {self.positive!r}: expected texts, found none")
        labels = examples.listed(cells, self.score, len(texts)) or [examples.POSITIVE] * len(texts)
        return tuple(
            Judged(
                Text(examples.filled({self.positive: text}, self.positive)),
                examples.number(label, self.score),
            )
            for text, label in zip(texts, labels, strict=True)
        )

    def _teacher(self, cells: Cells, count: int) -> list[float | None]:
        """Scores of the positive and the negatives; of margins, with the positive at 0."""
        if not self.score:
            return [None] * count
        value = cells[self.score]
        given = value if isinstance(value, list) else [value]
        scores: list[float | None] = [examples.number(one, self.score) for one in given]
        if len(scores) == count:
            return scores
        if len(scores) == count - 1:
            return [0.0, *(-one for one in scores if one is not None)]
        detail = (
            f"field {self.score!r}: expected {count} scores, of the positive and each negative, or "
            f"{count - 1} margins, found {len(scores)}"
        )
        raise FieldError("wrong_length", detail)


def mapped(columns: Sequence[str], wanted: Mapping[str, str | Sequence[str]], path: str) -> Columns:
    """The layout that a user names.

    Args:
      columns: names that the file has.
      wanted: role, of ROLES -> name of its column; of 'negative', a name or several.
      path: for messages.

    Raises:
      LayoutError: a role that is unknown, a column that is not there, or no query or positive.
    """
    negative = wanted.get("negative", ())
    negatives = (negative,) if isinstance(negative, str) else tuple(negative)
    others = {role: str(name) for role, name in wanted.items() if role != "negative"}
    unknown = sorted(set(wanted) - set(ROLES))
    absent = [name for name in (*others.values(), *negatives) if name not in columns]
    if unknown or absent or not {"query", "positive"} <= set(others):
        raise LayoutError(
            f"{path}: COLUMNS={dict(wanted)}: expected names of columns for 'query' and "
            f"'positive', and, where there are some, for {list(ROLES[2:])}; "
            f"the file has {list(columns)}"
            + (f", not {absent}" if absent else "")
            + (f"; there is no {unknown}" if unknown else "")
        )
    return Columns(negatives=negatives, guessed=False, **others)


def recognise(columns: Sequence[str], path: str) -> Columns | None:
    """The layout of columns in this order, if these names can be of it.

    Raises:
      LayoutError: the first column is called as passages are, and the second as queries are.
    """
    lower = {name: name.strip().lower() for name in columns}
    score, query_id, positive_id = (
        next((name for name in columns if lower[name] in names), "")
        for names in (SCORES, QUERY_IDS, PASSAGE_IDS)
    )
    others = {score, query_id, positive_id, *(n for n in columns if lower[n] in ROW_NUMBERS)}
    texts = [name for name in columns if name not in others]
    if len(texts) < 2 or not all(_NEGATIVE.fullmatch(lower[name]) for name in texts[2:]):
        return None
    query, positive = texts[:2]
    if len(query.split()) > 1 or len(positive.split()) > 1:  # a line of texts, no names
        return None
    if _NEGATIVE.fullmatch(lower[query]) or _NEGATIVE.fullmatch(lower[positive]):
        return None
    if lower[query] in PASSAGES and lower[positive] in QUERIES:
        raise LayoutError(
            f"{path}: columns {query!r}, {positive!r}: expected the query first and the passage "
            "second, and by their names they are swapped. Write the columns in that order, or name "
            f"them: COLUMNS=\"{{'query': {positive!r}, 'positive': {query!r}}}\""
        )
    return Columns(query, positive, tuple(texts[2:]), score, query_id, positive_id)
