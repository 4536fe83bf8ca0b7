"""Which settings of a training make a new version, and which may change at any time."""

import dataclasses

import pytest

from t5x_style.configuration import gin_checks, parameters
from t5x_style.workflow import recipe_planning, recipe_reader, stages

RECIPE = "--gin_file=gin_configs/recipes/quickstart_comparison.gin"


@pytest.fixture(scope="module")
def semantic():
    """Returns `semantic(stage, **overrides)`: what identifies a version of a recipe's stage."""
    flags = gin_checks.parse_flags([RECIPE, "--gin.RUN_DIR=run"])
    recipe = recipe_reader.load(flags)
    known = recipe_planning.all_pending(recipe)
    items = {item.name: item for item in recipe.stages}

    def values(name, **overrides):
        own = recipe_planning.stage_flags(recipe, items[name], flags, known)
        kept = tuple(pair for pair in own.overrides if pair[0] not in overrides)
        texts = tuple((macro, str(value)) for macro, value in overrides.items())
        config = dataclasses.replace(own, overrides=(*kept, *texts)).read()
        inputs = {macro: f"version of {macro}" for macro in stages.inputs_of(config)}
        return parameters.of_job(config, items[name].job, inputs).semantic

    return values


@pytest.mark.parametrize("name", ["pretrain_retromae", "retromae"])
@pytest.mark.parametrize(
    "setting",
    [
        "LOG_EVERY", "SAVE_EVERY", "checkpointing.Checkpointing.keep",
        "trainer.Cadence.profile_count", "trainer.Cadence.profile_first",
    ],
)  # fmt: skip
def test_intervals_and_how_checkpoints_are_kept_make_no_version(semantic, name, setting):
    assert semantic(name, **{setting: 7}) == semantic(name)


def test_how_checkpoints_are_written_makes_no_version(semantic):
    for setting in ("asynchronous", "fall_back"):
        changed = {f"checkpointing.Checkpointing.{setting}": True}
        assert semantic("retromae", **changed) == semantic("retromae")
    assert semantic("passages", **{"prepare.prepare.workers": 7}) == semantic("passages")


def test_evaluation_counts_where_it_selects_the_best_checkpoint(semantic):
    assert semantic("pretrain_retromae", EVALUATE_EVERY=7) == semantic("pretrain_retromae")
    changed, before = semantic("retromae", EVALUATE_EVERY=7), semantic("retromae")
    assert before["development_metric"] == "'dev/MRR@10'"
    assert {name for name in changed if changed[name] != before[name]} == {"cadence.evaluate_every"}


@pytest.mark.parametrize(
    ("setting", "value", "names"),
    [
        ("SEED", 9, {"seed", "pipeline.seed"}),
        ("LEARNING_RATE", 0.5, {"optimizer.learning_rate"}),
        ("optimizers.AdamW.b2", 0.5, {"optimizer.b2"}),  # only a default so far
        ("STEPS", 9000, {"cadence.steps", "optimizer.total_steps"}),
    ],
)
def test_what_decides_the_result_makes_a_version(semantic, setting, value, names):
    before = semantic("pretrain_retromae")
    changed = semantic("pretrain_retromae", **{setting: value})
    assert {name for name in changed if changed[name] != before.get(name)} == names
