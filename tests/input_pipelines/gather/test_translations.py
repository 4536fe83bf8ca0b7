"""Bitext from files to translations.jsonl: what is read, what is dropped and why."""

import gzip
import json

import pytest

from input_pipelines.gather import translations
from input_pipelines.gather.translations import TranslationRules, trained_on
from input_pipelines.sources import languages
from input_pipelines.sources.bitext import LineAligned, MosesFolder, TfdsTranslations
from input_pipelines.sources.bitext_tables import Columns, JsonLines, Keyed, PairFiles
from input_pipelines.sources.text_sources import BadRecords, SourceError
from tests.kits import tfds_kit

RULES = TranslationRules()


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(line + "\n" for line in lines)
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def read(bitext, limit=0):
    bad = BadRecords(limit)
    found = {
        pair: [(one.key, one.source, one.target) for one in bitext.read(pair, bad)]
        for pair in bitext.pairs()
    }
    return found, dict(bad.counts)


def aligned(folder, english, german, name="t"):
    files = write(folder / f"{name}.en", english), write(folder / f"{name}.de", german)
    return LineAligned(name, *files, "eng", "deu")


def gather(folder, *bitexts, held_out=(), rules=RULES, **more):
    folder.mkdir(exist_ok=True)
    translations.gather(str(folder), bitexts, rules, held_out, 0, **more)
    lines = (folder / "translations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], json.loads((folder / "report.json").read_text())


def test_every_kind_of_file_gives_its_translations(tmp_path):
    found, _ = read(aligned(tmp_path, ["one", "two"], ["eins", "zwei"]))
    assert found == {("en", "de"): [("t/1", "one", "eins"), ("t/2", "two", "zwei")]}
    table = write(tmp_path / "t.tsv.gz", ["page\ten\tde\tja", "a\tone\teins\t一", "b\ttwo\t\t二"])
    codes = {"en": "en", "de": "de", "ja": "ja"}
    found, _ = read(Columns("t", table, codes, pivot="en"))
    assert found[("en", "ja")] == [("t/2", "one", "一"), ("t/3", "two", "二")]
    assert found[("en", "de")][1] == ("t/3", "two", "")
    pairs = write(tmp_path / "p.tsv", ["eins\tone"])
    found, _ = read(Columns("p", pairs, {"1": "deu", "2": "eng"}, "eng", header=("1", "2")))
    assert found == {("en", "de"): [("p/1", "one", "eins")]}
    rows = [{"a": "one", "b": "eins"}, {"a": "two"}]
    path = write(tmp_path / "t.jsonl", map(json.dumps, rows))
    found, _ = read(JsonLines("j", path, {"a": "en", "b": "de"}, "de"))
    assert found == {("de", "en"): [("j/1", "eins", "one"), ("j/2", "", "two")]}


def test_files_of_one_language_each_are_joined_by_their_keys(tmp_path):
    write(tmp_path / "eng-web.tsv", ["GEN 1:1\tone", "GEN 1:2\ttwo", "GEN 1:3\tthree"])
    write(tmp_path / "deu.tsv.gz", ["GEN 1:2\tzwei", "GEN 1:1\teins"])
    write(tmp_path / "eng-bbe.tsv", ["GEN 1:1\tother"])
    write(tmp_path / "LANGUAGES.tsv", ["not\tread"])
    codes = {"eng-web": "eng", "eng-bbe": "", "LANGUAGES": ""}
    found, _ = read(Keyed("bible", str(tmp_path), "eng", codes))
    assert found == {
        ("en", "de"): [("bible/GEN 1:2", "two", "zwei"), ("bible/GEN 1:1", "one", "eins")]
    }
    only = Keyed("bible", str(tmp_path), "eng", {"eng-web": "eng"}, only=("deu", "eng-web"))
    assert read(only)[0] == found
    with pytest.raises(SourceError, match=r"both .*eng-bbe.tsv and .*eng-web.tsv are 'en'"):
        Keyed("b", str(tmp_path), "eng", codes | {"eng-bbe": "en"}).pairs()


def test_files_of_one_pair_each(tmp_path):
    write(tmp_path / "deu-eng.tsv.gz", ["eins\tone", "zwei\ttwo\textra"])
    write(tmp_path / "ber-eng.tsv", ["yiwen\tone"])
    found, bad = read(PairFiles("tatoeba", str(tmp_path), {"ber": "kab"}), limit=1)
    assert found[("de", "en")] == [("tatoeba/de_en/1", "eins", "one")] and bad == {"columns": 1}
    assert found[("kab", "en")] == [("tatoeba/kab_en/1", "yiwen", "one")]


def test_a_folder_of_opus_has_every_pair_and_corpus(tmp_path):
    for corpus, said in (("Books.v1", "book"), ("News", "news")):
        write(tmp_path / f"{corpus}.de-en.de", [f"{said} eins", f"{said} zwei"])
        write(tmp_path / f"{corpus}.de-en.en", [f"{said} one", f"{said} two"])
    write(tmp_path / "News.en-pt_br.en.gz", ["one"])
    write(tmp_path / "News.en-pt_br.pt_br.gz", ["um"])
    write(tmp_path / "README", ["no text"])
    found, _ = read(MosesFolder("opus", str(tmp_path)))
    assert list(found) == [("de", "en"), ("en", "pt-BR")]
    assert [key for key, _, _ in found["de", "en"]] == [
        *(f"opus/Books.v1.de-en/{n}" for n in (1, 2)),
        *(f"opus/News.de-en/{n}" for n in (1, 2)),
    ]
    assert found["en", "pt-BR"] == [("opus/News.en-pt_br/1", "one", "um")]


def test_a_folder_of_opus_without_a_side_or_without_anything_is_refused(tmp_path):
    with pytest.raises(SourceError, match="expected files such as CORPUS.de-en.de.*found nothing"):
        MosesFolder("opus", str(tmp_path / "none")).pairs()
    write(tmp_path / "News.de-en.de", ["eins"])
    with pytest.raises(SourceError, match="expected News.de-en.en next to News.de-en.de"):
        MosesFolder("opus", str(tmp_path)).pairs()
    write(tmp_path / "News.de-en.en", ["one", "two"])
    with pytest.raises(SourceError, match="found 1 in .*de-en.de and 2 in .*de-en.en"):
        read(MosesFolder("opus", str(tmp_path)))
    write(tmp_path / "News.de-xx.de", ["eins"])
    write(tmp_path / "News.de-xx.xx", ["one"])
    with pytest.raises(languages.LanguageError, match="'xx'"):
        MosesFolder("opus", str(tmp_path)).pairs()


def test_sentences_name_their_documents(tmp_path):
    sides = write(tmp_path / "t.en", ["one", "two"]), write(tmp_path / "t.fr", ["un", "deux"])
    names = write(tmp_path / "t.ids", ["a/1.xml", "b/2.xml"])
    found, _ = read(LineAligned("un", *sides, "en", "fr", document_file=names))
    assert [key for key, _, _ in found["en", "fr"]] == ["un/a/1.xml/1", "un/b/2.xml/2"]
    short = write(tmp_path / "short.ids", ["a/1.xml"])
    with pytest.raises(SourceError, match=r"found 2 in .* and 1 in .*short.ids"):
        read(LineAligned("un", *sides, "en", "fr", document_file=short))


def test_translations_of_tfds_are_named_by_their_languages(tmp_path):
    import tensorflow_datasets as tfds

    features = {code: tfds.features.Text() for code in ("de", "en")}
    rows = [{"de": "eins", "en": "one"}, {"de": "zwei", "en": "two"}]
    folder = tfds_kit.write(tmp_path, "tiny_translate", features, rows)
    bitext = TfdsTranslations(str(folder), "train", "de", "en")
    found, _ = read(bitext)
    assert [(source, target) for _, source, target in found["de", "en"]] == [
        ("eins", "one"), ("zwei", "two"),
    ]  # fmt: skip
    kept, _ = gather(tmp_path / "out", bitext, pivot="en")
    assert [(row["source"], row["target"]) for row in kept] == [("one", "eins"), ("two", "zwei")]
    with pytest.raises(SourceError, match="no field 'fr'"):
        read(TfdsTranslations(str(folder), "train", "de", "fr"))


def test_unequal_line_counts_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"found 2 in .*t.en and 1 in .*t.de"):
        read(aligned(tmp_path, ["one", "two"], ["eins"]))


def test_a_malformed_line_takes_its_translation_along(tmp_path):
    bitext = aligned(tmp_path, ["one", "x" * 200, "three"], ["eins", "zwei", "drei"])
    short = LineAligned("t", bitext.source_file, bitext.target_file, "en", "de", max_line_bytes=100)
    found, bad = read(short, limit=1)
    assert found[("en", "de")] == [("t/1", "one", "eins"), ("t/3", "three", "drei")]
    assert bad == {"line_too_long": 1}


def test_an_unknown_language_is_refused(tmp_path):
    with pytest.raises(languages.LanguageError, match="'xx'"):
        LineAligned("t", "a", "b", "en", "xx").pairs()
    with pytest.raises(SourceError, match="which are one"):
        LineAligned("t", "a", "b", "en", "eng").pairs()


def test_what_breaks_a_rule_is_dropped_counted_and_quoted(tmp_path):
    english = ["fine", "", "same", "long", "Cyrillic", "fine", "tested", "  spaced   out "]
    german = ["gut", "leer", "same", "x" * 50, "Привет", "gut", "anders", "mit Platz"]
    test = aligned(tmp_path, ["tested"], ["geprüft"], name="test")
    rows, report = gather(tmp_path / "out", aligned(tmp_path, english, german), held_out=[test])
    assert [(row["source"], row["target"]) for row in rows] == [
        ("fine", "gut"), ("spaced out", "mit Platz"),
    ]  # fmt: skip
    assert rows[0]["id"] == "en_de/t/1" and rows[0]["pair"] == ["en", "de"]
    dropped = ["empty_side", "held_out", "length_ratio", "repeated", "same_on_both_sides"]
    assert report["dropped"] == dict.fromkeys([*dropped, "wrong_script"], 1)
    (quoted,) = report["pairs"]["en_de"]["examples"]["wrong_script"]
    assert quoted.endswith("t.en:5: 'Cyrillic' | 'Привет'")


def test_a_test_set_is_kept_as_it_stands(tmp_path):
    english, german = ["OK", "fine", "fine", "Привет", "x"], ["OK", "gut", "gut", "hallo", ""]
    rows, report = gather(tmp_path / "out", aligned(tmp_path, english, german), rules=None)
    assert [row["source"] for row in rows] == english[:4]
    assert report["dropped"] == {"empty_side": 1}


def test_a_language_in_another_script_than_its_own_is_told(tmp_path, caplog):
    greek = write(tmp_path / "t.grc", ["Βίβλος γενέσεως", "Ἀβραὰμ ἐγέννησεν"])
    english = write(tmp_path / "t.en", ["The book", "Abraham begat"])
    with pytest.raises(SourceError, match="none is left; 0 develop, dropped: {'wrong_script': 2}"):
        gather(tmp_path / "out", LineAligned("t", english, greek, "en", "grc"))
    assert "en_grc: 2 of 2 translations are not in the scripts ['Latn', 'Cprt']" in caplog.text
    rows, _ = gather(tmp_path / "right", LineAligned("t", english, greek, "en", "grc-Grek"))
    assert len(rows) == 2


def test_what_was_trained_on_is_told_by_language(tmp_path):
    bitext = aligned(tmp_path, ["fine", "good"], ["gut", "schön"])
    gather(tmp_path / "out", bitext)
    known = trained_on(str(tmp_path / "out/report.json"))
    assert known("de") and known("de-AT") and known("de_en")
    assert not known("fr") and not known("de_fr")


def test_the_pivot_is_the_source_of_every_pair(tmp_path):
    write(tmp_path / "deu-eng.tsv", [f"Satz {n}\tsentence {n}" for n in range(100)])
    write(tmp_path / "fra-eng.tsv", [f"phrase {n}\tsentence {n}" for n in range(100)])
    bitext = PairFiles("p", str(tmp_path))
    rows, report = gather(tmp_path / "out", bitext, pivot="eng", development_share=0.2)
    assert {tuple(row["pair"]) for row in rows} == {("en", "de"), ("en", "fr")}
    developing = map(json.loads, (tmp_path / "out/development.jsonl").read_text().splitlines())
    assert not {row["source"] for row in developing} & {row["source"] for row in rows}
    assert report["development"] > 10


def test_what_holds_nothing_out_is_refused_and_malformed_lines_of_it_count(tmp_path):
    own = aligned(tmp_path, ["one", "two"], ["eins", "zwei"])
    write(tmp_path / "held/deu-eng.tsv", ["eins\tone\tCC-BY", "zwei\ttwo"])
    held = PairFiles("held", str(tmp_path / "held"))
    with pytest.raises(SourceError, match="1 malformed records, and max_bad_records=0"):
        gather(tmp_path / "out", own, held_out=[held])
    write(tmp_path / "empty/deu-eng.tsv", [])
    with pytest.raises(SourceError, match="empty has no sentence to hold out"):
        gather(tmp_path / "out", own, held_out=[PairFiles("empty", str(tmp_path / "empty"))])


def test_a_malformed_line_counts_once_however_often_it_is_read(tmp_path):
    write(tmp_path / "k/eng.tsv", ["1\tone", "no key", "2\ttwo"])
    for code in ("deu", "fra", "spa"):
        write(tmp_path / f"k/{code}.tsv", ["1\ta", "2\tb"])
    _, bad = read(Keyed("k", str(tmp_path / "k"), "en"), limit=1)
    assert bad == {"columns": 1}


def test_what_means_two_things_or_nothing_is_refused(tmp_path):
    write(tmp_path / "p/cmn-eng.tsv", ["a\tb"])
    write(tmp_path / "p/zho-eng.tsv", ["a\tb"])
    with pytest.raises(SourceError, match=r"both .*cmn-eng.tsv and .*zho-eng.tsv are 'zh_en'"):
        PairFiles("p", str(tmp_path / "p")).pairs()
    with pytest.raises(SourceError, match=r"expected tables named \['jpn'\]"):
        PairFiles("p", str(tmp_path / "p"), {"jpn": "ja", "zho": ""}).pairs()
    with pytest.raises(SourceError, match="each once"):
        Columns("c", "x.tsv", {"en": "en", "pt": "pt", "pt2": "por"}, "en").pairs()
    own = aligned(tmp_path, ["one", "two"], ["eins", "zwei"])
    with pytest.raises(ValueError, match="distinct names"):
        gather(tmp_path / "out", own, own)
    with pytest.raises(ValueError, match="development_share: expected 0 to below 1"):
        gather(tmp_path / "out", own, development_share=2.0)


def test_damaged_input_is_told_with_its_place(tmp_path):
    whole = write(tmp_path / "t.en.gz", ["one"] * 1000)
    cut = tmp_path / "cut.gz"
    cut.write_bytes((tmp_path / "t.en.gz").read_bytes()[:-12])
    with pytest.raises(SourceError, match=r"cut.gz: the gzip data is damaged"):
        read(LineAligned("t", str(cut), whole, "en", "de"))
    path = write(tmp_path / "t.jsonl", ['{"a": "x \\ud83d", "b": "gut"}', '{"a": "y", "b": "z"}'])
    found, bad = read(JsonLines("j", path, {"a": "en", "b": "de"}, "en"), limit=1)
    assert sum(bad.values()) == 1 and found[("en", "de")] == [("j/2", "y", "z")]


def test_what_develops_is_a_share_of_the_sources_in_all_languages(tmp_path):
    english = [f"sentence {n}" for n in range(200)]
    german = aligned(tmp_path, english, [f"Satz {n}" for n in range(200)])
    french = LineAligned(
        "f", german.source_file, write(tmp_path / "f.fr", map("phrase {}".format, range(200))),
        "en", "fr",
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    given = {"pivot": "en", "development_share": 0.2}
    translations.gather(str(tmp_path / "out"), [german, french], RULES, [], 0, **given)
    sources = {}
    for name in ("translations", "development"):
        rows = map(json.loads, (tmp_path / f"out/{name}.jsonl").read_text().splitlines())
        sources[name] = [(row["pair"][1], row["source"]) for row in rows]
    developing = {source for _, source in sources["development"]}
    assert 20 < len(developing) < 60 and len(sources["development"]) == 2 * len(developing)
    assert not developing & {source for _, source in sources["translations"]}


def test_both_ways_round_are_one_pair(tmp_path):
    turned = LineAligned(
        "u", write(tmp_path / "u.de", ["zwei"]), write(tmp_path / "u.en", ["two"]), "de", "en"
    )
    rows, _ = gather(tmp_path / "out", aligned(tmp_path, ["one"], ["eins"]), turned)
    assert [(row["id"], row["source"]) for row in rows] == [
        ("en_de/t/1", "one"), ("en_de/u/1", "two"),
    ]  # fmt: skip


def test_a_pair_of_one_sentence_is_left_out_and_told(tmp_path, caplog):
    lone = LineAligned(
        "f", write(tmp_path / "f.en", ["one"]), write(tmp_path / "f.fr", ["un"]), "en", "fr"
    )
    rows, report = gather(tmp_path / "out", aligned(tmp_path, ["a", "b"], ["c", "d"]), lone)
    assert {tuple(row["pair"]) for row in rows} == {("en", "de")}
    assert report["pairs"]["en_fr"]["dropped"] == {"too_few_of_the_pair": 1}
    assert "en_fr: left out" in caplog.text
    with pytest.raises(
        SourceError, match="none is left; 0 develop, dropped: {'too_few_of_the_pair': 1}"
    ):
        gather(tmp_path / "none", lone)


@pytest.mark.parametrize("changes", [{"min_characters": 0}, {"max_ratio": 0.5}, {"min_pairs": 0}])
def test_rules_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match="TranslationRules: expected"):
        TranslationRules(**changes)
