"""LaBSE's recipe from bitext to tables, by the real command, on toy languages."""

import json

import pytest

from tests.kits import process_group

WORDS = {  # what is said -> how each language says it
    "en": "dog cat house tree river road bread night child book".split(),
    "de": "hund katze haus baum fluss weg brot nacht kind buch".split(),
    "fr": "chien chat maison arbre fleuve route pain nuit enfant livre".split(),
    "ru": "пёс кот дом дерево река дорога хлеб ночь дитя книга".split(),
}


def sentence(language, number):
    """Three words that say a number below 1,000."""
    return " ".join(WORDS[language][number // base % 10] for base in (1, 10, 100))


def write_bitext(folder, numbers):
    folder.mkdir(parents=True)
    for language in WORDS:
        lines = (f"{n // 100}\t{n}\t{sentence(language, n)}\n" for n in numbers)
        (folder / f"{language}.tsv").write_text("".join(lines), encoding="utf-8")


def gin_of(folder, name, held_out=None):
    """A file like data/translations/bitext.gin, of a folder."""
    held = f"[@held/bitext_tables.Keyed()]\nheld/bitext_tables.Keyed.folder = '{held_out}'"
    rules = "translations.gather.rules = None\n" if held_out is None else ""
    path = folder.parent / f"{name}.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "from input_pipelines.sources import bitext_tables\n"
        "from input_pipelines.gather import translations\n"
        "from t5x_style import stage\n"
        f"FOLDER = '{folder}'\n"
        "BITEXTS = [@own/bitext_tables.Keyed()]\n"
        f"HELD_OUT_BITEXTS = {'[]' if held_out is None else held}\n"
        "stage.run.inputs = [%FOLDER]\n"
        f"{rules}"
        "own/bitext_tables.Keyed.folder = %FOLDER\n"
        f"bitext_tables.Keyed.name = '{name}'\n"
        "bitext_tables.Keyed.pivot = 'en'\n"
    )
    return path


def write_questions(folder, language):
    """SQuAD's form: paragraphs of three sentences, and a question that says one of them."""
    rows = [
        {
            "title": "words",
            "para": number,
            "context": " ".join(f"{sentence(language, 3 * number + n)}." for n in range(3)),
            "qas": [{"id": f"q{number}", "question": sentence(language, 3 * number + 1)}],
        }
        for number in range(20)
    ]
    path = folder / f"questions.{language}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def gin_of_questions(folder, what):
    files = folder / "asked"
    files.mkdir(exist_ok=True)
    for language in WORDS:
        write_questions(files, language)
    path = folder / f"{what}.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "from input_pipelines.sources import xquad\n"
        "from t5x_style import stage\n"
        f"FOLDER = '{files}'\n"
        "KIND = 'text'\n"
        "SOURCE = @xquad.ParallelQuestions()\n"
        "stage.run.inputs = [%FOLDER, %TOKENIZER]\n"
        "xquad.ParallelQuestions.folder = %FOLDER\n"
        "xquad.ParallelQuestions.name = 'questions.{language}.jsonl'\n"
        f"xquad.ParallelQuestions.languages = {list(WORDS)}\n"
        f"xquad.ParallelQuestions.what = '{what}'\n"
    )
    return str(path)


def write_judged(folder):
    """Sentences of which the second says as much of the first's words as the score."""
    path = folder / "sts.tsv"
    said = [WORDS["en"][n : n + 3] for n in range(7)]
    lines = [
        f"{same}\t{' '.join(one)}\t{' '.join([*one[:same], *WORDS['en'][-3 + same :]])}\n"
        for one in said
        for same in range(3)
    ]
    path.write_text("".join(lines))
    return str(path)


def write_bucc(folder):
    """Sentences in German and in English, of which half say the same."""
    folder.mkdir()
    for split, first in (("training", 0), ("test", 500)):
        sides = {"de": range(first, first + 60), "en": range(first + 30, first + 90)}
        for code, numbers in sides.items():
            lines = (f"{code}-{n}\t{sentence(code, n)}\n" for n in numbers)
            (folder / f"de-en.{split}.{code}").write_text("".join(lines))
        gold = (f"de-{n}\ten-{n}\n" for n in range(first + 30, first + 60))
        (folder / f"de-en.{split}.gold").write_text("".join(gold))
    return str(folder)


def launch(name, settings):
    command = ["launch.recipe", f"--gin_file=gin_configs/recipes/{name}.gin"]
    command += [f"--gin.{name}={value!r}" for name, value in settings.items()]
    ((code, output),) = process_group.finish([process_group.start(command)])
    assert code == 0, output
    return output


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Overrides that make a recipe read toy languages."""
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 900)
    test = range(0, 1000, 10)
    write_bitext(tmp_path / "test", test)
    write_bitext(tmp_path / "train", [n for n in range(1000) if n % 10 or n % 3])
    tested = str(gin_of(tmp_path / "test", "toy_test"))
    return {
        "RUN_DIR": str(tmp_path / "run"),
        "BITEXT": str(gin_of(tmp_path / "train", "toy", tmp_path / "test")),
        "TATOEBA_BITEXT": tested,
        "NTREX_BITEXT": tested,
        "XQUAD_QUESTIONS": gin_of_questions(tmp_path, "questions"),
        "XQUAD_PARAGRAPHS": gin_of_questions(tmp_path, "sentences"),
        "STS_FILE": write_judged(tmp_path),
        "VOCABULARY_SIZE": 400,
        "PAIRS": 32,
        "SIDE_ROWS": 8,
        "DEVELOPMENT_SHARE": 0.1,
        "WARMUP_STEPS": 10,
        "MLM_WARMUP_STEPS": 10,
        "LEARNING_RATE": 1e-3,  # the recipe's own is for text, where words are many
    }


@pytest.mark.slow
def test_two_rounds_go_from_bitext_to_tables(tmp_path, toy):
    run, count = tmp_path / "run", 100
    output = launch("labse_filtered", toy | {"MLM_STEPS": 40, "STEPS": 60})
    gathered = json.loads((run / "gather/report.json").read_text())
    assert gathered["dropped"]["held_out"] > 0 and gathered["development"] > 50
    known = json.loads((run / "vocabulary/vocabulary_report.json").read_text())["languages"]
    assert set(known) == set(WORDS)
    filtered = json.loads((run / "filter/report.json").read_text())
    assert filtered["read"] == gathered["translations"]
    assert 0.5 < filtered["kept"] / filtered["read"] <= 0.91
    report = json.loads((run / "evaluation/metrics.json").read_text())["sets"]
    for name in ("tatoeba", "ntrex"):
        assert report[name]["facts"] == {"translations": 3 * count}
        systems = report[name]["systems"]
        assert set(systems) == {"labse", "random", "ngrams"}
        assert set(systems["labse"]["languages"]) == {"de", "fr", "ru"}
    for name in ("tatoeba", "ntrex", "xquad"):
        trained, *others = (
            report[name]["systems"][system]["groups"]["all"]["accuracy"]
            for system in ("labse", "random", "ngrams")
        )
        assert trained > max(others), name
    assert "document_accuracy" in report["ntrex"]["systems"]["labse"]["languages"]["de"]
    assert set(report["xquad"]["systems"]["labse"]["languages"]) == set(WORDS)
    assert report["stsb"]["facts"] == {"pairs": 21}
    assert "zero_shot" not in report["xquad"]["systems"]["labse"]["groups"]
    page = (run / "summary.md").read_text()
    assert "| labse | all |" in page and "| de |" in page and "`eval/dev/accuracy`" in page
    assert (run / "curves.png").is_file() and "| labse_second |" in page
    assert (run / "huggingface/encoder/2_Dense/model.safetensors").is_file()
    assert (run / "evaluation/languages_labse_ntrex.png").is_file()
    assert output.count("imported weights") == len(("labse", "labse_second"))
    mining = {
        "RUN_DIR": str(tmp_path / "mining"),
        "BUCC": write_bucc(tmp_path / "bucc"),
        "BUCC_PAIRS": ["de-en"],
        "LABSE": str(run / "labse_second"),
        "TOKENIZER": str(run / "tokenizer/tokenizer"),
    }
    launch("labse_mining", mining)
    mined = json.loads((tmp_path / "mining/metrics.json").read_text())["sets"]["bucc"]["systems"]
    assert mined["labse"]["languages"]["de"]["f1"] > mined["ngrams"]["languages"]["de"]["f1"]


@pytest.mark.slow
def test_layers_are_stacked_from_stage_to_stage(tmp_path, toy):
    steps = {"QUARTER_STEPS": 20, "HALF_STEPS": 20, "MLM_STEPS": 20, "STEPS": 20}
    output = launch("labse_stacked", toy | steps)
    for stage, layers in (("mlm_quarter", 1), ("mlm_half", 2)):
        assert f"layers = {layers}" in (tmp_path / "run" / stage / "config.gin").read_text()
    assert output.count("imported weights") == len(("mlm_half", "mlm", "labse"))


@pytest.mark.slow
def test_translations_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 900)
    opus = tmp_path / "opus"
    opus.mkdir()
    for code in ("de", "fr"):
        for one in (code, "en"):
            lines = "".join(f"{sentence(one, n)}\n" for n in range(500))
            (opus / f"toy.{code}-en.{one}").write_text(lines, encoding="utf-8")
    settings = {"RUN_DIR": str(tmp_path / "run"), "OPUS": str(opus), "VOCABULARY_SIZE": 400}
    settings |= {"PAIRS": 32, "SIDE_ROWS": 8, "MLM_STEPS": 20, "STEPS": 20, "WARMUP_STEPS": 2}
    output = launch("labse", settings | {"DEVELOPMENT_SHARE": 0.1, "MLM_WARMUP_STEPS": 2})
    assert "eval/dev/accuracy" in (tmp_path / "run/labse/metrics.jsonl").read_text(), output
    assert (tmp_path / "run/huggingface/encoder/modules.json").is_file()
