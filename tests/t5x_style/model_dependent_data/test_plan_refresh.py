"""Plans of the current model: when, of what, on meshes, and after a stop."""

import dataclasses
import functools
import hashlib
import shutil

import jax
import numpy as np
import pytest

from input_pipelines.batches.token_groups import NONE
from input_pipelines.marge import document_grouping
from input_pipelines.marge.sub_batch_pipeline import SubBatchPipeline
from input_pipelines.store.token_store import StoreError
from input_pipelines.tokenizers.tokenization import TokenizerError
from models.networks import decoding, seq2seq
from models.objectives import marge
from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import partitioning
from t5x_style.interfaces.batch_source import SourceError, as_model_dependent
from t5x_style.interfaces.contract import load_vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.model_dependent_data.plan_refresh import PlanMissing, Replanning
from t5x_style.step import optimizers
from t5x_style.training import metric_writer, progress, trainer
from tests.kits import chunk_stores, process_group, tiny_models

ROWS, LENGTH, SEGMENTS, EVERY = 8, 32, 4, 4
RULES = document_grouping.SubBatchRules(documents=3)
SIZES = {
    "rows": ROWS,
    "length": LENGTH,
    "segments": SEGMENTS,
    "chunk_length": 16,
    "only_first": False,
    "seed": 5,
}
CADENCE = trainer.Cadence(steps=10, log_every=1, evaluate_every=10, save_every=3)
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING, similarity="cosine", query_length=16, passage_length=16
)


def _documents(names=40, languages=("de", "en"), seed=0):
    """Every language has its own words, and names that both of them hold."""
    rng = np.random.default_rng(seed)
    told = {}
    for name in range(names):
        for code in languages:
            words = [f"{code}{word}" for word in rng.integers(0, 30, rng.integers(3, 16))]
            told[f"{code}/news/n{name}"] = " ".join([f"Name{name}", *words])
    return told


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replanning")
    tokenizer = chunk_stores.make_tokenizer(folder / "t", _documents(), ["de", "en"], size=400)
    return chunk_stores.make_store(folder / "s", _documents(), tokenizer), tokenizer


def _pipeline(made, rules=RULES, **changes):
    store, tokenizer = made
    return SubBatchPipeline(store, tokenizer=tokenizer, **(SIZES | {"rules": rules} | changes))


def _source(made, pipeline=None, tile=16):
    return Replanning(pipeline or _pipeline(made), EVERY, 2, 2, tile=tile)


def _make(tokenizer, rngs):
    vocabulary = load_vocabulary(tokenizer)
    shape = GroupShape(ROWS, LENGTH, SEGMENTS)
    config = dataclasses.replace(tiny_models.CONFIG, vocab_size=vocabulary.size, max_positions=32)
    return marge.Marge(
        config, seq2seq.DecoderConfig(1, 32, 1, 32, 32), marge.RelevanceConfig(1), EMBEDDING,
        vocabulary, shape, shape, 64, decoding.GenerationConfig(8), rngs=rngs,
    )  # fmt: skip


def _trainer(folder, made, mesh=(1, 1, 1), pipeline=None, tile=16, cadence=CADENCE):
    partitioner = partitioning.Partitioner(
        partitioning.MeshShape(*mesh), devices=jax.devices()[: int(np.prod(mesh))]
    )
    return trainer.Trainer(
        functools.partial(_make_with, made[1]),
        _source(made, pipeline, tile),
        optimizers.AdamW(0.01, 2, 10),
        partitioner,
        checkpointing.Checkpointer(folder / "checkpoints", checkpointing.Checkpointing(keep=9)),
        cadence,
        seed=3,
    )


def _make_with(tokenizer, *, rngs):
    return _make(tokenizer, rngs)


def _fit(folder, made, **settings):
    run = _trainer(folder, made, **settings)
    run.start()
    first = int(run.state.step)
    log = metric_writer.MetricLog(folder, first)
    shown = progress.TrainingProgress("marge", first, run.cadence.steps, active=False)
    run.fit(log, shown, {}, [])
    run.checkpointer.close()
    return run


def _losses(folder):
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def _digest(run):
    found = hashlib.sha256()
    for leaf in jax.tree.leaves((run.state.params, run.state.opt_state)):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


def _plan(folder, version):
    with np.load(folder / f"plans/{version:06d}.npz") as file:
        return {name: file[name] for name in file}


class Killed(BaseException):
    """Simulates a process that is gone."""


class _Until:
    """Batches of a plan that end where batch `at` would be given."""

    def __init__(self, planned, at):
        self.planned, self.at = planned, at

    def batches(self, start_step, rows, stop):
        self.step, self.given = start_step, self.planned.batches(start_step, rows, stop)
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.step == self.at:
            raise Killed
        self.step += 1
        return next(self.given)

    def close(self):
        self.given.close()


class _Killed(SubBatchPipeline):
    at = -1

    def planned(self, arrays, version, first):
        return _Until(super().planned(arrays, version, first), self.at)


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, _fit(folder, made)


# Checkpoints lie at 3, 6, 9; plans begin at 0, 4, 8.
@pytest.mark.parametrize(
    "at", [pytest.param(2, marks=pytest.mark.slow), 5, pytest.param(8, marks=pytest.mark.slow)]
)
def test_killed_in_a_plan_and_resumed_is_the_uninterrupted_run(made, whole, tmp_path, at):
    cut = _Killed(made[0], rules=RULES, tokenizer=made[1], **SIZES)
    cut.at = at
    with pytest.raises(Killed):
        _fit(tmp_path, made, pipeline=cut)
    run = _fit(tmp_path, made)
    assert _digest(run) == _digest(whole[1])
    assert _losses(tmp_path) == _losses(whole[0])
    for version in range(3):
        one, other = (_plan(folder, version) for folder in (tmp_path, whole[0]))
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_texts_of_no_plan_are_measured_before_step_0(whole):
    lines = metric_writer.read_lines(whole[0] / "metrics.jsonl")
    measured = [line for line in lines if "embeddings/mean_cosine" in line]
    assert measured[0]["step"] == 0 and measured[-1]["step"] == CADENCE.steps
    assert all(line["embeddings/effective_rank"] > 1 for line in measured)


def test_making_plans_is_a_refresh_in_the_account_of_time(whole):
    seconds, _ = whole[1].account.seconds()
    assert seconds["refresh"] > 0 and seconds["input"] > 0


def test_plans_follow_the_model(whole):
    plans = [_plan(whole[0], version) for version in range(3)]
    assert not (whole[0] / "plans/000003.npz").exists()
    pairs = [_links(plan) for plan in plans]
    assert pairs[0] != pairs[2], "what resembles what has changed with the parameters"


def _links(plan):
    """Which chunks are together, whoever is the target."""
    found = set()
    for row in range(len(plan["target"])):
        numbers = np.concatenate(
            [plan[f"{side}_sub_batch"][row] for side in ("target", "evidence")]
        )
        chunks = np.concatenate([plan[side][row] for side in ("target", "evidence")])
        for number in np.unique(numbers[numbers != NONE]):
            found.add(frozenset(chunks[(numbers == number) & (chunks != NONE)].tolist()))
    return found


def test_eight_devices_make_the_plan_of_one_and_its_losses(tmp_path):
    # Of these texts no two neighbours of one are alike to 7e-6, which rounding does not exchange.
    texts = _documents(seed=1)
    tokenizer = chunk_stores.make_tokenizer(tmp_path / "t", texts, ["de", "en"], size=400)
    made = chunk_stores.make_store(tmp_path / "s", texts, tokenizer), tokenizer
    cadence = dataclasses.replace(CADENCE, steps=EVERY)
    for mesh in ((1, 1, 1), (8, 1, 1)):
        _fit(tmp_path / str(mesh[0]), made, mesh=mesh, cadence=cadence)
    one, other = _plan(tmp_path / "8", 0), _plan(tmp_path / "1", 0)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    found, expected = _losses(tmp_path / "8"), _losses(tmp_path / "1")
    np.testing.assert_allclose(
        [found[step] for step in range(1, EVERY + 1)],
        [expected[step] for step in range(1, EVERY + 1)],
        rtol=1e-4,
    )


def _train(folder, made, processes, steps):
    """By the real command, four devices in all. A longer one continues a shorter one."""
    ended = process_group.run(
        ["t5x_style.train", "--gin_file=tests/multi_process/marge.gin", "--gin.DATA=4"]
        + [f"--gin.CHUNKS={made[0]}", f"--gin.TOKENIZER={made[1]}"]
        + [f"--gin.MODEL_DIR={folder}", f"--gin.STEPS={steps}"]
        + ["--gin.optim.AdamW.decay='constant'"],
        processes,
        devices=4 // processes,
    )
    for code, output in ended:
        assert code == 0, output[-3000:]


@pytest.mark.slow
def test_two_processes_make_the_plans_of_one_and_its_losses(made, tmp_path):
    """Each plan of the same parameters: sums of gradients differ in their last bits between
    processes and devices, and one choice made otherwise changes all of a plan that follow.
    """
    two, one, first = (tmp_path / name / "run" for name in ("two", "one", "first"))
    _train(two, made, processes=2, steps=3)
    shutil.copytree(two.parent, one.parent, symlinks=True)  # at step 3, where plan 1 begins
    begun = two.resolve()
    _train(two, made, processes=2, steps=6)
    _train(one, made, processes=1, steps=6)
    _train(first, made, processes=1, steps=3)
    for ours, theirs, version in ((first, begun, 0), (one, two, 1)):
        plan, other = _plan(ours, version), _plan(theirs, version)
        for name in plan:
            np.testing.assert_array_equal(other[name], plan[name])
    expected = _losses(first) | {step: _losses(one)[step] for step in (4, 5, 6)}
    found = _losses(two)
    assert list(found) == list(expected) == list(range(1, 7))
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-4)


def test_a_plan_that_is_gone_or_another_trainings_is_named(made, whole, tmp_path):
    cadence = dataclasses.replace(CADENCE, steps=6)
    _fit(tmp_path, made, cadence=cadence)
    plan = tmp_path / "plans/000001.npz"
    held = plan.read_bytes()
    plan.unlink()
    with pytest.raises(
        PlanMissing, match=r"plans/000001.npz: expected the plan of the steps from 4"
    ):
        _fit(tmp_path, made)
    plan.write_bytes(held[: len(held) // 2])
    with pytest.raises(PlanMissing, match=r"plans/000001.npz: expected the plan"):
        _fit(tmp_path, made)
    plan.write_bytes(held)
    other = _pipeline(made, rules=dataclasses.replace(RULES, least=0.1))
    with pytest.raises(ValueError, match="another"):
        _fit(tmp_path, made, pipeline=other)


def test_batches_are_of_the_plan_and_targets_see_no_chunk_of_their_document(made, whole):
    pipeline = _pipeline(made)
    plan = _plan(whole[0], 1)
    planned = pipeline.planned(plan, 1, EVERY)
    seen = set()
    for step in range(EVERY, EVERY + len(plan["target"]) // ROWS):
        batch = planned.batch(step)
        target, evidence = batch["target"], batch["evidence"]
        for row in range(ROWS):
            for n in np.flatnonzero(target["segment_valid"][row]):
                mine = target["example_id"][row, n]
                own = evidence["sub_batch"][row] == target["sub_batch"][row, n]
                read = evidence["example_id"][row][own & evidence["segment_valid"][row]]
                assert len(read)
                assert (pipeline.table.document[read] != pipeline.table.document[mine]).all()
                assert mine not in seen, "before all are seen, none is seen again"
                seen.add(mine)
    assert len(seen) > 10


def test_a_batch_can_be_had_again_when_the_next_plan_is_in_use(made, whole):
    """Where a step is repeated to find the rows that made it fail."""
    pipeline = _pipeline(made)
    for step in (3, 4, 7, 8):
        planned = pipeline.planned(_plan(whole[0], step // EVERY), step // EVERY, step // 4 * 4)
        found, expected = whole[1].pipeline.batch(step), planned.batch(step)
        for side in expected:
            for name, array in expected[side].items():
                np.testing.assert_array_equal(found[side][name], array, err_msg=f"{step} {name}")


def test_beginnings_alone_are_targets_where_that_is_wanted(made, whole):
    pipeline = _pipeline(made, only_first=True)
    count = len(pipeline.table.document)
    neighbours = np.roll(np.arange(count), 1)[:, None]
    arrays, told = pipeline.make(np.eye(count), neighbours, np.full((count, 1), 0.5), 0)
    targets = arrays["target"][arrays["target"] != NONE]
    assert (pipeline.table.number[targets] == 0).all()
    evidence = arrays["evidence"][arrays["evidence"] != NONE]
    assert (pipeline.table.number[evidence] > 0).any()
    assert told["targets"] == len(targets)


def test_plans_without_replanning_and_replanning_without_plans_are_refused(made, whole):
    pipeline = _pipeline(made)
    with pytest.raises(SourceError, match=r"found SubBatchPipeline, .* another source has to wrap"):
        as_model_dependent(pipeline)
    planned = pipeline.planned(_plan(whole[0], 0), 0, 0)
    with pytest.raises(ValueError, match="of which plans can be made, found PlannedBatches"):
        Replanning(planned, 4)
    Replanning(pipeline, 4)


def test_what_does_not_divide_by_the_mesh_is_refused_before_anything_is_embedded(made, tmp_path):
    with pytest.raises(partitioning.PartitioningError, match="Replanning.tile"):
        _trainer(tmp_path, made, mesh=(8, 1, 1), tile=12)


def test_chunks_that_are_longer_than_the_models_are_refused(made):
    with pytest.raises(StoreError, match="chunks of up to 12 tokens, CHUNK_LENGTH, found 16"):
        _pipeline(made, chunk_length=12)


def test_evidence_longer_than_a_row_is_refused(made):
    with pytest.raises(ValueError, match=r"rows for 2 chunks of up to 16 tokens, .* length 24"):
        _pipeline(made, length=24)
    with pytest.raises(ValueError, match="segments 1: make rows longer"):
        _pipeline(made, segments=1)


def test_a_store_whose_languages_have_no_token_is_refused(made, tmp_path):
    told = _documents(4, ("de", "fr"))
    with pytest.raises(TokenizerError, match=r"no token for 1 of 2 languages"):
        _pipeline((chunk_stores.make_store(tmp_path, told, made[1]), made[1]))


def test_too_little_that_resembles_each_other_for_a_batch_is_told(made, tmp_path):
    alone = {f"de/news{n}/only": text for n, text in enumerate(_documents(12).values())}
    store = chunk_stores.make_store(tmp_path, alone, made[1])
    with pytest.raises(StoreError, match=r"rows of a batch, found 0 rows .*'without_link': \d+"):
        _fit(tmp_path / "run", (store, made[1]))


def test_an_identical_shard_beside_others_is_trained_on_and_alone_is_told(made, tmp_path):
    same = {f"de/same/n{n}": "de1 de2 de3 de4 de5 de6" for n in range(60)}
    store = chunk_stores.make_store(tmp_path / "both", _documents() | same, made[1])
    cadence = dataclasses.replace(CADENCE, steps=2)
    run = _fit(tmp_path / "run", (store, made[1]), cadence=cadence)
    assert int(run.state.step) == 2 and all(map(np.isfinite, _losses(tmp_path / "run").values()))
    alone = chunk_stores.make_store(tmp_path / "alone", same, made[1])
    for copies, without_link in ((None, 0), (0.99, 60)):
        rules = dataclasses.replace(RULES, near_duplicate=copies)
        pipeline = _pipeline((alone, made[1]), rules=rules)
        with pytest.raises(StoreError, match=rf"8 rows .* found . rows .*_link': {without_link}"):
            _fit(tmp_path / str(copies), (alone, made[1]), pipeline=pipeline)


def test_a_plan_lives_one_step_at_least(made):
    with pytest.raises(ValueError, match="at least 1 step, found 0"):
        Replanning(_pipeline(made), 0)
