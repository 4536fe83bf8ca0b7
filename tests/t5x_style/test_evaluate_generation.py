"""Texts that were written, against references: what libraries say, baselines, bad files, by gin."""

import json
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from gin import config as gin_config
from rouge_score import rouge_scorer

from t5x_style import evaluate_generation
from t5x_style.configuration import gin_checks
from t5x_style.evaluation import generation
from t5x_style.workflow import fingerprints, stage_runner
from tests.kits import chunk_stores

REPOSITORY = Path(__file__).resolve().parents[2]
GERMAN = {"a": "Der Hund schläft im Haus .", "b": "Die Katze sitzt auf dem Dach !"}
ENGLISH = {"a": "The dog sleeps in the house.", "b": "The cat sits on the roof!"}
CHINESE = {"a": "狗在房子里睡觉。", "b": "猫坐在屋顶上！"}
WRITTEN = {"a": "The dog sleeps in a house.", "b": "A cat on the roof!"}
WRITTEN_CHINESE = {"a": "狗在房子睡觉", "b": "猫在屋 顶上"}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def documents(folder, **texts):
    """documents.jsonl with these documents: language -> name -> text."""
    rows = [
        {"id": f"{language}/news/{name}", "title": "", "text": text}
        for language, own in texts.items()
        for name, text in own.items()
    ]
    return write_lines(folder / "documents.jsonl", rows)


def line(name, text, source="de", target="en"):
    about = {"id": f"{source}/news/{name}", "name": f"news/{name}", "from": source, "to": target}
    return about | {"text": text, "score": -1.0}


def written(folder, name="written", **targets):
    """written.jsonl of German documents: target -> name -> text."""
    rows = [
        line(one, text, target=target)
        for target, own in targets.items()
        for one, text in own.items()
    ]
    return write_lines(folder / f"{name}.jsonl", rows)


def evaluate(folder, files, references, of=None, baseline="copy"):
    arguments = (files, references, of or references, baseline, str(folder / "out"))
    outputs = evaluate_generation.evaluate_generation(*arguments)
    assert outputs == {"metrics": "metrics.json", "page": "generation.md"}
    page = (folder / "out/generation.md").read_text()
    return json.loads((folder / "out/metrics.json").read_text()), page


# --- what is measured -----------------------------------------------------------------------------


def test_bleu_and_chrf_are_sacrebleus(tmp_path, capsys):
    given = documents(tmp_path, de=GERMAN, en=ENGLISH, zh=CHINESE)
    file = written(tmp_path, en=WRITTEN, zh=WRITTEN_CHINESE)
    report, page = evaluate(tmp_path, {"model": file}, given)
    assert list(report["pairs"]) == ["de_en", "de_zh"]
    for pair, own, right, tokens in (
        ("de_en", WRITTEN, ENGLISH, "13a"),
        ("de_zh", WRITTEN_CHINESE, CHINESE, "zh"),
    ):
        one = report["pairs"][pair]
        assert (one["texts"], one["tokenisation"]) == (2, tokens)
        for name, texts in (("model", own), ("copy", GERMAN)):
            sides = (list(texts.values()), [list(right.values())])
            bleu, chrf = (
                sacrebleu.corpus_bleu(*sides, tokenize=tokens),
                sacrebleu.corpus_chrf(*sides),
            )
            found = one["systems"][name]
            assert found["BLEU"] == pytest.approx(bleu.score)
            assert found["chrF"] == pytest.approx(chrf.score)
            assert found["length"] == pytest.approx(bleu.sys_len / bleu.ref_len)
        assert f"tok:{tokens}|" in one["signatures"]["BLEU"]
        assert one["signatures"]["BLEU"] in page and one["signatures"]["chrF"] in page
    values = [report["pairs"][pair]["systems"]["model"]["BLEU"] for pair in ("de_en", "de_zh")]
    assert report["mean"]["model"]["BLEU"] == pytest.approx(np.mean(values))
    assert f"| mean | 4 | {report['mean']['copy']['BLEU']:.2f} | {np.mean(values):.2f} |" in page
    assert "de_zh" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        *(("zh", "zh"), ("yue", "zh"), ("zh-Hant", "zh"), ("ja", "char"), ("th", "char")),
        *(("km", "char"), ("lo", "char"), ("my", "char"), ("bo", "char")),
        *(("de", "13a"), ("ko", "13a"), ("hi", "13a"), ("ar", "13a")),
    ],
)
def test_tokens_are_of_the_languages_script(language, expected):
    assert generation.tokenisation(language) == expected


def test_words_of_any_script():
    said = {
        "Überall 3 Mäuse!": ["überall", "3", "mäuse"],
        "Собака спит.": ["собака", "спит"],
        "कुत्ता सोता": ["कुत्ता", "सोता"],
        "PC東京1 コーヒー。": ["pc", "東", "京", "1", "コ", "ー", "ヒ", "ー"],
        "ที่นี่": ["ที่", "นี่"],
        "개가 잔다": ["개가", "잔다"],
    }
    assert {text: generation.Words().tokenize(text) for text in said} == said


@pytest.mark.parametrize(
    ("text", "reference", "language", "expected"),
    [
        ("собака спит дома", "собака крепко спит", "ru", 2 / 3),  # 2 of 3 words, both ways
        ("狗睡觉", "狗在睡", "zh", 2 / 3),
        ("el perro", "el perro duerme hoy", "es", 2 * 1 * 0.5 / 1.5),
        ("дом", "собака", "ru", 0.0),
    ],
)
def test_the_longest_common_subsequence_of_any_script(text, reference, language, expected):
    values, _ = generation.measure([text], [reference], language)
    assert values["ROUGE-L"] == pytest.approx(100 * expected)


def test_latin_words_are_scored_as_rouge_scores_them():
    sides = (list(ENGLISH.values()), list(WRITTEN.values()))
    scorer = rouge_scorer.RougeScorer(["rougeL"])
    each = [scorer.score(*pair)["rougeL"].fmeasure for pair in zip(*sides, strict=True)]
    values, _ = generation.measure(sides[1], sides[0], "en")
    assert values["ROUGE-L"] == pytest.approx(100 * np.mean(each))


def test_summaries_beside_the_first_words_of_their_documents(tmp_path):
    long = {"a": "eins zwei drei vier fünf sechs", "b": "sieben, acht neun zehn elf"}
    given = documents(tmp_path, de=long)
    summaries = [
        {"id": "de/news/a", "language": "de", "text": "eins drei"},
        {"name": "news/b", "language": "de", "text": "acht neun elf zwölf"},
    ]
    references = write_lines(tmp_path / "summaries.jsonl", summaries)
    file = written(tmp_path, de={"a": "eins drei", "b": "acht"})
    report, _ = evaluate(tmp_path, {"model": file}, references, given, "lead")
    systems = report["pairs"]["de_de"]["systems"]
    assert generation.lead(list(long.values()), ["eins drei", "acht neun elf zwölf"]) == [
        "eins zwei drei",
        "sieben, acht neun",
    ]
    assert systems["model"]["ROUGE-L"] == pytest.approx(100 * (1 + 2 * 1 * 0.25 / 1.25) / 2)
    assert systems["lead"]["ROUGE-L"] == pytest.approx(100 * (0.8 + 2 * 2 / 3 * 0.5 / (7 / 6)) / 2)


def test_a_title_is_the_beginning_of_its_document(tmp_path):
    rows = [{"id": "en/news/a", "title": "Dogs", "text": "They sleep."}]
    file = write_lines(tmp_path / "d.jsonl", rows)
    assert generation.read_texts(file) == {("news/a", "en"): "Dogs They sleep."}


# --- bad files ------------------------------------------------------------------------------------


def bad(folder, rows, **changes):
    given = documents(folder, de=GERMAN, en=ENGLISH)
    file = write_lines(folder / "bad.jsonl", rows)
    settings = {"files": {"model": file}, "references": given} | changes
    return evaluate(folder, **settings)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"bad.jsonl: expected texts that were written, found no line"),
        ([line("c", "x")], r"'de/news/c', written in 'en': expected a reference, 'news/c' in 'en'"),
        ([line("a", "x", target="fr")], "expected a reference, 'news/a' in 'fr'"),
        ([line("a", "x", target="xx9")], r"bad.jsonl:1: language 'xx9': expected a code"),
        ([line("a", "x"), line("a", "y")], r"bad.jsonl:2: 'de/news/a' was already written in 'en'"),
        ([{"id": "de/news/a"}], r"bad.jsonl:1: expected 'name', a text, found None"),
        ([["a"]], r"bad.jsonl:1: expected a JSON object, found"),
    ],
)
def test_bad_lines_are_named(tmp_path, rows, message):
    with pytest.raises(generation.GenerationError, match=message):
        bad(tmp_path, rows)


def test_bad_references_and_systems_are_named(tmp_path):
    rows = [line("a", "x"), line("b", "y")]
    empty = write_lines(tmp_path / "empty.jsonl", [])
    with pytest.raises(generation.GenerationError, match="empty.jsonl: expected texts to compare"):
        bad(tmp_path, rows, references=empty)
    twice = [{"id": "en/news/a", "text": "x"}, {"name": "news/a", "language": "en", "text": "y"}]
    twice = write_lines(tmp_path / "twice.jsonl", twice)
    with pytest.raises(generation.GenerationError, match=r"twice.jsonl:2: 'news/a' in 'en' was"):
        bad(tmp_path, rows, references=twice)
    english = write_lines(tmp_path / "e.jsonl", [{"id": "en/news/a", "text": "x"}])
    with pytest.raises(generation.GenerationError, match="expected a document, 'news/a' in 'de'"):
        bad(tmp_path, rows[:1], of=english)
    for name in ("best", "model"):
        with pytest.raises(generation.GenerationError, match="expected one of"):
            bad(tmp_path, rows, baseline=name)
    (tmp_path / "cut.jsonl").write_text('{"id": "de/ne')
    with pytest.raises(generation.GenerationError, match=r"cut.jsonl:1: expected a JSON object"):
        bad(tmp_path, rows, files={"model": str(tmp_path / "cut.jsonl")})
    fewer = written(tmp_path, "fewer", en={"a": "x"})
    whole = written(tmp_path, "whole", en=WRITTEN)
    with pytest.raises(generation.GenerationError, match="fewer: expected the texts that 'whole'"):
        bad(tmp_path, rows, files={"whole": whole, "fewer": fewer})


# --- by gin ---------------------------------------------------------------------------------------


def run(entry, files, **macros):
    """A stage, as its command runs it."""
    gin_config._set_config_is_locked(False)
    gin_config.clear_config()
    try:
        named = tuple((name.replace("__", "."), str(value)) for name, value in macros.items())
        files = tuple(f"{REPOSITORY}/gin_configs/{file}.gin" for file in files)
        return stage_runner.run_stage(gin_checks.Flags(files, named, (str(REPOSITORY),)), entry)
    finally:
        gin_config._set_config_is_locked(False)
        gin_config.clear_config()


def test_an_untrained_model_from_documents_to_metrics(tmp_path):
    texts = {
        f"{language}/news/{name}": " ".join([text] * 3)
        for language, own in (("de", GERMAN), ("en", ENGLISH))
        for name, text in own.items()
    }
    tokenizer = chunk_stores.make_tokenizer(tmp_path / "t", texts, ["de", "en"])
    store = chunk_stores.make_store(tmp_path / "s", texts, tokenizer)
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "mlp": 16, "max_positions": 16}
    files = ["models/marge_tiny", "objectives/marge", "runs/generation/untrained"]
    code = run(
        "t5x_style.generate.generate", files, MODEL_DIR=tmp_path / "w", TOKENIZER=tokenizer,
        READ_CHUNKS=store, CHUNK_LENGTH=16, ROWS=8, ROW_LENGTH=32, SEGMENTS=2, RELEVANCE_LAYERS=1,
        GENERATED_LENGTH=8, TRANSLATED=[("de", "en")], BEAMS=2,
        **{f"bert__BertConfig__{name}": size for name, size in sizes.items()},
    )  # fmt: skip
    assert code == 0
    file = str(tmp_path / "w/written.jsonl")
    code = run(
        "t5x_style.evaluate_generation.evaluate_generation", ["runs/evaluation/generation"],
        MODEL_DIR=tmp_path / "e", DOCUMENTS=tmp_path / "s/documents.jsonl",
        WRITTEN={"untrained": file},
    )  # fmt: skip
    assert code == 0
    report = json.loads((tmp_path / "e/metrics.json").read_text())
    assert report["pairs"]["de_en"]["texts"] == 2
    assert report["mean"]["untrained"]["BLEU"] < 20
    # Another name of a system is another input.
    named = [fingerprints.of_inputs({"WRITTEN": {name: file}}).flat() for name in "ab"]
    assert [list(one) for one in named] == [["WRITTEN['a']"], ["WRITTEN['b']"]]
    assert named[0]["WRITTEN['a']"].endswith("/written.jsonl")  # of the version, not of the link
