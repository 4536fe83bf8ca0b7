"""A tiny training that retrieves on the host, and the builder of its index."""

import _thread
import dataclasses
import json
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.corruption import evidence_layout
from t5x_style.checkpoints import checkpointing, restored_model
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import embedder
from t5x_style.model_dependent_data.index_builder import Refresher, Training
from t5x_style.model_dependent_data.retrieval_batches import HostRetrieval
from t5x_style.model_dependent_data.version_log import RECORD, RUN, run_of
from t5x_style.retrieval.scann_index import Scann
from t5x_style.step import optimizers
from t5x_style.training import metric_writer, progress, trainer
from tests.models.objectives import test_realm

CORPUS = test_realm.CORPUS
CADENCE = trainer.Cadence(steps=9, log_every=1, evaluate_every=100, save_every=2)
INDEX = Scann(brute_force_below=1000, leaves=0, searched_share=1.0, reorder=10)


def host_objective():
    return test_realm.make(None, evidence_length=CORPUS.length)


def retrieval(folder, **changes):
    settings = {"source": test_realm.Sentences(), "exclude": ("row",)}
    settings |= {"max_staleness_steps": 4, "ahead": 1}
    settings |= {"folder": str(folder / "versions"), "corpus": CORPUS, "length": CORPUS.length}
    return HostRetrieval(hits=3, **settings | changes)


def one_device():
    return partitioning.Partitioner(partitioning.MeshShape(1), devices=jax.devices()[:1])


def build(folder, cadence=CADENCE, host=None, mesh=(1, 1, 1), objective=host_objective):
    partitioner = partitioning.Partitioner(
        partitioning.MeshShape(*mesh), devices=jax.devices()[: int(np.prod(mesh))]
    )
    kept = checkpointing.Checkpointer(folder / "checkpoints", checkpointing.Checkpointing(keep=3))
    run = trainer.Trainer(
        objective(), host or retrieval(folder), optimizers.AdamW(1e-2, 2, 200), partitioner,
        kept, cadence, 3,
    )  # fmt: skip
    if jax.process_index() == 0:
        folder.mkdir(exist_ok=True)
        run.abstract_module().contract().save(folder)  # as train.train does
    return run


def train(folder, steps=CADENCE.steps, **settings):
    run = build(folder, dataclasses.replace(CADENCE, steps=steps), **settings)
    run.start()
    first = int(run.state.step)
    log = metric_writer.MetricLog(folder, first, jax.process_index() == 0)
    shown = progress.TrainingProgress("host", first, steps, active=False)
    assert run.fit(log, shown, {})
    run.checkpointer.close()
    return run, [
        line for line in metric_writer.read_lines(folder / "metrics.jsonl") if "train/loss" in line
    ]


class Blocks:
    """The corpus, as far as a refresher asks for it."""

    ids = CORPUS.ids


class Embedder:
    """A checkpoint, as a refresher asks for it: embeds the whole corpus."""

    def __init__(self, folder, step):
        model = restored_model.load(test_realm.make(None), str(folder), one_device(), step)
        self.contract, self.fingerprint = model.contract, model.fingerprint
        self._embed = embedder(model.functions, "passage")

    def encode(self, side, source, kind="dense"):
        rows = (CORPUS.tokens(0, CORPUS.rows), CORPUS.column("length", 0, CORPUS.rows))
        group = evidence_layout.row_group(
            *map(jnp.asarray, rows), jnp.zeros(CORPUS.rows, jnp.int32)
        )
        return np.asarray(self._embed(group))[:, 0]


def refresher(folder, **changes):
    settings = {"parameters": ("^embedder/",), "keep": 9, "minimum_recall": 0.0}
    return Refresher(str(folder / "versions"), Blocks(), INDEX, **settings | changes)


def watched(folder, finished):
    return Training(
        run=lambda: run_of(folder),
        newest=lambda: checkpointing.newest(folder),
        load=lambda step: Embedder(folder, step),
        parameters=lambda step: checkpointing.read_parameters(folder, step),
        finished=finished,
    )


class Builder:
    """Builds in parallel to a training, in a thread, until the training has ended."""

    def __init__(self, folder, make=refresher, training=watched):
        self._ended = threading.Event()
        training = training(folder, self._ended.is_set)

        def watch():
            nnx.use_eager_sharding(False)  # of this thread
            try:
                make(folder).watch(training, 0.01, (checkpointing.CheckpointError,))
            except BaseException:
                _thread.interrupt_main()  # which would wait for an index without end
                raise

        self._thread = threading.Thread(target=watch)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def seen(folder):
    lines = (folder / RECORD).read_text().splitlines()
    return {row["step"]: row["version"] for row in map(json.loads, lines)}


def copy(folder, target):
    """A training that has not begun, and will see what another saw."""
    shutil.copytree(folder / "versions", target / "versions")
    for name in (RECORD, RUN):
        shutil.copy(folder / name, target / name)
