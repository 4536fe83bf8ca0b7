"""REALM's recipe from text to answers, by the real command, on a toy collection."""

import json

import pytest

from t5x_style.retrieval import versioned_folder
from tests.kits import process_group

_NAMES = "Ada Berta Carl Dora Emil Frida Gustav Hanna Ivan Julia Kurt Lena Max Nora Otto Pia"
NAMES = _NAMES.split()
PLACES = "Oslo Rome Paris Vienna Lisbon Dublin Athens Prague".split()


def write_collection(folder):
    """Ninety-six documents of three sentences, and for each a question with its answer."""
    documents, questions, qrels = [], [], {"train": [], "dev": [], "test": []}
    for number in range(96):
        name, place = NAMES[number % 16], PLACES[number // 16 + number % 2]
        year = 1800 + number
        text = (
            f"{name} was born in {place} in {year}. The house of {name} stood by the river. "
            f"Later {name} moved to {PLACES[(number + 3) % 8]} and wrote a book there."
        )
        documents.append({"_id": f"d{number}", "title": f"{name} {year}", "text": text})
        asked = f"where was {name} born in {year}?"
        questions.append({"_id": f"q{number}", "text": asked, "answers": [place]})
        split = "dev" if number % 8 == 6 else "test" if number % 8 == 7 else "train"
        qrels[split].append(f"q{number}\td{number}\t1\n")
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", questions)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    for split, lines in qrels.items():
        header = "query-id\tcorpus-id\tscore\n"
        (folder / f"qrels/{split}.tsv").write_text(header + "".join(lines))


@pytest.mark.slow
def test_the_recipe_goes_from_text_to_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 900)
    write_collection(tmp_path / "corpus")
    run = tmp_path / "run"
    command = ["launch.recipe", "--gin_file=gin_configs/recipes/realm_qa.gin", "--gin.BUDGET=0.002"]
    command += [f"--gin.CORPUS='{tmp_path / 'corpus'}'", f"--gin.RUN_DIR='{run}'", "--gin.BEAM=12"]
    ((code, output),) = process_group.finish([process_group.start(command)])
    assert code == 0, output
    metrics = json.loads((run / "answers/metrics.json").read_text())
    assert set(metrics["systems"]) == {"bm25", "orqa", "realm"} and metrics["n"] == 12
    for values in metrics["systems"].values():
        assert set(values) == {"EM", "F1", "Recall@1", "Recall@5", "Recall@20"}
    assert metrics["systems"]["bm25"]["Recall@5"]["value"] > 0.5
    report = json.loads((run / "train_answers/report.json").read_text())
    assert report["questions_with_an_answer"] == report["questions"] == 72
    for source, takers in (("ict", ("realm", "orqa")), ("realm", ("qa",))):
        said = f"imported weights: Checkpoint(folder='{(run / source).resolve()}'"
        assert output.count(said) == len(takers), takers
    asked = ["t5x_style.search", f"--run={run}", "--answer", "-k2", "where was Ada born?"]
    ((code, answers),) = process_group.finish([process_group.start(asked)])
    assert code == 0, answers
    assert "«" in answers and "»" in answers


@pytest.mark.slow
def test_a_companion_rebuilds_the_index_while_realm_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 1800)
    write_collection(tmp_path / "corpus")
    run = tmp_path / "run"
    command = ["launch.recipe", "--gin_file=gin_configs/recipes/realm_refresh.gin"]
    command += [f"--gin.CORPUS='{tmp_path / 'corpus'}'", f"--gin.RUN_DIR='{run}'"]
    command += ["--gin.BUDGET=0.005", "--gin.EVALUATE_EVERY=4", "--gin.HOST_STALENESS_STEPS=8"]
    ((code, output),) = process_group.finish([process_group.start(command)])
    assert code == 0, output
    lines = (run / "realm/index_versions.jsonl").read_text().splitlines()
    seen = [json.loads(line)["version"] for line in lines]
    assert len(seen) >= 12 and len(set(seen)) > 1 and sorted(seen) == seen, output
    assert set(seen) <= set(range(1, 1 + versioned_folder.published(run / "realm_index")[-1]))
    assert "realm" in json.loads((run / "evaluation/metrics.json").read_text())["systems"]
