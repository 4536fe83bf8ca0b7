"""Collections for open question answering: paragraphs that answer, among other articles."""

import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from input_pipelines.sources import answers, beir, question_sets, text_sources
from input_pipelines.sources.question_sets import AskedSet, GoldSet, Paragraph, Question
from input_pipelines.sources.text_sources import BadRecords, Record, TextSource

_log = logging.getLogger(__name__)

ARTICLES = "articles"  # the set of what no question asks for

Row = dict[str, Any]

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "make_collection": {
        "name": "question_collection",
        "version": 1,
        "outputs": ["corpus"],
        "check": "check",
    },
    "gather_questions": {
        "name": "gather_questions",
        "version": 1,
        "outputs": ["train", "dev", "test", "report"],
    },
}


def make_collection(
    sets: Sequence[GoldSet],
    articles: TextSource | None,
    max_bad_records: int,
    model_dir: str,
    share: float = 1.0,
    seed: int = 0,
) -> dict[str, str]:
    """The job of a stage: writes a BEIR folder of the paragraphs of all sets and their questions.

    Where there are several sets, or articles, ids begin with the name of their set and a slash,
    ARTICLES for the latter.

    Args:
      sets: with distinct names.
      articles: more documents, which no question asks for; None for none.
      max_bad_records: malformed paragraphs, questions and articles that are passed over, and
        reported.
      model_dir: where `corpus/` appears.
      share: of `articles` that are read, in [0, 1].
      seed: chooses them.

    Returns:
      {"corpus": the folder}, relative to model_dir.

    Raises:
      SourceError: see `GoldSet.read`.
      ValueError: no sets, names that will not do; a share outside its bounds.
    """
    check(sets, articles, share, max_bad_records)
    bad = BadRecords(max_bad_records, "question_collection.make_collection")
    prefixed = len(sets) > 1 or articles is not None
    read = [(f"{one.name}/" if prefixed else "", one.read(bad)) for one in sets]
    folder = os.path.join(model_dir, "corpus")
    os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
    others = _articles(articles, share, seed, bad) if articles else ()
    passages = itertools.chain(_passages(read), others)
    written = _write_rows(os.path.join(folder, "corpus.jsonl"), passages)
    _write_rows(os.path.join(folder, "queries.jsonl"), _queries(read))
    judged = {split: _write_qrels(folder, split, read) for split in question_sets.SPLITS}
    _log.info("collection: %d passages, questions %s", written, judged)
    return {"corpus": "corpus"}


def check(
    sets: Sequence[GoldSet], articles: TextSource | None, share: float, max_bad_records: int
) -> None:
    """Check arguments before `make_collection` runs; ValueError, see there."""
    BadRecords(max_bad_records)
    question_sets.require_names([one.name for one in sets] + [ARTICLES] * (articles is not None))
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected 0 to 1, found {share}")


Read = Sequence[tuple[str, Sequence[tuple[str, Paragraph]]]]  # sets: prefix, (split, paragraph)s


def _passages(read: Read) -> Iterator[Row]:
    for prefix, paragraphs in read:
        unique = {paragraph.passage.id: paragraph.passage for _, paragraph in paragraphs}
        for passage in unique.values():
            yield _passage(prefix, passage)


def _articles(articles: TextSource, share: float, seed: int, bad: BadRecords) -> Iterator[Row]:
    rng = np.random.default_rng(seed)
    for record in articles.records(bad):
        if rng.random() < share:
            yield _passage(f"{ARTICLES}/", record)


def _passage(prefix: str, passage: Record) -> Row:
    return {"_id": prefix + passage.id, "title": passage.title, "text": passage.text}


def _queries(read: Read) -> Iterator[Row]:
    for prefix, paragraphs in read:
        for _, paragraph in paragraphs:
            for question in paragraph.questions:
                yield _query(prefix, question)


def _query(prefix: str, question: Question) -> Row:
    return {"_id": prefix + question.id, "text": question.text, **question.answer}


def _write_qrels(folder: str, split: str, read: Read) -> int:
    rows = [
        f"{prefix}{question.id}\t{prefix}{paragraph.passage.id}\t1\n"
        for prefix, paragraphs in read
        for paragraph_split, paragraph in paragraphs
        for question in paragraph.questions
        if paragraph_split == split
    ]
    with open(os.path.join(folder, f"qrels/{split}.tsv"), "w", encoding="utf-8") as file:
        file.writelines(["\t".join(beir.QRELS_HEADER) + "\n", *rows])
    return len(rows)


def _write_rows(path: str, rows: Iterable[Row]) -> int:
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def gather_questions(
    collection: str, sets: Sequence[AskedSet], max_bad_records: int, model_dir: str
) -> dict[str, str]:
    """The job of a stage: the questions of a collection and of other sets, for readers.

    Writes `train.jsonl`, `dev.jsonl` and `test.jsonl` with rows {"_id", "text", "answers",
    "answer_type", "set"}, where `set` is what an id has before its first slash, and `report.json`.
    A question that is asked in the test (in the same words once normalised, see answers.py)
    neither trains nor develops, and one that develops does not train.

    Args:
      collection: of `make_collection`, with names of sets in its ids; questions without answers are
        left out.
      sets: of other names.
      max_bad_records: malformed questions that are passed over, and reported.
      model_dir: where the files go.

    Returns:
      {"train", "dev", "test" and "report": path}, relative to model_dir.

    Raises:
      SourceError: see `AskedSet.read`; ids without the name of a set; a split that comes out empty.
      ValueError: two sets of one name.
    """
    bad = BadRecords(max_bad_records, "question_collection.gather_questions")
    rows = {split: list(_of_collection(collection, split, bad)) for split in question_sets.SPLITS}
    names = [row["set"] for of in rows.values() for row in of]
    question_sets.require_names([*dict.fromkeys(names), *(one.name for one in sets)])
    for one in sets:
        for split, question in one.read(bad):
            rows[split].append(_query(f"{one.name}/", question) | {"set": one.name})
    report: dict[str, Any] = {}
    taken: set[str] = set()
    for split in reversed(question_sets.SPLITS):
        words = [answers.normalised(row["text"]) for row in rows[split]]
        kept = [row for row, said in zip(rows[split], words, strict=True) if said not in taken]
        taken |= set(words)
        if not kept:
            raise text_sources.SourceError(f"expected questions for {split}, found none: {report}")
        _write_rows(os.path.join(model_dir, f"{split}.jsonl"), kept)
        report[split] = Counter(row["set"] for row in kept)
        report[f"{split}_asked_elsewhere"] = Counter(r["set"] for r in rows[split]) - report[split]
    report |= {"bad_records": dict(bad.counts), "examples": bad.examples}
    _write_rows(os.path.join(model_dir, "report.json"), [report])
    _log.info("questions: %s", {k: v for k, v in report.items() if k != "examples"})
    return {name: f"{name}.jsonl" for name in question_sets.SPLITS} | {"report": "report.json"}


def _of_collection(folder: str, split: str, bad: BadRecords) -> Iterator[Row]:
    """The questions with answers that a split of a collection judges."""
    judged = set(beir.query_ids(folder, split))
    path = beir.find(folder, "queries.jsonl")
    for _, _, row in text_sources.json_lines(path, question_sets.MAX_LINE_BYTES, bad):
        if row["_id"] in judged and "answers" in row:
            name, slash, _ = str(row["_id"]).partition("/")
            if not slash:
                raise text_sources.SourceError(
                    f"{path}: expected ids with the name of a set and a slash, as make_collection "
                    f"gives them to several sets, found {row['_id']!r}"
                )
            yield {**row, "set": name}
