"""The launcher of this machine: how many trials at once, and on which cores."""

import os

import pytest

from t5x_style.sweeps.launchers import LocalLauncher


def ended(job):
    """Waits until a trial has ended; its exit code."""
    while (code := job.ended()) is None:
        pass
    return code


def test_a_place_is_free_again_when_its_trial_has_ended(tmp_path):
    launcher = LocalLauncher(workers=2)
    assert launcher.free() == 2
    jobs = [
        launcher.start("trial", ["--no_such_flag"], tmp_path / f"{n}/log.txt") for n in range(2)
    ]
    assert [ended(job) for job in jobs] == [2, 2] and launcher.free() == 2
    assert "--no_such_flag" in (tmp_path / "0/log.txt").read_text()
    jobs[0].stop()  # an ended one can be stopped and killed
    jobs[0].kill()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_trials_have_cores_of_their_own(tmp_path, monkeypatch):
    mine = os.sched_getaffinity(0)
    asked = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: asked.append(set(cores)))
    launcher = LocalLauncher(workers=2)
    jobs = [
        launcher.start("trial", ["--no_such_flag"], tmp_path / f"{n}/log.txt") for n in range(2)
    ]
    assert [ended(job) for job in jobs] == [2, 2]
    assert asked[1] == asked[3] == mine  # the driver has its cores back
    if len(mine) > 1:
        assert not asked[0] & asked[2] and len(asked[0]) == len(mine) // 2
    too_many = LocalLauncher(workers=1, cores=len(mine) + 1)
    ended(too_many.start("trial", ["--no_such_flag"], tmp_path / "more/log.txt"))
    assert asked[4] == mine  # more than there are: all of them
