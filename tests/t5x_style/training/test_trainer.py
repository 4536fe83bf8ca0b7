"""The loop: resume equals uninterrupted, order of restoring, refusals, NaN with its rows named."""

import dataclasses
import functools
import hashlib
import json
import os
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style import train as train_entry
from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import partitioning
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.objective import BatchError, GroupShape, embedder
from t5x_style.step import optimizers
from t5x_style.training import hooks, metric_writer, progress, trainer
from tests.kits.toys.toy_objective import Toy, ToyPipeline

TEXT = GroupShape(rows=16, length=12, segments=1)
OPTIMIZER = optimizers.AdamW(0.05, 2, 12, no_decay=("scale",))
TOY = functools.partial(Toy, TEXT, 32, 8, 16)
CADENCE = trainer.Cadence(steps=12, log_every=2, evaluate_every=4, save_every=5)


class CountingEvaluator:
    """Says how far the first vector is from the origin: deterministic, and peaks somewhere."""

    name = "toy"

    def __init__(self):
        self.steps = []

    def evaluate(self, functions, step):
        self.steps.append(step)
        group = {"tokens": jnp.arange(12)[None]}
        norm = float(jnp.linalg.norm(embedder(functions, "query")(group)))
        return {"norm": norm, "peak": -abs(step - 8.0)}


def build(folder, make=TOY, pipeline=None, cadence=CADENCE, mesh=(1, 1, 1), **settings):
    partitioner = partitioning.Partitioner(
        partitioning.MeshShape(*mesh), devices=jax.devices()[: int(np.prod(mesh))]
    )
    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=2)
    )
    pipeline = pipeline or ToyPipeline(TEXT, 32)
    return trainer.Trainer(
        make, pipeline, OPTIMIZER, partitioner, checkpointer, cadence, seed=3, **settings
    )


def train(folder, metric=None, **kwargs):
    """Runs to the end or to a stop; returns the trainer and whether it finished."""
    run = build(folder, **kwargs)
    run.start()
    first = int(run.state.step)
    log = metric_writer.MetricLog(folder, first)
    shown = progress.TrainingProgress("toy", first, run.cadence.steps, active=False)
    finished = run.fit(log, shown, {}, [CountingEvaluator()], metric)
    run.checkpointer.close()
    return run, finished


def digest(run, folder):
    """sha256 of everything that must not depend on interruptions."""
    state = (run.state.params, run.state.opt_state, run.state.variables, run.state.step)
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        found.update(np.asarray(leaf).tobytes())
    for line in metric_writer.read_lines(folder / "metrics.jsonl"):
        kept = {k: v for k, v in line.items() if not k.startswith(metric_writer.TIMING)}
        found.update(json.dumps(kept).encode())
    return found.hexdigest()


class Killed(BaseException):
    """Simulates a process that is gone; the real one is in the kill tests."""


def killed_at(step):
    class Pipeline(ToyPipeline):
        def batches(self, start_step, rows):
            for number, batch in enumerate(super().batches(start_step, rows), start_step):
                if number == step:
                    raise Killed
                yield batch

    return Pipeline(TEXT, 32)


@pytest.mark.parametrize(
    "step", [*(pytest.param(one, marks=pytest.mark.slow) for one in (3, 5, 11)), 7]
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, step):
    expected = digest(train(tmp_path / "whole")[0], tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "cut", pipeline=killed_at(step))
    run, finished = train(tmp_path / "cut")
    assert finished and digest(run, tmp_path / "cut") == expected


@pytest.mark.parametrize("step", [3, 7])  # before and after the first checkpoint
def test_the_parameters_of_step_0_are_evaluated_once(tmp_path, step):
    cadence = dataclasses.replace(CADENCE, evaluate_at_start=True)
    expected = digest(train(tmp_path / "whole", cadence=cadence)[0], tmp_path / "whole")
    with pytest.raises(Killed):
        train(tmp_path / "cut", pipeline=killed_at(step), cadence=cadence)
    run, _ = train(tmp_path / "cut", cadence=cadence)
    assert digest(run, tmp_path / "cut") == expected
    lines = metric_writer.read_lines(tmp_path / "cut/metrics.jsonl")
    norms = {line["step"]: line["eval/toy/norm"] for line in lines if "eval/toy/norm" in line}
    assert list(norms) == [0, 4, 8, 12] and norms[0] != norms[4]


def test_sigterm_saves_and_stops(tmp_path):
    class Signalling(CountingEvaluator):
        def evaluate(self, functions, step):
            os.kill(os.getpid(), signal.SIGTERM)
            return {}

    before = signal.getsignal(signal.SIGTERM)
    run = build(tmp_path)
    run.start()
    log = metric_writer.MetricLog(tmp_path, 0)
    shown = progress.TrainingProgress("toy", 0, 12, active=False)
    assert run.fit(log, shown, {}, [Signalling()]) is False
    assert run.checkpointer.latest() == int(run.state.step) == 5
    assert signal.getsignal(signal.SIGTERM) is before
    whole, _ = train(tmp_path / "whole")
    resumed, _ = train(tmp_path)
    for a, b in zip(*(jax.tree.leaves(r.state.params) for r in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_best_checkpoint_is_kept(tmp_path):
    cadence = dataclasses.replace(CADENCE, steps=20, save_every=3)
    run, _ = train(tmp_path, "toy/peak", cadence=cadence)
    assert run.checkpointer.best() == (8, 0.0)
    steps = {int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()}
    assert steps == {8, 18, 20}


def test_unknown_development_metric(tmp_path):
    with pytest.raises(ValueError, match="expected one of .*'toy/norm'.*found 'toy/mrr'"):
        train(tmp_path, "toy/mrr")


def test_another_plan_is_refused(tmp_path):
    train(tmp_path)
    run = build(tmp_path, pipeline=ToyPipeline(TEXT, 32, fingerprint="other"))
    with pytest.raises(trainer.PlanError, match="trained on plan toy"):
        run.start()


def test_batch_that_differs_names_feature_expected_and_found(tmp_path):
    class Wrong(ToyPipeline):
        def specs(self):
            specs = super().specs()
            specs["text"]["tokens"] = ((16, 13), np.dtype(np.int32))
            specs["text"]["extra"] = ((16,), np.dtype(np.float32))
            del specs["text"]["cls_at"]
            return specs

    with pytest.raises(BatchError) as error:
        build(tmp_path, pipeline=Wrong(TEXT, 32))
    assert "text.tokens: expected int32[16, 12], found int32[16, 13]" in str(error.value)
    assert "text.extra: not expected, found float32[16]" in str(error.value)
    assert "text.cls_at: expected int32[16, 1], found nothing" in str(error.value)


def test_rows_that_do_not_divide_by_the_mesh(tmp_path):
    text = GroupShape(12, 12, 1)
    make = functools.partial(Toy, text, 32, 8, 16)
    with pytest.raises(partitioning.PartitioningError, match="12 rows do not divide by 8"):
        build(tmp_path, make, ToyPipeline(text, 32), mesh=(8, 1, 1))


def test_no_micro_batches(tmp_path):
    with pytest.raises(ValueError, match="micro_batches: expected at least 1, found 0"):
        build(tmp_path, micro_batches=0)


def test_a_pooling_that_is_for_use_alone(tmp_path):
    class Several(Toy):
        def contract(self):
            return dataclasses.replace(super().contract(), pooling="mcls")

    make = functools.partial(Several, TEXT, 32, 8, 16)
    with pytest.raises(ContractError, match="expected 'cls' in a training, found 'mcls'"):
        build(tmp_path, make)


def test_micro_batches_of_coupled_examples(tmp_path):
    class Coupled(Toy):
        requires_full_batch = True

    make = functools.partial(Coupled, TEXT, 32, 8, 16)
    with pytest.raises(ValueError, match="encode_chunks"):
        build(tmp_path, make, micro_batches=2)


class Fragile(Toy):
    """Its loss is NaN if a token is 31."""

    def loss(self, batch, key):
        mean, metrics = super().loss(batch, key)
        bad = (batch["text"]["target"] == 31).any()
        return mean * jnp.where(bad, jnp.nan, 1.0), metrics


class Poisoning(ToyPipeline):
    """Row 3 of one step holds the token 31, and no other row of any step does."""

    def batch(self, step, rows=None):
        batch = super().batch(step)
        batch["text"]["tokens"] %= 31
        if step == self.poison_step:
            batch["text"]["tokens"][3] = 31
        rows = slice(None) if rows is None else rows
        return {"text": {name: array[rows] for name, array in batch["text"].items()}}


FRAGILE = functools.partial(Fragile, TEXT, 32, 8, 16)


@pytest.mark.parametrize(
    ("bad", "saved"), [(6, 5), pytest.param(9, 5, marks=pytest.mark.slow), (11, 10)]
)
def test_non_finite_stops_before_the_update_and_names_the_row(tmp_path, bad, saved):
    """In the middle; at a step that is to be saved; at the last step."""
    with pytest.raises(hooks.NonFiniteError) as error:
        train(tmp_path, make=FRAGILE, pipeline=Poisoning(TEXT, 32, poison_step=bad))
    assert f"step {bad}" in str(error.value) and "[3]" in str(error.value)
    assert str(bad * 16 + 3) in str(error.value)
    logged = metric_writer.read_lines(tmp_path / metric_writer.JSONL)
    unhealthy = [line for line in logged if line.get("train/healthy") == 0.0]
    assert {line["step"] for line in unhealthy} == {bad + 1} and logged[-1] is unhealthy[-1]
    assert not np.isfinite(unhealthy[0]["train/loss"])
    checkpointer = checkpointing.Checkpointer(
        tmp_path / "checkpoints", checkpointing.Checkpointing(keep=2)
    )
    assert checkpointer.latest() == saved


def test_non_finite_step_that_a_signal_makes_the_last(tmp_path):
    class Signalled(Poisoning):
        def batches(self, start_step, rows):
            for number, batch in enumerate(super().batches(start_step, rows), start_step):
                if number == 6:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    with pytest.raises(hooks.NonFiniteError, match="step 6"):
        train(tmp_path, make=FRAGILE, pipeline=Signalled(TEXT, 32, poison_step=6))
    assert not (tmp_path / "checkpoints" / "6").exists()


def test_profile_of_a_resumed_run(tmp_path):
    short = dataclasses.replace(CADENCE, steps=4)
    train(tmp_path, cadence=short)
    traced = dataclasses.replace(CADENCE, profile_first=2, profile_count=4)
    assert train(tmp_path, cadence=traced)[1]  # resumes after the first traced step
    train(tmp_path / "whole", cadence=dataclasses.replace(traced, steps=4))  # ends while tracing
    assert list((tmp_path / "whole" / "profile").rglob("*.xplane.pb"))


def test_development_metric_of_no_evaluator():
    check = functools.partial(train_entry.check, ToyPipeline(TEXT, 32), CADENCE)
    with pytest.raises(ValueError, match="found 'dev/MRR'; train.evaluators gives nothing"):
        check([], "dev/MRR")
    with pytest.raises(ValueError, match=r"found 'dev/MRR'; .* gives dev/MRR@10, dev/nDCG@10"):
        train_entry.measured_development_metric("dev/MRR", {"dev": ("MRR@10", "nDCG@10")})
    gives = types.SimpleNamespace(name="dev", metrics=("MRR@10", "nDCG@10", "F1_*"))
    with pytest.raises(ValueError, match=r"found 'dev/nDGC@10'; .*did you mean dev/nDCG@10\?$"):
        check([gives], "dev/nDGC@10")
    check([gives], "dev/F1_de")
    check([types.SimpleNamespace(name="dev", metrics=())], "dev/nDCG@10")
    train_entry.measured_development_metric("dev/MRR@10", {"dev": ("MRR@10",), "other": None})
    train_entry.measured_development_metric("other/anything", {"other": None})
    assert train_entry.measured_development_metric(None, {}) is None
    assert train_entry.measured_development_metric("dev/MRR@10", {"dev": ()}) is None


def test_logs_hold_what_was_promised(tmp_path):
    train(tmp_path)
    lines = metric_writer.read_lines(tmp_path / "metrics.jsonl")
    logged = [line for line in lines if "train/loss" in line]
    assert [line["step"] for line in logged] == [2, 4, 6, 8, 10, 12]
    for name in ("loss", "gradient_norm", "parameter_norm", "update_norm", "learning_rate",
                 "padding_share"):  # fmt: skip
        assert all(np.isfinite(line[f"train/{name}"]) for line in logged), name
    assert all(line["timing/tokens_per_second"] > 0 for line in logged)
    assert list((tmp_path / "tensorboard").iterdir())
    metric_writer.draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", "toy")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_find_rows():
    bad = {5, 11}
    assert hooks.find_rows(lambda rows: not bad & set(rows.tolist()), 16) == [5, 11]
    assert hooks.find_rows(lambda rows: len(rows) < 16, 16) == []
