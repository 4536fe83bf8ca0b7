"""`kennel sweep` on the zone that a test serves, without its long waits.

The toys of the tests travel with the code of the trials, since the project's archive has no tests.
"""

import functools
import os
import threading

from launch import sweep, sweep_machines
from launch.cloud import recipe_files
from launch.cloud.gcloud import Gcloud
from launch.cloud.sweep_slices import SliceLauncher
from t5x_style.configuration.gin_reader import REPOSITORY
from tests.launch.cloud.histories import NoFollower
from tests.launch.sweeps import served_zone

TOYS = ("tests/kits/gin_toys.py", "tests/kits/toys/toy_training.py")


def wait(event: threading.Event, seconds: float) -> bool:
    return event.wait(min(seconds, 0.1))


class QuickLauncher(SliceLauncher):
    """Polls ten times a second."""

    def __init__(self, *arguments):
        super().__init__(*arguments, follow=lambda job, gcloud, file: NoFollower(), wait=wait)


def main():
    runner = functools.partial(served_zone.ask, os.environ[served_zone.ADDRESS])
    sweep_machines.Gcloud = lambda: Gcloud(runner, lambda seconds: None, name="gcloud")
    sweep_machines.SliceLauncher = QuickLauncher
    of_recipe = recipe_files.of_recipe
    recipe_files.of_recipe = lambda *arguments: [
        *of_recipe(*arguments),
        *(REPOSITORY / name for name in TOYS),
    ]
    sweep.main()


if __name__ == "__main__":
    main()
