"""Inputs that hosts do not have are refused before anything is paid for."""

from pathlib import Path

import pytest

from launch import words
from launch.cloud import recipe_job
from t5x_style.configuration.gin_reader import GinError
from t5x_style.configuration.python_sources import REPOSITORY

BEIR = "--gin_file=gin_configs/recipes/beir.gin"
REMOTE = ("--gin.RUN_DIR=gs://bucket/mine", "--gin.CORPUS=gs://bucket/beir")


@pytest.fixture(autouse=True)
def _from_the_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--gin.CORPUS=docs"], "gcloud storage cp --recursive docs gs://BUCKET/"),
        (["--gin.CORPUS=/data/nowhere"], "name CORPUS=gs://BUCKET/..."),
        (["--gin.CORPUS=data/nowhere"], "CORPUS=data/nowhere is a path of a disk"),
        (["--gin.CORPUS=gin_configs/nowhere"], "is a path of a disk"),
        (["--gin.CORPUS=s3://bucket/beir"], "hosts read gs://, and no s3://; copy it"),
        (["--gin.CORPUS=gcs://bucket/beir"], "write gs://bucket/beir"),
        (["--gin.retriever/CORPUS=data/more", REMOTE[1]], "retriever/CORPUS=data/more is a path"),
        (["--gin.STORE=runs/store", REMOTE[1]], "STORE=runs/store is a folder of a disk"),
    ],
)
def test_is_refused(settings, message):
    with pytest.raises(GinError) as refused:
        recipe_job.read([BEIR, REMOTE[0], *settings])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        [*REMOTE],
        [*REMOTE, "--gin.STORE=gs://bucket/store"],
        ["--gin.RUN_DIR=runs/mine", REMOTE[1], "--gin.STORE=runs/store"],
        [REMOTE[0], "--gin.CORPUS=gin_configs/data"],
    ],
)
def test_what_hosts_have_is_not_refused(settings):
    found = recipe_job.read([BEIR, *settings])
    assert f"--gin.RUN_DIR={found.run_dir}" in settings


@pytest.mark.parametrize(
    "name", ["quickstart", "smoke", "text", "beir", "realm", "labse", "marge", "untouched"]
)
def test_recipes_that_bring_their_data(name):
    given = [REMOTE[1]] if name in ("text", "beir") else []
    assert name in words.recipes()
    found = recipe_job.read([f"--gin_file=gin_configs/recipes/{name}.gin", REMOTE[0], *given])
    assert Path(f"gin_configs/recipes/{name}.gin").resolve() in map(Path.resolve, found.files)


def test_a_macro_of_the_recipe_is_named_where_stages_have_another():
    """The stage's input is CORPUS; what the user has to set is SCIFACT."""
    with pytest.raises(GinError, match=r"^SCIFACT=\S+ir_scifact is a path of a disk"):
        recipe_job.read(["--gin_file=gin_configs/recipes/simlm_scifact.gin", *REMOTE])
