"""Documents of many languages in one file: what is kept, what is dropped, what stops."""

import json

import pytest

from input_pipelines.gather import documents
from input_pipelines.sources import languages
from input_pipelines.sources.text_sources import SourceError

TEXT = {
    "de": "Der Hund läuft durch den großen Wald und bellt die Eule an, die auf einem Ast sitzt. ",
    "ru": "Собака бежит по большому лесу и лает на сову, которая сидит на ветке старого дерева. ",
    "en": "The dog runs through the large wood and barks at the owl that sits on an old branch. ",
}
RULES = documents.DocumentRules(min_characters=40, min_script=0.5, min_documents=1)


def _file(tmp_path, rows, name="d.jsonl"):
    path = tmp_path / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def _row(language, topic, text=None, **more):
    told = TEXT[language[:2]] + topic if text is None else text
    return {"lang": language, "topic": topic, "title": "", "text": told, **more}


def _gather(tmp_path, rows, rules=RULES, share=0.0, bad=0, **settings):
    files = [documents.DocumentFiles([_file(tmp_path, rows)], "all", **settings)]
    documents.gather(str(tmp_path / "out"), files, rules, share, bad)
    read = {}
    for name in (documents.DOCUMENTS, documents.DEVELOPMENT):
        lines = (tmp_path / "out" / name).read_text().splitlines()
        read[name] = {row["id"]: row for row in map(json.loads, lines)}
    return read, json.loads((tmp_path / "out/report.json").read_text())


def test_ids_say_language_shard_and_name_and_codes_are_canonical(tmp_path):
    read, report = _gather(tmp_path, [_row("deu", "a/b"), _row("ru", "a/b")])
    assert list(read[documents.DOCUMENTS]) == ["de/all/a/b", "ru/all/a/b"]
    assert documents.parts_of("de/all/a/b") == ("de", "all", "a/b")
    assert json.loads((tmp_path / "out/languages.json").read_text()) == ["de", "ru"]
    assert report["shards"] == {"all": 2}


def test_what_is_dropped_is_counted_by_its_reason(tmp_path):
    rows = [
        _row("de", "kept"),
        _row("de", "short", "Kurz."),
        _row("ru", "latin", TEXT["de"] + "x"),
        _row("de", "again", TEXT["de"] + "kept"),
        _row("en", "alone"),
        _row("de", "other"),
    ]
    rules = documents.DocumentRules(40, 0.5, min_documents=2)
    read, report = _gather(tmp_path, rows, rules)
    assert list(read[documents.DOCUMENTS]) == ["de/all/kept", "de/all/other"]
    assert report["dropped"] == {
        "repeated": 1,
        "too_few_of_the_language": 1,
        "too_short": 1,
        "wrong_script": 1,
    }


def test_a_name_is_in_development_in_all_of_its_languages_or_in_none(tmp_path):
    rows = [_row(code, f"n{n}") for code in ("de", "en", "ru") for n in range(40)]
    read, report = _gather(tmp_path, rows, share=0.3)
    kept = [{documents.parts_of(one)[2] for one in part} for part in read.values()]
    assert not kept[0] & kept[1]
    assert 5 <= len(kept[1]) <= 20
    assert len(read[documents.DEVELOPMENT]) == 3 * len(kept[1])
    assert sum(sum(counts.values()) for counts in report["languages"].values()) == 120


def test_shards_by_a_field_and_codes_of_ones_own(tmp_path):
    rows = [
        _row("de", "a", date="2020/03"),
        _row("xx-mine", "b", TEXT["de"] + "b", date="2020/04"),
        _row("out", "c", TEXT["de"] + "c", date="2020/04"),
    ]
    codes = {"xx-mine": "de", "out": ""}
    read, _ = _gather(tmp_path, rows, shard_field="date", codes=codes)
    assert list(read[documents.DOCUMENTS]) == ["de/all-2020_03/a", "de/all-2020_04/b"]


def test_a_shard_may_be_a_number_or_a_title_and_a_name_may_be_the_line(tmp_path):
    rows = [_row("de", "a", links_to="New York "), _row("de", "b", links_to=1990)]
    read, _ = _gather(tmp_path, rows, shard_field="links_to")
    assert list(read[documents.DOCUMENTS]) == ["de/all-New_York/a", "de/all-1990/b"]
    for row in rows:
        del row["topic"]
    read, _ = _gather(tmp_path, rows, shard_field="links_to", name_field="")
    names = [documents.parts_of(one)[2] for one in read[documents.DOCUMENTS]]
    assert names == [f"d.jsonl:{line}" for line in (1, 2)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{not json", "not_json"),
        (_row("de", " "), "bad_id"),
        (_row("de", "x") | {"topic": True}, "wrong_type"),
        ({"topic": "x", "title": "", "text": "y"}, "missing_field"),
        (_row("de", "x", 7), "wrong_type"),
        (_row("zz-nothing-x-y-z-", "x", TEXT["de"]), "unknown_language"),
        (_row("de", "a"), "duplicate_id"),
    ],
)
def test_malformed_lines_stop_unless_they_are_allowed(tmp_path, bad, reason):
    rows = [_row("de", "a"), _row("de", "b"), bad]
    with pytest.raises(SourceError, match=r"d.jsonl:3"):
        _gather(tmp_path, rows)
    read, report = _gather(tmp_path, rows, bad=1)
    assert len(read[documents.DOCUMENTS]) == 2
    assert report["malformed"] == {reason: 1} and report["examples"]


def test_nothing_left_is_an_error_that_says_why(tmp_path):
    with pytest.raises(SourceError, match=r"no document is left of \['all'\]; .*'too_short': 1"):
        _gather(tmp_path, [_row("de", "a", "Kurz.")])


@pytest.mark.parametrize("name", ["de", "de/all", "de//x", "/all/x", ""])
def test_ids_of_another_form_are_refused(name):
    with pytest.raises(ValueError, match="expected an id as 'de/2020-03/NAME'"):
        documents.parts_of(name)


def test_settings_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected 0 to below 1, found 1.0"):
        _gather(tmp_path, [_row("de", "a")], share=1.0)
    for settings in ({"min_characters": 0}, {"min_script": 1.5}, {"min_documents": 0}):
        with pytest.raises(ValueError, match="DocumentRules: expected"):
            documents.DocumentRules(**settings)


def test_languages_are_known_in_whatever_script_or_country():
    known = languages.Among(["de", "sr-Latn"])
    assert known("de-CH") and known("sr") and known("de_sr") and not known("de_fr")
