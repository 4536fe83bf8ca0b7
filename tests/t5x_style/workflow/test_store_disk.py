"""A disk that is full or read-only in the middle of a stage: nothing is lost, it continues."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.workflow import space, stages
from t5x_style.workflow.store import Store
from tests.kill import filling
from tests.kits import store_kit

STAGE = """from __gin__ import dynamic_registration
from t5x_style import stage
from tests.kill import filling
stage.run.job = @filling.fill
filling.fill.chunks = %CHUNKS
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
FILL = (
    f"{sys.executable} -m t5x_style.stage --gin_file=fill.gin --gin_allow=tests "
    "--gin.MODEL_DIR=runs/{name} --gin.CHUNKS={chunks}"
)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs lines of shell with a separate disk mounted on `runs`; returns what they print."""
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"]).returncode:
        pytest.skip("needs mount namespaces (unshare --user --mount)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "fill.gin").write_text(STAGE)

    def run(*lines):
        script = "\n".join([f"mount -t tmpfs -o size={filling.CHUNK * 8} none runs", *lines])
        done = subprocess.run(
            [*NAMESPACE, "sh", "-c", script],
            env=os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.stdout

    return run


def fill(name, chunks):
    return FILL.format(name=name, chunks=chunks) + "; echo code $?"


def test_a_full_disk_in_the_middle_of_a_stage(shell):
    output = shell(
        fill("small", 2),
        "find -L runs/small -type f | sort | xargs sha256sum > before",
        fill("large", 12),
        "find -L runs/small -type f | sort | xargs sha256sum | diff before - && echo same",
        f"mount -o remount,size={filling.CHUNK * 40} runs",
        fill("large", 12),
        fill("large", 12),
    )
    first, failed, continued, again = output.split("code ")[:4]
    assert "done in" in first and output.count("code 0") == 3
    assert failed.startswith("0") and "error: [Errno 28] No space left on device" in failed
    assert "No finished version is affected. Free disk space (python -m t5x_style.gc" in failed
    assert "same" in continued and "resume: was stopped" in continued
    assert "kept 0" in continued and "wrote 11" in continued and "done in" in continued
    assert "] done:" in again


def test_a_disk_that_becomes_read_only_in_the_middle_of_a_stage(shell):
    output = shell(
        fill("small", 1),
        f"export {filling.READ_ONLY_AT}=2",
        fill("large", 4),
        fill("large", 4),
        f"unset {filling.READ_ONLY_AT}",
        fill("small", 1),
        "mount -o remount,rw runs",
        fill("large", 4),
    )
    first, failed, refused, found, continued = output.split("code ")[:5]
    assert "done in" in first
    for text in (failed, refused):
        assert "error: [Errno 30] Read-only file system" in text
        assert "make the folder writable, and run the same command: it continues" in text
    assert "] done:" in found  # what is finished can still be used
    assert "kept 1" in continued and "wrote 3" in continued and "done in" in continued


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Returns `plan(width, limit)`, of a stage that was made once with width 1."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs/.store"

    def plan(width, limit=None, name="made"):
        link = tmp_path / "runs/a" / name
        made = store_kit.plan(link, "toy", store=root, width=width)
        return stages.Plan(**vars(made) | {"limit": limit})

    store_kit.finished(plan(1), {"out.txt": "x" * 5000}, {"text": "out.txt"})
    return plan


def begin(planned):
    return store_kit.finished(planned, {"out.txt": "x" * 5000}, {"text": "out.txt"})


def test_a_stage_that_does_not_fit_under_the_limit_is_not_begun(house, tmp_path):
    with pytest.raises(space.NoRoom, match="STORE_LIMIT is 9.0 KB") as error:
        begin(house(2, "9KB"))
    assert "made does not fit into the store" in str(error.value)
    assert f"python -m t5x_style.gc --store={tmp_path}/runs/.store --delete" in str(error.value)
    assert re.search(r"its size is 5\.\d KB \(as toy-", str(error.value))
    assert "--days=0" in str(error.value) or "Every version is in use" in str(error.value)
    assert len(Store(tmp_path / "runs/.store").all()) == 1
    assert begin(house(2, "20KB")).manifest is not None


def test_the_message_says_what_deleting_would_free(house, tmp_path):
    begin(house(2))
    for version in Store(tmp_path / "runs/.store").all():
        for path in version.folder.iterdir():
            os.utime(path, (1, 1))
    with pytest.raises(space.NoRoom, match=r"not used for 7 days, take 6\.\d KB"):
        begin(house(3, "12KB"))


def test_a_stage_that_does_not_fit_on_the_disk_is_not_begun(house, monkeypatch):
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1))
    with pytest.raises(space.NoRoom, match="1 B are free on its disk"):
        begin(house(2))


def test_a_job_that_knows_its_size_asks_for_room(house, tmp_path):
    folder = store_kit.started(house(2, "20KB"))
    space.require_room(str(folder), 5000)
    with pytest.raises(space.NoRoom, match=r"its size is \d\d\.\d KB \(by its configuration\)"):
        space.require_room(str(folder), 50_000)
    space.require_room(str(tmp_path / "elsewhere"), 10**15)  # outside of a store nothing is known


@pytest.mark.parametrize("limit", ["much", "-1GB", True, "1 EB", ""])
def test_limits_that_are_no_sizes(limit):
    with pytest.raises(space.NoRoom, match="expected a size such as '200GB' or '1.5TiB', found"):
        space.limit_of(limit)


def test_sizes_in_words():
    assert space.limit_of("1.5KiB") == 1536 and space.limit_of(None) is None
    assert [space.in_words(n) for n in (0, 999, 1000, 12345, 10**9, 5 * 10**15)] == [
        "0 B", "999 B", "1.0 KB", "12.3 KB", "1.0 GB", "5000.0 TB",
    ]  # fmt: skip
