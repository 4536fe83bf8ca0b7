"""FlagEmbedding's lines: {"query", "pos": [...], "neg": [...]}, perhaps with a teacher's scores.

    {"query": "who wrote it", "pos": ["She did."], "neg": ["It rained."],
     "pos_scores": [9.1], "neg_scores": [-2.0]}

`pos_id`, `neg_id` and `query_id` or `id` give ids. `prompt` and `type` are passed over: prefixes
are a setting of the model here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from input_pipelines.labelled import examples
from input_pipelines.labelled.examples import Cells, Judged, Text
from input_pipelines.sources.text_sources import FieldError, text_field

_SIDES = {"pos": examples.POSITIVE, "neg": examples.NEGATIVE}
PASSED_OVER = ("prompt", "type")


@dataclass(frozen=True)
class FlagEmbedding:
    """See the module; the layout has no choices."""

    name: str = "FlagEmbedding's lines"
    guessed: bool = False

    @property
    def roles(self) -> Mapping[str, str]:
        """See `RowLayout`."""
        return {"query": "query", "positive": "pos", "negative": "neg"}

    def read(self, cells: Cells) -> tuple[Text, tuple[Judged, ...]]:
        """See `RowLayout`."""
        query = Text(examples.filled(cells, "query"), examples.optional_id(cells, "query_id", "id"))
        found = tuple(one for side in _SIDES for one in _side(cells, side))
        if not any(one.label for one in found):
            raise FieldError("empty_field", "field 'pos': expected at least one text, found none")
        return query, found


def recognise(columns: Sequence[str]) -> FlagEmbedding | None:
    """The layout, if fields with these names are of it."""
    return FlagEmbedding() if {"query", "pos"} <= set(columns) else None


def _side(cells: Cells, side: str) -> list[Judged]:
    texts = examples.listed(cells, side)
    scores = examples.listed(cells, f"{side}_scores", len(texts)) or [None] * len(texts)
    ids = examples.listed(cells, f"{side}_id", len(texts)) or [""] * len(texts)
    return [
        Judged(
            Text(
                examples.filled({side: text}, side),
                text_field({f"{side}_id": name}, f"{side}_id", is_id=True) if name != "" else "",
            ),
            _SIDES[side],
            None if score is None else examples.number(score, f"{side}_scores"),
        )
        for text, score, name in zip(texts, scores, ids, strict=True)
    ]
