"""Weights of a tuned model and of the one that it started from, mixed."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style import interpolate, train
from t5x_style.checkpoints import checkpoint_directory, checkpointing
from t5x_style.distributed import partitioning
from t5x_style.fine_tuning.mixture import Choice, Mixture, smallest_good
from t5x_style.interfaces.objective import embedder
from t5x_style.step import optimizers
from t5x_style.training import trainer, warm_start
from tests.kits.toys.toy_objective import ToyPipeline
from tests.t5x_style.training.test_longer_training import TEXT, TOY, Measured


@dataclasses.dataclass
class Norm:
    """An evaluator that likes a model the more, the nearer its vectors' length is to a target."""

    target: float
    name: str = "dev"
    metrics: tuple = ("near",)

    def evaluate(self, functions, step):
        vectors = embedder(functions, "query")({"tokens": jnp.arange(12)[None]})
        return {"near": -abs(float(jnp.linalg.norm(vectors)) - self.target)}


def trained(folder, steps, evaluator):
    """A toy training that keeps the checkpoint that the evaluator likes best."""
    train.train(
        model_dir=str(folder),
        objective=TOY,
        pipeline=ToyPipeline(TEXT, 32),
        optimizer=optimizers.AdamW(0.05, 0, max(steps, 1), no_decay=("scale",)),
        partitioner=partitioning.Partitioner(devices=jax.devices()[:1]),
        checkpointing=checkpointing.Checkpointing(keep=2),
        cadence=trainer.Cadence(steps, evaluate_every=1, save_every=1),
        seed=3,
        evaluators=[evaluator],
        development_metric=f"{evaluator.name}/{evaluator.metrics[0]}",
    )
    return warm_start.Checkpoint(str(folder))


@pytest.fixture(scope="module", name="pair")
def make_pair(tmp_path_factory):
    """(original, tuned): a training of 0 steps and one of 4 that collapses after step 2."""
    place = tmp_path_factory.mktemp("interpolation")
    original = trained(place / "original", 0, Measured({}))
    tuned = trained(place / "tuned", 4, Measured({1: 0.5, 2: 0.9, 3: 0.1, 4: 0.0}))
    return original, tuned


def interpolated(pair, folder, share=None, choice=None):
    original, tuned = pair
    outputs = interpolate.interpolate(
        TOY, original, tuned, share, partitioning.Partitioner(devices=jax.devices()[:1]),
        str(folder), choice,
    )  # fmt: skip
    assert all((folder / path).exists() for path in outputs.values())
    return checkpointing.read_parameters(folder), json.loads(
        (folder / outputs["report"]).read_text()
    )


def test_a_late_collapse_is_not_what_is_taken(pair, tmp_path):
    _, tuned = pair
    assert checkpoint_directory.complete_steps(Path(tuned.folder, "checkpoints")) == [2, 4]
    found, report = interpolated(pair, tmp_path, share=1.0)
    best = checkpointing.read_parameters(tuned.folder, 2)
    assert all(np.array_equal(best[path], found[path]) for path in best)
    assert report == {"share": 1.0, "metric": None, "tried": []}
    last = checkpointing.read_parameters(tuned.folder, 4)
    assert any(not np.array_equal(last[path], found[path]) for path in last)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_weights_are_the_mean_by_share(pair, tmp_path, share):
    original, tuned = (source.arrays() for source in pair)
    found, _ = interpolated(pair, tmp_path, share)
    for path, value in found.items():
        expected = (1 - share) * original[path] + share * tuned[path]
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
        assert share or np.array_equal(value, original[path])


def test_the_share_is_the_smallest_that_is_nearly_the_best(pair, tmp_path):
    """Measured on the model with the share, so that a target length finds the share it is of."""
    half, _ = interpolated(pair, tmp_path / "half", 0.5)
    tokens = {"tokens": jnp.arange(12)[None]}
    vectors = half["table"][tokens["tokens"]].mean(-2) * half["scale"]
    evaluator = Norm(float(np.linalg.norm(vectors)))
    choice = Choice((1.0, 0.5, 0.0), 0.0, evaluator, "dev/near")
    found, report = interpolated(pair, tmp_path / "chosen", choice=choice)
    assert report["share"] == 0.5 and [share for share, _ in report["tried"]] == [0.0, 0.5, 1.0]
    assert all(np.array_equal(found[path], half[path]) for path in half)
    lenient = dataclasses.replace(choice, tolerance=1e9)
    assert interpolated(pair, tmp_path / "lenient", choice=lenient)[1]["share"] == 0.0


def test_without_a_judged_query_the_training_is_taken_as_it_is(pair, tmp_path):
    choice = Choice((0.0, 1.0), 0.0, Norm(0.0, metrics=()), "dev/near")
    assert interpolated(pair, tmp_path, choice=choice)[1] == {
        "share": 1.0, "metric": None, "tried": [],
    }  # fmt: skip


def test_a_tolerance_prefers_the_original():
    tried = [(0.0, 0.60), (0.25, 0.694), (0.5, 0.699), (1.0, 0.70)]
    assert smallest_good(tried, 0.005) == 0.5
    assert smallest_good(tried, 0.01) == 0.25
    assert smallest_good(tried, 0.0) == 1.0
    assert smallest_good([(0.0, 0.7), (1.0, 0.7)], 0.0) == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shares": ()}, "expected numbers from 0"),
        ({"shares": (0.0, 1.5)}, r"found \[0.0, 1.5\]"),
        ({"tolerance": -0.1}, "tolerance: expected 0 or more"),
        ({"metric": "dev/nDGC@10"}, "expected one of dev/near; found 'dev/nDGC@10'"),
        ({"metric": "test/near"}, "expected one of dev/near"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(changes, message):
    fields = {"shares": (0.0, 1.0), "tolerance": 0.0, "evaluator": Norm(0.0), "metric": "dev/near"}
    with pytest.raises(ValueError, match=message):
        Choice(**fields | changes)


def test_a_share_outside_is_refused():
    with pytest.raises(ValueError, match="INTERPOLATION.*found 2"):
        interpolate.check(2, None)
    with pytest.raises(ValueError, match="found neither"):
        interpolate.check(None, None)


def test_weights_of_two_models_are_refused():
    one, other = {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(4), "c": np.zeros(3)}
    with pytest.raises(warm_start.InitialiseError) as refusal:
        Mixture(one, other, 0.5)
    for part in (r"a: original (2,), tuned (4,)", "b: in one of the two only", "c: in one of"):
        assert part in str(refusal.value)
