"""The same files give the same records, wherever they are: a version's folder, or a local one."""

import gzip
import json
import os

import pytest

from input_pipelines.batches import translation_rows
from input_pipelines.gather import documents
from input_pipelines.sources import (
    bucc,
    msmarco,
    qed,
    question_sets,
    squad,
    sts,
    text_sources,
    triples,
    wiki_dump,
    xquad,
)
from input_pipelines.sources.text_sources import BadRecords, Record, UniqueIds

LIMIT = 10_000
SEEN = question_sets.Seen
PARAGRAPH = {"title": "Sea", "para": 0, "context": "The sea is blue.", "qas": []}
ARTICLE = {"title": "Sea", "paragraphs": [{"context": "The sea is blue.", "qas": []}]}
ROW = {"id": "1", "title": "Sea", "text": "The sea is blue.", "lang": "en"}
FILES = {
    "a.jsonl": [json.dumps(ROW)],
    "b/a.jsonl": [json.dumps(ROW | {"id": "2"})],
    "a.tsv": ["1\tThe sea is blue."],
    "de-en.test.de": ["1\tDas Meer ist blau."],
    "wiki/AA/wiki_00": ['<doc id="1" title="Sea">', "Sea", "The sea is blue.", "</doc>"],
    "translations.jsonl": [json.dumps({"id": "1", "source": "sea", "target": "Meer"})],
    "triples.tsv": ["what is blue\tthe sea\tthe sand"],
    "sts.tsv": ["4.5\tthe sea\tthe ocean"],
    "squad.jsonl": [json.dumps(PARAGRAPH)],
    "squad.json": [json.dumps({"data": [ARTICLE]})],
    "xquad.en.json": [json.dumps({"data": [ARTICLE]})],
    "qed.jsonl": [
        json.dumps(
            {"id": "1", "title": "Sea", "paragraph": "Blue.", "question": "?", "answers": []}
        )
    ],
}


def paragraphs(reader, path):
    """The passages of a file with questions."""
    seen = SEEN(UniqueIds(), UniqueIds())
    return [one.passage for one in reader.paragraphs([path], seen, BadRecords(0))]


def read(source):
    """All records of a source."""
    return list(source.records(BadRecords(0)))


READERS = {
    "jsonl": lambda at: read(
        text_sources.Jsonl([f"{at}/a.jsonl", f"{at}/b/a.jsonl"], ["id"], "title", "text", "", LIMIT)
    ),
    "lines": lambda at: read(text_sources.Lines([f"{at}/a.tsv", f"{at}/b/a.jsonl"], LIMIT)),
    "tsv": lambda at: read(msmarco.Tsv(f"{at}/a.tsv")),
    "bucc": lambda at: read(bucc.BuccSentences(at, ["de-en"], ["test"], "source")),
    "wiki": lambda at: read(wiki_dump.WikiExtracted(f"{at}/wiki")),
    "wiki_file": lambda at: read(wiki_dump.WikiExtracted(f"{at}/wiki/AA/wiki_00")),
    "translations": lambda at: read(translation_rows.TranslationFile(f"{at}/translations.jsonl")),
    "triples": lambda at: read(triples.Texts(f"{at}/triples.tsv", queries=False)),
    "similar": lambda at: read(
        sts.SimilarSentences(sts.SimilarityFiles({"en": f"{at}/sts.tsv"}, 0, 1, 2), "first")
    ),
    "squad": lambda at: paragraphs(squad, f"{at}/squad.jsonl"),
    "squad_official": lambda at: paragraphs(squad, f"{at}/squad.json"),
    "parallel_questions": lambda at: read(
        xquad.ParallelQuestions(at, "xquad.{language}.json", ["en"], "sentences")
    ),
    "qed": lambda at: paragraphs(qed, f"{at}/qed.jsonl"),
    "documents": lambda at: [
        document
        for _, document in documents.DocumentFiles(
            [f"{at}/a.jsonl", f"{at}/b/a.jsonl"], "all", name_field=""
        ).documents(BadRecords(0))
    ],
}


def write(folder):
    for name, lines in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize("name", READERS)
def test_records_do_not_depend_on_the_folder(name, tmp_path, monkeypatch):
    version = tmp_path / ".store/versions/gather-3f2a9c0d1e2b4a5c"
    write(tmp_path / "own"), write(version)
    monkeypatch.chdir(tmp_path / "own")
    folders = (str(tmp_path / "own"), str(version), ".", os.path.relpath(version))
    first, *others = [READERS[name](folder) for folder in folders]
    assert first and all(one == first for one in others)
    assert not any(str(part).startswith(("/", ".")) for record in first for part in vars_of(record))


def vars_of(record):
    return vars(record).values() if isinstance(record, Record) else record


def test_the_place_of_a_record_is_that_in_the_input(tmp_path):
    write(tmp_path)
    at = str(tmp_path)
    names = ("jsonl", "squad_official", "wiki", "wiki_file", "triples")
    places = {name: [one.source for one in READERS[name](at)] for name in names}
    assert places["jsonl"] == ["a.jsonl:1", "a.jsonl:1"]
    assert places["squad_official"] == ["squad.json: Sea/0"]
    assert places["wiki"] == ["AA/wiki_00:1"] and places["wiki_file"] == ["wiki_00:1"]
    assert places["triples"] == ["triples.tsv:1", "triples.tsv:1"]


def test_documents_of_files_of_one_name_are_told_apart(tmp_path):
    write(tmp_path)
    assert [one.name for one in READERS["documents"](str(tmp_path))] == [
        "0/a.jsonl:1",
        "1/a.jsonl:1",
    ]


def test_a_message_still_names_the_whole_path(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"no tab\n"))
    bad = BadRecords(1)
    assert not list(msmarco.Tsv(str(path)).records(bad))
    assert bad.examples[0].startswith(f"{path}:1: ")
