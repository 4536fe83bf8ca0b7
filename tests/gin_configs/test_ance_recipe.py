"""ANCE's recipe: what decides its versions, what it refuses, and from text to a report."""

import json

import pytest

from t5x_style.configuration import gin_checks
from t5x_style.preflight import stage_checks
from t5x_style.workflow import recipe_checks, recipe_planning, recipe_reader
from tests import recipe_plans
from tests.gin_configs.test_realm_recipe import write_collection
from tests.kits import process_group


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("REMINE_EVERY=50", {"cadence.save_every"}),
        ("ANCE_DEPTH=50", {"pipeline.settings.depth", "pipeline.settings.negatives"}),
        ("ANCE_MAX_SCORE_RATIO=0.9", {"pipeline.settings.max_score_ratio"}),
        ("KEEP_VERSIONS=9", set()),
    ],
)
def test_how_negatives_are_mined_makes_a_version_of_one_stage(setting, changed):
    """A companion has no version: the training records what decides its negatives."""
    before, after = recipe_plans.of_recipe("ance"), recipe_plans.of_recipe("ance", [setting])
    for name in before:
        ours, theirs = before[name]["parameters"], after[name]["parameters"]
        found = {path for path in ours | theirs if ours.get(path) != theirs.get(path)}
        assert found == (changed if name == "ance" else set()), name


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], ("600", "100", "200", "0")),
        (["BUDGET=0.1"], ("60", "10", "20", "0")),
        (["BUDGET=0.5", "REMINE_EVERY=31", "FIRST_MINED_STEP=200"], ("300", "16", "100", "100")),
    ],
)
def test_a_smaller_budget_mines_as_often(settings, expected):
    """Steps at most, between two checkpoints, of negatives' age, and before the first."""
    found = recipe_plans.of_recipe("ance", settings)["ance"]["parameters"]
    names = ("cadence.steps.steps", "cadence.save_every")
    names += ("pipeline.max_staleness_steps", "pipeline.first_step")
    assert tuple(found[name] for name in names) == expected


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("REMINE_EVERY=0", "Cadence.save_every: expected at least 1, found 0"),
        ("ANCE_DEPTH=0", "negatives from 1 to depth - skip_top"),
        ("GROUP_SIZE=202", "from 1 to 200 negatives, as many as are mined for a query, found 202"),
        ("GROUP_SIZE=1", "RefreshedNegatives.group_size: expected 1 positive"),
        ("WHEN_STALE=wait", "when_stale"),
        (
            "NEGATIVES_STALENESS_STEPS=102",
            "expected at least 103 (a checkpoint every 100 steps, and 2 batches made ahead), found "
            "102",
        ),
        ("BUDGET=0.02", "expected at least 5 (a checkpoint every 2 steps, and 2 batches"),
    ],
)
def test_settings_are_refused_before_the_first_stage(setting, said, tmp_path):
    argv = ["--gin_file=gin_configs/recipes/ance.gin", f"--gin.RUN_DIR={tmp_path}/run"]
    flags = gin_checks.parse_flags([*argv, "--gin.CORPUS=corpus", f"--gin.{setting}"])
    recipe = recipe_reader.load(flags)
    known = recipe_planning.all_pending(recipe)
    command = recipe_checks.command(recipe, "ance", flags, known)
    problems = stage_checks.of_stage(command)
    assert any(said in problem for problem in problems), problems


@pytest.mark.slow
def test_a_companion_mines_while_the_retriever_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 1800)
    write_collection(tmp_path / "corpus")
    run = tmp_path / "run"
    command = ["launch.recipe", "--gin_file=gin_configs/recipes/ance.gin", "--gin.BUDGET=0.02"]
    command += [f"--gin.CORPUS='{tmp_path / 'corpus'}'", f"--gin.RUN_DIR='{run}'"]
    command += ["--gin.MODEL='models/tiny.gin'", "--gin.PASSAGE_LENGTH=128", "--gin.QUERIES=16"]
    command += ["--gin.ANCE_DEPTH=20", "--gin.NEGATIVES_STALENESS_STEPS=250"]
    ((code, output),) = process_group.finish([process_group.start(command)])
    assert code == 0, output
    lines = (run / "ance/index_versions.jsonl").read_text().splitlines()
    seen = [json.loads(line)["version"] for line in lines]
    assert len(seen) >= 12 and len(set(seen)) > 1 and sorted(seen) == seen, output
    systems = set(json.loads((run / "evaluation/metrics.json").read_text())["systems"])
    assert systems == {"bm25", "retriever", "continued", "ance", "bag_of_embeddings", "fusion"}
