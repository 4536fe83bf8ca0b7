"""Trials of a sweep on the slices of a fake zone: who has them, and what becomes of trials."""

import json

from launch.cloud.gcloud import Gcloud
from launch.cloud.remote_job import HostCommands, LogFollower, RemoteJob
from launch.cloud.requests import Place
from t5x_style.sweeps.launchers import NOT_RUN
from tests.launch.sweeps.sweep_world import TRIALS, ended, until
from tests.launch.sweeps.toy_machines import RUNS_ON, ToyMachines


def test_trials_follow_each_other_on_the_slices_of_two_workers(world):
    here = world()
    driver = here.driver()
    assert here.run(driver) == dict.fromkeys(TRIALS, 0) and driver.devices == 8
    assert dict(here.zone.created) == {"rates-w0": 1, "rates-w1": 1}
    assert sorted(trial for _, trial in here.machines.starts) == list(TRIALS)
    assert here.machines.stops == [] and not driver.retired


def test_a_preempted_trial_continues_on_new_slices(world):
    here = world(ToyMachines(a=(RUNS_ON, 0)))
    _, job = here.running("a")
    here.zone.preempt("rates-w0")
    assert ended(job) == 0
    assert here.zone.created["rates-w0"] == 2 and here.machines.started("a") == 2
    assert here.zone.deleted == ["rates-w0"]


def test_a_stopped_trial_saves_and_is_not_started_again(world):
    here = world(ToyMachines(a=(RUNS_ON, 0)))
    driver, job = here.running("a")
    job.stop()
    assert ended(job) == 143
    assert here.machines.stops == [("rates-w0", "a")] and here.machines.started("a") == 1
    assert ended(here.start(driver, "a")) == 0  # it continues later, on the same slices
    assert here.machines.starts == [("rates-w0", "a")] * 2 and not here.zone.deleted


def test_a_trial_that_does_not_end_when_asked_is_killed_once_the_driver_says_so(world):
    here = world(ToyMachines(a=(RUNS_ON,)))
    here.machines.hangs = True
    driver, job = here.running("a")
    job.stop()
    until(lambda: len(here.machines.stops) > 2)  # it is asked again
    assert job.ended() is None
    job.kill()
    assert ended(job) == 143 and not driver.retired


def test_slices_whose_job_does_not_end_for_another_trial_are_given_up(world):
    here = world(ToyMachines(a=(RUNS_ON,)), workers=1)
    here.machines.hangs = True
    first = here.driver()
    here.start(first, "a")
    until(lambda: here.machines.started("a"))
    here.kill(first)
    second = here.driver()
    assert here.run(second, ("b",)) == {"b": NOT_RUN}
    (line,) = second.retired
    assert "which did not end when asked 3 times" in line and not here.machines.started("b")
    assert "rates-w0 in us-west4-a of my-project is ACTIVE and COSTS MONEY" in here.said[-1]
    assert here.zone.live() == ["rates-w0"]  # "a" may be training there


def test_a_killed_driver_is_followed_by_one_that_starts_nothing_twice(world):
    here = world(ToyMachines(a=(RUNS_ON,), b=(RUNS_ON,)))
    first = here.driver()
    for trial in ("b", "a"):
        here.start(first, trial)
    until(lambda: len(here.machines.starts) == 2)
    here.kill(first)
    second = here.driver()
    jobs = [here.start(second, trial) for trial in ("a", "b")]
    until(lambda: sum("rates-w" in line for line in here.said) >= 4)
    for one in here.zone.found.values():
        one.machine.code = 0
    assert [ended(job) for job in jobs] == [0, 0]
    assert sorted(here.machines.starts) == [("rates-w0", "b"), ("rates-w1", "a")]
    assert sum(here.zone.created.values()) == 2 and here.machines.stops == []


def test_the_job_of_another_trial_is_asked_to_save_before_one_starts(world):
    here = world(ToyMachines(a=(RUNS_ON,)), workers=1)
    first = here.driver()
    here.start(first, "a")
    until(lambda: here.machines.started("a"))
    here.kill(first)
    assert ended(here.start(here.driver(), "b")) == 0  # "a" was pruned meanwhile
    assert here.machines.stops == [("rates-w0", "a")]
    assert here.machines.starts == [("rates-w0", "a"), ("rates-w0", "b")]


def test_a_trial_that_fails_says_why_and_runs_again_when_it_is_started_again(world, tmp_path):
    here = world(ToyMachines(b=(2, 0)), workers=1)
    driver = here.driver()
    assert here.run(driver, ("a", "b")) == {"a": 0, "b": 1}
    log = (tmp_path / "trials/b/log.txt").read_text()
    assert "b ended with 2" in log and "a ended" not in log and not driver.retired
    assert here.run(driver, ("b",)) == {"b": 0}
    assert here.machines.started("b") == 2


def test_a_failure_that_no_driver_has_recorded_is_not_run_again(world):
    here = world(ToyMachines(a=(2, 0)), workers=1)
    first = here.driver()
    here.start(first, "a")
    until(lambda: here.machines.started("a"))
    here.kill(first)
    for one in here.zone.found.values():
        one.machine.left = 0
    assert ended(here.start(here.driver(), "a")) == 1 and here.machines.started("a") == 1


def test_a_trial_that_is_killed_again_and_again_has_failed(world):
    here = world(ToyMachines(a=(137,)), workers=1)
    assert here.run(here.driver(), ("a", "b")) == {"a": 137, "b": 0}
    assert here.machines.started("a") == 11


def test_slices_without_quota_are_given_up_and_no_trial_fails(world):
    here = world()
    here.zone.refused = {"rates-w0"}
    driver = here.driver()
    assert here.run(driver) == dict.fromkeys(TRIALS, 0)
    (line,) = driver.retired
    assert line.startswith("rates-w0: the project's quota is used up") and "TPUV5s" in line
    assert dict(here.zone.created) == {"rates-w1": 1}
    here.kill(driver)
    here.zone.refused = {"rates-w0", "rates-w1"}
    here.zone.found.clear()
    driver = here.driver()
    assert set(here.run(driver, ("f", "g")).values()) == {NOT_RUN} and len(driver.retired) == 2
    assert not driver.is_waiting()  # nobody else has them


def test_two_drivers_share_no_slices(world):
    here = world()
    first, second = here.driver(), here.driver()
    assert first.free() == 2 and second.free() == 0 and second.is_waiting()
    assert here.run(first) == dict.fromkeys(TRIALS, 0)
    first.close()
    assert second.free() == 2 and here.run(second, ("f", "g")) == {"f": 0, "g": 0}
    assert dict(here.zone.created) == {"rates-w0": 1, "rates-w1": 1}


def test_who_loses_its_slices_to_another_driver_leaves_the_job_alone(world):
    here = world(ToyMachines(a=(RUNS_ON,)), workers=1)
    driver, job = here.running("a")
    driver.leases.lost()
    assert ended(job) == NOT_RUN
    assert here.machines.stops == [] and not driver.free() and not driver.retired


def test_a_driver_that_wakes_up_does_not_touch_the_jobs_of_the_next_one(world):
    """It has not heard yet that its lease is lost, and is asked to stop its trial."""
    here = world(ToyMachines(a=(RUNS_ON,)), workers=1)
    _, job = here.running("a")
    here.held.clear()
    other = here.driver()
    assert other.free() == 1
    job.stop()
    assert ended(job) == NOT_RUN and here.machines.stops == []


def test_an_outage_of_the_bucket_fails_no_trial_and_costs_no_slices(world):
    here = world(ToyMachines(a=(RUNS_ON,), b=(RUNS_ON,)), workers=1)
    driver, job = here.running("a")
    driver.leases.is_away = True
    job.stop()  # which needs the lease
    assert ended(job) == NOT_RUN and driver.free() == 1
    assert ended(here.start(driver, "b")) == NOT_RUN
    assert len([line for line in here.said if "gs://bucket: no answer" in line]) == 3
    driver.leases.is_away = False
    here.machines.ends = {}
    assert here.run(driver, ("b",)) == {"b": 0} and not driver.retired
    assert here.machines.stops == [("rates-w0", "a")]


def test_no_slices_are_asked_for_once_a_driver_has_closed(world):
    here = world(ToyMachines(a=(RUNS_ON,)), workers=1)
    driver, job = here.running("a")
    driver.close()
    assert job.ended() == NOT_RUN and here.machines.stops == [] and here.held == {}


def test_a_driver_that_wakes_up_neither_deletes_nor_asks_for_slices(world):
    here = world(ToyMachines(a=(RUNS_ON,)), workers=1)
    _, job = here.running("a")
    here.held.clear()
    here.zone.preempt("rates-w0")
    assert ended(job) == NOT_RUN
    assert here.zone.deleted == [] and here.zone.created["rates-w0"] == 1


def test_a_driver_that_wakes_up_does_not_overwrite_the_note_of_the_next_one(world):
    here = world(ToyMachines(b=(RUNS_ON,)), workers=1)
    driver = here.driver()
    assert ended(here.start(driver, "a")) == 0
    here.held.clear()
    here.start(here.driver(), "b")
    assert driver.free() == 0
    assert json.loads((here.folder / "workers/rates-w0.json").read_text())["trial"] == "b"


def test_a_trial_that_fails_on_new_slices_is_not_started_once_more(world):
    here = world(ToyMachines(a=(2,)), workers=1)
    driver = here.driver()
    assert here.run(driver, ("a",)) == {"a": 1}
    driver.no_more()
    assert here.zone.deleted == ["rates-w0"]
    assert here.run(driver, ("a",)) == {"a": 1} and here.machines.started("a") == 2


def test_hosts_that_cannot_be_set_up_again_are_given_up_and_no_old_failure_is_reported(world):
    here = world(ToyMachines(a=(2, 0)), workers=1)
    driver = here.driver()
    assert here.run(driver, ("a",)) == {"a": 1}
    here.machines.broken = True
    assert here.run(driver, ("a",)) == {"a": NOT_RUN}
    assert "the hosts could not be set up 3 times" in driver.retired[0]


def test_a_failure_that_a_stopping_driver_has_reported_is_run_again(world):
    here = world(ToyMachines(a=(2, 0)), workers=1)
    driver = here.driver()
    assert ended(here.start(driver, "a")) == 1
    driver.close()
    assert here.run(here.driver(), ("a",)) == {"a": 0}


def test_the_log_of_the_first_host_is_appended_to_the_trials(tmp_path):
    commands = HostCommands("", (), "", "", lambda follow: f"LOG {follow}", "")
    job = RemoteJob(Place("rates-w0", "us-west4-a", "my-project"), commands)
    with open(tmp_path / "log.txt", "ab") as file:
        follower = LogFollower(job, Gcloud(name="echo"), file)
        follower.ensure()
        follower._process.wait()
        follower.stop()
    assert "ssh rates-w0 " in (tmp_path / "log.txt").read_text()
    assert "--command=LOG True" in (tmp_path / "log.txt").read_text()


def test_a_recipe_that_hosts_cannot_run_is_a_failed_trial(world, tmp_path, monkeypatch):
    here = world()

    def refuse(arguments):
        raise ValueError("CORPUS=data is a path of a disk")

    monkeypatch.setattr("launch.cloud.recipe_job.read", refuse)
    driver = here.driver()
    assert here.run(driver, ("a",)) == {"a": 1} and driver.free() == 2
    assert "error: CORPUS=data is a path" in (tmp_path / "trials/a/log.txt").read_text()
    assert not here.zone.created
