"""What a change of SimLM's recipe runs again: what depends on it, and nothing else."""

import json
from pathlib import Path

import pytest

from launch import recipe
from t5x_style.configuration import gin_checks
from t5x_style.workflow import recipe_checks, recipe_planning, recipe_reader
from tests.kits import store_kit

REPOSITORY = Path(__file__).resolve().parents[2]
LAST = {"distilled_without", "distilled", "evaluation", "report"}
AFTER_NEGATIVES_2 = {"reranker", "scores", *LAST}
AFTER_RETRIEVER_1 = {
    *("vectors_1", "index_1", "negatives_1"),
    *("retriever_2", "vectors_2", "index_2", "negatives_2", "dev_negatives"),
    *AFTER_NEGATIVES_2,
}


@pytest.fixture(autouse=True)
def without_imports(monkeypatch):
    """What stages would read is pretended here: they are not tried."""
    monkeypatch.setattr(recipe_checks, "problems_of", lambda commands: ())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder in which every stage of the recipe left what it would leave."""
    folder = tmp_path_factory.mktemp("simlm")
    (folder / "scifact").mkdir()
    (folder / "scifact/corpus.jsonl").write_text("{}\n")
    flags = flags_of(folder)
    loaded = recipe_reader.load(flags)
    asked = [(item.name, leaf.name) for other in loaded.stages for leaf in other.needs()
             for item in loaded.stages if item.name == leaf.stage]  # fmt: skip
    asked += [(output.stage, output.name) for output in loaded.publish.values()]
    known = recipe_planning.Known()
    for item in loaded.stages:
        planned = recipe_planning.plan(loaded, item, flags, known)
        outputs = {name: f"{name}.file" for stage_name, name in asked if stage_name == item.name}
        files = dict.fromkeys(outputs.values(), f"{item.name}\n")
        known.done[item.name] = store_kit.finished(planned, files, outputs)
    return folder


def flags_of(folder, **macros):
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/simlm_scifact.gin"]
    paths = {"RUN_DIR": folder / "run", "SCIFACT": folder / "scifact"}
    argv += [f"--gin.{name}='{path}'" for name, path in paths.items()]
    return gin_checks.parse_flags([*argv, *(f"--gin.{n}={v}" for n, v in macros.items())])


def changed(folder, **macros):
    flags = flags_of(folder, **macros)
    rows = recipe.survey(recipe_reader.load(flags), flags)
    return {row.name for row in rows if row.status != "done"}


@pytest.mark.parametrize(
    ("macros", "expected"),
    [
        ({}, set()),
        ({"CONTRASTIVE_WEIGHT": 0.5}, LAST),
        ({"RERANKED": 7}, {"evaluation", "report"}),
        ({"SCORE_DEPTH": 3}, {"scores", *LAST}),
        ({"R_DROP": True}, AFTER_NEGATIVES_2),
        ({"DEV_CANDIDATES": 9}, {"dev_negatives", *AFTER_NEGATIVES_2}),
        ({"DEPTH": 60}, {"bm25_negatives", "retriever_1_without", "retriever_1"}
         | AFTER_RETRIEVER_1),
        ({"SIMLM_STEPS": 3000}, {"simlm", "mlm_more", "retriever_1_without", "retriever_1"}
         | AFTER_RETRIEVER_1),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",  # a set has no order
)  # fmt: skip
def test_a_changed_binding(run, macros, expected):
    assert changed(run, **macros) == expected


def test_a_changed_objective(run, tmp_path):
    """The re-ranker's alone: what is trained, scored and evaluated with it."""
    own = tmp_path / "own.gin"
    shipped = (REPOSITORY / "gin_configs/objectives/cross_encoder.gin").read_text()
    own.write_text("# of my own\n" + shipped)
    assert changed(run, CROSS_ENCODER=f"'{own}'") == set()
    own.write_text(shipped.replace("PAIR_SEGMENTS = 1", "PAIR_SEGMENTS = 2"))
    assert changed(run, CROSS_ENCODER=f"'{own}'") == AFTER_NEGATIVES_2


def test_negatives_that_were_edited_or_vanished(run):
    path = run / "run/negatives_1/negatives.file"
    before = path.read_text()
    path.write_text(before + json.dumps({"query_id": "q"}) + "\n")
    with pytest.raises(recipe_reader.RecipeError, match=r"NEGATIVES.*negatives.file changed"):
        changed(run)
    path.unlink()
    assert changed(run) == AFTER_RETRIEVER_1 - {"vectors_1", "index_1"}
    path.write_text(before)
    assert changed(run) == set()


def test_an_input_that_changed_or_vanished(run):
    path = run / "scifact/corpus.jsonl"
    path.write_text("{} \n")
    assert {"held_out", "tokenizer", "simlm", "report"} <= changed(run)
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(recipe_reader.RecipeError, match="set --gin.SCIFACT=PATH"):
        changed(run)
    path.parent.mkdir()
    path.write_text("{}\n")
    assert changed(run) == set()
