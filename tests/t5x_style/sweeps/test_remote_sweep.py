"""A sweep whose SWEEP_DIR is on object storage: the same results as on a disk, on any machine."""

import os
import subprocess
import sys

from t5x_style.configuration import gin_reader
from tests.kits.toys.remote_folder import another_machine, bucket, content, names  # noqa: F401
from tests.kits.toys.storage_fixtures import server  # noqa: F401
from tests.kits.toys.sweep_house import SWEEP, make_sweep_house  # noqa: F401  a fixture

TABLES = ("table.csv", "configurations.csv", "report.md")
TWO = SWEEP.replace("[0.1, 0.01, 0.001]", "[0.1, 0.01]")


def run(*arguments, code=0):
    command = ["launch.sweep", "--gin_file=mine.gin", "--gin_allow=tests", *arguments]
    environment = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_sweep_on_object_storage_is_reported_as_one_on_a_disk(sweep_house, bucket):  # noqa: F811
    sweep_house.write(TWO)
    run("--gin.SWEEP_DIR=runs/mine")
    print(run("--gin.SWEEP_DIR=gs://bucket/runs/mine"))
    print(names(bucket))
    for name in TABLES[:2]:
        assert (
            content(bucket, f"runs/mine/{name}")
            == (sweep_house.folder / "runs/mine" / name).read_bytes()
        )
    another_machine()
    output = run("--gin.SWEEP_DIR=gs://bucket/runs/mine", "--report")
    print(output)
    assert "starts" not in run("--gin.SWEEP_DIR=gs://bucket/runs/mine")
