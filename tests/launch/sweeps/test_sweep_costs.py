"""What the slices of a sweep cost, and which of them are deleted."""

from types import SimpleNamespace

import pytest

from launch import sweep_machines
from t5x_style.storage.errors import Unreachable
from t5x_style.sweeps.launchers import NOT_RUN
from tests.launch.sweeps.sweep_world import TRIALS, ended, until
from tests.launch.sweeps.toy_machines import RUNS_ON, ToyMachines
from tests.launch.sweeps.zone import AWAY, DENIED, GONE, Found


def test_what_costs_money_is_said_and_only_the_sweeps_slices_are_deleted(world):
    here = world()
    driver = here.driver()
    here.run(driver)
    gcloud, fleet = driver.gcloud, driver.fleet
    others = {"rates-w7": {"kennel-run": "rates-w7", "kennel-folder": "another"}, "mine": {}}
    for name, labels in others.items():
        here.zone.found[name] = Found(labels, None, "ACTIVE")
    lines = list(fleet.costs(gcloud))
    assert len(lines) == 2 and all("COSTS MONEY (v5litepod-8)" in line for line in lines)
    assert "kennel tpu delete --name=rates-w0 --zone=us-west4-a" in lines[0]
    driver.close(delete=True)
    assert here.zone.deleted == ["rates-w0", "rates-w1"] and set(here.zone.found) == set(others)
    assert list(fleet.costs(gcloud)) == [
        "no slices are left of rates in us-west4-a of my-project; they cost nothing"
    ]


def test_slices_that_no_trial_will_need_are_deleted_and_others_stay(world):
    here = world(ToyMachines(b=(RUNS_ON,)))
    driver = here.driver()
    jobs = [here.start(driver, trial) for trial in ("a", "b")]
    assert ended(jobs[0]) == 0 and driver.free() == 1
    until(lambda: here.machines.started("b"))
    for _ in range(2):
        driver.no_more()
    assert here.zone.deleted == ["rates-w0"] and here.zone.live() == ["rates-w1"]
    assert here.run(driver, ("c",)) == {"c": 0}  # one came after all
    assert here.zone.created["rates-w0"] == 2


@pytest.mark.parametrize(
    ("stopped", "ended_all", "quota", "deletes"),
    [
        (False, True, True, True),
        (True, False, True, False),  # the user continues later
        (False, False, True, True),  # the limits of the sweep are used up
        (False, False, False, False),  # what is left waits for slices that are lacking
        (False, True, False, True),
    ],
)
def test_slices_are_deleted_at_the_end_where_no_trial_needs_them(
    world, monkeypatch, stopped, ended_all, quota, deletes
):
    monkeypatch.setattr(sweep_machines.locations, "warning", lambda path, zone: "it is far away")
    here = world()
    here.zone.refused = set() if quota else {"rates-w1"}
    driver, trials = here.driver(), SimpleNamespace()
    trials.was_stopped, trials.has_ended = lambda: stopped, lambda: ended_all
    with sweep_machines.kept(driver, True, trials, here.said.append):
        here.run(driver)
    assert bool(here.zone.deleted) == deletes and here.held == {}
    assert "warning: it is far away" in here.said
    assert any("COSTS MONEY" in line for line in here.said) != deletes
    assert ("no slices are left" in here.said[-1]) == deletes


def test_one_failing_delete_keeps_no_other_slices_alive_and_is_no_success(world):
    here = world()
    driver = here.driver()
    here.run(driver)
    here.zone.faults = {"rates-w0": [DENIED, DENIED], "rates-w1": [AWAY, AWAY]}
    driver.no_more()
    assert here.zone.deleted == ["rates-w1"] and driver.undeleted == {"rates-w0"}
    driver.close(delete=True)
    assert here.zone.live() == ["rates-w0"] and sweep_machines.exit_code(driver) == 1
    assert any("rates-w0 could not be deleted" in line for line in here.said)


def test_slices_that_are_gone_already_are_deleted(world):
    here = world()
    driver = here.driver()
    here.run(driver)
    here.zone.faults = {"rates-w0": [GONE]}
    driver.close(delete=True)
    assert here.zone.deleted == ["rates-w1"] and sweep_machines.exit_code(driver) == 0


def test_a_delete_that_failed_is_tried_again(world):
    here = world(workers=1)
    driver = here.driver()
    here.run(driver)
    here.zone.faults = {"rates-w0": [DENIED]}
    for _ in range(2):
        driver.no_more()
    assert here.zone.deleted == ["rates-w0"] and sweep_machines.exit_code(driver) == 0


def test_slices_of_another_driver_are_not_deleted(world):
    here = world(ToyMachines(z=(RUNS_ON,)))
    driver = here.driver()
    here.run(driver)
    labels = here.zone.found["rates-w0"].labels
    for name in ("rates-w6", "rates-w7"):  # of a driver with more workers
        here.zone.found[name] = Found({**labels, "kennel-run": name}, here.machines(name), "ACTIVE")
    of_other = next(one for one in here.held if one.endswith("-w0")).replace("-w0", "-w7")
    here.held[of_other] = "another driver"
    driver.close(delete=True)
    assert here.zone.live() == ["rates-w7"] and sweep_machines.exit_code(driver) == 0
    assert "rates-w7 is not deleted: another driver has it" in here.said
    assert list(here.held) == [of_other]


def test_a_driver_that_fails_says_what_costs_money(world, monkeypatch):
    monkeypatch.setattr(sweep_machines.locations, "warning", lambda path, zone: "")
    here = world()
    driver = here.driver()
    with (
        pytest.raises(Unreachable),
        sweep_machines.kept(driver, True, SimpleNamespace(), here.said.append),
    ):
        here.run(driver)
        raise Unreachable("gs://bucket: no answer")
    assert not here.zone.deleted and sum("COSTS MONEY" in line for line in here.said) == 2


def test_slices_that_run_nothing_are_deleted_when_they_are_given_up(world):
    here = world(workers=1)
    here.machines.broken = True
    driver = here.driver()
    assert here.run(driver, ("a",)) == {"a": NOT_RUN} and driver.retired
    assert here.zone.deleted == ["rates-w0"] and not here.zone.live()


def test_slices_of_tpu_create_are_neither_used_nor_deleted_nor_counted(world):
    here = world()
    labels = {"kennel-run": "rates-w0"}
    here.zone.found["rates-w0"] = Found(labels, here.machines("rates-w0"), "ACTIVE")
    driver = here.driver()
    assert here.run(driver) == dict.fromkeys(TRIALS, 0)
    assert {host for host, _ in here.machines.starts} == {"rates-w1"}
    assert "rates-w0 in us-west4-a of my-project was asked for without" in driver.retired[0]
    driver.close(delete=True)
    assert here.zone.deleted == ["rates-w1"] and here.zone.live() == ["rates-w0"]
    assert next(driver.fleet.costs(driver.gcloud)).startswith("no slices are left")
