"""A small collection gets fewer steps."""

from pathlib import Path

import gin
import pytest

from input_pipelines.batches.negatives import read_pairs
from input_pipelines.pairs import pair_steps
from input_pipelines.store.token_store import TokenStore
from t5x_style.configuration import gin_checks
from t5x_style.step import optimizers
from t5x_style.training import trainer
from tests.gin_configs import test_training_pairs_gin
from tests.kits import pair_mixtures

TEXTS = pair_mixtures.PASSAGES + pair_mixtures.QUERIES


def test_steps_follow_from_passages_and_labelled_queries(tmp_path: Path) -> None:
    files = pair_mixtures.write_files(tmp_path)
    pairs = pair_mixtures.mixture(files)
    batch = pairs.open().batch
    assert pair_steps.fitting_steps(pairs, 10_000, 10) == -(-10 * TEXTS // batch)
    assert pair_steps.fitting_steps(pairs, 7, 10) == 7
    unlabelled = pair_mixtures.mixture(files, weights={"crops": 1})
    expected = -(-10 * pair_mixtures.PASSAGES // unlabelled.open().batch)
    assert pair_steps.fitting_steps(unlabelled, 10_000, 10) == expected
    assert pair_steps.fitting_steps(pairs, 0, 10) == 0  # nothing is trained
    for steps, passes in ((-1, 1.0), (10, 0.0)):
        with pytest.raises(ValueError, match="fitting_steps"):
            pair_steps.fitting_steps(pairs, steps, passes)


def test_epochs_count_labelled_pairs_alone_where_there_are_some(tmp_path: Path) -> None:
    files = pair_mixtures.write_files(tmp_path)
    pairs = pair_mixtures.mixture(files)
    opened = pairs.open()
    (labelled,) = (opened.sizes[name] for name in opened.sizes if "labelled" in name)
    each = opened.counts["labelled"]
    assert each < opened.batch  # the rest are other pairs
    assert pair_steps.epoch_steps(pairs, 3, 1.0) == -(-3 * labelled // each)
    assert pair_steps.epoch_steps(pairs, None, 0.5) == -(-2.5 * labelled // each)
    assert pair_steps.epoch_steps(pairs, None, 0.01, 40) == 1
    assert pair_steps.epoch_steps(pairs, 0, 1.0) == 0
    assert pair_steps.epoch_steps(pairs, 3, 0.5, 40) == 20
    unlabelled = pair_mixtures.mixture(files, weights={"crops": 1}).open()
    found = pair_steps.epoch_steps(unlabelled.mixture, 1, 1.0)
    assert found == -(-unlabelled.sizes["crops"] // unlabelled.batch)
    with pytest.raises(ValueError, match="epochs: expected 0 or more, or None, found -1"):
        pair_steps.epoch_steps(pairs, -1, 1.0)


def test_epochs_of_a_reranker_count_queries_with_negatives(tmp_path: Path) -> None:
    files = pair_mixtures.write_files(tmp_path)
    stores = files.queries, files.passages, files.negatives
    count = len(read_pairs(stores[2], *map(TokenStore.open, stores[:2])).queries)
    assert count > 1
    assert pair_steps.joint_epoch_steps(*stores, 2, 3, 1.0) == -(-3 * count // 2)
    assert pair_steps.joint_epoch_steps(*stores, 2, None, 0.5) == -(-2.5 * count // 2)
    assert pair_steps.joint_epoch_steps(*stores, 2, None, 0.5, 40) == 20


def test_few_pairs_are_shown_more_often() -> None:
    numbers = (10, 999, 1_000, 4_999, 5_000, 49_999, 50_000)
    assert [pair_steps.usual_epochs(n) for n in numbers] == [5, 5, 3, 3, 2, 2, 1]
    once = [pair_steps.usual_epochs(n, of_thousands=1.0) for n in numbers]  # as epochs.gin has it
    assert once == [5, 5, 3, 3, 1, 1, 1]


def test_events_are_spread_over_the_steps() -> None:
    assert [pair_steps.share_of(steps, 8, 1) for steps in (0, 7, 8, 80, 85)] == [1, 1, 1, 10, 10]
    assert pair_steps.share_of(5, 10, 0) == 0 and pair_steps.share_of(80, 8, 1, 3) == 3
    with pytest.raises(ValueError, match="parts"):
        pair_steps.share_of(8, 0, 1)


def test_the_warmup_is_a_quarter_at_most() -> None:
    assert pair_steps.fitting_warmup(1500, 50) == 50
    assert pair_steps.fitting_warmup(80, 50) == 20


def test_schedule_and_cadence_have_the_same_steps(tmp_path: Path, monkeypatch) -> None:
    files = (*test_training_pairs_gin.FILES, "runs/training/fitting_steps")
    monkeypatch.setattr(test_training_pairs_gin, "FILES", files)
    changed = {"STEPS": 1000, "WARMUP_STEPS": 50, "PASSES": 20}
    test_training_pairs_gin.built(tmp_path, 60, **changed)
    cadence = gin_checks.configured(trainer.Cadence)()
    schedule = gin_checks.configured(optimizers.AdamW)()
    assert cadence.steps == schedule.total_steps == 20 * 60 // 16
    assert schedule.warmup_steps == 20 * 60 // 16 // 4
    gin.clear_config()
