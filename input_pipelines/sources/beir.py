"""BEIR folders: corpus.jsonl, queries.jsonl and qrels/<split>.tsv (each may be gzipped).

The layout is BEIR's own loader's; the documentation corpus (python_docs.py) is written in it too.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence

from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

QRELS_HEADER = ("query-id", "corpus-id", "score")


def find(folder: str, *names: str) -> str:
    """The first of these files (or name + ".gz") in a folder.

    Raises:
      SourceError: none is there; lists what is.
    """
    for name in names:
        for path in (os.path.join(folder, name), os.path.join(folder, f"{name}.gz")):
            if os.path.isfile(path):
                return path
    raise SourceError(
        f"{folder}: expected a folder in BEIR's layout, with {' or '.join(names)} (or .gz); "
        f"{text_sources.found_in(folder)}"
    )


def _rows(path: str, max_line_bytes: int, bad: BadRecords, title: bool) -> Iterator[Record]:
    """Records of corpus.jsonl or queries.jsonl; title and source may be absent there."""
    unique = text_sources.UniqueIds()
    for number, line, row in text_sources.json_lines(path, max_line_bytes, bad):
        where = f"{path}:{number}"
        try:
            record = Record(
                id=text_sources.text_field(row, "_id", is_id=True),
                title=text_sources.text_field(row, "title") if title and row.get("title") else "",
                text=text_sources.text_field(row, "text"),
                source=text_sources.text_field(row, "source") if row.get("source") else "",
            )
        except text_sources.FieldError as e:
            bad.add(where, e.reason, str(e), line)
            continue
        before = unique.first(record.id, path, number)
        if before:
            bad.add(where, "duplicate_id", f"id {record.id!r} was already given in {before}", line)
            continue
        yield record


def require_texts(folder: str, name: str) -> None:
    """Refuses a folder whose file of texts is absent or empty; reads no text.

    Args:
      folder: in BEIR's layout.
      name: corpus.jsonl or queries.jsonl.

    Raises:
      SourceError: as its summary says.
    """
    path = find(folder, name)
    if not os.path.getsize(path):
        raise SourceError(
            f"{path}: expected a line of JSON for each text, with _id and text; found an empty file"
        )


@dataclasses.dataclass(frozen=True)
class BeirCorpus:
    """The passages of a BEIR folder, which has to be there."""

    folder: str
    max_line_bytes: int

    def __post_init__(self) -> None:
        require_texts(self.folder, "corpus.jsonl")

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in file order, reporting malformed ones to `bad`."""
        return _rows(find(self.folder, "corpus.jsonl"), self.max_line_bytes, bad, title=True)


@dataclasses.dataclass(frozen=True)
class BeirQueries:
    """The queries of a BEIR folder that the qrels of these splits name, in file order.

    Reading them checks the qrels: each must name a query and a passage that exist.
    """

    folder: str
    splits: tuple[str, ...]
    max_line_bytes: int

    def __post_init__(self) -> None:
        require_texts(self.folder, "queries.jsonl")
        for split in self.splits:
            find_qrels(self.folder, split)

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in file order, reporting malformed ones to `bad`."""
        wanted: set[str] = set()
        for split in self.splits:
            wanted |= {qrel.query for qrel in read_qrels(self.folder, split, bad)}
        check_qrels(self.folder, self.splits, self.max_line_bytes, bad)
        path = find(self.folder, "queries.jsonl")
        for record in _rows(path, self.max_line_bytes, bad, title=False):
            if record.id in wanted:
                yield record


@dataclasses.dataclass(frozen=True)
class Qrel:
    """One judgement and its line ("file:line")."""

    query: str
    passage: str
    score: int
    where: str


def find_qrels(folder: str, split: str) -> str:
    """The file of a split's judgements; SourceError if there is none, see `find`."""
    return find(folder, f"qrels/{split}.tsv", f"qrels.{split}.tsv")


def read_qrels(folder: str, split: str, bad: BadRecords) -> list[Qrel]:
    """The judgements of a split; a line that is not three columns with a whole score is bad."""
    path = find_qrels(folder, split)
    out = []
    for number, line in text_sources.lines(path, 1 << 16, bad):
        columns = line.split("\t")
        if not line.strip() or (number == 1 and tuple(columns) == QRELS_HEADER):
            continue
        where = f"{path}:{number}"
        if len(columns) != 3 or not columns[2].strip().lstrip("-").isdigit():
            detail = "expected query-id, corpus-id and a whole score, separated by tabs"
            bad.add(where, "bad_qrel", detail, line)
            continue
        out.append(Qrel(columns[0], columns[1], int(columns[2]), where))
    return out


def check_qrels(folder: str, splits: tuple[str, ...], max_line_bytes: int, bad: BadRecords) -> None:
    """Counts every qrel that names no passage or no query of the folder.

    Raises:
      SourceError: more than the limit of `bad`.
    """
    ignored = BadRecords.counted_before()  # by whoever reads these rows as records
    passages = {r.id for r in BeirCorpus(folder, max_line_bytes).records(ignored)}
    rows = _rows(find(folder, "queries.jsonl"), max_line_bytes, ignored, title=False)
    queries = {r.id for r in rows}
    for split in splits:
        for qrel in read_qrels(folder, split, ignored):
            if qrel.passage not in passages:
                detail = f"this qrel names passage {qrel.passage!r}, which is not in corpus.jsonl"
                bad.add(qrel.where, "qrel_names_no_passage", detail, qrel.passage)
            if qrel.query not in queries:
                detail = f"this qrel names query {qrel.query!r}, which is not in queries.jsonl"
                bad.add(qrel.where, "qrel_names_no_query", detail, qrel.query)


def query_ids(folder: str, split: str) -> list[str]:
    """The queries that a split judges, sorted; for a source that holds just these."""
    return sorted({qrel.query for qrel in read_qrels(folder, split, BadRecords(0))})


def gold_ids(folder: str, split: str, also: Sequence[str] = ()) -> list[str]:
    """The passages that a sampled corpus must hold, sorted.

    Those that the split judges relevant, and `also`, such as hits of a search: the sample is then
    as hard as the corpus.
    """
    qrels = read_qrels(folder, split, BadRecords(0))
    return sorted({qrel.passage for qrel in qrels if qrel.score > 0}.union(also))
