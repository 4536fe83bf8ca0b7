"""Summary of labelled data with examples: as text for a person, as a dict for a report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from input_pipelines.labelled import detection, gathering, plausibility, relevance
from input_pipelines.labelled.examples import LabelledSource, Row
from input_pipelines.labelled.gathering import Labelled
from input_pipelines.labelled.relevance import Relevance
from input_pipelines.sources.text_sources import BadRecords, Record

LINE = 100  # characters of a text that are shown


@dataclass(frozen=True)
class Example:
    """A row as it was parsed; texts are cut.

    Attributes:
      query: its text.
      positive: text of the first relevant passage; None: the row has none.
      negatives: the first two texts of the others.
      more_negatives: how many there are besides.
      score: of the positive, or of the first negative where there is none; None for a plain 1 or 0.
    """

    query: str
    positive: str | None
    negatives: Sequence[str]
    more_negatives: int
    score: float | None


@dataclass(frozen=True)
class Understood:
    """A summary of labelled data.

    Attributes:
      path: of the data.
      layout: its name.
      roles: role -> column or file.
      rows: split -> rows; "" for data that comes undivided.
      queries, passages, relevant, negatives: how many different ones, and pairs of both kinds.
      unanswered: queries without a relevant passage, which are left out.
      repeated: texts in rows that were there before, of one passage each.
      taught: queries with a teacher's scores of all their passages.
      rule: which labels are relevant.
      warnings: what is doubtful.
      bad_records: reason -> malformed rows that were passed over.
      examples: the first three.
    """

    path: str
    layout: str
    roles: Mapping[str, str]
    rows: Mapping[str, int]
    queries: int
    passages: int
    relevant: int
    negatives: int
    unanswered: int
    repeated: int
    taught: int
    rule: str
    warnings: Sequence[str]
    bad_records: Mapping[str, int]
    examples: Sequence[Example]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """For a terminal, a line for each thing."""
        roles = ", ".join(f"{role} = {column}" for role, column in self.roles.items())
        rows = ", ".join(f"{split or 'undivided'} {count}" for split, count in self.rows.items())
        lines = [
            f"{self.path}: {self.layout} ({roles})",
            f"rows: {rows}; {self.queries} queries, {self.passages} passages, {self.relevant} "
            f"relevant pairs ({self.rule}), {self.negatives} negatives",
        ]
        if self.unanswered:
            lines.append(f"left out: {self.unanswered} queries without a relevant passage")
        if self.bad_records:
            counts = ", ".join(f"{reason} {count}" for reason, count in self.bad_records.items())
            lines.append(f"left out: malformed rows ({counts})")
        if self.taught:
            lines.append(
                f"a teacher's scores: of {self.taught} queries; only --kind=m3 with TEACHER uses "
                "them (docs/finetune.md)"
            )
        lines += [f"warning: {warning}" for warning in self.warnings]
        for number, example in enumerate(self.examples, 1):
            lines += _shown(number, example)
        return "\n".join(lines)


@dataclass(frozen=True)
class Read:
    """All labelled data: by ids, the relevance, and the summary."""

    labelled: Labelled
    relevance: Relevance
    understood: Understood


def read(
    path: str,
    bad: BadRecords,
    keep: Callable[[Record], None] = lambda record: None,
    *,
    corpus: str = "",
    columns: detection.ColumnNames | None = None,
    positive_from: float | None = None,
) -> Read:
    """Reads labelled data and says what it is.

    Args:
      path, corpus, columns: see `detection.open_labelled`.
      bad: counts malformed rows.
      keep: is given each passage once.
      positive_from: see `relevance.decide`.

    Raises:
      LayoutError: the data has no known layout or cannot be meant, see `plausibility.check`.
      SourceError: it cannot be read, or has too many malformed rows.
    """
    source = detection.open_labelled(path, corpus, columns)
    found = gathering.gather(source, bad, keep)
    warnings = plausibility.check(found, source.guessed)
    decided = relevance.decide(found.labels, positive_from)
    taught = [query for query in decided.relevant if is_taught(found, query)]
    understood = Understood(
        path=path,
        layout=source.layout,
        roles=source.roles,
        rows=dict(found.rows),
        queries=len(decided.relevant),
        passages=found.passages,
        relevant=sum(map(len, decided.relevant.values())),
        negatives=sum(map(len, decided.negatives.values())),
        unanswered=decided.unanswered,
        repeated=found.repeated,
        taught=len(taught),
        rule=decided.rule,
        warnings=warnings,
        bad_records=dict(bad.counts),
        examples=_examples(source, found.examples, decided.least),
    )
    return Read(found, decided, understood)


def is_taught(found: Labelled, query: str) -> bool:
    """Whether a teacher scored all passages of a query."""
    return found.labels[query].keys() == found.teacher.get(query, {}).keys()


def _examples(source: LabelledSource, rows: Sequence[Row], least: float) -> list[Example]:
    """Looks up the texts of passages that rows have by id; from the label `least` on relevant."""
    wanted = {one.passage.id for row in rows for one in row.judged if not one.passage.text}
    ignored = BadRecords.counted_before()
    texts = {}
    if wanted:
        texts = {one.id: one.text for one, _ in source.passages(ignored) if one.id in wanted}
    out = []
    for row in rows:
        shown = [(one.passage.text or texts[one.passage.id], one.label) for one in row.judged]
        relevant = [pair for pair in shown if pair[1] >= least]
        negatives = [_cut(text) for text, label in shown if label < least]
        label = (relevant or shown)[0][1]
        out.append(
            Example(
                query=_cut(row.query.text),
                positive=_cut(relevant[0][0]) if relevant else None,
                negatives=negatives[:2],
                more_negatives=max(0, len(negatives) - 2),
                score=None if label in (0, 1) else label,
            )
        )
    return out


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"


def _shown(number: int, example: Example) -> list[str]:
    score = "" if example.score is None else f" (score {example.score:g})"
    lines = [f"{number}. query     {example.query}"]
    if example.positive is not None:
        lines.append(f"   positive  {example.positive}{score}")
    lines += [f"   negative  {text}" for text in example.negatives]
    if example.positive is None:
        lines[1] += score
    if example.more_negatives:
        lines.append(f"             and {example.more_negatives} more")
    return lines
