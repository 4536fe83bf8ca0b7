"""Labelled data of any layout as a BEIR folder with splits, and a file of its negatives."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TextIO

from input_pipelines.labelled import detection, passage_overlap, understanding
from input_pipelines.labelled.division import LEAST_DEVELOPMENT, PARTS, Division, SplitRules, divide
from input_pipelines.labelled.examples import LayoutError
from input_pipelines.labelled.passage_copies import Copies
from input_pipelines.labelled.understanding import Read
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords, Record

Overlaps = Mapping[str, passage_overlap.Overlap]  # by part

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "labelled_collection": {
        "name": "labelled_collection",
        "version": 3,
        "outputs": ["corpus", "negatives", "report"],
        "check": "check",
    }
}


def labelled_collection(
    data: str,
    corpus: str | None,
    columns: Mapping[str, str | Sequence[str]],
    positive_from: float | None,
    rules: SplitRules,
    max_bad_records: int,
    model_dir: str,
    needed: Sequence[str] = ("train",),
) -> dict[str, str]:
    """The job of a stage: reads labelled data, divides its queries, and writes a BEIR folder.

    Passages are streamed; ids, hashes and queries are in memory.

    Args:
      data: see `detection.open_labelled`.
      corpus: passages that need not be named, a file or a folder with corpus.jsonl; None for none
        but those of the data.
      columns: role -> column; empty to find out.
      positive_from: the least score of a relevant passage; None as `relevance.decide` says.
      rules: how queries are divided.
      max_bad_records: malformed rows that are passed over.
      model_dir: where all of this appears.
      needed: parts that must have queries: held out, of two different passages at least.

    Returns:
      {"corpus": a BEIR folder with qrels of all three splits, of the training queries with the
      copies of their relevant passages, "negatives": the negatives of the training queries as a
      training reads them, "report": what was understood, and the splits}, relative to model_dir.

    Raises:
      LayoutError: the layout is unknown, the data cannot be meant, test queries are training
        queries, too, or a part that is needed has too few.
      SourceError: a file cannot be read, or more rows are malformed than allowed.
    """
    check(data, corpus, columns, max_bad_records)
    bad = BadRecords(max_bad_records, "labelled_collection.labelled_collection")
    folder = os.path.join(model_dir, "corpus")
    os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
    copies = Copies()
    with _written(folder, "corpus.jsonl") as file:

        def keep(record: Record) -> None:
            copies.add(record)
            _write_line(file, _passage(record))

        found = understanding.read(
            data,
            bad,
            keep,
            corpus=corpus or "",
            columns=columns,
            positive_from=positive_from,
        )
    relevant = found.relevance.relevant
    queries = {name: found.labelled.queries[name] for name in relevant}
    texts = {name: [copies.text_of(one) for one in relevant[name]] for name in queries}
    division = divide(queries, texts, found.labelled.splits, rules)
    _require(needed, division, texts)
    overlaps = _overlaps(division, texts)
    _write_queries(folder, queries, division)
    # Of training queries, copies of an answer would else be mined, and drawn, as negatives.
    learned = {
        name: copies.with_copies(relevant[name])
        for name in queries
        if name in division.parts["train"]
    }
    for part in PARTS:
        _write_qrels(folder, part, {**relevant, **learned}, division)
    with _written(model_dir, "negatives.jsonl") as file:
        for name, judged in learned.items():
            _write_line(file, _negatives(found, name, judged))
    with _written(model_dir, "report.json") as file:
        report = {**_report(found, division, overlaps), "sha256": _digest(folder)}
        json.dump(report, file, indent=1, ensure_ascii=False)
    print(summary(found, division, overlaps), flush=True)
    return {"corpus": "corpus", "negatives": "negatives.jsonl", "report": "report.json"}


def check(
    data: str,
    corpus: str | None,
    columns: Mapping[str, str | Sequence[str]],
    max_bad_records: int,
) -> None:
    """Check arguments before the job runs; reads the first row of each file.

    Raises:
      SourceError, ValueError: see `labelled_collection`.
    """
    BadRecords(max_bad_records)
    detection.open_labelled(data, corpus or "", columns)


def summary(found: Read, division: Division, overlaps: Overlaps) -> str:
    """Summary of the data and of its division, for a terminal."""
    lines = [
        found.understood.text(),
        f"train: {len(division.parts['train'])} queries (divided: {division.how})",
        *(one.text(part) for part, one in overlaps.items()),
    ]
    if division.dropped:
        lines.append(f"left out: {len(division.dropped)} training queries that are held out, too")
    return "\n".join([*lines, *(f"note: {note}" for note in division.notes)])


def _require(needed: Sequence[str], division: Division, texts: Mapping[str, list[str]]) -> None:
    """Raises LayoutError unless each needed part has queries, held-out ones of two passages."""
    for part in needed:
        asked = {one for name in division.parts[part] for one in texts[name]}
        if len(asked) < (1 if part == "train" else 2):
            counts = {name: len(found) for name, found in division.parts.items()}
            raise LayoutError(
                f"expected {part} queries, held-out ones of two passages or more, found "
                f"{len(division.parts[part])} of {len(asked)} ({counts}). Bring more queries: with "
                f"fewer than {LEAST_DEVELOPMENT} held out nothing can be said; or give a file "
                f"{part!r}"
            )


def _overlaps(division: Division, texts: Mapping[str, list[str]]) -> Overlaps:
    """Of the held-out parts; passages of one text are one."""
    parts = division.parts
    return {
        part: passage_overlap.measure(parts[part], parts["train"], texts, division.near)
        for part in ("dev", "test")
    }


def _report(found: Read, division: Division, overlaps: Overlaps) -> dict[str, object]:
    parts = division.parts
    return {
        **found.understood.as_dict(),
        "path": os.path.basename(os.path.normpath(found.understood.path)),  # equal wherever it is
        "splits": {part: len(parts[part]) for part in PARTS},
        "given_splits": {split: len(names) for split, names in division.given.items()},
        "divided": division.how,
        "dropped_training_queries": list(division.dropped),
        "enough_for_a_verdict": len(parts["dev"]) >= LEAST_DEVELOPMENT,
        "notes": list(division.notes),
        "overlap": {part: one.as_dict() for part, one in overlaps.items()},
    }


def _digest(folder: str) -> str:
    """Of the collection that was written: the same data has the same in any layout."""
    names = ("corpus.jsonl", "queries.jsonl", *(f"qrels/{part}.tsv" for part in PARTS))
    total = hashlib.sha256()
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _negatives(found: Read, query: str, judged: Mapping[str, int]) -> dict[str, object]:
    """A line as mining writes it, see docs/mining.md; with a teacher's scores if it has all."""
    scores = found.labelled.teacher[query] if understanding.is_taught(found.labelled, query) else {}
    # A teacher has scored no copy: then only what it has scored is a positive.
    positives = [name for name in judged if not scores or name in scores]
    return {
        "query_id": query,
        "positive_ids": positives,
        "negative_ids": [n for n in found.relevance.negatives[query] if n not in judged],
        **({"teacher_scores": scores} if scores else {}),
    }


def _write_queries(folder: str, queries: Mapping[str, str], division: Division) -> None:
    kept = set().union(*division.parts.values())
    with _written(folder, "queries.jsonl") as file:
        for name, text in queries.items():
            if name in kept:
                _write_line(file, {"_id": name, "text": text})


def _write_qrels(
    folder: str, part: str, relevant: Mapping[str, Mapping[str, int]], division: Division
) -> None:
    with _written(os.path.join(folder, "qrels"), f"{part}.tsv") as file:
        file.write("\t".join(beir.QRELS_HEADER) + "\n")
        for query, judged in relevant.items():
            if query in division.parts[part]:
                file.writelines(f"{query}\t{name}\t{degree}\n" for name, degree in judged.items())


def _passage(record: Record) -> dict[str, str]:
    title = {"title": record.title} if record.title else {}
    return {"_id": record.id, **title, "text": record.text}


def _write_line(file: TextIO, row: Mapping[str, object]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _written(folder: str, name: str) -> TextIO:
    return open(os.path.join(folder, name), "w", encoding="utf-8")
