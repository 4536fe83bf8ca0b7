"""LaBSE's recipe from bitext to tables, by the real command, on toy languages."""

import json

import pytest

from tests import process_group

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
    """A file like data/bitext.gin, of a folder."""
    held = f"[@held/bitext_tables.Keyed()]\nheld/bitext_tables.Keyed.folder = '{held_out}'"
    rules = "translations.gather.rules = None\n" if held_out is None else ""
    path = folder.parent / f"{name}.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "from input_pipelines import bitext_tables\n"
        "from input_pipelines import translations\n"
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
    for language in WORDS:
        write_questions(folder, language)
    path = folder / f"{what}.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "from input_pipelines import parallel_questions\n"
        "from t5x_style import stage\n"
        f"FOLDER = '{folder}'\n"
        "KIND = 'text'\n"
        "SOURCE = @parallel_questions.ParallelQuestions()\n"
        "stage.run.inputs = [%FOLDER, %TOKENIZER]\n"
        "parallel_questions.ParallelQuestions.folder = %FOLDER\n"
        "parallel_questions.ParallelQuestions.name = 'questions.{language}.jsonl'\n"
        f"parallel_questions.ParallelQuestions.languages = {list(WORDS)}\n"
        f"parallel_questions.ParallelQuestions.what = '{what}'\n"
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


@pytest.mark.slow
def test_the_recipe_goes_from_bitext_to_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 900)
    test = range(0, 1000, 10)
    write_bitext(tmp_path / "test", test)
    write_bitext(tmp_path / "train", [n for n in range(1000) if n % 10 or n % 3])
    train = gin_of(tmp_path / "train", "toy", tmp_path / "test")
    tested = gin_of(tmp_path / "test", "toy_test")
    run = tmp_path / "run"
    settings = {"RUN_DIR": str(run), "BITEXT": str(train), "TATOEBA_BITEXT": str(tested)}
    settings |= {"NTREX_BITEXT": str(tested), "VOCABULARY_SIZE": 400, "BUDGET": 0.02, "PAIRS": 32}
    settings |= {"SIDE_ROWS": 8, "DEVELOPMENT_SHARE": 0.1}
    settings |= {"QUESTIONS": gin_of_questions(tmp_path, "questions")}
    settings |= {"PARAGRAPHS": gin_of_questions(tmp_path, "sentences")}
    settings |= {"STS_FILE": write_judged(tmp_path)}
    command = ["launch.recipe", "--gin_file=gin_configs/recipes/labse_tiny.gin"]
    command += [f"--gin.{name}={value!r}" for name, value in settings.items()]
    ((code, output),) = process_group.finish([process_group.start(command)])
    assert code == 0, output
    gathered = json.loads((run / "gather/report.json").read_text())
    assert gathered["dropped"]["held_out"] > 0 and gathered["development"] > 50
    known = json.loads((run / "vocabulary/vocabulary_report.json").read_text())["languages"]
    assert set(known) == set(WORDS)
    report = json.loads((run / "evaluation/metrics.json").read_text())["sets"]
    for name in ("tatoeba", "ntrex"):
        assert report[name]["facts"] == {"translations": 3 * len(test)}
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
    assert "| de |" in (run / "languages.md").read_text()
    assert (run / "evaluation/languages_labse_ntrex.png").is_file()
    assert "[labse] took over weights" in output
