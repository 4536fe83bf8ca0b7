"""The journal file: Optuna reads from it what the records of trials say."""

import pytest

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.sweeps import journal
from t5x_style.sweeps.trials import Record
from tests.t5x_style.sweeps import made_results as made

optuna = pytest.importorskip("optuna", reason="the extra `sweeps` is not installed")

CURVE = ((10, 0.2), (20, 0.4))
TABLE = [
    ({"RATE": 1e-3, "KIND": {"a": 1}}, [made.done(0.4, 20, CURVE)]),
    ({"RATE": 1e-2, "KIND": None}, [Record("pruned", 0.2, 10, CURVE[:1], "median")]),
    ({"RATE": 5e-3, "KIND": True}, [Record("failed", reason="a metric is nan")]),
    ({"RATE": 2e-3, "KIND": 1}, [made.done(0.6)]),
    ({"RATE": 4e-3}, [Record("running", curve=CURVE)]),
    ({"RATE": 3e-3}, [None]),
]


def study(folder, **others):
    given = {"drawn": frozenset({"RATE"}), "logarithmic": frozenset({"RATE"})} | others
    found = made.results(TABLE, seeds=(7,), **given)
    assert journal.write(found, folder)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / journal.FILE))
    storage = optuna.storages.JournalStorage(backend)
    return found, optuna.load_study(study_name=found.title, storage=storage)


def test_optuna_reads_every_trial_that_has_ended(tmp_path):
    found, read = study(tmp_path)
    assert [one.state.name for one in read.trials] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert read.best_trial.user_attrs["trial"] == found.trials[3].name
    assert read.metric_names == [found.metric]
    for one, trial in zip(read.trials, found.trials, strict=False):
        values, record = trial.configuration.values, found.record(trial)
        assert one.params == {"RATE": values["RATE"], "KIND": to_gin(values["KIND"])}
        assert one.intermediate_values == dict(record.curve)
        assert one.user_attrs["seed"] == 7 and one.user_attrs["reason"] == record.reason
        assert one.value == record.value
    assert read.trials[0].distributions["RATE"].log


def test_a_report_written_again_replaces_it(tmp_path):
    study(tmp_path)
    _, read = study(tmp_path, larger_is_better=False)
    assert len(read.trials) == 4
    assert read.best_value == 0.4
    assert [path.name for path in tmp_path.iterdir()] == [journal.FILE]


def test_a_sweep_without_a_trial_that_ended_has_an_empty_study(tmp_path):
    assert journal.write(made.results([({"RATE": 1}, [None])], seeds=(1,)), tmp_path)
    assert journal.write(made.results([({}, [0.5])], seeds=(1,)), tmp_path)


def test_without_optuna_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(journal.importlib.util, "find_spec", lambda name: None)
    assert not journal.write(made.results(TABLE, seeds=(7,)), tmp_path)
    assert list(tmp_path.iterdir()) == []
