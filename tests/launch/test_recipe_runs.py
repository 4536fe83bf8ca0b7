"""Recipes in separate processes: stopped anywhere, continued, killed, failing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from launch import recipe
from t5x_style.configuration import gin_reader
from tests.kits.recipe_kit import HEAD, RECIPE, make_house  # noqa: F401  a fixture

FAILS = HEAD + (
    "from t5x_style import stage\nfrom tests.kits import gin_toys\n"
    "stage.run.job = @gin_toys.fails\n"
)


def start(*flags, **environment):
    """Starts the recipe as a user does, in a separate process."""
    command = [sys.executable, "-m", "launch.recipe", "--gin_file=recipe.gin", "--gin_allow=tests"]
    command += flags
    env = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)} | environment
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def times():
    """Stage -> seconds of the last command."""
    rows = [line.split("|") for line in Path("runs/time.md").read_text().splitlines()]
    return {row[1].strip(): float(row[2]) for row in rows[6:] if len(row) > 2}


def test_runs_stops_and_continues_inside_a_stage(house):
    """SIGTERM to the recipe reaches the stage; the same command continues it, and then skips."""
    house(RECIPE.replace("STOP_AT = -1", "STOP_AT = 1"))
    process = start(TOY_STOPS_PARENT="1")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "stopped in stage second" in output
    assert not os.path.exists("runs/second/stage.json") and not os.path.exists("runs/third")

    process = start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "all 3 stages done" in output, output
    with open("runs/summary.txt") as file:
        lines = [line.split() for line in file]
    assert [step for step, _ in lines] == ["0", "1", "2", "3"]
    assert len({process_id for _, process_id in lines}) == 2
    with open("runs/second/stage.json") as second, open("runs/first/stage.json") as first:
        made = json.load(first)
        name = f"toy_make-{made['fingerprint'][:16]}"
        assert json.load(second)["inputs"] == {
            "SOURCE": f"{name} by code {made['code_hash']}/out.txt"
        }
    seconds = times()
    assert list(seconds) == ["first", "second", "third", "sum"]
    assert seconds["first"] == 0 < min(seconds["second"], seconds["third"])

    process = start()
    output, _ = process.communicate(timeout=60)
    assert output.count("skipped") == 3
    assert set(times().values()) == {0}


def test_a_stage_stopped_by_a_signal_of_its_own_leaves_the_recipe_undone(house):
    house(RECIPE.replace("STOP_AT = -1", "STOP_AT = 1"))
    process = start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "stopped in stage second" in output, output
    process = start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "all 3 stages done" in output, output


def test_a_killed_recipe_takes_its_stage_along(house):
    house(RECIPE.replace("STOP_AT = -1", "STOP_AT = 1"))
    process = start(TOY_STOPS_PARENT="1", TOY_SIGNAL="KILL")
    process.communicate(timeout=60)  # returns when the stage, too, has closed the pipe
    assert process.returncode == -signal.SIGKILL
    assert not os.path.exists("runs/second/stage.json")


def test_a_failing_stage_ends_the_recipe(house, capfd):
    (Path.cwd() / "fails.gin").write_text(FAILS)
    text = RECIPE.replace("entry = 'tests.kits.gin_toys'", "entry = 't5x_style.stage'")
    text = text.replace("make_alone.gin", "fails.gin").replace(
        "Size.width': 5", "fails.ours': True"
    )
    flags = house(text)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert recipe.run(flags) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    output = capfd.readouterr()
    assert "stage third failed with exit code 1; correct what its message says;" in output.out
    assert "tries again" not in output.out
    assert "expected a corpus, found nothing" in output.err
