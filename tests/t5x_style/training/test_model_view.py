"""A source that depends on the model, written in a test: the engine knows nothing of its kind."""

import dataclasses
import functools
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style.interfaces import batch_source
from t5x_style.interfaces.batch_source import ModelDependentSource, SourceError, StopAsked
from t5x_style.interfaces.objective import embedder
from t5x_style.interfaces.representation import QUERY
from t5x_style.step import train_step
from t5x_style.training import metric_writer, progress
from tests.kits.toys.toy_objective import Toy, ToyPipeline
from tests.t5x_style.training import test_trainer
from tests.t5x_style.training.test_trainer import CADENCE, TEXT

PLAIN = ToyPipeline(TEXT, 32)


class ToyOfCorrupted(Toy):
    """Expects what `corrupt` makes; the step may not do it again."""

    def batch_specs(self):
        (specs,) = super().batch_specs()
        return [{"text": specs["text"] | {"target": specs["text"]["tokens"]}}]

    def corrupt(self, batch, key):
        assert "target" not in batch["text"]
        return super().corrupt(batch, key)


@dataclasses.dataclass(frozen=True)
class Corrupting(ModelDependentSource):
    """Batches of a source, corrupted on the host; notes what it sees of the training."""

    source: ToyPipeline
    stops_at: int = -1
    seen: list = dataclasses.field(default_factory=list)

    corrupts = True
    not_continued = "the toy is over"

    def bind(self, view):
        return Corrupted(self, view)

    @property
    def clean(self):
        return self.source


class Corrupted:
    def __init__(self, settings, view):
        self.settings, self.view = settings, view
        self.fingerprint = settings.source.fingerprint

    def specs(self):
        specs = self.settings.source.specs()
        return {"text": specs["text"] | {"target": specs["text"]["tokens"]}}

    @functools.cached_property
    def corrupt(self):
        table = np.full((32, 8), 2.0, np.float32)  # `corrupt` reads no parameter, `run` one
        run = self.view.program(
            lambda module, batch, key: (module.corrupt(batch, key), module.table[...].sum())
        )
        return lambda batch, step: run({"table": table}, batch, step)

    def batch(self, step, rows=None):
        made, total = self.corrupt(self.settings.source.batch(step, rows), step)
        assert float(total) == 2 * 32 * 8
        return jax.tree.map(np.asarray, made)

    def batches(self, start_step, rows):
        self.view.snapshot()
        return self._made(start_step, rows)

    def _made(self, step, rows):
        while True:
            embed = embedder(self.view.functions(), QUERY)
            group = {"tokens": jnp.arange(TEXT.length)[None]}
            self.settings.seen.append(float(jnp.linalg.norm(embed(group))))
            if step == self.settings.stops_at:
                os.kill(os.getpid(), signal.SIGTERM)
            if self.view.stop_asked():
                raise StopAsked
            yield self.batch(step, rows)
            step += 1


def build(folder, source=None, **settings):
    make = functools.partial(ToyOfCorrupted, TEXT, 32, 8, 16)
    return test_trainer.build(folder, make, source or Corrupting(PLAIN), **settings)


def fit(run, folder):
    run.start()
    log = metric_writer.MetricLog(folder, int(run.state.step))
    finished = run.fit(log, progress.TrainingProgress("toy", 0, 12, active=False), {})
    run.checkpointer.close()
    return finished


def losses(folder):
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    return [line["train/loss"] for line in lines if "train/loss" in line]


def test_a_source_that_corrupts_gives_the_batches_and_losses_of_the_step(tmp_path):
    source = Corrupting(PLAIN)
    run = build(tmp_path / "host", source)
    assert run.definition.corrupted
    key = train_step.step_keys(run.state.key, jnp.int32(3))[0]
    module = run.definition.module(run.state.params, run.state.variables)
    expected = module.corrupt(PLAIN.batch(3), key)
    for name, array in run.pipeline.batch(3)["text"].items():
        np.testing.assert_array_equal(array, expected["text"][name])
    assert fit(run, tmp_path / "host")
    assert len(set(source.seen)) == CADENCE.steps, "functions have the present parameters"
    test_trainer.train(tmp_path / "plain")
    np.testing.assert_allclose(losses(tmp_path / "host"), losses(tmp_path / "plain"), rtol=1e-5)


def test_there_is_a_checkpoint_before_the_first_batch(tmp_path):
    run = build(tmp_path)
    run.start()
    run.pipeline.batches(0, np.arange(TEXT.rows))
    assert run.checkpointer.latest() == 0
    run.checkpointer.close()
    assert build(tmp_path).start() == "resumed at step 0"


def test_a_training_that_is_stopped_while_it_waits_saves(tmp_path):
    assert fit(build(tmp_path, Corrupting(PLAIN, stops_at=4)), tmp_path) is False
    run = build(tmp_path)
    assert run.start() == "resumed at step 4"


def test_parameters_of_another_shape_are_refused(tmp_path):
    run = build(tmp_path).view.program(lambda module, batch, key: module.table[...].sum())
    assert np.isnan(run({}, PLAIN.batch(0), 0))
    with pytest.raises(SourceError, match=r"table: expected shape \(32, 8\), found \(3,\)"):
        run({"table": np.zeros(3, np.float32)}, PLAIN.batch(0), 0)


def test_plain_sources_are_bound_as_they_are():
    bound = batch_source.as_model_dependent(PLAIN)
    assert bound.bind(None) is bound.clean is PLAIN and bound.texts is None
    assert not bound.corrupts and not bound.not_continued and bound.resume_files(None, 3) == []
    assert batch_source.as_model_dependent(bound) is bound
    with pytest.raises(SourceError, match="found int, which has no specs and no batch and no"):
        batch_source.as_model_dependent(3)


class Unread:
    """A source whose fingerprint is costly."""

    specs = batch = batches = print

    @property
    def fingerprint(self):
        raise AssertionError("read")


def test_what_a_source_lacks_is_listed_and_its_fingerprint_is_not_read(monkeypatch):
    assert batch_source.as_model_dependent(Unread()).clean
    monkeypatch.delattr(Unread, "fingerprint")
    with pytest.raises(SourceError, match="found Unread, which has no fingerprint: another source"):
        batch_source.as_model_dependent(Unread())
