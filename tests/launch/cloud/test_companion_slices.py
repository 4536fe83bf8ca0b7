"""A second slice for the companions of a recipe: what `kennel tpu` asks for, and how both meet."""

import contextlib
from pathlib import Path

import pytest

from launch.cloud import recipe_job
from launch.cloud.endings import Ending
from launch.cloud.requests import RequestError
from t5x_style.storage import places
from tests.kits.recipe_kit import HEAD, MAKE
from tests.kits.recipe_kit import make_house as make_house  # a fixture
from tests.kits.toys import toy_companion
from tests.kits.toys.remote_folder import content, names
from tests.launch.cloud.tpu_command import WHERE, Forbidden, call, enter_repository, printed
from tests.launch.test_companions import HEAR, RECIPE, finish
from tests.launch.test_recipe_runs import start

in_repository = enter_repository
REFRESH = ("--gin_file=gin_configs/recipes/realm_refresh.gin", "--gin.CORPUS=gs://bucket/corpus")
UP = ("up", *REFRESH, "--gin.RUN_DIR=gs://bucket/mine", *WHERE)


def texts(monkeypatch):
    """The commands of the hosts' jobs, in the order in which they are made."""
    found = []
    real = recipe_job.bootstrap.start_text
    monkeypatch.setattr(
        recipe_job.bootstrap, "start_text", lambda job: found.append(job) or real(job)
    )
    return found


@pytest.mark.usefixtures("in_repository")
def test_two_commands_ask_for_two_slices_of_one_run(capsys, monkeypatch):
    jobs = texts(monkeypatch)
    trainer = printed(capsys, *UP, "--slice=v5e:4x4", "--companions=elsewhere")
    builder = printed(capsys, *UP, "--slice=v5e:2x2", "--companions=only")
    assert trainer[0][5] == "mine" and builder[0][5] == "mine-companion", builder[0]
    assert [job.name for job in jobs] == ["mine", "mine-companion"]
    assert [job.command[-1] for job in jobs] == ["--companions=elsewhere", "--companions=only"]
    assert jobs[0].command[:-1] == jobs[1].command[:-1]


@pytest.mark.usefixtures("in_repository")
def test_what_becomes_of_a_companion_is_said(capsys):
    assert call(Forbidden(), *UP, "--slice=v5e:4x4", "--print") == 0
    said = capsys.readouterr().err
    assert "realm_index starts on none of several hosts" in said and "--companions=only" in said
    assert call(Forbidden(), *UP, "--slice=v5e:4x4", "--companions=elsewhere", "--print") == 0
    assert "realm_index" not in capsys.readouterr().err


@pytest.mark.usefixtures("in_repository")
@pytest.mark.parametrize(
    "words,said",
    [
        ([*UP, "--slice=v5e:4x4"], "expected a slice of one host, found 4 hosts"),
        (
            ["up", "--gin_file=gin_configs/recipes/quickstart.gin", "--slice=v5e:2x2", *WHERE,
             "--gin.RUN_DIR=gs://bucket/mine"],
            "expected a recipe whose stages have companions, found none in it",
        ),
    ],
)  # fmt: skip
def test_companions_alone_need_one_host_and_a_recipe_that_has_some(words, said, capsys):
    assert call(Forbidden(), *words, "--companions=only", "--print") == Ending.REFUSED
    assert said in capsys.readouterr().err
    assert issubclass(RequestError, ValueError)


def test_a_stage_and_its_companion_meet_in_a_bucket(house, bucket, tmp_path):
    """Two machines with a disk each; neither sees the other's."""
    Path("hear.gin").write_text(HEAR)
    Path("speak.gin").write_text(HEAD + toy_companion.SPEAK)
    Path("make.gin").write_text(MAKE)
    house(RECIPE.replace("'runs'", "'gs://bucket/run'"))
    with contextlib.ExitStack() as stack:
        disks = {name: str(tmp_path / name) for name in ("trainer", "companion")}
        trainer, companion = (
            start(f"--companions={where}", **{places.CACHE: disks[name]})
            for where, name in (("elsewhere", "trainer"), ("only", "companion"))
        )
        stack.callback(companion.kill)
        stack.callback(trainer.kill)
        code, output = finish(trainer)
        assert code == 0, output
        code, output = finish(companion)
        assert code == 0 and "companion voice: stage heard is done" in output, output
    (made,) = [name for name in names(bucket) if name.endswith("/out.txt") and "hear" in name]
    assert content(bucket, made).startswith(b"Size(width=3"), "read from the first stage's version"
