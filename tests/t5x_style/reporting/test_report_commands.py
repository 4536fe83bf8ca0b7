"""The commands that a summary page advises: each of them loads as printed."""

import shlex
import sys

import pytest

from launch import cli
from t5x_style.configuration import gin_checks
from t5x_style.reporting import report_commands
from t5x_style.workflow import recipe_planning, recipe_reader
from tests.kits.fine_tuning_kit import REPOSITORY

RECIPES = "gin_configs/recipes"


def advised(run: report_commands.Run, longer: bool = True) -> list[str]:
    return list(report_commands.commands(run, longer))


def run_of(name: str, **settings: str) -> report_commands.Run:
    return report_commands.Run(f"{RECIPES}/{name}.gin", "runs/mine", settings, True, 0.5)


@pytest.mark.parametrize("name", ["beir", "quickstart", "smoke"])
def test_commands_of_recipes_plan(name, tmp_path, monkeypatch):
    """A folder with a space in its name, as BEIR's command needs it."""
    corpus = tmp_path / "my texts"
    (corpus / "qrels").mkdir(parents=True)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (corpus / file).write_text("")
    settings = {"CORPUS": str(corpus)} if name == "beir" else {}
    monkeypatch.chdir(REPOSITORY)
    search, serve, again, *others = advised(run_of(name, **settings))
    assert "kennel search --run=runs/mine" in search
    assert serve.endswith("kennel serve runs/mine")
    assert cli.python_arguments(shlex.split(serve)[1:]) == ["-m", "launch.serve", "runs/mine"]
    assert len(others) == (name != "beir")
    for command in (again, *others):
        argv = shlex.split(command.replace("path/to/your/folder", f"'{corpus}'"))
        _, module, *words = cli.python_arguments(argv[1:])
        assert module == "launch.recipe"
        flags = gin_checks.parse_flags(words)
        planned = recipe_reader.load(flags)
        pending = recipe_planning.all_pending(planned)
        for stage in planned.stages:
            assert recipe_planning.stage_flags(planned, stage, flags, pending).read().bindings


def test_nothing_is_advised_that_is_not_known():
    nothing = report_commands.Run(None, None, {}, True, 1.0)
    assert advised(nothing) == []
    no_search = report_commands.Run(
        f"{RECIPES}/quickstart_comparison.gin", "runs/q", {}, False, 1.0
    )
    (command,) = advised(no_search, longer=False)
    assert "kennel run beir CORPUS=" in command


def test_another_folder_is_not_advised_after_a_run_on_ones_own():
    run = run_of("finetune", CORPUS="path/to/data", PUBLISHED="path/to/encoder")
    search, serve = advised(run, longer=False)
    assert " search " in search and " serve " in serve


def test_the_command_is_named_as_it_is_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    assert advised(run_of("beir"))[0].startswith(".venv/bin/kennel search")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert advised(run_of("beir"))[0].startswith("kennel search")
