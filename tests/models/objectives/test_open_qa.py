"""Question answering in the engine: it learns, the index is static, any mesh gives the same."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.corruption import evidence_layout
from models.losses import span_scores
from models.networks import projected_encoder, span_head
from models.objectives import open_qa
from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.retrieval.device_index import DeviceIndexConfig
from t5x_style.step import optimizers
from t5x_style.training import metric_writer, progress, trainer
from tests.kits import tiny_models
from tests.kits.tiny_corpus import TinyCorpus

ROWS, LENGTH = 8, 10
CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1)
INDEX = DeviceIndexConfig(8, None, "float32", exclude=(), multiple=16, chunk=8, encode_rows=4)
CADENCE = trainer.Cadence(steps=6, log_every=1, evaluate_every=100, save_every=3)
CORPUS = TinyCorpus(37)


def make(corpus=CORPUS, **changes):
    settings = {
        "config": CONFIG,
        "reader_config": CONFIG,
        "projection": projected_encoder.ProjectionConfig(8, dropout=0.0),
        "spans": span_head.SpanConfig(3, 8),
        "embedding_config": dataclasses.replace(tiny_models.TITLED, passage_length=12),
        "vocabulary": tiny_models.VOCABULARY,
        "query": GroupShape(ROWS, LENGTH, 1),
        "answers": (2, 2),
        "corpus": corpus,
        "index_config": INDEX,
        "beam": 37,
        "read": 3,
    }
    return functools.partial(open_qa.OpenQA, **settings | changes)


@dataclasses.dataclass(frozen=True)
class Questions:
    """The beginnings of eight blocks, answered by two of their tokens; the same every step."""

    fingerprint: str = "questions"

    def specs(self):
        return tiny_models.specs_of(make()(rngs=nnx.Rngs(0)))

    def batch(self, step, rows=None):
        rows = np.arange(ROWS) if rows is None else rows
        tokens = CORPUS.tokens(0, CORPUS.rows)[rows * 4]
        lengths = CORPUS.column("length", 0, CORPUS.rows)[rows * 4]
        group = evidence_layout.beginning(jnp.asarray(tokens), jnp.asarray(lengths), LENGTH, 3)
        group = {name: np.asarray(array) for name, array in group.items()}
        group["example_id"] = rows.astype(np.int32)[:, None]
        answers = np.full((len(rows), 2, 2), span_scores.NO_TOKEN, np.int32)
        answers[:, 0] = tokens[:, 4:6]
        answers[:, 1, 0] = 1  # the unknown token, which no block has
        group["answers"] = answers
        return {"query": group}

    def batches(self, start_step, rows):
        while True:
            yield self.batch(start_step, rows)


def build(folder, mesh=(1, 1, 1), steps=CADENCE.steps):
    partitioner = partitioning.Partitioner(
        partitioning.MeshShape(*mesh), devices=jax.devices()[: int(np.prod(mesh))]
    )
    kept = checkpointing.Checkpointer(folder / "checkpoints", checkpointing.Checkpointing(keep=2))
    cadence = dataclasses.replace(CADENCE, steps=steps)
    return trainer.Trainer(
        make(), Questions(), optimizers.AdamW(5e-3, 2, 400), partitioner, kept, cadence, 3
    )


def train(folder, **settings):
    run = build(folder, **settings)
    run.start()
    first = int(run.state.step)
    log = metric_writer.MetricLog(folder, first)
    shown = progress.TrainingProgress("qa", first, run.cadence.steps, active=False)
    before = module_of(run)
    assert run.fit(log, shown, {})
    run.checkpointer.close()
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    return run, before, [line for line in lines if "train/loss" in line]


def module_of(run):
    copied = jax.tree.map(jnp.copy, (run.state.params, run.state.variables))
    return run.definition.module(*copied)


@pytest.mark.slow
def test_it_learns_to_answer_and_the_index_stands_still(tmp_path):
    run, before, lines = train(tmp_path, steps=80)
    assert lines[0]["train/exact_match"] == 0 and lines[-1]["train/exact_match"] >= 0.75
    assert lines[-1]["train/loss"] < 0.7 * lines[0]["train/loss"]
    after = module_of(run)
    for name in ("block_embedder", "index"):
        for one, other in zip(
            jax.tree.leaves(nnx.state(getattr(before, name))),
            jax.tree.leaves(nnx.state(getattr(after, name))),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
    # What the index holds is what embedded it, and that carries no moments.
    blocks = CORPUS.tokens(0, 37), CORPUS.column("length", 0, 37)
    group = evidence_layout.row_group(*map(jnp.asarray, blocks), jnp.zeros(37, jnp.int32))
    vectors = after.block_embedder(group)[:, 0]
    np.testing.assert_allclose(after.index.embeddings[...][:37], vectors, rtol=1e-5, atol=1e-5)
    moments = [path for path, _ in jax.tree_util.tree_leaves_with_path(run.state.opt_state)]
    assert moments and not [path for path in moments if "block_embedder" in str(path)]
    answered(after)


def answered(model):
    """`answer` says what the loss calls the best span, in the tokens of the text."""
    model.eval()
    batch = {
        group: {name: jnp.asarray(array) for name, array in features.items()}
        for group, features in Questions().batch(0).items()
    }
    batch = model.retrieve(batch, jax.random.key(0))
    exact = float(model.loss(batch, jax.random.key(0))[1]["exact_match"].value())
    found = {name: np.asarray(array) for name, array in model.answer(batch["joint"]).items()}
    relevance = np.einsum(
        "bd,bsd->bs", model.embedder(batch["query"])[:, 0], batch["beam"]["vectors"]
    )
    together = found["score"].reshape(ROWS, 3) + relevance[:, :3]
    tokens = np.asarray(batch["joint"]["tokens"]).reshape(ROWS, 3, -1)
    right = 0
    for question, block in enumerate(together.argmax(1)):
        row = question * 3 + block
        start, end = (int(found[name][row, 0]) for name in ("start", "end"))
        expected = np.asarray(batch["query"]["answers"])[question, 0].tolist()
        right += tokens[question, block, start : end + 1].tolist() == expected
        assert -5 < found["log_probability"][row, 0] <= 0
    assert right == ROWS * exact


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2, 2), (8, 1, 1)])
def test_any_mesh_gives_the_same(tmp_path, mesh):
    _, _, alone = train(tmp_path / "one")
    _, _, lines = train(tmp_path / "many", mesh=mesh)
    for found, expected in zip(lines, alone, strict=True):
        for name in ("loss", "reader_loss", "retriever_loss", "found_in_beam", "Recall@1"):
            key = f"train/{name}"
            assert found[key] == pytest.approx(expected[key], rel=2e-4, abs=1e-5), key


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole, _, _ = train(tmp_path / "whole")
    train(tmp_path / "parts", steps=3)
    assert build(tmp_path / "parts").start() == "resumed at step 3"
    parts, _, _ = train(tmp_path / "parts")
    for one, other in zip(
        jax.tree.leaves((whole.state.params, whole.state.variables)),
        jax.tree.leaves((parts.state.params, parts.state.variables)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_a_text_without_a_body_has_no_answer():
    model = make(None)(rngs=nnx.Rngs(0))
    tokens = jnp.asarray([[2, 7, 3, 3, 0, 0], [2, 7, 3, 8, 3, 0], [2, 7, 3, 0, 0, 0]], jnp.int32)
    joint = evidence_layout.row_group(tokens, jnp.asarray([4, 5, 3]), jnp.zeros(3, jnp.int32))
    found = {name: np.asarray(array)[:, 0] for name, array in model.answer(joint).items()}
    np.testing.assert_array_equal(np.isneginf(found["score"]), [True, False, True])
    assert (found["start"][1], found["end"][1], found["log_probability"][1]) == (3, 3, 0)
    assert not np.isnan(found["log_probability"]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam": 38}, "expected a corpus of more than 37 rows"),
        ({"read": 38}, "read from 1 to beam"),
        ({"query": GroupShape(4, LENGTH, 2)}, "1 segment a row"),
        ({"query": GroupShape(4, 20, 1)}, "max_positions of at least 20 \\+ 12"),
        ({"answers": (0, 2)}, "two sizes of at least 1"),
        ({"index_config": dataclasses.replace(INDEX, dimension=9)}, "dimension 8"),
        ({"index_config": dataclasses.replace(INDEX, max_staleness_steps=2)}, "keep their vectors"),
        ({"corpus": TinyCorpus(37, 60)}, "one vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)(rngs=nnx.Rngs(0))


def test_without_a_corpus_it_cannot_be_trained():
    model = make(None)(rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"bind OpenQA\.corpus"):
        model.retrieve({}, jax.random.key(0))
