"""SQuAD as a retrieval collection: every paragraph is a passage, every question asks for its own.

Two forms of file are read (each may be gzipped): the official one in a `.json`, that is
`{"data": [{"title", "paragraphs": [{"context", "qas"}]}]}`; and one paragraph a line in a `.jsonl`,
`{"title", "para", "context", "qas"}`. Whole articles are held out for development, so that no
development question asks for a paragraph near one that was trained on. Questions that SQuAD 2 marks
`is_impossible` are left out: no paragraph answers them.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from input_pipelines import sources
from input_pipelines.sources import BadRecords, FieldError, SourceError, text_field

SPLITS = ("train", "dev", "test")

_log = logging.getLogger(__name__)


def make_collection(
    train: Sequence[str],
    test: Sequence[str],
    share: float,
    dev_share: float,
    seed: int,
    max_bad_records: int,
    model_dir: str,
) -> dict[str, str]:
    """The job of a stage: writes a BEIR folder of all paragraphs and their questions.

    Args:
      train: files whose questions train, but for the articles held out.
      test: files whose questions are test queries.
      share: of the articles of either that are read, in (0, 1]. The others are left out whole,
        paragraphs and questions: a smaller collection, and an easier one.
      dev_share: share of the training articles that are held out for development, in [0, 1).
      seed: chooses both.
      max_bad_records: malformed paragraphs and questions that are passed over, and reported.
      model_dir: where `corpus/` appears.

    Returns:
      {"corpus": the folder}, relative to model_dir.

    Raises:
      SourceError: a file cannot be read, an article is in both, or too many malformed records.
      ValueError: a share outside its bounds, or one that holds out everything.
    """
    bad = BadRecords(max_bad_records)
    trained, tested = (sample(list(paragraphs(files, bad)), share, seed) for files in (train, test))
    held_out = hold_out(sorted({p["title"] for p in trained}), dev_share, seed)
    both = {p["title"] for p in trained} & {p["title"] for p in tested}
    if both:
        raise SourceError(
            f"{len(both)} articles are in the training and the test files, such as "
            f"{sorted(both)[0]!r}; expected no article in both"
        )
    split_of = {p["title"]: "dev" if p["title"] in held_out else "train" for p in trained}
    split_of |= {p["title"]: "test" for p in tested}
    folder = os.path.join(model_dir, "corpus")
    counts = _write(folder, [*trained, *tested], split_of, bad)
    _log.info("SQuAD: %d paragraphs, questions %s", len(trained) + len(tested), counts)
    return {"corpus": "corpus"}


def sample(found: list[dict[str, Any]], share: float, seed: int) -> list[dict[str, Any]]:
    """The paragraphs of a share of their articles, at least one article, in the order given."""
    if not 0 < share <= 1:
        raise ValueError(f"share: expected above 0 and at most 1, found {share}")
    kept = _choose(sorted({paragraph["title"] for paragraph in found}), share, seed)
    return [paragraph for paragraph in found if paragraph["title"] in kept]


def hold_out(articles: Sequence[str], share: float, seed: int) -> set[str]:
    """A share of the articles, at least one unless the share is 0."""
    if not 0 <= share < 1:
        raise ValueError(f"dev_share: expected at least 0 and below 1, found {share}")
    chosen = _choose(articles, share, seed)
    if chosen and len(chosen) == len(articles):
        raise ValueError(
            f"dev_share: {share} of {len(articles)} articles leaves none to train on; lower it"
        )
    return chosen


def _choose(articles: Sequence[str], share: float, seed: int) -> set[str]:
    """So many of them, rounded up."""
    order = np.random.default_rng(seed).permutation(len(articles))
    return {articles[i] for i in order[: int(np.ceil(share * len(articles)))]}


def paragraphs(paths: Sequence[str], bad: BadRecords) -> Iterator[dict[str, Any]]:
    """{"id", "title", "context", "qas", "where"} of each paragraph, in file order.

    The id is `title/number of the paragraph in its article`.
    """
    for path in paths:
        official = path.removesuffix(".gz").endswith(".json")
        for where, row in _official(path) if official else _by_line(path, bad):
            try:
                yield {
                    "id": f"{text_field(row, 'title', True)}/{text_field(row, 'para', True)}",
                    "title": text_field(row, "title"),
                    "context": text_field(row, "context"),
                    "qas": _list(row, "qas"),
                    "where": where,
                }
            except FieldError as error:
                bad.add(where, error.reason, str(error), json.dumps(row))


def _by_line(path: str, bad: BadRecords) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, _, row in sources.json_lines(path, 1 << 24, bad):
        yield f"{path}:{number}", row


def _official(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The nested form, which is one JSON value of some 30 MB."""
    with sources.open_binary(path) as file:
        try:
            articles = json.load(file)["data"]
            for article in articles:
                for number, paragraph in enumerate(article["paragraphs"]):
                    title = "_".join(article["title"].split())
                    yield f"{path}: {title}", {**paragraph, "title": title, "para": number}
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f'{path}: expected {{"data": [{{"title", "paragraphs"}}]}}, SQuAD\'s own form, '
                f"found otherwise ({error!r}); a file with a paragraph a line is called .jsonl"
            ) from error


def _list(row: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(row.get(name), list):
        raise FieldError("missing_field", f"field {name!r}: expected a list")
    return list(row[name])


def _write(
    folder: str, found: Iterable[dict[str, Any]], split_of: dict[str, str], bad: BadRecords
) -> dict[str, int]:
    """Writes corpus.jsonl, queries.jsonl, qrels/<split>.tsv; returns questions by split."""
    os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
    passages, questions = [], []
    qrels: dict[str, list[str]] = {split: [] for split in SPLITS}
    unique = sources.UniqueIds()
    for paragraph in found:
        title = paragraph["title"].replace("_", " ")
        passages.append({"_id": paragraph["id"], "title": title, "text": paragraph["context"]})
        for question in paragraph["qas"]:
            try:
                row: dict[str, Any] = {
                    "_id": text_field(question, "id", True),
                    "text": _question(question),
                }
                row |= _answers(question)
                if question.get("is_impossible"):  # SQuAD 2: the paragraph does not answer it
                    continue
                if unique.first(row["_id"], "question", len(questions)):
                    raise FieldError("duplicate_id", f"id {row['_id']!r} was given before")
            except (FieldError, TypeError) as error:
                reason = getattr(error, "reason", "not_an_object")
                bad.add(paragraph["where"], reason, str(error), json.dumps(question))
                continue
            questions.append(row)
            qrels[split_of[paragraph["title"]]].append(f"{row['_id']}\t{paragraph['id']}\t1")
    _write_lines(folder, "corpus.jsonl", (json.dumps(p, ensure_ascii=False) for p in passages))
    _write_lines(folder, "queries.jsonl", (json.dumps(q, ensure_ascii=False) for q in questions))
    for split, rows in qrels.items():
        _write_lines(folder, f"qrels/{split}.tsv", ["query-id\tcorpus-id\tscore", *rows])
    return {split: len(rows) for split, rows in qrels.items()}


def _question(question: dict[str, Any]) -> str:
    text = text_field(question, "question")
    if not text.strip():
        raise FieldError("empty_question", "field 'question': expected words, found none")
    return text.strip()


def _answers(question: dict[str, Any]) -> dict[str, list[str]]:
    """The texts of its answers, for those who read the passages that are found."""
    given = question.get("answers") or []
    texts = [text_field(answer, "text") for answer in given]
    return {"answers": list(dict.fromkeys(texts))} if texts else {}


def _write_lines(folder: str, name: str, lines: Iterable[str]) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
