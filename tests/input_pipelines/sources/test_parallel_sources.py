"""Sources of what is compared across languages: XQuAD's form, BUCC's and STS's."""

import json

import pytest

from input_pipelines.sources import sts
from input_pipelines.sources.bucc import BuccGold, BuccSentences
from input_pipelines.sources.languages import LanguageError
from input_pipelines.sources.sts import SimilarityFiles, SimilarSentences
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.sources.xquad import ParallelQuestions


def records(source, limit=0):
    bad = BadRecords(limit)
    return [(one.id, one.text) for one in source.records(bad)], bad


def squad_file(folder, language, text):
    asked = [{"id": "q1", "question": f"{language}?", "answers": []}]
    rows = [{"context": text, "qas": asked if n else []} for n in (0, 1)]
    path = folder / f"x.{language}.json"
    path.write_text(json.dumps({"data": [{"title": "A b", "paragraphs": rows}]}))
    return path


def questions_of(folder, languages, what):
    return ParallelQuestions(str(folder), "x.{language}.json", languages, what)


def test_paragraphs_are_their_sentences_and_questions_name_their_paragraph(tmp_path):
    squad_file(tmp_path, "deu", "Eins. Zwei z. B. hier.")
    squad_file(tmp_path, "zh", "第一句。第二句！")
    sentences, _ = records(questions_of(tmp_path, ["deu", "zh"], "sentences"))
    assert sentences[:2] == [("de/A_b/0/0", "Eins."), ("de/A_b/0/1", "Zwei z. B. hier.")]
    assert ("zh/A_b/1/1", "第二句！") in sentences and len(sentences) == 8
    questions, _ = records(questions_of(tmp_path, ["deu", "zh"], "questions"))
    assert questions == [("de/A_b/1/q1", "deu?"), ("zh/A_b/1/q1", "zh?")]


def test_questions_of_one_language_twice_or_of_none_are_refused(tmp_path):
    path = squad_file(tmp_path, "de", "Eins.")
    with pytest.raises(SourceError, match="are 'de'"):
        records(questions_of(tmp_path, ["de", "deu"], "questions"))
    with pytest.raises(LanguageError):
        records(questions_of(tmp_path, ["xx"], "questions"))
    with pytest.raises(SourceError, match="x.fr.json"):
        records(questions_of(tmp_path, ["fr"], "questions"))
    path.write_text('{"data": []}')
    with pytest.raises(SourceError, match="expected paragraphs, found none"):
        records(questions_of(tmp_path, ["de"], "questions"))
    with pytest.raises(ValueError, match="what: expected one of"):
        questions_of(tmp_path, ["de"], "titles")
    with pytest.raises(ValueError, match="name: expected '{language}' in it"):
        ParallelQuestions(str(tmp_path), "x.json", ["de"], "questions")


def write_bucc(folder, pair="de-en", split="training"):
    folder.mkdir(parents=True, exist_ok=True)
    first, second = pair.split("-")
    for code in (first, second):
        lines = "".join(f"{code}-{n}\t{code} says {n}\n" for n in range(3))
        (folder / f"{pair}.{split}.{code}").write_text(lines)
    (folder / f"{pair}.{split}.gold").write_text(f"{first}-1\t{second}-2\n")


def test_bucc_is_read_as_it_is_published(tmp_path):
    write_bucc(tmp_path)
    write_bucc(tmp_path / "fr-en", "fr-en")
    sides = [
        records(BuccSentences(str(tmp_path), ["de-en", "fr-en"], ["training"], side))[0]
        for side in ("source", "target")
    ]
    assert sides[0][0] == ("de-en/training/de-0", "de says 0") and len(sides[0]) == 6
    assert sides[1][3] == ("fr-en/training/en-0", "en says 0")
    gold = BuccGold(str(tmp_path)).translations("fr-en", "training")
    assert gold == [("fr-en/training/fr-1", "fr-en/training/en-2")]


def test_what_is_not_bucc_is_named(tmp_path):
    write_bucc(tmp_path)
    path = tmp_path / "de-en.training.de"
    path.write_text("de-0\teins\nde-1 zwei\nde-0\tdrei\nde-2\t \nde-3\tvier\n")
    source = BuccSentences(str(tmp_path), ["de-en"], ["training"], "source")
    found, bad = records(source, limit=3)
    assert [name for name, _ in found] == ["de-en/training/de-0", "de-en/training/de-3"]
    assert bad.counts == {"not_a_sentence": 2, "duplicate_id": 1}
    path.write_text("")
    with pytest.raises(SourceError, match="expected sentences, found none"):
        records(source)
    for given, message in (("de-1\n", "expected 'id TAB id'"), ("", "expected translations")):
        (tmp_path / "de-en.training.gold").write_text(given)
        with pytest.raises(SourceError, match=message):
            BuccGold(str(tmp_path)).translations("de-en", "training")
    with pytest.raises(SourceError, match="de-en.test.gold"):
        BuccGold(str(tmp_path)).translations("de-en", "test")
    with pytest.raises(SourceError, match="two languages such as 'de-en', found 'de-deu'"):
        records(BuccSentences(str(tmp_path), ["de-deu"], ["training"], "source"))
    with pytest.raises(ValueError, match="side: expected one of"):
        BuccSentences(str(tmp_path), ["de-en"], ["training"], "left")


def test_judged_sentences_are_two_sources_of_the_same_ids(tmp_path):
    path = tmp_path / "sts.tsv"
    path.write_text("2.5\tone\tother\tx\nbad\tone\tother\n3\tone\n4\tone\t\nnan\ta\tb\n5\tc\td\n")
    files = SimilarityFiles({"en": str(path)}, 0, 1, 2)
    sides = [records(SimilarSentences(files, side), limit=4) for side in ("first", "second")]
    assert sides[0][0] == [("en/1", "one"), ("en/6", "c")]
    assert sides[1][0] == [("en/1", "other"), ("en/6", "d")]
    assert sides[0][1].counts == {"columns": 2, "empty": 2}
    assert sts.scores(files) == {"en/1": 2.5, "en/6": 5.0}
    with pytest.raises(LanguageError):
        records(SimilarSentences(SimilarityFiles({"en_xx": str(path)}, 0, 1, 2), "first"))
    path.write_text("")
    with pytest.raises(SourceError, match="expected pairs of sentences"):
        records(SimilarSentences(files, "first"))
    with pytest.raises(ValueError, match="side: expected one of"):
        SimilarSentences(files, "third")
