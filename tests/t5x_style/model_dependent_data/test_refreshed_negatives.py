"""Negatives that are mined while a model trains on them: which, resume, kills, bad settings."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t5x_style.interfaces.index import IndexDamaged
from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.mining import hard_negatives
from t5x_style.mining.hard_negatives import MiningError, MiningSettings
from t5x_style.model_dependent_data import versioned_index, versioned_negatives
from t5x_style.model_dependent_data.version_log import RECORD, RUN, run_of
from t5x_style.model_dependent_data.versioned_index import VersionError
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import CollectionError
from t5x_style.training.trainer import Cadence
from tests.kits.host_kit import seen
from tests.models.objectives.test_realm import arrays
from tests.t5x_style.model_dependent_data import ance_kit as ance

ROOT = Path(__file__).resolve().parents[3]
MINED = versioned_negatives.settings_of("train", ance.SETTINGS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ance.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A training of nine steps next to a builder: its folder, its end, what it logged."""
    folder = tmp_path_factory.mktemp("whole")
    with ance.mining(data, folder):
        run, lines = ance.train(data, folder)
    return folder, run, lines


def version(folder, number):
    return versioned_folder.version_folder(folder / "versions", number)


def lines_of(folder, number):
    path = version(folder, number) / versioned_negatives.NEGATIVES
    return {line["query_id"]: line for line in map(json.loads, path.read_text().splitlines())}


def copied(folder, target):
    """A training that has not begun, and will see what another saw."""
    target.mkdir(exist_ok=True)
    shutil.copytree(folder / "versions", target / "versions")
    for name in (RECORD, RUN):
        shutil.copy(folder / name, target / name)


def test_a_version_holds_what_its_vectors_rank_highest(data, whole):
    """All pairs by NumPy, of the vectors of the checkpoint that the version names."""
    folder, _, _ = whole
    number, step = versioned_index.newest(folder / "versions", run_of(folder))
    model, texts = ance.load(data, folder, step), ance.builder(data, folder)
    passages = model.encode(PASSAGE, texts.source)
    queries = model.encode(QUERY, texts.queries)
    assert list(texts.queries.ids) == [f"q{query}" for query in range(ance.QUERIES)]
    found = lines_of(folder, number)
    for query, scores in enumerate(queries @ passages.T):
        best = np.argsort(-scores, kind="stable")[: ance.SETTINGS.depth]
        answers = ance.positives(query)
        names = [f"p{row}" for row in best if f"p{row}" not in answers]
        line = found[f"q{query}"]
        assert line["negative_ids"] == names[: ance.SETTINGS.negatives]
        assert line["positive_ids"] == answers
        expected = [scores[int(name[1:])] for name in line["negative_ids"]]
        np.testing.assert_allclose(line["negative_scores"], expected, atol=2e-5)


def test_steps_use_newer_and_newer_negatives_and_never_a_positive(data, whole):
    folder, run, lines = whole
    versions = seen(folder)
    assert set(range(9)) <= set(versions) <= set(range(11))  # some are made ahead
    manifests = {
        number: versioned_folder.read_manifest_alone(version(folder, number))
        for number in versioned_folder.published(folder / "versions")
    }
    assert all(0 <= step - manifests[number]["step"] <= 4 for step, number in versions.items())
    assert len(set(versions.values())) >= 2 and manifests[1]["step"] == 0
    source = ance.pipeline(data)
    for step in range(9):
        path = str(version(folder, versions[step]) / versioned_negatives.NEGATIVES)
        batch, clean = run.pipeline.batch(step), source.batch(step)
        expected = source.redrawn(source.other_negatives(path), step)
        for group in expected:
            for name, array in expected[group].items():
                np.testing.assert_array_equal(batch[group][name], array)
        np.testing.assert_array_equal(batch["query"]["tokens"], clean["query"]["tokens"])
        passage = batch["passage"]
        for example, row, relevant in zip(
            *(passage[name].reshape(-1) for name in ("example_id", "document_id", "relevance")),
            strict=True,
        ):
            line = lines_of(folder, versions[step])[f"q{example}"]
            assert f"p{row}" in line["positive_ids" if relevant else "negative_ids"]
    assert all(np.isfinite(line["train/loss"]) for line in lines)


def test_a_run_that_continues_repeats_the_versions_bit_for_bit(data, whole, tmp_path):
    folder, run, lines = whole
    versions = seen(folder)
    assert len({versions[step] for step in range(4)} | {versions[8]}) > 1, "a change in between"
    copied(folder, tmp_path)
    ance.train(data, tmp_path, steps=3)  # as if it had been killed between two checkpoints
    assert ance.build(data, tmp_path).start() == "resumed at step 3"
    again, found = ance.train(data, tmp_path)
    for ours, theirs in zip(arrays(again), arrays(run), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    losses = [[line["train/loss"] for line in one] for one in (found, lines)]
    assert losses[0] == losses[1]


def test_the_first_steps_may_keep_the_negatives_of_the_file(data, whole, tmp_path):
    folder, _, _ = whole
    copied(folder, tmp_path)
    (tmp_path / RECORD).unlink()
    run = ance.build(data, tmp_path, host=ance.source(data, tmp_path, first_step=2))
    source = ance.pipeline(data)
    for step in (0, 1):
        expected = source.batch(step)["passage"]["document_id"]
        np.testing.assert_array_equal(run.pipeline.batch(step)["passage"]["document_id"], expected)
    assert not (tmp_path / RECORD).exists(), "no version was asked for"
    assert run.pipeline.fingerprint != ance.build(data, tmp_path).pipeline.fingerprint


def test_versions_that_do_not_fit_are_refused(data, whole, tmp_path):
    folder, _, _ = whole
    other = dataclasses.replace(ance.SETTINGS, depth=11)
    mined = versioned_negatives.settings_of("train", other)
    with pytest.raises(VersionError, match=r"expected negatives mined with {'depth': 11}.*: 12"):
        versioned_negatives.read(folder / "versions", 1, mined, str)
    with pytest.raises(VersionError, match="version 99 is not there any more"):
        versioned_negatives.read(folder / "versions", 99, MINED, str)
    shutil.copytree(folder / "versions", tmp_path / "versions")
    path = version(tmp_path, 1) / versioned_negatives.NEGATIVES
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IndexDamaged, match=r"negatives\.jsonl: expected"):
        versioned_negatives.read(tmp_path / "versions", 1, MINED, str)


def test_negatives_that_are_too_old_are_named(data, whole, tmp_path, capsys):
    folder, _, _ = whole
    copied(folder, tmp_path)
    (tmp_path / RECORD).unlink()
    for number in versioned_folder.published(tmp_path / "versions")[1:]:
        shutil.rmtree(version(tmp_path, number))
    run = ance.build(data, tmp_path, host=ance.source(data, tmp_path, when_stale="warn"))
    run.pipeline.batch(8)
    printed = capsys.readouterr().err
    assert "version 1 of the negatives is 8 steps old, the bound is 4" in printed
    assert "RefreshedNegatives.when_stale" in printed


def test_an_error_in_the_mining_publishes_nothing(data, whole, tmp_path, monkeypatch):
    folder, _, _ = whole
    step = versioned_index.newest(folder / "versions", run_of(folder))[1]
    training = ance.watched(data, folder)
    mine_one = hard_negatives._mine_one

    def failing(candidates, query, *arguments):
        if query == "q7":
            raise OSError("no disk")
        return mine_one(candidates, query, *arguments)

    monkeypatch.setattr(hard_negatives, "_mine_one", failing)
    builder = ance.builder(data, tmp_path)
    with pytest.raises(ValueError, match="no disk"):
        builder.refresh(training, "run", step)
    assert versioned_folder.published(builder.folder) == [] and builder.built("run") is None
    monkeypatch.undo()
    assert builder.refresh(training, "run", step) == 1 and builder.built("run") == step
    ours, theirs = (
        lines_of(one, number)
        for one, number in (
            (tmp_path, 1), (folder, versioned_index.newest(folder / "versions", run_of(folder))[0]),
        )
    )  # fmt: skip
    assert ours == theirs, "the same checkpoint finds the same"
    with pytest.raises(MiningError, match="not one of 16 queries has a negative"):
        ance.builder(
            data, tmp_path, settings=dataclasses.replace(ance.SETTINGS, max_score_ratio=1e-9)
        ).refresh(training, "run", step)
    assert versioned_folder.published(builder.folder) == [1]


KILLED = """
import os, signal, sys
from t5x_style.mining.hard_negatives import Mined
from t5x_style.model_dependent_data import versioned_negatives
from t5x_style.retrieval.beir_collection import Passages

def mined():
    for query in range(3):
        yield Mined(f"q{query}", ["p0"], [1.0], ["p9"], [0.5], {})
        if query == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

corpus = Passages(sys.argv[2])
made = versioned_negatives.write(
    sys.argv[1], mined(), "run", 4, "model", {"negatives": 1}, corpus, {"q0": "a"}, 2
)
"""


def test_a_kill_in_the_mining_leaves_nothing_that_counts(data, tmp_path):
    """A real process; the next one removes what it left."""

    def start(dies_at):
        command = [sys.executable, "-c", KILLED, str(tmp_path), data.corpus, str(dies_at)]
        return subprocess.run(command, cwd=ROOT).returncode

    assert start(1) == -signal.SIGKILL
    assert (tmp_path / "versions/1.tmp").is_dir()
    assert versioned_index.newest(tmp_path, "run") is None
    assert start(99) == 0
    assert versioned_index.newest(tmp_path, "run") == (1, 4)
    assert not list((tmp_path / "versions").glob("*.tmp"))


def test_a_split_that_judges_nothing_is_refused(data, tmp_path):
    corpus = shutil.copytree(data.corpus, tmp_path / "corpus")
    (corpus / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(CollectionError, match="holds no judgements"):
        ance.builder(data, tmp_path, corpus=str(corpus)).refresh(None, "run", 0)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"source": None}, "source: expected a batch source, found NoneType"),
        ({"group_size": 12}, "from 1 to 10 negatives, as many as are mined .* found 12"),
        ({"group_size": 1}, "expected 1 positive and from 1 to 10 negatives"),
        ({"first_step": -1}, "first_step: expected 0 or more, found -1"),
        ({"ahead": 0}, "RefreshedNegatives: expected ahead of at least 1"),
        ({"max_staleness_steps": 0}, "RefreshedNegatives.max_staleness_steps: expected 1 or more"),
        ({"when_stale": "stop"}, "'pause' or 'warn'"),
    ],
)
def test_settings_that_cannot_be_are_refused(data, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        ance.source(data, tmp_path, **changes)


def test_numbers_that_cannot_be_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match=r"negatives from 1 to depth - skip_top, found .*depth=5"):
        MiningSettings(depth=5, negatives=6, skip_top=0, max_overlap=1.0, max_score_ratio=0.0)
    with pytest.raises(ValueError, match="save_every: expected at least 1, found 0"):
        Cadence(steps=9, save_every=0)
    with pytest.raises(ValueError, match="expected at least 4 .a checkpoint every 2 steps"):
        ance.build(data, tmp_path, host=ance.source(data, tmp_path, max_staleness_steps=3))
    with pytest.raises(ValueError, match="expected pairs whose negatives .* found Plain"):
        ance.source(data, tmp_path, source=Plain())


class Plain:
    """Batches whose negatives cannot be replaced."""

    fingerprint = "plain"

    def specs(self):
        raise NotImplementedError

    def batch(self, step, rows=None):
        raise NotImplementedError

    def batches(self, start_step, rows):
        raise NotImplementedError
