"""The driver with real recipes of a toy training: what runs, what stops, what is kept."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.sweeps.trial_records import TrialRecords
from t5x_style.workflow import files
from t5x_style.workflow.store import Store
from tests.kits.toys.sweep_house import HEAD, SWEEP, make_sweep_house  # noqa: F401  a fixture

# Each trial is two processes: two values of the rate are enough where the number says nothing.
TWO = SWEEP.replace(", 0.001", "")
TABLES = ("table.csv", "configurations.csv", "report.md")


def command(*arguments):
    return [
        sys.executable,
        "-m",
        "launch.sweep",
        "--gin_file=mine.gin",
        "--gin_allow=tests",
        *arguments,
    ]


def start(*arguments):
    """Starts the sweep as a user does, in a separate process."""
    return subprocess.Popen(
        command(*arguments),
        env=os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments, code=0):
    """Runs the sweep to its end; what it printed."""
    process = start(*arguments)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


def kept(folder="runs/mine"):
    """Trial's name -> its record."""
    return {name: one.record for name, one in TrialRecords(Path(folder)).all().items()}


def steps_of(name, folder="runs/mine"):
    """The steps that a trial's log says it learned, in order."""
    lines = (Path(folder) / "trials" / name / "log.txt").read_text().splitlines()
    return [int(line.split()[-1]) for line in lines if line.startswith("learned")]


def test_trials_share_stages_and_the_winner_is_a_recipe(sweep_house):
    sweep_house.write(TWO + "sweep.run.seeds = [1, 2]\nsweep.run.workers = 2\n")
    output = run()
    found = kept()
    assert len(found) == 4 and {one.status for one in found.values()} == {"done"}
    assert {one.attempts for one in found.values()} == {1} and "failed" not in output
    names = [one.id for one in Store(Path("runs/.store")).all()]
    assert sum(name.startswith("toy_make") for name in names) == 1 and len(names) == 5
    best = max(found, key=lambda name: found[name].value)
    winner = Path(f"runs/mine/trials/{best[:-1]}1/run/tuned").resolve()

    again = [sys.executable, "-m", "launch.recipe", "--gin_file=runs/mine/best.gin"]
    again += ["--gin_allow=tests", "--gin.RUN_DIR=fresh/best"]
    environment = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    subprocess.run(again, env=environment, check=True, capture_output=True, timeout=120)
    made = Path("fresh/best/tuned").resolve()
    assert made.name == winner.name and made != winner
    assert files.sha256(made / "metrics.jsonl") == files.sha256(winner / "metrics.jsonl")
    assert Path("fresh/best/after").is_symlink()  # the stages after it, too


def test_a_dry_run_says_what_would_run_and_makes_nothing(sweep_house):
    sweep_house.write(TWO + "sweep.run.seeds = [1, 2]\n")
    output = run("--dry_run")
    assert output.count("queued") == 4 and "stages of the 4 trials that are left" in output
    assert not Path("runs").exists()
    run()
    output = run("--dry_run")
    assert "queued" not in output and "stages of the 0 trials that are left" in output
    sweep_house.write(TWO.replace("0.01]", "0.01, 0.02]") + "sweep.run.seeds = [1, 2]\n")
    output = run("--dry_run")
    assert output.count("queued") == 2 and "estimate: 0.0 minutes of one worker" in output


def test_what_was_run_with_an_earlier_file_is_kept_and_not_run_again(sweep_house):
    sweep_house.write(TWO)
    run()
    before = kept()
    added = TWO.replace("[0.1, 0.01]", "[0.02, 0.01]")
    sweep_house.write(added + "KIND/sweep.Axis.values = ['fancy', 'plain']\n")
    run()
    after = kept()
    assert len(after) == 2 + 3 and all(after[name] == record for name, record in before.items())
    assert "not in the sweep file any more" in Path("runs/mine/report.md").read_text()
    sweep_house.write(TWO)
    assert "starts" not in run()


@pytest.mark.slow
def test_a_changed_recipe_runs_its_trials_again(sweep_house):
    sweep_house.write(TWO)
    run()
    recipe = sweep_house.folder / "recipe.gin"
    recipe.write_text(recipe.read_text().replace("WIDTH = 3", "WIDTH = 4"))
    assert run().count("starts") == 2
    recipe.write_text(recipe.read_text().replace("WIDTH = 4", "WIDTH = 3"))
    output = run()  # the versions are in the store still
    assert output.count("starts") == 2 and len(Store(Path("runs/.store")).all()) == 6


def test_a_failed_trial_stops_no_other_and_is_retried_as_it_was(sweep_house):
    text = TWO + "sweep.run.workers = 2\nFAILS/sweep.Axis.values = [False, True]\n"
    sweep_house.write(text)
    output = run(code=1)
    found = kept()
    failed = {name: one for name, one in found.items() if one.status == "failed"}
    assert len(failed) == 2 and len(found) == 4
    assert all("this training fails, as it was asked to" in one.reason for one in failed.values())
    assert "2 trials failed" in output and "starts" not in run(code=1)
    run("--retry_failed", code=1)
    again = kept()
    assert {name for name, one in again.items() if one.attempts == 2} == failed.keys()
    assert "failed" in Path("runs/mine/table.csv").read_text()


@pytest.mark.slow
def test_a_trial_that_writes_nan_has_failed(sweep_house):
    sweep_house.write(TWO + "NAN_AT/sweep.Axis.values = [-1, 3]\n")
    run(code=1)
    failed = [one for one in kept().values() if one.status == "failed"]
    assert len(failed) == 2
    assert {one.reason for one in failed} == {"eval/dev/score is nan at step 3"}
    assert "nan" not in Path("runs/mine/configurations.csv").read_text().lower().replace(
        "nan_at", ""
    )


def test_trials_without_an_evaluation_end_the_sweep_with_the_first(sweep_house):
    sweep_house.write(SWEEP + "EVALUATE_EVERY = 99\n")
    output = run(code=1)
    assert "no further one starts" in output and "2 trials have not ended" in output
    (record,) = kept().values()
    assert record.status == "failed" and "the metric was never measured" in record.reason
    sweep_house.write(TWO)
    run()
    assert {one.status for one in kept().values()} == {"done"}


@pytest.mark.slow
def test_a_correction_of_what_failed_is_judged_by_its_own_log(sweep_house):
    sweep_house.write(TWO + "NAN_AT = 3\n")
    run(code=1)
    assert {one.status for one in kept().values()} == {"failed"}
    sweep_house.write(TWO)
    run()
    assert {one.status for one in kept().values()} == {"done"}


def test_a_limit_of_minutes_ends_the_driver_also_after_a_kill(sweep_house):
    sweep_house.write(SWEEP + "sweep.run.minutes = 0.001\n")
    output = run()
    assert [one.status for one in kept().values()] == ["done"]
    assert "2 trials have not ended" in output and "used up" in output
    records = TrialRecords(Path("runs/mine"))
    one = records.read("default")
    killed = dataclasses.replace(one.record, status="running", seconds=60.0)
    records.write(dataclasses.replace(one, record=killed))
    assert "3 trials have not ended" in run()


@pytest.mark.slow
def test_a_limit_of_steps_leaves_trials_out_in_order(sweep_house):
    sweep_house.write(SWEEP + "sweep.run.steps = 13\n")  # two trials of 6
    run()
    assert sorted(one.status for one in kept().values()) == ["done", "done"]
    sweep_house.write(SWEEP + "sweep.run.steps = 18\n")
    run()
    assert len(kept()) == 3
    sweep_house.write(SWEEP + "sweep.run.steps = 5\n")
    assert "sweep.run.steps = 5 is less than one trial" in run(code=1)


@pytest.mark.slow
def test_impossible_trials_are_refused_or_left_out(sweep_house):
    sweep_house.write(SWEEP.replace("0.1,", "-0.1,"))
    output = run(code=1)
    assert "1 of 3 configurations are impossible; nothing was run" in output
    assert "rate: expected 0 or more, found -0.1" in output and not Path("runs").exists()
    sweep_house.write(SWEEP.replace("0.1,", "-0.1,") + "sweep.run.skip_impossible = True\n")
    assert "1 impossible configurations are left out" in run()
    assert len(kept()) == 2


def test_a_sweep_file_that_changes_meanwhile_stops_the_driver(sweep_house):
    steps = "STEPS = 300\nEVALUATE_EVERY = 50\n"
    sweep_house.write(SWEEP + steps)
    process = start()
    for line in process.stdout:
        if "starts" in line:
            sweep_house.write(TWO + steps)
            break
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 1 and "changed since this command read it" in output
    assert [one.status for one in kept().values()] == ["done"]
    assert run().count("starts") == 1


def test_a_stopped_driver_continues_a_trial_from_its_checkpoint(sweep_house):
    sweep_house.write(SWEEP + "STEPS = 2000\nEVALUATE_EVERY = 100\n")
    process = start()
    for line in process.stdout:
        if "starts" in line:
            break
    log = Path("runs/mine/trials/default/log.txt")
    while "learned" not in log.read_text():
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    (record,) = kept().values()
    assert record.status == "running"
    assert "default: continues" in run()
    steps = steps_of("default")
    assert steps == sorted(steps) and 1999 <= len(set(steps)) <= len(steps) <= 2001
    assert kept()["default"].curve[-1] == (1999, kept()["default"].value)
    assert kept()["default"].attempts == 2


@pytest.mark.slow
def test_two_drivers_at_once_run_no_trial_twice(sweep_house):
    sweep_house.write(SWEEP + "sweep.run.seeds = [1, 2]\n")
    drivers = [start() for _ in range(2)]
    outputs = [process.communicate(timeout=240)[0] for process in drivers]
    assert [process.returncode for process in drivers] == [0, 0], outputs
    assert sum(output.count("starts") for output in outputs) == 6
    assert {one.attempts for one in kept().values()} == {1}
    for name in kept():
        assert steps_of(name) == list(range(6))


def results():
    return {name: (Path("runs/mine") / name).read_bytes() for name in TABLES}


TWO_WORKERS = "sweep.run.seeds = [1, 2]\nsweep.run.workers = 2\nSTEPS = 250\nEVALUATE_EVERY = 25\n"
PRUNED = (
    SWEEP.replace("0.1,", "0.1, 0.2, 0.3,")
    + TWO_WORKERS
    + "sweep.run.pruner = 'median'\nKIND/sweep.Axis.values = ['plain', 'fancy']\n"
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(TWO + TWO_WORKERS, 1), pytest.param(PRUNED, 20, marks=pytest.mark.slow)],
    ids=["one", "twenty and pruned"],
)
def test_kills_with_two_workers_change_no_byte_of_the_results(sweep_house, text, wanted):
    sweep_house.write(text)
    run()
    undisturbed = results()
    assert (b"pruned" in undisturbed["table.csv"]) == (text == PRUNED)
    shutil.move("runs", "undisturbed")

    kills = 0
    while True:
        process, patience = start(), 1 + kills % 3
        for line in process.stdout:
            patience -= "starts" in line or "continues" in line
            if patience <= 0 and kills < wanted:
                process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
    assert kills == wanted
    assert results() == undisturbed
    for version in Store(Path("runs/.store")).all():
        assert "." not in version.id, f"{version.id} was made twice"
    for name, record in kept().items():
        steps = steps_of(name)
        assert len(steps) - len(set(steps)) <= record.attempts
        assert steps == sorted(steps)


@pytest.mark.slow
def test_a_sampler_that_learns_asks_once(sweep_house):
    pytest.importorskip("optuna", reason="the extra `sweeps` is not installed")
    sweep_house.write(
        HEAD
        + "  sampler = 'tpe'\n  trials = 6\n  seeds = [1, 2]\n  workers = 2\n"
        + "RATE/sweep.Axis.log_uniform = (1e-5, 1e-1)\n"
        + "KIND/sweep.Axis.values = ['plain', 'fancy']\n"
    )
    run()
    asked = sorted(path.name for path in Path("runs/mine/asked").iterdir())
    assert asked == [f"{number:06d}.json" for number in range(1, 7)]
    found = kept()
    assert len(found) == 14 and {one.status for one in found.values()} == {"done"}
    assert "starts" not in run() and sorted(os.listdir("runs/mine/asked")) == asked
    values = [json.loads(Path(f"runs/mine/asked/{name}").read_text()) for name in asked]
    assert len({str(one) for one in values}) == 6
