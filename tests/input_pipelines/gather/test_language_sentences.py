"""Sentences by language, and what a vocabulary knows of each."""

import dataclasses
import gzip
import json

import pytest

from input_pipelines.gather import language_sentences
from input_pipelines.gather.language_sentences import SentenceRules
from input_pipelines.sources.text_sources import BadRecords, Lines, SourceError
from input_pipelines.tokenizers import tokenization, vocabulary_report

PAIRS = [
    (["en", "de"], "the house is old", "das Haus ist alt"),
    (["en", "de"], "the sea is wide", "das Meer ist weit"),
    (["en", "ja"], "the house is old", "家は古い"),
]


@pytest.fixture
def translations(tmp_path):
    lines = [
        {"id": f"t/{n}", "pair": pair, "source": source, "target": target}
        for n, (pair, source, target) in enumerate(PAIRS)
    ]
    path = tmp_path / "translations.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def gather(folder, translations, texts=None, **rules):
    folder.mkdir(exist_ok=True)
    found = SentenceRules(**rules)
    language_sentences.gather_sentences(str(folder), translations, texts or {}, found, 0)
    mixture = language_sentences.mixture(str(folder / "sentences"), 0.3)
    return mixture, json.loads((folder / "report.json").read_text())


def sentences(mixture):
    return {
        name: [record.text for record in source.records(BadRecords(0))]
        for name, source, _ in mixture.members
    }


def test_a_folder_of_text_is_a_source_for_each_language(tmp_path, translations):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "deu.txt").write_text("ein neuer Satz\nkurz\ndas Haus ist alt\n")
    with gzip.open(folder / "fr.txt.gz", "wt") as file:
        file.write("une phrase nouvelle\n")
    (folder / "notes.md").write_text("no text")
    texts = language_sentences.texts_of(str(folder))
    mixture, report = gather(tmp_path / "out", [translations], texts)
    found = sentences(mixture)
    assert found["de"][2:] == ["ein neuer Satz"] and found["fr"] == ["une phrase nouvelle"]
    assert report["languages"]["de"]["dropped"] == {"length": 1, "repeated": 1}
    (folder / "de.txt").write_text("noch einer\n")
    with pytest.raises(SourceError, match="two files are 'de'"):
        language_sentences.texts_of(str(folder))
    with pytest.raises(SourceError, match="files such as de.txt"):
        language_sentences.texts_of(str(tmp_path))


def test_each_sentence_of_both_sides_is_there_once(tmp_path, translations):
    mixture, report = gather(tmp_path / "out", [translations])
    assert sentences(mixture) == {
        "de": ["das Haus ist alt", "das Meer ist weit"],
        "en": ["the house is old", "the sea is wide"],
        "ja": ["家は古い"],
    }
    assert report["languages"]["en"] == {"kept": 2, "dropped": {"repeated": 1}}
    ids = [record.id for record in mixture.records(BadRecords(0))]
    assert ids == ["de/0", "de/1", "en/0", "en/1", "ja/0"]


def test_text_of_one_language_is_looked_at_and_joins_the_others(tmp_path, translations):
    path = tmp_path / "de.txt"
    path.write_text("zu kurz\nein ganz neuer Satz\nэто не по-немецки\ndas Haus ist alt\n")
    texts = {"deu": Lines([str(path)], 1000)}
    mixture, report = gather(tmp_path / "out", [translations], texts)
    assert sentences(mixture)["de"][2:] == ["ein ganz neuer Satz"]
    dropped = {"length": 1, "repeated": 1, "wrong_script": 1}
    assert report["languages"]["de"] == {"kept": 3, "dropped": dropped}


def test_only_languages_that_are_there_can_be_taken(tmp_path, translations):
    gather(tmp_path / "out", [translations])
    folder = str(tmp_path / "out/sentences")
    assert list(sentences(language_sentences.mixture(folder, 0.3, ["ja", "de"]))) == ["de", "ja"]
    with pytest.raises(SourceError, match=r"no sentences of \['fr'\]"):
        language_sentences.mixture(folder, 0.3, ["fr"])
    with pytest.raises(SourceError, match="expected files CODE.jsonl"):
        language_sentences.mixture(str(tmp_path / "out"), 0.3)


def test_a_vocabulary_says_what_it_does_not_know_of_each_language(tmp_path, translations):
    mixture, _ = gather(tmp_path / "out", [translations])
    latin = dataclasses.replace(mixture, members=mixture.members[:2])
    tokenization.train_tokenizer(str(tmp_path), latin, 50, 60, 1, False, False, 0, 0, 0)
    folder = str(tmp_path / "tokenizer")
    vocabulary_report.vocabulary_report(str(tmp_path), folder, latin, 0, 0.0)
    with pytest.raises(vocabulary_report.VocabularyError, match=r"in 1 of 3: ja 100.0% .*家"):
        vocabulary_report.vocabulary_report(str(tmp_path), folder, mixture, 0, 0.1)
    report = json.loads((tmp_path / "vocabulary_report.json").read_text())["languages"]
    assert report["de"]["unknown_tokens"] == 0 == report["de"]["unknown_bytes"]
    assert report["de"]["tokens_per_word"] > 1
    assert report["ja"]["unknown_bytes"] == 1 and report["ja"]["sentences"] == 1
    assert set(report["ja"]["unknown_characters"]) == set("家は古い")
