"""What is tried of a recipe's stages before anything has run."""

import dataclasses
import io
import json
import sys

import pytest

from t5x_style.preflight import stage_checks, unknowns
from t5x_style.workflow import recipe_checks, recipe_planning, recipe_reader
from tests import recipe_plans

WEIGHTS = ("KIND_WEIGHTS", "KINDS_IN_SUM")  # of M3
DENSE_SPARSE = {"dense": 1.0, "sparse": 0.3}


def found(name, *overrides):
    """Stage -> what is wrong with it, of a recipe of ours of which nothing has run."""
    flags = recipe_plans.flags_of(name)
    pairs = tuple(tuple(one.split("=", 1)) for one in overrides)
    flags = dataclasses.replace(flags, overrides=flags.overrides + pairs)
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    wrong = {
        item.name: stage_checks.of_stage(recipe_checks.command(recipe, item.name, flags, pending))
        for item in recipe.stages
    }
    return {stage: problems for stage, problems in wrong.items() if problems}


@pytest.mark.parametrize("name", recipe_plans.names())
def test_nothing_is_wrong_with_our_recipes(name):
    assert found(name) == {}


@pytest.mark.parametrize(
    ("name", "overrides", "stages", "message"),
    [
        (
            "simlm_squad",
            ["bert.BertConfig.hidden=100", "bert.BertConfig.heads=3"],
            {"generator": False, "mlm": True, "simlm": True, "reranker": True, "evaluation": True},
            "hidden must be a multiple of heads, found hidden=100 and heads=3: change one of them "
            "in the model's gin file. (hidden = 100 at command line --gin.bert.BertConfig.hidden, "
            "heads = 3 at command line --gin.bert.BertConfig.heads)",
        ),
        (
            "simlm_squad",
            ["PASSAGE_LENGTH=500"],
            {"mlm": True, "retriever_1": True},
            "EmbeddingConfig.passage_length must be at most BertConfig.max_positions, 192, found "
            "500. (",  # then where both were set, in either order
        ),
        (
            "simlm_squad",
            ["MLM_WARMUP_STEPS=5000"],
            {"mlm": True, "retriever_1": False},
            "AdamW.warmup_steps: expected between 0 and total_steps (2000), found 5000",
        ),
        (
            "simlm_squad",
            ["QUERIES=30"],
            {"retriever_1": True},
            "@train: group 'passage': expected a multiple of 30 rows, the smallest group's, found "
            "128 (rows = 30 at command line --gin.QUERIES, rows = 128 at ",
        ),
        (
            "simlm_squad",
            ["train.train.micro_batches=3"],
            {"mlm": True},
            "@train: micro_batches: 16 rows do not divide by 3",
        ),
        (
            "quickstart",
            ["retriever/optimizers.AdamW.learning_rate=-1"],
            {"retriever": True, "bag_of_embeddings": False},
            "AdamW.learning_rate: expected > 0, found -1 (learning_rate = -1 at command line",
        ),
        (
            "labse_tiny",
            ["EVALUATE_EVERY=0"],  # which stage mlm sets itself
            {"mlm": False, "labse": True},
            "Cadence.evaluate_every: expected at least 1, found 0",
        ),
        (
            "quickstart",  # whose number of steps follows from a collection that is not there yet
            ["LOG_EVERY=0"],
            {"retriever": True, "bag_of_embeddings": True},
            "Cadence.log_every: expected at least 1, found 0 (log_every = 0 at command line",
        ),
        (
            "quickstart",
            ["POOLING=mena", "WEIGHTS={'crops': -1}"],
            {"retriever": True, "vectors": True},
            "EmbeddingConfig.pooling must be one of",
        ),
        (
            "quickstart",  # BM25's, of negatives and of the table
            ["LANGUAGE=chinese"],
            {"negatives": True, "evaluation": True, "retriever": False},
            "language: expected one of ['ar', ",
        ),
        (
            "finetune",
            ["LANGUAGE=chinese"],
            {"negatives": True, "suspects": True, "evaluation": True, "retriever": False},
            "language: expected one of ['ar', ",
        ),
        (
            "simlm_squad",
            ["POOLING=mcls"],  # for use alone
            {"retriever_1": True, "evaluation": False},
            "@train: pooling 'mcls' is for the use of a model that was trained with 'cls'",
        ),
        (
            "m3_gpu",  # whose rows and positions follow from a collection that is not there yet
            ["POOLING=mcls"],
            {"m3": True, "retriever": True, "m3_vectors": False, "evaluation": False},
            "@train: pooling 'mcls' is for the use of a model that was trained with 'cls'",
        ),
        (
            "m3",
            ["m3.M3.matryoshka=(999,)"],
            {"pairs": False, "m3": True},
            "M3.matryoshka: expected distinct lengths from 1 to 63, below the 64 dimensions of a "
            "vector, found [999] (matryoshka = (999,) at command line",
        ),
        (
            "m3",
            ["VECTOR_SIZE=0"],
            {"m3": True},
            "TokenVectors.size",
        ),
        (
            "m3",
            ["m3.M3.matryoshka=(32,)", *(f"{name}={DENSE_SPARSE}" for name in WEIGHTS)],
            {"m3": True},
            "M3.matryoshka: expected a weight above 0 of 'multi_vector'",
        ),
        (
            "colbert",  # whose punctuation is of a tokenizer that is not there yet
            ["colbert.ColBERT.matryoshka=(64, -1)"],
            {"colbert": True, "retriever": False},
            "ColBERT.matryoshka: expected distinct lengths from 1 to 127, below the 128 dimensions "
            "of a vector, found [64, -1]",
        ),
        (
            "realm_refresh",
            ["HOST_STALENESS_STEPS=1", "WHEN_STALE=pause"],
            {"realm": True},
            "HostRetrieval.max_staleness_steps: expected at least",
        ),
        (
            "m3",
            ["TOKEN_VECTOR_SIZE=65"],  # VECTOR_SIZE is 64
            {"m3": False, "m3_vectors": True, "evaluation": True, "search": True},
            "M3.token_vector_size: expected 1 to 64 dimensions, those of a vector",
        ),
        (
            "m3",
            [f"KIND_WEIGHTS={DENSE_SPARSE}"],
            {"m3": False, "m3_vectors": False, "evaluation": True, "search": False},
            "m3_multi_vector: weights: expected numbers of at least 0, one of them above it, of "
            "the kinds ['dense', 'sparse']",
        ),
        (
            "m3",
            ["KIND_WEIGHTS={'dense': 1.0, 'multi_vector': 1.0}"],
            {"m3": False, "evaluation": True, "search": True},
            "Keep these kinds in KIND_WEIGHTS and SEARCHED_KINDS",
        ),
        (
            "colbert",
            ["TOKEN_VECTOR_SIZE=129"],  # VECTOR_SIZE is 128
            {"colbert": False, "colbert_vectors": True, "evaluation": True},
            "ColBERT.token_vector_size: expected 1 to 128 dimensions, those of a vector",
        ),
    ],
)
def test_what_no_stage_accepts_is_known_before_the_first(name, overrides, stages, message):
    wrong = found(name, *overrides)
    for stage, expected in stages.items():
        assert any(message in one for one in wrong.get(stage, ())) is expected, wrong.get(stage)


@pytest.mark.parametrize("name", ["m3", "finetune_m3"])
def test_a_recipe_of_two_kinds(name):
    """As docs/m3.md has it: only these are trained, encoded, searched and weighed."""
    two = [f"KIND_WEIGHTS={DENSE_SPARSE}", "PARTS_OF_ALL={}"]
    assert found(name, *two) == {}
    plans = recipe_plans.of_recipe(name, two)
    assert plans["m3_vectors"]["parameters"]["kinds"] == str(DENSE_SPARSE)
    assert plans["m3"]["parameters"]["objective.loss_config.weights"] == str(DENSE_SPARSE)
    assert (
        "multi_vector" not in plans["search"]["parameters"]["searcher.index.searched.kinds.kinds"]
    )


@pytest.mark.parametrize("name", ["m3", "colbert", "m3_paper"])
def test_a_teacher_without_scores_is_refused(name):
    (problem,) = found(name, "TEACHER=kl")["negatives"]
    assert "TEACHER: negatives that are mined have no teacher's scores" in problem


def test_scores_of_a_teacher_reach_the_loss():
    """As docs/finetune.md has it: those of the data, past mining and in the batches of M3 alone."""
    assert found("finetune_m3", "TEACHER=kl") == {}
    plans = recipe_plans.of_recipe("finetune_m3", ["TEACHER=kl"])
    parameters = {name: plan["parameters"] for name, plan in plans.items()}
    assert parameters["negatives"]["teacher"] == "'kl'"
    assert parameters["m3"]["objective.loss_config.teacher"] == "'kl'"
    teachers = {name: one.get("pipeline.pairs.teacher") for name, one in parameters.items()}
    assert {name: one for name, one in teachers.items() if one not in (None, "False")} == {
        "m3": "'kl'"
    }


def test_the_mesh_divides_the_rows():
    overrides = ["partitioning.Partitioner.mesh_shape=@partitioning.MeshShape()"]
    overrides += ["partitioning.MeshShape.fsdp=3"]
    (problem,) = found("simlm_squad", *overrides)["mlm"]
    assert problem.startswith(
        "@train: group 'text': 16 rows do not divide by 3, the devices on mesh axes ('data', "
        "'fsdp') of {'data': 1, 'fsdp': 3, 'tensor': 1}."
    )
    assert "rows = 16 at " in problem and "fsdp = 3 at command line" in problem


def test_the_unknown_decides_nothing():
    unknown = unknowns.Unknown()
    for use in (bool, len, int, lambda x: x < 1, lambda x: x == 1, lambda x: x % 2, lambda x: x.y):
        with pytest.raises(unknowns.NotKnownError):
            use(unknown)
    assert repr(unknown) == unknowns.NOT_KNOWN and not isinstance(unknown, str)
    size = unknowns.AssumedSize(5)
    assert size == 7 and bool(size != 9) is False and size < 6


def test_the_program_reads_and_writes_json(monkeypatch, capsys):
    stage = {
        "name": "here",
        "job": "input_pipelines.gather.python_docs.make_corpus",
        "files": ["gin_configs/runs/collections/python_corpus.gin"],
        "overrides": [["MODEL_DIR", "'x'"], ["PACKAGES", "3"]],
        "search_paths": ["."],
        "allow": [],
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps([stage, stage | {"files": ["no"]}])))
    stage_checks.main()
    (name, first), (_, second) = json.loads(capsys.readouterr().out)
    assert name == "here" and "make_corpus.packages must be Sequence[str], found 3 (a int)" in first
    assert second.startswith("GinError: command line: no gin file 'no'")
