"""Two recipes that share stages, killed again and again: each version is made once."""

import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.workflow import files
from t5x_style.workflow.store import Store

STAGE = """from __gin__ import dynamic_registration
from t5x_style import stage
from tests.kill import growing
SOURCE = None
stage.run.job = @growing.grow
stage.run.inputs = [%SOURCE]
growing.grow:
  source = %SOURCE
  steps = %STEPS
"""
RECIPE = """from __gin__ import dynamic_registration
from launch import recipe
LAST = 41
RUN_DIR = 'runs/a'
STEPS = 60
recipe.run.run_dir = %RUN_DIR
first/recipe.Stage:
  gin_files = ['grow.gin']
  bindings = {'STEPS': %STEPS}
second/recipe.Stage:
  gin_files = ['grow.gin']
  inputs = {'SOURCE': %first.grown}
  bindings = {'STEPS': %STEPS}
third/recipe.Stage:
  gin_files = ['grow.gin']
  inputs = {'SOURCE': %second.grown}
  bindings = {'STEPS': %LAST}
"""


class Recipe:
    """A recipe in a separate process, whose lines go into a queue; None when it has ended."""

    def __init__(self, name, last, lines, store="runs/.store"):
        self.name, self.lines, self.output = name, lines, []
        command = [sys.executable, "-m", "launch.recipe", "--gin_file=recipe.gin"]
        command += [f"--gin.RUN_DIR=runs/{name}", f"--gin.LAST={last}", "--gin_allow=tests"]
        self.process = subprocess.Popen(
            [*command, f"--gin.STORE={store}"],
            env=os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line)
            self.lines.put((self, line))
        self.process.wait()
        self.lines.put((self, None))


LAST = {"a": 41, "b": 43}


def disturbed(chance, kills):
    """Runs both recipes, killing whichever works; what each process printed, and the kills."""
    lines, killed = queue.Queue(), 0
    running = {name: Recipe(name, last, lines) for name, last in LAST.items()}
    printed, patience = [], chance.randint(1, 12)
    while running:
        recipe, line = lines.get(timeout=240)
        if line is None:
            printed += recipe.output
            del running[recipe.name]
            if recipe.process.returncode == -signal.SIGKILL:
                running[recipe.name] = Recipe(recipe.name, LAST[recipe.name], lines)
            else:
                assert recipe.process.returncode == 0, "".join(recipe.output)
        elif running.get(recipe.name) is recipe and killed < kills:
            patience -= 1
            if patience <= 0 and recipe.process.poll() is None:
                recipe.process.send_signal(signal.SIGKILL)
                killed, patience = killed + 1, chance.randint(1, 12)
    return printed, killed


def contents(store):
    """Version -> hashes of its outputs; what is not finished is an error."""
    found = {}
    for version in Store(store).all():
        assert version.manifest is not None, f"{version.id} was left unfinished"
        assert files.changed_files(version, thorough=True) == []
        found[version.id] = files.sha256(version.folder / "grown.txt")
    return found


@pytest.fixture
def house(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grow.gin").write_text(STAGE)
    (tmp_path / "recipe.gin").write_text(RECIPE)


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_of_two_recipes_that_share_stages(house, tmp_path, kills):
    printed, killed = disturbed(random.Random(25), kills)
    assert killed == kills
    undisturbed = queue.Queue()
    for name, last in LAST.items():
        Recipe(f"{name}_alone", last, undisturbed, "alone/.store")
        while undisturbed.get(timeout=240)[1] is not None:
            pass
    alone = contents("alone/.store")
    assert contents("runs/.store") == alone and len(alone) == 4
    # Each version was made once: no second revision, and no step twice but where a kill fell.
    assert not [name for name in alone if re.search(r"\.\d+$", name)]
    steps = Counter(line.strip() for line in printed if line.startswith("grew"))
    assert sum(steps.values()) - len(steps) <= kills
    for name in LAST:
        for stage in ("first", "second", "third"):
            here, there = (tmp_path / run / stage for run in (f"runs/{name}", f"runs/{name}_alone"))
            assert here.resolve().name == there.resolve().name
