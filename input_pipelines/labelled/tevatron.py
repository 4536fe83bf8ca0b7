"""Tevatron's lines, with whole passages.

{"query_id": "7", "query": "who wrote it",
 "positive_passages": [{"docid": "p1", "title": "", "text": "She did."}],
 "negative_passages": [{"docid": "p2", "title": "", "text": "It rained."}]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from input_pipelines.labelled import examples
from input_pipelines.labelled.examples import Cells, Judged, Text
from input_pipelines.sources.text_sources import FieldError

_SIDES = {"positive_passages": examples.POSITIVE, "negative_passages": examples.NEGATIVE}


@dataclass(frozen=True)
class Tevatron:
    """See the module; the layout has no choices."""

    name: str = "Tevatron's lines"
    guessed: bool = False

    @property
    def roles(self) -> Mapping[str, str]:
        """See `RowLayout`."""
        return {
            "query": "query",
            "positive": "positive_passages",
            "negative": "negative_passages",
            "query_id": "query_id",
        }

    def read(self, cells: Cells) -> tuple[Text, tuple[Judged, ...]]:
        """See `RowLayout`."""
        query = Text(examples.filled(cells, "query"), examples.optional_id(cells, "query_id"))
        found = tuple(
            Judged(_passage(side, value), label)
            for side, label in _SIDES.items()
            for value in examples.listed(cells, side)
        )
        if not any(one.label for one in found):
            detail = "field 'positive_passages': expected at least one passage, found none"
            raise FieldError("empty_field", detail)
        return query, found


def recognise(columns: Sequence[str]) -> Tevatron | None:
    """The layout, if fields with these names are of it."""
    return Tevatron() if {"query", "positive_passages"} <= set(columns) else None


def _passage(side: str, value: object) -> Text:
    if not isinstance(value, dict):
        detail = f"field {side!r}: expected objects with docid, title and text, found {value!r:.60}"
        raise FieldError("wrong_type", detail)
    title = value.get("title")
    return Text(
        examples.filled(value, "text"),
        examples.optional_id(value, "docid"),
        examples.filled(value, "title") if title else "",
    )
