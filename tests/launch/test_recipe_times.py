"""The page about the time of a recipe: what ran now, and the accounts of trainings."""

import io

import pytest
from rich.console import Console

from launch import recipe_times
from t5x_style.goodput import attempts
from t5x_style.goodput.attempts import Attempt
from t5x_style.goodput.table import StageTime
from t5x_style.workflow.store import Version


def rows(page):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]


def test_stages_and_a_training_that_ran_now(tmp_path):
    training = tmp_path / "train-1"
    training.mkdir()
    first = Attempt(100.0, 140.0, 0, 20, {"start": 10.0, "step": 30.0}, {})
    second = Attempt(150.0, 200.0, 15, 40, {"step": 30.0}, {"start": 12.0, "step": 8.0})
    attempts.write(training / attempts.FILE, [first, second])
    plain = tmp_path / "prepare-1"
    plain.mkdir()
    times = {
        "tokenizer": StageTime(0.0),
        "passages": recipe_times.of_stage(Version(plain, {}), 12.25),
        "retriever": recipe_times.of_stage(Version(training, {}), 55.0),
    }
    shown = io.StringIO()
    recipe_times.write(tmp_path, times, Console(file=shown, width=200))
    page = (tmp_path / recipe_times.FILE).read_text()
    assert rows(page) == [
        ["stage", "now", "goodput", "training", "step", "start-up", "lost to restarts"],
        ["tokenizer", "0.0", "", "", "", "", ""],
        ["passages", "12.2", "", "", "", "", ""],
        ["retriever", "55.0", "60%", "100.0", "60.0", "10.0", "30.0"],
        ["sum", "67.2", "", "", "", "", ""],
    ]
    for cells in rows(page):
        assert all(cell in shown.getvalue() for cell in cells)


def test_without_a_training_there_are_no_columns_for_one(tmp_path):
    recipe_times.write(tmp_path, {"passages": StageTime(3.0)}, Console(file=io.StringIO()))
    page = (tmp_path / recipe_times.FILE).read_text()
    assert rows(page) == [["stage", "now"], ["passages", "3.0"], ["sum", "3.0"]]


def test_a_damaged_account_is_named(tmp_path):
    (tmp_path / attempts.FILE).write_text('{"attempts": 3}')
    with pytest.raises(attempts.GoodputError, match="goodput.json: expected attempts with begun"):
        recipe_times.of_stage(Version(tmp_path, {}), 1.0)
