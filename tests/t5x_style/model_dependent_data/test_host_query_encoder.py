"""Retrieval on the host: the same batches as in the step, exact resume, late indexes."""

import dataclasses
import re
import shutil
import signal
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style import watch_index
from t5x_style.companions import companion_runner
from t5x_style.interfaces import index
from t5x_style.interfaces.contract import ContractError
from t5x_style.model_dependent_data import host_query_encoder, index_builder, versioned_index
from t5x_style.model_dependent_data.retrieval_batches import Searched
from t5x_style.model_dependent_data.version_log import RECORD, run_of
from t5x_style.retrieval import versioned_folder
from t5x_style.step import train_step
from t5x_style.training import metric_writer, progress
from tests.kits import process_group
from tests.kits.host_kit import (
    CORPUS,
    Builder,
    build,
    copy,
    refresher,
    retrieval,
    seen,
    train,
    watched,
)
from tests.kits.tiny_corpus import TinyCorpus
from tests.models.objectives import test_realm


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training of nine steps with a builder: its folder, its end, what it logged."""
    folder = tmp_path_factory.mktemp("whole")
    with Builder(folder):
        run, lines = train(folder)
    return folder, run, lines


def test_for_the_same_key_and_index_the_loss_sees_the_same(tmp_path):
    in_step = test_realm.build(tmp_path / "in_step")
    in_step.start()
    run = build(tmp_path / "host")
    run.start()
    run.pipeline.batches(0, np.arange(test_realm.ROWS))  # names the run, and saves step 0
    host = watched(tmp_path / "host", lambda: True)
    refresher(tmp_path / "host").refresh(host, host.run(), 0)
    for step in range(3):
        keys = train_step.step_keys(in_step.state.key, jnp.int32(step))
        clean = test_realm.Sentences().batch(step)
        module = in_step.definition.module(in_step.state.params, in_step.state.variables)
        module.train()
        expected = module.retrieve(module.corrupt(clean, keys[0]), keys[1])
        module = run.definition.module(run.state.params, run.state.variables)
        module.train()
        found = train_step.before_loss(run.definition, module, run.pipeline.batch(step), *keys[:2])
        assert found.keys() - expected.keys() == {"evidence"}
        ages = found["candidate"].pop("age"), expected["candidate"].pop("age")
        assert (ages[0].reshape(-1, 4)[:, 1:] == step).all() and (ages[1] == 0).all()
        for group, features in expected.items():
            for name, array in features.items():
                np.testing.assert_array_equal(found[group][name], array, err_msg=f"{group}.{name}")


def test_it_trains_with_indexes_that_grow_older_and_are_replaced(whole):
    folder, _, lines = whole
    versions = seen(folder)
    assert set(range(9)) <= set(versions) <= set(range(11))  # some are made ahead
    steps = {
        number: versioned_folder.read_manifest_alone(
            versioned_folder.version_folder(folder / "versions", number)
        )["step"]
        for number in versioned_folder.published(folder / "versions")
    }
    for step, number in versions.items():
        assert 0 <= step - steps[number] <= 4
    # A slow trainer sees every version, a fast one waits only when the age would pass 4 steps.
    assert len(set(versions.values())) >= 2 and steps[min(steps)] == 0
    assert any(step > steps[number] for step, number in versions.items())
    for line in lines:
        step = line["step"] - 1
        assert line["train/candidate_age_steps"] == step - steps[versions[step]]
        assert np.isfinite(line["train/loss"])


def test_a_run_that_goes_on_sees_the_versions_it_saw_bit_for_bit(whole, tmp_path):
    folder, run, lines = whole
    copy(folder, tmp_path)
    train(tmp_path, steps=4)  # as if it had been killed between two checkpoints
    assert build(tmp_path).start() == "resumed at step 4"
    again, found = train(tmp_path)
    for ours, theirs in zip(test_realm.arrays(again), test_realm.arrays(run), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    losses = [[line["train/loss"] for line in one] for one in (found, lines)]
    assert losses[0] == losses[1]


def test_any_mesh_gives_the_same(whole, tmp_path):
    folder, _, lines = whole
    copy(folder, tmp_path)
    _, found = train(tmp_path, mesh=(2, 2, 2))
    for ours, theirs in zip(found, lines, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=2e-4)


@pytest.mark.slow
def test_processes_that_share_a_training_see_the_same_versions(whole, tmp_path, monkeypatch):
    """The first reads from the record what its steps saw; the second gets it from the first."""
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 900)
    folder, _, lines = whole
    copy(folder, tmp_path)
    port = process_group.free_port()
    command = ["tests.multi_process.host", "train", str(tmp_path), "0", "8"]
    started = [
        process_group.start(
            command,
            {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(number),
            },
            devices=4,
        )
        for number in range(2)
    ]
    for code, output in process_group.finish(started):
        assert code == 0, output
    found = metric_writer.read_lines(tmp_path / "metrics.jsonl")
    found = [line for line in found if "train/loss" in line]
    assert [line["step"] for line in found] == [line["step"] for line in lines]
    for ours, theirs in zip(found, lines, strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=2e-4)
        for name in ("train/candidate_age_steps", "train/candidate_tokens"):
            assert ours[name] == pytest.approx(theirs[name])


def test_a_version_that_is_gone_is_told_and_the_newest_is_taken(whole, tmp_path, capsys):
    folder, _, _ = whole
    copy(folder, tmp_path)
    shutil.rmtree(tmp_path / "versions/versions/1")
    newest, _ = versioned_index.newest(tmp_path / "versions", run_of(folder))
    train(tmp_path, steps=1, host=retrieval(tmp_path, max_staleness_steps=None))
    told = capsys.readouterr().err
    assert "step 0 saw version 1" in told and "does not repeat the one before it" in told
    assert seen(tmp_path)[0] == newest


def test_an_index_that_is_too_old_is_waited_for_or_told(whole, tmp_path, capsys):
    folder, _, _ = whole
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns(RECORD))
    for number in versioned_folder.published(tmp_path / "run/versions")[1:]:
        shutil.rmtree(tmp_path / f"run/versions/versions/{number}")
    warning = build(tmp_path / "run", host=retrieval(tmp_path / "run", when_stale="warn"))
    warning.start()
    warning.pipeline.batch(4)
    assert not capsys.readouterr().err
    warning.pipeline.batch(5)
    warning.pipeline.batch(6)
    told = capsys.readouterr().err
    assert told.count("training continues with it") == 1 and "5 steps old, the bound is 4" in told
    (tmp_path / "run" / RECORD).unlink()
    pausing = build(tmp_path / "run")
    pausing.start()
    batches = pausing.pipeline.batches(5, np.arange(test_realm.ROWS))
    threading.Timer(0.7, lambda: copy_version(folder, tmp_path / "run")).start()
    found = next(batches)  # once the newer one is there
    assert "waiting for a version of the index, at most 4 steps old, in" in capsys.readouterr().err
    assert (found["evidence"]["age"][found["evidence"]["lengths"] > 0] <= 4).all()
    batches.close()


def test_a_new_version_is_read_beside_the_steps(whole, tmp_path, monkeypatch):
    folder, _, _ = whole
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns(RECORD))
    for number in versioned_folder.published(tmp_path / "run/versions")[1:]:
        shutil.rmtree(tmp_path / f"run/versions/versions/{number}")
    run = build(tmp_path / "run")
    run.start()
    batches = run.pipeline.batches(0, np.arange(test_realm.ROWS))

    def age():
        found = next(batches)["evidence"]
        (age,) = set(found["age"][found["lengths"] > 0].tolist())
        return age

    assert age() == 0
    newest, made_at = versioned_index.newest(folder / "versions", run_of(folder))
    read, go_on, numbers = versioned_index.read, threading.Event(), []

    def slowly(folder, number, contract):
        numbers.append(number)
        assert go_on.wait(60)
        return read(folder, number, contract)

    monkeypatch.setattr(versioned_index, "read", slowly)
    copy_version(folder, tmp_path / "run")
    # Steps 1 to 4 may use the version of step 0, and do while the other is read; step 5 may not.
    assert [age() for _ in range(4)] == [1, 2, 3, 4]
    go_on.set()
    assert age() == 5 - made_at and age() == 6 - made_at
    assert numbers == [newest]
    batches.close()


def copy_version(source, target):
    """Publishes what a builder that was late comes with."""
    newest, _ = versioned_index.newest(source / "versions", run_of(source))
    name = f"versions/versions/{newest}"
    shutil.copytree(source / name, target / f"{name}.tmp")
    (target / f"{name}.tmp").rename(target / name)


def test_indexes_of_others_are_refused(whole, tmp_path):
    folder, run, _ = whole
    contract = run.abstract_module().contract()
    number, _ = versioned_index.newest(folder / "versions", run_of(folder))
    version = versioned_index.read(folder / "versions", number, contract)
    with pytest.raises(versioned_index.VersionError, match="blocks of another corpus"):
        Searched(retrieval(tmp_path, corpus=TinyCorpus(38)), version)
    other = dataclasses.replace(contract, tokenizer_fingerprint="other")
    with pytest.raises(ContractError, match="tokenizer_fingerprint"):
        versioned_index.read(folder / "versions", number, other)
    copied = tmp_path / "versions"
    shutil.copytree(folder / "versions", copied)
    (copied / f"versions/{number}/scann_docids.pkl").write_bytes(b"")
    with pytest.raises(index.IndexDamaged, match="unpickle"):
        versioned_index.read(copied, number, contract)
    (copied / f"versions/{number}/scann_docids.pkl").unlink()
    (copied / f"versions/{number}/parameters.safetensors").write_bytes(b"")
    with pytest.raises(index.IndexDamaged, match=r"parameters\.safetensors: expected"):
        versioned_index.read(copied, number, contract)


def test_parameters_that_are_missing_never_embed_a_query(whole, tmp_path):
    folder, run, _ = whole
    prepare = host_query_encoder.HostQueryEncoder(run.view)
    number, _ = versioned_index.newest(folder / "versions", run_of(folder))
    contract = run.abstract_module().contract()
    given = dict(versioned_index.read(folder / "versions", number, contract).parameters)
    clean = test_realm.Sentences().batch(0)
    prepare(given, clean, 0)
    fewer = {path: array for path, array in given.items() if "pooler/dense/bias" not in path}
    assert len(fewer) == len(given) - 1
    with pytest.raises(versioned_index.VersionError, match="not finite"):
        prepare(fewer, clean, 0)
    with pytest.raises(index_builder.RefreshError, match="'.nothing' matches no parameter"):
        refresher(tmp_path, parameters=("^nothing",)).refresh(watched(folder, bool), "run", 9)


def test_a_version_of_another_training_is_refused_with_the_step_and_what_to_do(tmp_path):
    prepare = host_query_encoder.HostQueryEncoder(build(tmp_path).view)
    other = {"embedder/pooler/dense/bias": np.zeros(3, np.float32)}
    with pytest.raises(versioned_index.VersionError) as error:
        prepare(other, test_realm.Sentences().batch(0), 5)
    shapes = r"embedder/\S+bias: expected shape \(\d+,\), found \(3,\)"
    assert re.fullmatch(
        f"step 5: the version of the index is of another training: {shapes}. Build it from this "
        "training's checkpoints, in a separate folder.",
        str(error.value),
    )


@pytest.mark.parametrize("exclude", [("row",), ("row", "page"), ("duplicate", "row"), ()])
def test_a_query_never_gets_what_is_barred(whole, tmp_path, exclude):
    folder, run, _ = whole
    number, _ = versioned_index.newest(folder / "versions", run_of(folder))
    contract = run.abstract_module().contract()
    version = versioned_index.read(folder / "versions", number, contract)
    searched = Searched(retrieval(tmp_path, exclude=exclude), version)
    rng = np.random.default_rng(0)
    vectors, source = rng.normal(size=(37, 8)).astype(np.float32), np.arange(37, dtype=np.int32)
    source[5] = -1
    found = searched.evidence(vectors, source, 20)
    own = {name: CORPUS.column(name, 0, 37) for name in ("page", "duplicate")}
    own["row"] = np.arange(37)
    _, all_rows = version.index.search(vectors, 37)
    for query in range(37):
        barred = {
            row
            for row in range(37)
            for name in exclude
            if source[query] >= 0 and own[name][row] == own[name][source[query]]
        }
        expected = [row for row in all_rows[query].tolist() if row not in barred][:3]
        assert found["row"][query].tolist() == expected
    np.testing.assert_array_equal(found["tokens"], CORPUS.tokens(0, 37)[found["row"]])


@pytest.mark.slow
def test_a_builder_and_a_training_that_are_killed_leave_nothing_torn(tmp_path):
    """Real processes: SIGKILL while the third version is published, and while it is imported."""
    folder = tmp_path / "killed"

    def start(what, version):
        return process_group.start(["tests.multi_process.host", what, str(folder), str(version)])

    training, builder = start("train", 3), start("build", 3)
    assert builder.wait() == -signal.SIGKILL  # the training waits, or continues with what there is
    assert training.poll() is None and versioned_folder.published(folder / "versions") == [1, 2]
    assert (folder / "versions/versions/3.tmp").is_dir()
    builder = start("build", 0)
    assert training.wait() == -signal.SIGKILL
    known = seen(folder)
    assert 3 not in known.values() and set(known.values()) <= {1, 2}
    ((code, output),) = process_group.finish([start("train", 0)])
    assert code == 0, output
    ((code, output),) = process_group.finish([builder])
    assert code == 0, output
    assert {step: seen(folder)[step] for step in known} == known
    assert not list((folder / "versions/versions").glob("*.tmp"))
    # An undisturbed training that sees the same versions ends with the same bits.
    whole = tmp_path / "whole"
    whole.mkdir()
    copy(folder, whole)
    arguments = ["tests.multi_process.host", "train", str(whole), "0"]
    ((code, output),) = process_group.finish([process_group.start(arguments)])
    assert code == 0, output
    ends = [build(one) for one in (folder, whole)]
    for run in ends:
        assert run.start() == "resumed at step 9"
    for ours, theirs in zip(*map(test_realm.arrays, ends), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_indexes_of_another_run_do_not_count(whole, tmp_path):
    folder, _, _ = whole
    shutil.copytree(folder / "versions", tmp_path / "versions")  # left by a run before this one
    run = build(tmp_path)
    run.start()
    assert run_of(tmp_path) != run_of(folder)
    assert versioned_index.newest(tmp_path / "versions", run_of(tmp_path)) is None
    assert refresher(tmp_path).built(run_of(tmp_path)) is None


def test_a_training_that_waits_can_be_stopped_and_has_saved(tmp_path, capsys):
    run = build(tmp_path)
    run.start()
    log = metric_writer.MetricLog(tmp_path, 0)
    shown = progress.TrainingProgress("host", 0, 9, active=False)
    signal_soon = threading.Timer(1.5, lambda: signal.raise_signal(signal.SIGTERM))
    signal_soon.start()
    assert run.fit(log, shown, {}) is False  # nobody builds an index
    seconds, _ = run.account.seconds()
    assert seconds["refresh"] > 0 and seconds["checkpoint"] > 0
    assert run.checkpointer.latest() == 0
    assert "this run has none" in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if "retrieval" in thread.name]


def test_a_version_that_goes_while_it_is_read_is_gone(whole, tmp_path):
    folder, run, _ = whole
    copied = tmp_path / "versions"
    shutil.copytree(folder / "versions", copied)
    contract = run.abstract_module().contract()

    def going(where):
        shutil.rmtree(where)
        raise FileNotFoundError(where)

    with pytest.raises(versioned_index.VersionError, match="version 2 is not there any more"):
        versioned_index.read(copied, 2, contract, going)
    with versioned_folder.new_version(copied, {"run": "other", "step": 9}, keep=1) as version:
        (version / "file").write_text("")
    assert versioned_folder.published(copied) == [int(version.name.removesuffix(".tmp"))]
    assert not list((copied / "versions").glob("*.tmp"))


def test_the_own_block_is_barred_exactly_where_it_is_known(tmp_path):
    with pytest.raises(ValueError, match="expected 'row' exactly where queries say"):
        build(tmp_path, host=retrieval(tmp_path, exclude=("page",)))
    with pytest.raises(ValueError, match="found None: bind CORPUS_TABLE"):
        retrieval(tmp_path, corpus=None)


def test_watching_nothing_is_told_in_a_line(capsys):
    assert companion_runner.main(watch_index.watch, []) == 1
    told = capsys.readouterr().err
    assert "watch_index.watch needs its gin files" in told and "Traceback" not in told


def test_a_training_that_has_ended_is_not_watched(whole, tmp_path):
    folder, _, _ = whole
    with pytest.raises(index_builder.RefreshError, match="the training has ended"):
        refresher(tmp_path).watch(watched(folder, lambda: True), 0.01, ())
