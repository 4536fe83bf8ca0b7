"""Documents from translations of their sentences."""

import json

import pytest

from input_pipelines.gather import documents, translated_documents
from input_pipelines.sources import bitext_tables
from input_pipelines.sources.text_sources import BadRecords, SourceError


def _table(tmp_path, lines, **more):
    path = tmp_path / "multiway.tsv"
    path.write_text("\n".join(["page\ten\tde\tfr", *lines]) + "\n")
    codes = {"en": "en", "de": "de", "fr": "fr"}
    return bitext_tables.Columns("docs", str(path), codes, "en", **more)


def _read(bitext, **more):
    source = translated_documents.TranslatedDocuments([bitext], **more)
    bad = BadRecords(0)
    return {one.id: one.text for _, one in source.documents(bad)}


def test_sentences_of_a_page_become_its_documents_in_every_language(tmp_path):
    lines = ["a/b\tOne.\tEins.\tUn.", "a/b\tTwo.\t\tDeux.", "c\tThree.\tDrei.\t"]
    found = _read(_table(tmp_path, lines, document="page"), between=" | ")
    assert found == {
        "en/docs/a/b": "One. | Two.",
        "en/docs/c": "Three.",
        "de/docs/a/b": "Eins.",
        "de/docs/c": "Drei.",
        "fr/docs/a/b": "Un. | Deux.",
    }
    assert documents.parts_of("en/docs/a/b") == ("en", "docs", "a/b")


def test_where_a_document_begins_is_told(tmp_path):
    source = translated_documents.TranslatedDocuments(
        [_table(tmp_path, ["c\tThree.\tDrei.\tTrois."], document="page")]
    )
    wheres = [where for where, _ in source.documents(BadRecords(0))]
    assert wheres == [f"{tmp_path}/multiway.tsv:2"] * 3


def test_a_folder_with_a_file_a_language(tmp_path):
    for code, words in {"en": ("one", "two"), "de": ("eins", "zwei")}.items():
        lines = [f"news.1\t{n}\t{word}" for n, word in enumerate(words)]
        (tmp_path / f"{code}.tsv").write_text("\n".join(lines) + "\n")
    found = _read(bitext_tables.Keyed("ntrex", str(tmp_path), "en"))
    assert found == {"en/ntrex/news.1": "one two", "de/ntrex/news.1": "eins zwei"}


def test_keys_without_documents_are_refused_and_say_what_to_do(tmp_path):
    with pytest.raises(SourceError, match=r"multiway.tsv:2: expected a key docs/DOCUMENT/SENTENCE"):
        _read(_table(tmp_path, ["c\tThree.\tDrei.\tTrois."]))
    with pytest.raises(SourceError, match="expected columns"):
        _read(_table(tmp_path, ["c\tThree.\tDrei.\tTrois."], document="chapter"))


def test_a_test_set_is_gathered_as_it_stands(tmp_path):
    bitext = _table(tmp_path, ["c\tThree.\tДва.\tTrois.", "d\tx\ty\tz"], document="page")
    source = translated_documents.TranslatedDocuments([bitext])
    outputs = documents.gather(str(tmp_path / "out"), [source], None, 0.0, 0)
    lines = (tmp_path / "out" / outputs["documents"]).read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [
        f"{code}/docs/{page}" for code in ("de", "en", "fr") for page in "cd"
    ]
    known = documents.trained_on(str(tmp_path / "out" / outputs["languages"]))
    assert known("de-AT") and not known("es")
