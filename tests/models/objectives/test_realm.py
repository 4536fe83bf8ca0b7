"""REALM in the engine: one program on any mesh, exact resume, what it hides and what it refuses."""

import dataclasses
import functools
import re
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.corruption import evidence_layout, span_masks
from models.losses import marginal
from models.networks import projected_encoder
from models.objectives import realm
from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import partitioning
from t5x_style.evaluation.loss_evaluator import ObjectiveEvaluator
from t5x_style.interfaces.objective import GroupShape
from t5x_style.retrieval.device_index import DeviceIndexConfig
from t5x_style.step import optimizers, static_tables
from t5x_style.training import metric_writer, progress, trainer
from tests.kits import process_group, tiny_models
from tests.kits.tiny_corpus import TinyCorpus

ROWS, LENGTH, SPANS = 8, 10, 2
QUERY = GroupShape(rows=ROWS, length=LENGTH, segments=1)
VOCABULARY = tiny_models.VOCABULARY
CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1)
INDEX = DeviceIndexConfig(8, 3, "float32", multiple=16, chunk=8, encode_rows=4)
CADENCE = trainer.Cadence(steps=9, log_every=1, evaluate_every=100, save_every=4)
CORPUS = TinyCorpus(37)


def make(corpus=CORPUS, **changes):
    settings = {
        "config": CONFIG,
        "reader_config": CONFIG,
        "projection": projected_encoder.ProjectionConfig(8, dropout=0.0),
        "embedding_config": tiny_models.TITLED,
        "vocabulary": VOCABULARY,
        "query": QUERY,
        "spans": SPANS,
        "masking": span_masks.SalientSpan(3),
        "evaluation_masking": span_masks.SalientSpan(3),
        "corpus": corpus,
        "index_config": INDEX,
        "chunk": 16,
        "candidates": 4,
    }
    return functools.partial(realm.REALM, **settings | changes)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The bodies of blocks as queries, each with two spans; a pure function of the step."""

    corpus: TinyCorpus = CORPUS
    fingerprint: str = "sentences"

    def specs(self):
        return tiny_models.specs_of(make()(rngs=nnx.Rngs(0)))

    def batch(self, step, rows=None):
        rows = np.arange(ROWS) if rows is None else rows
        source = (step * ROWS + rows) % self.corpus.rows
        tokens = self.corpus.tokens(0, self.corpus.rows)[source]
        lengths = self.corpus.column("length", 0, self.corpus.rows)[source]
        group = evidence_layout.beginning(jnp.asarray(tokens), jnp.asarray(lengths), LENGTH, 3)
        group = {name: np.asarray(array) for name, array in group.items()}
        group["example_id"] = (step * ROWS + rows).astype(np.int32)[:, None]
        group["source_row"] = source.astype(np.int32)[:, None]
        group["span_start"] = np.tile(np.array([[1, 2]], np.int32), (len(rows), 1))
        group["span_end"] = np.tile(np.array([[2, 4]], np.int32), (len(rows), 1))
        return {"query": group}

    def batches(self, start_step, rows):
        step = start_step
        while True:
            yield self.batch(step, rows)
            step += 1


def build(folder, mesh=(1, 1, 1), objective=None, cadence=CADENCE, **settings):
    partitioner = partitioning.Partitioner(
        partitioning.MeshShape(*mesh), devices=jax.devices()[: int(np.prod(mesh))]
    )
    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=2)
    )
    return trainer.Trainer(
        objective or make(), Sentences(), optimizers.AdamW(1e-2, 2, 200), partitioner, checkpointer,
        cadence, 3, **settings,
    )  # fmt: skip


def train(folder, steps=None, **settings):
    """Trains, from where it stopped; returns the trainer and the logged lines."""
    run = build(folder, **settings)
    if steps is not None:
        run.cadence = dataclasses.replace(run.cadence, steps=steps)
    run.start()
    first = int(run.state.step)
    log = metric_writer.MetricLog(folder, first)
    shown = progress.TrainingProgress("realm", first, run.cadence.steps, active=False)
    assert run.fit(log, shown, {})
    run.checkpointer.close()
    return run, losses(folder)


def losses(folder):
    """The logged lines of training steps."""
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    return [line for line in lines if "train/loss" in line]


def arrays(run):
    leaves = jax.tree.leaves((run.state.params, run.state.opt_state, run.state.variables))
    return [np.asarray(leaf) for leaf in leaves]


@pytest.mark.parametrize("mesh", [(2, 2, 2), pytest.param((8, 1, 1), marks=pytest.mark.slow)])
def test_the_loss_falls_and_is_the_same_on_any_mesh(tmp_path, mesh):
    _, alone = train(tmp_path / "one", cadence=dataclasses.replace(CADENCE, steps=40))
    losses = [line["train/loss"] for line in alone]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.2
    _, lines = train(tmp_path / "many", mesh=mesh)
    assert lines[-1]["train/index_recall"] == 1  # the search is exact here
    for found, expected in zip(lines, alone, strict=False):
        for name in ("loss", "retrieval_utility", "candidate_age_steps", "document_entropy"):
            key = f"train/{name}"
            assert found[key] == pytest.approx(expected[key], rel=2e-4, abs=1e-5), key


@pytest.fixture(scope="module")
def four_steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")  # ends in the middle of a round of refreshing
    return folder, *train(folder, steps=4)


@pytest.mark.slow
def test_two_processes_hold_one_index(tmp_path):
    _, alone = train(tmp_path / "alone", steps=4)
    folder = tmp_path / "two"
    command = ["t5x_style.train", "--gin_file=tests/multi_process/realm.gin", "--gin_allow=tests"]
    command += [f"--gin.MODEL_DIR={folder}", "--gin.DATA=2", "--gin.FSDP=1", "--gin.TENSOR=1"]
    for code, output in process_group.run(command):
        assert code == 0, output
    lines = losses(folder)
    for found, expected in zip(lines, alone, strict=True):
        for name in ("train/loss", "train/candidate_age_steps"):
            assert found[name] == pytest.approx(expected[name], rel=2e-4)


def test_evaluation_hides_alike_whatever_the_training_hides(tmp_path):
    """Two trainings with other masks, from the same start: equal before the first step."""
    told = []
    for name, masking in (
        ("spans", span_masks.SalientSpan(3)),
        ("words", span_masks.UniformWords(4)),
    ):
        run = build(tmp_path / name, objective=make(masking=masking))
        run.start()
        evaluator = ObjectiveEvaluator(
            "salient", Sentences(), 3, ["loss", "retrieval_utility"], run.partitioner
        )
        one = evaluator.evaluate(run.functions(run.state), 0)
        assert one == evaluator.evaluate(run.functions(run.state), 5)
        told.append(one)
        with pytest.raises(ValueError, match="'salient': expected metrics among .* found .*'mrr'"):
            ObjectiveEvaluator("salient", Sentences(), 1, ["mrr"], run.partitioner).evaluate(
                run.functions(run.state), 0
            )
    with pytest.raises(ValueError, match="None of a pipeline that has an end, found None of Sent"):
        ObjectiveEvaluator("salient", Sentences(), None, ["loss"], run.partitioner)
    assert told[0] == pytest.approx(told[1], rel=1e-6) and told[0]["loss"] > 0


@pytest.mark.slow
def test_a_killed_process_goes_on_and_ends_with_the_same_bits(tmp_path):
    """SIGKILL in the middle of a round of refreshing, some steps after the last checkpoint."""

    def command(name):
        words = ["--gin_file=tests/multi_process/realm.gin", "--gin_allow=tests"]
        words += [f"--gin.MODEL_DIR={tmp_path / name}", "--gin.STEPS=33", "--gin.EVALUATE_EVERY=4"]
        return ["t5x_style.train", *words]

    killed = process_group.start(command("killed"))
    for line in killed.stdout:  # checkpoints are written while training continues
        number = re.search(r"step (\d+)/33", line)
        if (
            number
            and int(number[1]) % 4 == 2
            and any((tmp_path / "killed/checkpoints").glob("[0-9]"))
        ):
            killed.kill()
    assert killed.wait() == -signal.SIGKILL
    for name in ("killed", "whole"):
        ((code, output),) = process_group.run(command(name), 1)
        assert code == 0, output
        assert bool(re.search(r"resumed at step \d", output)) == (name == "killed"), output
    ends = [build(tmp_path / name) for name in ("killed", "whole")]
    for run in ends:
        assert run.start() == "resumed at step 33"
    for ours, theirs in zip(*map(arrays, ends), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_resuming_after_a_stop_changes_no_bit(four_steps, tmp_path):
    whole, expected = train(tmp_path / "whole")
    shutil.copytree(four_steps[0], tmp_path / "cut")
    assert build(tmp_path / "cut").start() == "resumed at step 4"
    cut, found = train(tmp_path / "cut")
    for ours, theirs in zip(arrays(cut), arrays(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    drop = lambda line: {k: v for k, v in line.items() if not k.startswith(metric_writer.TIMING)}  # noqa: E731
    assert [drop(line) for line in found] == [drop(line) for line in expected]


def test_the_index_is_saved_and_the_tokens_are_not(four_steps):
    folder, run, lines = four_steps
    assert {"timing/candidate_age_minutes", "timing/index_age_minutes"} <= lines[-1].keys()
    meta = checkpointing.checkpoint_directory.read_meta(folder / "checkpoints" / "4")
    saved = set(meta["shapes"]["variables"])
    assert {"index/embeddings", "index/row_steps"} <= saved
    assert not {"index/tokens", "index/lengths"} & saved
    assert set(meta["tables"].values()) == {CORPUS.fingerprint}
    ages = np.asarray(run.state.variables["index"]["row_steps"][...])
    assert ages[:37].min() >= 1 and (ages[37:] == -1).all()


def test_another_corpus_than_the_checkpoints_is_refused(four_steps, tmp_path):
    shutil.copytree(four_steps[0], tmp_path / "other")
    other = build(tmp_path / "other", objective=make(TinyCorpus(37, seed=1)))
    with pytest.raises(
        static_tables.TableError, match="index/tokens: expected tiny-37-50-0, found"
    ):
        other.start()


@pytest.mark.slow
def test_micro_batches_change_nothing(tmp_path):
    _, whole = train(tmp_path / "whole", steps=3)
    _, pieces = train(tmp_path / "pieces", steps=3, micro_batches=4)
    for ours, theirs in zip(pieces, whole, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {
            "share_embedders": False,
            "marginalise": "span",
            "index_config": dataclasses.replace(
                INDEX, dtype="bfloat16", exclude=("row", "page", "duplicate")
            ),
        },
        {
            "masking": span_masks.UniformWords(4),
            "index_config": dataclasses.replace(INDEX, max_staleness_steps=None),
        },
    ],
)
def test_variants_train_and_resume_bit_for_bit(tmp_path, changes):
    whole, lines = train(tmp_path / "whole", steps=3, objective=make(**changes))
    cadence = dataclasses.replace(CADENCE, save_every=1)
    train(tmp_path / "cut", steps=2, objective=make(**changes), cadence=cadence)
    cut, _ = train(tmp_path / "cut", steps=3, objective=make(**changes), cadence=cadence)
    for ours, theirs in zip(arrays(cut), arrays(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(np.isfinite(line["train/loss"]) for line in lines)


def batch_and_model(**changes):
    model = make(**changes)(rngs=nnx.Rngs(0))
    for path, source in model.table_sources().items():
        name = path.removeprefix("index/")
        table = getattr(model.index, name)
        table[...] = jnp.asarray(source.read(0, model.index.padded))
    model.eval()
    model.on_train_start(jax.random.key(0))
    sentences = Sentences(model.index.corpus)
    batch = {"query": {k: jnp.asarray(v) for k, v in sentences.batch(2)["query"].items()}}
    return model, model.retrieve(model.corrupt(batch, jax.random.key(1)), jax.random.key(2))


def test_candidates_are_the_null_document_and_the_nearest_blocks_but_the_own():
    model, batch = batch_and_model()
    candidate = np.asarray(batch["candidate"]["tokens"]).reshape(ROWS, 4, -1)
    lengths = np.asarray(batch["candidate"]["segment_ids"]).sum(1).reshape(ROWS, 4)
    assert (candidate[:, 0, :3] == [2, 3, 3]).all() and (lengths[:, 0] == 3).all()
    tokens = CORPUS.tokens(0, 37)
    source = np.asarray(batch["query"]["source_row"])[:, 0]
    asked = np.asarray(model.embedder(batch["query"]))[:, 0]
    every = model.embedder(
        evidence_layout.row_group(
            jnp.asarray(tokens), jnp.asarray(CORPUS.column("length", 0, 37)), jnp.arange(37)
        )
    )
    scores = asked @ np.asarray(every)[:, 0].T
    scores[np.arange(ROWS), source] = -np.inf
    expected = tokens[np.argsort(-scores, axis=1)[:, :3]]
    np.testing.assert_array_equal(candidate[:, 1:, : tokens.shape[1]], expected)


def test_the_reader_sees_the_masked_sentence_and_the_body_without_title():
    _, batch = batch_and_model()
    query, joint = batch["query"], batch["joint"]
    labels = np.asarray(query["labels"])
    hidden = labels != -100
    assert (hidden.sum(1) >= 1).all() and (np.asarray(query["tokens"])[hidden] == 4).all()
    for row in range(ROWS):
        asked = np.asarray(query["tokens"])[row][np.asarray(query["segment_ids"])[row] > 0]
        for k in range(4):
            at = row * 4 + k
            block = np.asarray(batch["candidate"]["tokens"])[at]
            block = block[np.asarray(batch["candidate"]["segment_ids"])[at] > 0].tolist()
            body = block[block.index(3) + 1 :]
            real = np.asarray(joint["segment_ids"])[at] > 0
            assert np.asarray(joint["tokens"])[at][real].tolist() == [*asked, *body]
            types = np.asarray(projected_encoder.token_types(joint, 3))[at][real]
            assert types.tolist() == [0] * len(asked) + [1] * len(body)


def test_a_sentence_without_a_span_counts_for_nothing():
    model, batch = batch_and_model()
    query = batch["query"]
    none = {**batch, "query": query | {"labels": query["labels"].at[0].set(-100)}}
    loss, _ = model.loss(none, jax.random.key(0))
    whole, _ = model.loss(batch, jax.random.key(0))
    assert float(loss.weight[0]) < float(whole.weight[0])
    scores = model.score(batch, None)
    assert not np.asarray(model.score(none, None).mask)[0].any()
    expected = jax.tree.map(lambda x: x[1:], scores)
    others, _ = marginal.marginal_likelihood(*expected, "token")
    assert float(loss.value()) == pytest.approx(float(others.value()), rel=1e-5)


def test_fewer_candidates_than_asked_for_train_all_the_same():
    """Five blocks of two pages: where the own page is barred, two or three blocks are left."""
    exclude = dataclasses.replace(INDEX, exclude=("row", "page"))
    corpus = TinyCorpus(5)
    model, batch = batch_and_model(corpus=corpus, index_config=exclude)
    there = np.asarray(batch["candidate"]["segment_valid"]).reshape(ROWS, 4)
    assert there[:, 0].all() and set(there.sum(axis=1).tolist()) == {3, 4}
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        return nnx.merge(graph, params, rest).loss(batch, jax.random.key(0))[0].value()

    value, gradients = loss(params)
    assert np.isfinite(float(value)) and float(value) > 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_a_model_without_its_corpus_embeds_and_does_not_train():
    model = make(None)(rngs=nnx.Rngs(0))
    assert set(model.functions()) == {"embed_query", "embed_passage", "fill"}
    assert model.contract().dimension == 8
    with pytest.raises(ValueError, match="bind REALM.corpus"):
        model.retrieve({"query": {}}, jax.random.key(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": TinyCorpus(3)}, "more than 3 rows.*found 3"),
        ({"candidates": 1}, "expected 2 or more"),
        ({"query": GroupShape(8, 10, 2)}, "1 segment a row, found 2"),
        ({"query": GroupShape(8, 13, 1)}, "at least 13 . 12, a sentence and a block, found 24"),
        ({"projection": projected_encoder.ProjectionConfig(4)},
         "dimension 4, the size of the projection"),
        (
            {"config": dataclasses.replace(CONFIG, max_positions=24, vocab_size=50),
             "corpus": TinyCorpus(37, vocabulary_size=51)},
            "one vocabulary, found 50 .* 51 in the corpus",
        ),
        (
            {"config": dataclasses.replace(CONFIG, max_positions=11),
             "embedding_config": dataclasses.replace(
                 tiny_models.TITLED, query_length=11, passage_length=11)},
            "blocks of 3 to 11 tokens .*max_positions 11.*, found up to 12",
        ),
        ({"embedding_config": dataclasses.replace(tiny_models.TITLED, passage_length=11)},
         "blocks of 3 to 11 tokens .*passage_length 11.*, found up to 12"),
        ({"index_config": dataclasses.replace(INDEX, exclude=("page",))}, "expected 'row' in excl"),
        ({"evidence_length": 12}, "found both"),
        ({"marginalise": "word"}, "expected one of .'token', 'span'."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)(rngs=nnx.Rngs(0))
