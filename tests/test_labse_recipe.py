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
        lines = (f"{n}\t{sentence(language, n)}\n" for n in numbers)
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
        assert report[name]["translations"] == 3 * len(test)
        systems = report[name]["systems"]
        assert set(systems) == {"labse", "ngrams"} and set(systems["labse"]["languages"]) == {
            "de", "fr", "ru",
        }  # fmt: skip
    trained, ngrams = (report["tatoeba"]["systems"][name] for name in ("labse", "ngrams"))
    assert trained["groups"]["all"]["accuracy"] > ngrams["groups"]["all"]["accuracy"]
    assert (run / "evaluation/languages_labse_ntrex.png").is_file()
    assert "[labse] took over weights" in output
