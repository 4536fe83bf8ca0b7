"""The sweeps that come with Kennel: they fit their recipes, and share what can be shared."""

import pytest

from launch import words
from t5x_style.configuration import gin_checks
from t5x_style.sweeps import points, sources, sweep_reader, trial_checks
from t5x_style.sweeps.planning import Planner
from tests.kits import published_folders

# What a user has to set, or sets to keep it short.
SETTINGS = {
    "finetune": {"CORPUS": "corpus", "PUBLISHED": "encoder/tokenizer"},
    "rates": {"CORPUS": "corpus"},
    "quickstart": {"sweep.run.trials": "3"},
}


def planner(name, tmp_path, monkeypatch, *more):
    monkeypatch.chdir(tmp_path)
    published_folders.corpus(tmp_path / "corpus")
    if "PUBLISHED" in SETTINGS[name]:
        published_folders.published(tmp_path / "encoder")
    overrides = (*SETTINGS[name].items(), *more)
    flags = gin_checks.Flags((f"gin_configs/sweeps/{name}.gin",), overrides)
    return Planner(sweep_reader.load(flags), flags)


def trials_of(made):
    sweep = made.sweep
    no_change, recipes = made.no_change()
    known = points.configurations(sweep, no_change, recipes)
    return sources.by_seed(known, sweep.seeds)


@pytest.mark.parametrize("name", list(words.recipes("sweep")))
def test_it_fits_its_recipe(name, tmp_path, monkeypatch):
    made = planner(name, tmp_path, monkeypatch)
    trial_checks.check_recipes(made)
    trials = trials_of(made)
    assert trial_checks.impossible(made, trials[:2]) == {}


def test_twelve_fine_tunings_share_a_tokenizer_a_store_and_a_pre_training(tmp_path, monkeypatch):
    made = planner(
        "rates", tmp_path, monkeypatch, ("rate/sweep.Axis.values", "[1e-4, 3e-4, 1e-3, 3e-3]")
    )
    chains = [made.of(trial).chain for trial in trials_of(made)]
    versions = {stage: len({chain[stage].fingerprint for chain in chains}) for stage in chains[0]}
    assert len(chains) == versions.pop("retriever") == 12
    assert {"tokenizer", "passages", "pretrain"} <= versions.keys()
    assert set(versions.values()) == {1}
