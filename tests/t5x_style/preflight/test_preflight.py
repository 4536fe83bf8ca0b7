"""Preflight as a command, on slices of four chips and models of a few thousand parameters."""

import dataclasses
import json
import re
import types
from pathlib import Path

import jax
import pytest
from gin import config as gin_config

from models.objectives import mlm, retromae
from t5x_style.configuration import gin_checks
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.preflight import configuration, program, topology
from t5x_style.step import compiled_step, train_step
from t5x_style.training.trainer import Cadence, Trainer
from t5x_style.workflow import recipe_planning, recipe_reader
from tests.kits import store_kit
from tests.t5x_style.preflight.preflight_runs import flags, run

REPOSITORY = Path(__file__).resolve().parents[3]
SLICE = "v5e:2x2"

pytestmark = pytest.mark.usefixtures("for_tpus")


@pytest.fixture(autouse=True)
def clean_gin(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    yield
    gin_config.clear_config()


def vocabulary(size):
    """The text of a tokenizer's vocabulary.json."""
    ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "special_ids": [0, 1, 2, 3, 4]}
    return json.dumps({"size": size, "fingerprint": "made", **ids})


def traced(objective="mlm"):
    """The training and its traced step."""
    parsed = gin_checks.parse_flags(flags(objective=objective))
    stated = configuration.VocabularySize(200, "the test")
    training, _ = configuration.resolve(parsed, SLICE, stated)
    (found,) = program.trace(training)
    return training, found


def without_devices(jaxpr):
    """The text of a jaxpr, but for the kind of devices in shardings."""
    return re.sub(r"device_kind=[^)]*", "", str(jaxpr))


def test_a_training_that_fits():
    code, out, _ = run(*flags(), f"--topology={SLICE}", "--vocabulary_size=200", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and found["fits"] is True
    assert (found["topology"], found["devices"]) == (SLICE, 4)
    assert {"arguments", "temporaries", "outputs", "limit"} <= set(found["hbm_bytes"])
    assert found["hbm_bytes"]["limit"] == int(15.75 * 2**30)
    # three float32 copies of each parameter: itself and two moments; the batch is small
    assert found["hbm_bytes"]["arguments"] >= 12 * found["parameters"]
    # Nothing is recomputed; but the loss adds the output bias, whose gradient is a product: ones at
    # the predicted tokens (16 rows of at most 6), times errors at all 256 rows of the word table.
    products_of_bias = 2 * 16 * 6 * 256
    assert found["model_flops_per_step"] > 0
    assert found["flops_per_step"] == found["model_flops_per_step"] + products_of_bias
    (reduced,) = [one for one in found["collectives"] if one["kind"] == "all-reduce"]
    assert reduced["bytes"] >= 2 * found["parameters"]  # gradients, some of them bfloat16
    sizes = [one["bytes"] for one in found["largest_arrays"]]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] < found["hbm_bytes"]["total"]
    assert f"{found['largest_arrays'][0]['type']} " in out
    assert found["roofline_seconds"] == max(found["roofline_terms_seconds"].values()) > 0
    assert "200 tokens" in found["assumptions"][0] and "assumed: a vocabulary of 200 tokens" in out
    assert "a bound from peak figures, not a measurement" in out


@pytest.mark.parametrize(
    ("name", "objective"),
    [("mlm", mlm.Mlm), pytest.param("retromae", retromae.RetroMAE, marks=pytest.mark.slow)],
)
def test_bfloat16_products_no_host_and_another_loss_is_another_program(
    monkeypatch, name, objective
):
    _, before = traced(name)
    lowered = before.step.lower()
    text = lowered.as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    operands = [re.findall(r"x(bf16|f32)>", line)[:2] for line in products]
    # Where a product is followed by float32 softmax, one side of its gradient's is float32.
    assert ["bf16", "bf16"] in operands and ["f32", "f32"] not in operands
    compiled = lowered.compile().as_text()
    assert "bf16" in compiled
    for host in ("host_compute", "outfeed", "infeed", "send(", "recv(", "xla_python", "callback"):
        assert host not in text and host not in compiled
    original = objective.loss

    def doubled(self, batch, key):
        loss, metrics = original(self, batch, key)
        return loss + MetricSum.of(jax.numpy.square(self.head.bias[...])), metrics

    monkeypatch.setattr(objective, "loss", doubled)
    assert traced(name)[1].step.lower().as_text() != text


def test_the_trainer_runs_what_preflight_compiles(monkeypatch, tmp_path):
    built = []
    original = compiled_step.jit

    def recording(*arguments):
        built.append(original(*arguments))
        return built[-1]

    monkeypatch.setattr(compiled_step, "jit", recording)
    training, found = traced()
    here = type(training.partitioner)(devices=jax.devices()[:4])

    class Pipeline:
        fingerprint = "none"

        def specs(self):
            (specs,) = found.module.batch_specs()
            return {
                group: {name: (leaf.shape, leaf.dtype) for name, leaf in features.items()}
                for group, features in specs.items()
            }

        def batch(self, step, rows=None):
            raise AssertionError("nothing is read")

        batches = batch

    unused = types.SimpleNamespace(folder=tmp_path / "checkpoints")  # nothing is saved
    trainer = Trainer(
        training.objective, Pipeline(), training.optimizer, here, unused, Cadence(1), training.seed
    )
    assert trainer._step is built[1]
    for step in built:
        assert step.__wrapped__.func is train_step.train_step
    (specs,) = found.module.batch_specs()
    local = compiled_step.trace(built[1], here, trainer.state, specs)
    assert without_devices(local.jaxpr) == without_devices(found.step.jaxpr)


def test_a_batch_ten_times_too_large_says_by_how_much():
    words = [*flags(ROWS=8_000_000), f"--topology={SLICE}", "--vocabulary_size=200"]
    code, out, _ = run(*words, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 1 and found["fits"] is False
    sizes = found["hbm_bytes"]
    assert sizes["total"] > 10 * sizes["limit"]
    assert sizes["over"] == sizes["total"] - sizes["limit"]
    assert "DOES NOT FIT, by" in out and "micro_batches" in out


def test_rows_that_do_not_divide():
    code, _, err = run(*flags(ROWS=18), f"--topology={SLICE}", "--vocabulary_size=200")
    assert code == 1 and "18 rows do not divide by 4" in err
    words = [*flags("--gin.train.train.micro_batches=8"), f"--topology={SLICE}"]
    code, _, err = run(*words, "--vocabulary_size=200")
    assert code == 1 and "one micro-batch: 2 rows do not divide by 4" in err


def test_a_mesh_that_does_not_divide():
    mesh = "--gin_file=gin_configs/hardware/mesh.gin"
    words = [*flags(mesh, "--gin.FSDP=3"), f"--topology={SLICE}", "--vocabulary_size=200"]
    code, _, err = run(*words)
    assert code == 1 and "expected a product of 4, the number of devices" in err


def test_a_tokenizer_that_does_not_exist_must_be_stated():
    code, _, err = run(*flags(), f"--topology={SLICE}")
    assert code == 1 and "state the size: --vocabulary_size" in err


def test_a_size_that_nothing_needs_is_refused(tmp_path, monkeypatch):
    (tmp_path / "vocabulary.json").write_text(vocabulary(size=200))
    monkeypatch.setattr(program, "examine", lambda *_: COST)
    words = [*flags(TOKENIZER=tmp_path), f"--topology={SLICE}"]
    assert run(*words)[0] == 0
    code, _, err = run(*words, "--vocabulary_size=300")
    assert code == 1 and "leave it out" in err


def test_flops_with_other_values_of_a_macro(monkeypatch):
    monkeypatch.setattr(program, "examine", fake_cost)
    words = [*flags(), f"--topology={SLICE}", "--vocabulary_size=200", "--json"]
    code, out, _ = run(*words, "--vary=ROWS=16,32")
    found = json.loads(out.splitlines()[-1])["varied"]
    assert found["32"]["flops_per_step"] == pytest.approx(
        2 * found["16"]["flops_per_step"], rel=0.2
    )
    assert code == 0 and "with ROWS = 32: " in out and "after the update" not in out
    code, _, err = run(*words, "--vary=ROWS")
    assert code == 1 and "expected NAME=VALUE,VALUE" in err
    code, _, err = run(*words, "--vary=RWOS=3")
    assert code == 1 and "RWOS" in err


def test_names_are_as_strict_as_in_training():
    code, _, err = run(*flags(STPES=3), f"--topology={SLICE}", "--vocabulary_size=200")
    assert code == 1 and "STPES" in err and "STEPS" in err


def test_a_misspelt_topology_never_reaches_the_compiler():
    code, _, err = run(*flags(), "--topology=v5e:2x3")
    assert code == 1 and "nearest: v5e:2x4, v5e:2x2" in err


# --- recipes --------------------------------------------------------------------------------------


COST = program.Cost(
    topology=topology.parse(SLICE),
    mesh={},
    parameters=1,
    rows={},
    requires_full_batch=False,
    memory=program.Memory(10, 5, 0, 0, 50),
    flops=1.0,
    model_flops=1.0,
    after_update_flops=0.0,
    unknown_loops=0,
    roofline=program.Roofline(1.0, None, None, None),
    collectives=None,
    hbm_traffic=None,
    largest_arrays=None,
    seconds=0.0,
)


def fake_cost(training, slice_):
    """What a compilation would say, by the objective's name; the fine-tuning is too large."""
    (found,) = program.trace(training)
    large = type(found.module).__name__ == "BiEncoder"
    return dataclasses.replace(
        COST,
        topology=slice_,
        mesh=dict(training.partitioner.mesh.shape),
        parameters=found.parameters,
        rows=found.rows,
        requires_full_batch=found.module.requires_full_batch,
        memory=program.Memory(10, 90 if large else 5, 0, 0, 50),
    )


def test_a_recipe_is_checked_stage_by_stage(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "examine", fake_cost)
    recipe = [
        "--gin_file=gin_configs/recipes/retromae_squad.gin",
        f"--gin.RUN_DIR={tmp_path}/run",
    ]
    code, out, _ = run(*recipe, f"--topology={SLICE}", "--json")
    found = json.loads(out.splitlines()[-1])
    trainings = ["pretrain_mlm", "pretrain_retromae", "no_pretraining", "mlm", "retromae"]
    assert list(found["stages"]) == trainings
    assert [one["fits"] for one in found["stages"].values()] == [True, True, False, False, False]
    assert code == 1 and found["fits"] is False
    assert (found["topology"], found["devices"]) == (SLICE, 4)
    for one in found["stages"].values():
        assert "8,192 tokens, from stage tokenizer of the recipe" in one["assumptions"][0]
    assert "micro_batches" not in out  # no remedy for a contrastive loss


def test_the_papers_recipe_is_known_before_anything_exists(monkeypatch):
    monkeypatch.setattr(program, "examine", fake_cost)
    paper = "--gin_file=gin_configs/recipes/retromae_paper.gin"
    _, out, _ = run(paper, "--topology=v5e:8x8", "--json")
    stages = json.loads(out.splitlines()[-1])["stages"]
    assert stages["pretrain"]["rows"] == {"text": 256}
    assert stages["finetune"]["rows"] == {"query": 128, "passage": 2048}
    assert 115e6 < stages["pretrain"]["parameters"] < 118e6
    assert "30,522 tokens" in stages["pretrain"]["assumptions"][0]
    recipe = recipe_reader.load(gin_checks.parse_flags([paper]))
    assert recipe_reader.is_recipe(gin_checks.parse_flags([paper]).read())
    assert [one.name for one in recipe.stages][-1] == "finetune"


def test_a_tokenizer_that_a_recipe_has_made_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "examine", lambda *_: COST)  # not even traced
    (tmp_path / "corpus").mkdir()
    recipes = {"shipped": "gin_configs/recipes/simlm.gin", "own": f"{tmp_path}/own.gin"}
    Path(recipes["own"]).write_text(
        "from __gin__ import dynamic_registration\nfrom launch import recipe\n"
        f"include '{recipes['shipped']}'\n"
        "tokenizer/recipe.Stage.bindings = {'VOCABULARY_SIZE': 4096}\n"
    )
    given = [f"--gin.RUN_DIR={tmp_path}/run", f"--gin.CORPUS={tmp_path}/corpus"]

    def check(name):
        words = [f"--gin_file={recipes[name]}", *given, f"--topology={SLICE}", "--stage=mlm"]
        out = run(*words, "--json")[1]
        return json.loads(out.splitlines()[-1])["stages"]["mlm"]["assumptions"]

    (stated,) = check("shipped")
    assert "8,192 tokens, from stage tokenizer of the recipe" in stated
    parsed = gin_checks.parse_flags([f"--gin_file={recipes['shipped']}", *given])
    recipe = recipe_reader.load(parsed)
    planned = recipe_planning.plan(recipe, recipe.stages[0], parsed, recipe_planning.Known())
    files = {"tokenizer/vocabulary.json": vocabulary(size=300)}
    store_kit.finished(planned, files, {"tokenizer": "tokenizer"})
    assert check("shipped") == []
    (stated,) = check("own")  # what was made with other settings does not count
    assert "4,096 tokens, from stage tokenizer of the recipe" in stated


def test_one_stage_of_a_recipe(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "examine", fake_cost)
    comparison = "--gin_file=gin_configs/recipes/quickstart_comparison.gin"
    recipe = [comparison, f"--gin.RUN_DIR={tmp_path}/run"]
    code, out, _ = run(*recipe, f"--topology={SLICE}", "--json", "--stage=pretrain_retromae")
    found = json.loads(out.splitlines()[-1])
    assert code == 0 and found["fits"] is True and list(found["stages"]) == ["pretrain_retromae"]
    code, _, err = run(*recipe, f"--topology={SLICE}", "--stage=pretrain_retroame")
    assert code == 1 and "did you mean pretrain_retromae?" in err
    code, _, err = run(*flags(), f"--topology={SLICE}", "--stage=pretrain_retromae")
    assert code == 1 and "describe no recipe" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v5e:8x8", "v4:4x4x4"])
def test_the_papers_pretraining_fits(name):
    recipe = "--gin_file=gin_configs/recipes/retromae_paper.gin"
    code, out, _ = run(recipe, f"--topology={name}", "--json", "--stage=pretrain")
    found = json.loads(out.splitlines()[-1])["stages"]["pretrain"]
    assert code == 0 and found["fits"] and found["devices"] == 64
