"""A recipe with a toy training, sweep files over it, and a folder to run them in."""

import dataclasses

import pytest

from t5x_style.configuration import gin_checks
from t5x_style.sweeps import sweep_reader
from t5x_style.sweeps.planning import Planner

MAKE = """from __gin__ import dynamic_registration
from t5x_style import stage
from tests.kits import gin_toys
stage.run.job = @gin_toys.make
gin_toys.make.size = @gin_toys.Size()
gin_toys.Size.width = %WIDTH
"""
LEARN = """from __gin__ import dynamic_registration
from t5x_style import stage
from tests.kits.toys import toy_training
stage.run.job = @toy_training.learn
stage.run.inputs = [%SOURCE]
toy_training.learn:
  source = %SOURCE
  rate = %RATE
  seed = %SEED
  kind = %KIND
  nan_at = %NAN_AT
  fails = %FAILS
  cadence = @toy_training.Cadence()
  evaluators = [@toy_training.Evaluator()]
toy_training.Cadence:
  steps = %STEPS
  evaluate_every = %EVALUATE_EVERY
EVALUATE_EVERY = 1
KIND = 'plain'
NAN_AT = -1
FAILS = False
"""
RECIPE = """from __gin__ import dynamic_registration
from launch import recipe
WIDTH = 3
RATE = 0.01
SEED = 1
STEPS = 6
RUN_DIR = 'runs/alone'
recipe.run.run_dir = %RUN_DIR
corpus/recipe.Stage:
  gin_files = ['make.gin']
tuned/recipe.Stage:
  gin_files = ['learn.gin']
  inputs = {'SOURCE': %corpus.text}
after/recipe.Stage:
  gin_files = ['make.gin']
  bindings = {'WIDTH': 9}
"""
HEAD = """sweep.run:
  recipe = 'recipe.gin'
  metric = 'tuned/eval/dev/score'
"""
SWEEP = (
    HEAD
    + """
RATE/sweep.Axis.values = [0.1, 0.01, 0.001]
"""
)


@dataclasses.dataclass
class SweepHouse:
    """A folder with a recipe."""

    folder: object

    def write(self, text=SWEEP, name="mine.gin"):
        """Writes a sweep file."""
        (self.folder / name).write_text(text)

    def flags(self, text=SWEEP, **macros):
        """Writes a sweep file; its command line."""
        self.write(text)
        overrides = tuple((name, str(value)) for name, value in macros.items())
        return gin_checks.Flags(("mine.gin",), overrides, allow=("tests",))

    def load(self, text=SWEEP, **macros):
        """Writes a sweep file, and reads it."""
        return sweep_reader.load(self.flags(text, **macros))

    def planner(self, text=SWEEP, **macros):
        """Writes a sweep file; its planner."""
        flags = self.flags(text, **macros)
        return Planner(sweep_reader.load(flags), flags)


@pytest.fixture(name="sweep_house")
def make_sweep_house(tmp_path, monkeypatch):
    """A `SweepHouse` in an empty folder, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.gin").write_text(MAKE)
    (tmp_path / "learn.gin").write_text(LEARN)
    (tmp_path / "recipe.gin").write_text(RECIPE)
    return SweepHouse(tmp_path)
