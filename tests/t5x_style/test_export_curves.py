"""`export --bundle=RUN`: the curves of the run's trainings come into the bundle."""

import argparse
import contextlib
from types import SimpleNamespace

from t5x_style import export
from t5x_style.configuration import gin_checks
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving import training_curves
from t5x_style.training import metric_writer
from tests.kits import store_kit
from tests.t5x_style.serving import bundle_kit

LOG = '{"step": 5, "train/loss": 2.0, "timing/elapsed_seconds": 1.5}\n'


def trained(link, log, **settings):
    planned = store_kit.plan(link, "train", **settings)
    return store_kit.finished(planned, {metric_writer.JSONL: log}, {"model": "."})


def test_a_bundle_of_a_run_has_curves_whatever_one_log_holds(tmp_path, monkeypatch, capsys):
    tokenizer, model, _ = bundle_kit.folders(tmp_path / "parts")
    index = bundle_kit.combined(model, tokenizer, bundle_kit.PASSAGES)
    found = SimpleNamespace(
        model=model,
        index=index,
        tokenizer=str(tokenizer),
        passages=Passages(tmp_path / "parts"),
        fusion=None,
    )
    run = tmp_path / "run"
    made = trained(run / "retriever", LOG)
    trained(run / "damaged", '{"step": 5, "tra\n' + LOG, seed=2)
    planned = store_kit.plan(run / "search", "search", made.folder, entry=export.searcher.JOB)
    store_kit.finished(planned, {"config.gin": ""}, {"answers": "config.gin"})
    monkeypatch.setattr(export.searcher, "open_searcher", lambda flags: found)
    monkeypatch.setattr(export.remote_store, "named_here", contextlib.nullcontext)
    options = argparse.Namespace(bundle=str(run), changes=None, to=None, discard_changes=False)
    assert export.bundle(options, gin_checks.parse_flags([])) == 0
    curves = training_curves.read(run / "bundle/versions/1")
    (training,) = curves.trainings
    assert (training.name, training.served, training.seconds) == ("retriever", True, 1.5)
    assert training.curves[0].values == [2.0] and curves.unread == ["damaged"]
    assert "no curves of the training 'damaged'" in capsys.readouterr().err
