"""Two processes that want one version: the second waits, follows, and is not disturbed."""

import dataclasses
import os

import pytest

from t5x_style.leases.file_leases import FileLeases
from t5x_style.leases.lease import LeaseLost
from t5x_style.workflow import making, stage_runner, stages
from t5x_style.workflow.store import Store
from tests.kits.stage_kit import (  # noqa: F401  a fixture for every test here
    COUNT,
    MAKE,
    clean_process,
    flags_of,
    record,
)  # fmt: skip


def test_a_second_process_waits_and_finds_it_made(tmp_path, capsys):
    """The other process holds the lease until it has made the version."""
    planned = stages.plan(flags_of(MAKE, tmp_path))
    lease = planned.store.leases.acquire(planned.id, lambda holder: None, lambda: None)
    folder = making.begin(planned, stages.decide(planned), lease)
    (folder / "out.txt").write_text("made elsewhere")

    def meanwhile(seconds):
        del seconds
        making.finish(planned, folder, {"text": "out.txt"}, 1.0, lease)
        lease.release()

    second = dataclasses.replace(planned, store=Store(planned.store.root))
    second.store.leases._sleep = meanwhile
    with stage_runner._lease(second) as own:
        stage_runner._make(flags_of(MAKE, tmp_path), second, own)
    output = capsys.readouterr().out
    assert f"waits: process {os.getpid()} on" in output and "] done: 1 s" in output
    assert (tmp_path / "out" / "out.txt").read_text() == "made elsewhere"
    assert (lease.token, own.token, record(tmp_path)["token"]) == (1, 2, 1)


def test_a_silent_holder_is_followed_in_a_copy_and_its_result_is_refused(tmp_path):
    """It may wake up and write: what it writes is not what the second one makes."""
    (tmp_path / "source").write_text("x")
    options = {"SOURCE": "source", "gin_toys.count.stop_at": "1"}
    planned = stages.plan(flags_of(COUNT, tmp_path, **options))
    free = FileLeases(tmp_path / ".store" / "leases", expiry=0.0)
    sleeper = free.acquire(planned.id, lambda holder: None, lambda: None)
    asleep = making.begin(planned, stages.decide(planned), sleeper)
    (asleep / "steps.txt").write_text("0 1\n1 1\n")
    second = free.acquire(planned.id, lambda holder: None, lambda: None)
    assert second.before == "silent"
    folder = making.begin(planned, stages.decide(planned), second)
    assert folder != asleep and (folder / "steps.txt").read_text() == "0 1\n1 1\n"
    (asleep / "steps.txt").write_text("woke up")
    with pytest.raises(LeaseLost, match="acquired the lease while this process was stopped"):
        making.finish(planned, asleep, {"steps": "steps.txt"}, 1.0, sleeper)
    assert not (asleep / "stage.json").exists()
    making.finish(planned, folder, {"steps": "steps.txt"}, 1.0, second)
    assert stages.decide(planned).version.folder == folder and record(tmp_path)["token"] == 2
    for lease in (sleeper, second):
        lease.release()
