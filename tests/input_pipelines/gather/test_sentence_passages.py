"""Sentences of translations as passages whose source is their language."""

import json
from pathlib import Path

import pytest

from input_pipelines.gather import sentence_passages
from input_pipelines.sources.text_sources import SourceError

ROWS = [  # of both languages, the first sentence, the second
    (["en", "de"], "the house is old", "das Haus ist alt"),
    (["en", "de"], "the  sea is wide ", "das Meer ist weit"),
    (["en", "fr"], "the house is old", "la maison est vieille"),
    (["en", "fr"], "the sea is wide", "la mer est large"),
]


def written(path, rows):
    lines = [
        {"id": f"t/{n}", "pair": pair, "source": source, "target": target}
        for n, (pair, source, target) in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def job_runs():
    """Runs for recorded outputs, in the current folder: all sentences, and some of two."""
    many = written(Path("many.jsonl"), [*ROWS, *parallel(40)])
    given = {"translations": [many], "max_bad_records": 0}
    return {
        "all": given | {"most": 1000, "only": None},
        "some": given | {"most": 7, "only": ["deu", "fr"]},
    }


def parallel(count):
    """Translations of English sentences, into French in another order than into German."""
    german = [(["en", "de"], f"sentence {n}", f"Satz {n}") for n in range(count)]
    french = [(["en", "fr"], f"sentence {n}", f"phrase {n}") for n in reversed(range(count))]
    return [*german, *french]


def gathered(folder, rows, most=100, only=None, bad=0):
    path = written(folder / "translations.jsonl", rows)
    made = sentence_passages.gather(str(folder / "out"), [path], most, only, bad)
    assert made == {"corpus": "corpus", "report": "report.json"}
    lines = (folder / "out/corpus/corpus.jsonl").read_text(encoding="utf-8").splitlines()
    report = json.loads((folder / "out/report.json").read_text())
    return [json.loads(line) for line in lines], report


def test_each_sentence_is_there_once_with_its_language(tmp_path):
    passages, report = gathered(tmp_path, ROWS)
    assert passages == [
        {"_id": "en/0", "title": "", "text": "the house is old", "source": "en"},
        {"_id": "de/0", "title": "", "text": "das Haus ist alt", "source": "de"},
        {"_id": "en/1", "title": "", "text": "the sea is wide", "source": "en"},
        {"_id": "de/1", "title": "", "text": "das Meer ist weit", "source": "de"},
        {"_id": "fr/0", "title": "", "text": "la maison est vieille", "source": "fr"},
        {"_id": "fr/1", "title": "", "text": "la mer est large", "source": "fr"},
    ]
    assert report["passages"] == 6 and report["malformed"] == {}
    assert report["languages"]["en"] == {"sentences": 2, "taken": 2}


def test_a_text_of_two_languages_is_a_passage_of_each(tmp_path):
    passages, _ = gathered(
        tmp_path, [(["en", "de"], "radio", "Funk"), (["nl", "en"], "radio", "a")]
    )
    assert [row["_id"] for row in passages if row["text"] == "radio"] == ["en/0", "nl/0"]


def test_a_sentence_and_its_translations_are_taken_together(tmp_path):
    passages, report = gathered(tmp_path, parallel(200), most=40)
    numbers = {
        language: {row["text"].split()[1] for row in passages if row["source"] == language}
        for language in ("en", "de", "fr")
    }
    assert {language: len(found) for language, found in numbers.items()} == dict.fromkeys(
        ("en", "de", "fr"), 40
    )
    assert report["languages"]["de"] == {"sentences": 200, "taken": 40}
    for language in ("de", "fr"):  # a fifth would be there by chance
        assert len(numbers["en"] & numbers[language]) >= 20
    ids = [row["_id"] for row in passages if row["source"] == "fr"]
    assert ids == [f"fr/{n}" for n in range(40)]


def test_the_order_of_the_file_does_not_matter(tmp_path):
    texts = []
    for name, rows in (("a", parallel(50)), ("b", parallel(50)[::-1])):
        (tmp_path / name).mkdir()
        passages, _ = gathered(tmp_path / name, rows, most=10)
        texts.append({row["text"] for row in passages})
    assert texts[0] == texts[1] and len(texts[0]) == 30


def test_only_some_languages(tmp_path):
    passages, report = gathered(tmp_path, ROWS, only=["fra", "de"])
    assert {row["source"] for row in passages} == {"de", "fr"} == set(report["languages"])


def test_malformed_lines_are_counted(tmp_path):
    rows = [*ROWS, (["en"], "one", "side"), (["en", "de"], "empty", " "), (["en", "de"], 3, "x")]
    assert gathered(tmp_path, rows, bad=3)[1]["malformed"] == {"no_translation": 3}
    with pytest.raises(SourceError, match="expected pair, source, target"):
        gathered(tmp_path, rows, bad=2)


@pytest.mark.parametrize(
    ("rows", "only", "message"),
    [
        ([], None, "expected translations, found none in"),
        ([], ["de"], r"found none of \['de'\]"),
        (ROWS, ["de", "nl"], r"found none of \['nl'\] .* which have \['de', 'en', 'fr'\]"),
    ],
)
def test_nothing_to_write_is_refused(tmp_path, rows, only, message):
    with pytest.raises(SourceError, match=message):
        gathered(tmp_path, rows, only=only)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, None, 0), "most: expected 1 or more, found 0"),
        ((1, [], 0), "expected codes of different languages, or None for all, found"),
        ((1, ["de", "deu"], 0), "expected codes of different languages"),
        ((1, ["english"], 0), "expected a code of BCP 47"),
        ((1, None, -1), "max_bad_records"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        sentence_passages.check(*settings)
