"""What Kennel made before its code was arranged in packages still counts as finished."""

import shutil
import tarfile
from pathlib import Path

import pytest

from t5x_style.configuration import gin_checks, gin_reader, renames
from t5x_style.workflow import recipe_planning, recipe_problems, recipe_reader, stages

GOLDEN = Path(__file__).parent / "finished_run"
NOT_KEPT = {"export", "report"}  # their programs and pages name folders of the machine


def test_a_finished_run_of_old_code_is_done(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    with tarfile.open(GOLDEN / "run.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    argv = [
        f"--gin_file={tmp_path}/recipe.gin",
        f"--gin_file={tmp_path}/defaults_of_then.gin",
        f"--gin.CORPUS={tmp_path}/corpus",
        f"--gin.RUN_DIR={tmp_path}/run",
    ]
    flags = gin_checks.parse_flags(argv)
    problems = recipe_problems.Problems(flags.read_all())
    _, decisions = recipe_planning.look_up(recipe_reader.load(flags), flags, problems)
    problems.refuse()
    statuses = {name: decision.status for name, decision in decisions.items()}
    assert statuses == {name: "new" if name in NOT_KEPT else "done" for name in statuses}
    assert len(statuses) == 16


def test_the_gin_files_that_old_runs_left_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(renames, "_noted", set())
    with tarfile.open(GOLDEN / "run.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = sorted(tmp_path.glob(".store/versions/*/config.gin"))
    assert len(files) == 14
    for file in files:
        config = gin_reader.read([str(file)])
        gin_checks.check_names(config, (gin_reader.RUN, stages.job_of(config)))
        gin_checks.check_code(config)
    said = capsys.readouterr().err
    assert "input_pipelines.packing is called input_pipelines.batches.token_groups now" in said
    assert "ContrastiveConfig.way is called contrastive.ContrastiveConfig.exchange now" in said
