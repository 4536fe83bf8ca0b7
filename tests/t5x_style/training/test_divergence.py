"""Hosts whose states differ are named; and comparing them changes nothing."""

import json
import os
import socket

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from t5x_style.checkpoints import checkpointing
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.distributed.replica_fingerprints import ReplicaFingerprints
from t5x_style.training import divergence, hooks, trainer
from tests.kits import process_group

HERE = socket.gethostname()


def run(folder, steps, every, change=None):
    """Exit code and output of two processes of 4 devices; `change`: process -> step."""
    os.makedirs(folder)
    env = {
        number: {"COMPARE_EVERY": str(every)}
        | ({"CHANGE": str(change[number])} if number in (change or {}) else {})
        for number in (0, 1)
    }
    command = ["tests.multi_process.worker", str(folder), str(steps)]
    return process_group.run(command, env=env, devices=4)


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_one_bit_of_one_replica_ends_all_within_the_interval_and_names_its_host(tmp_path, number):
    (code, output), (other_code, other) = run(tmp_path / "run", 40, 3, {number: 4})
    assert code == other_code == 1, output
    for text in (output, other):
        assert "the hosts' states differ after step 6:" in text, text
        assert f"process {number} ({HERE}), device {4 * number}: params/scale" in text, text
        assert "All agreed at step 3." in text, text
    assert not (tmp_path / "run/rows-0.json").exists()


@pytest.mark.slow
def test_comparing_changes_no_bit(tmp_path):
    found = {}
    for every in (0, 1):
        folder = tmp_path / str(every)
        for code, output in run(folder, 6, every):
            assert code == 0, output
        found[every] = checkpointing.read_parameters(folder)
    assert found[0].keys() == found[1].keys()
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


class Others:
    """Fake of the other process; holds whatever the test says that one published."""

    number, count = 0, 2

    def __init__(self):
        self.keys = {}

    def put(self, key, value):
        self.keys[key] = value

    def set_by(self, folder):
        return {n: self.keys[f"{folder}/{n}"] for n in (0, 1) if f"{folder}/{n}" in self.keys}

    def everyone(self, folder, what):
        if len(found := self.set_by(folder)) < 2:
            raise TimeoutError(what)
        return [found[0], found[1]]

    def forget(self, folder):
        del self.keys[f"{folder}/0"], self.keys[f"{folder}/1"]

    def named(self, *numbers):
        return " and ".join(f"host {number}" for number in numbers)


@pytest.fixture
def house():
    """(the other process, `after(step, last=False)` that calls the hook)."""
    mesh = Partitioner().mesh
    state = jax.device_put({"scale": jnp.ones(4)}, NamedSharding(mesh, P()))
    others = Others()
    hook = divergence.CompareHosts(4, others, ReplicaFingerprints(state, mesh), lambda: "plan 1")

    def after(step, last=False):
        hook(hooks.StepContext(step, state, {}, 0.0, last=last))

    return others, after


def published(step=4, data="plan 1"):
    return json.dumps({"step": step, "data": data, "rows": {}})


def test_nobody_waits_before_the_next_check_is_due(house):
    others, after = house
    for step in range(1, 8):
        after(step)
        assert ("state/0/0" in others.keys) == (step > 4), "published when the next step runs"
    with pytest.raises(TimeoutError, match="fingerprint their state of step 4"):
        after(8)
    others.put("state/0/1", published())
    after(9)
    assert list(others.keys) == []


def test_the_last_step_is_compared_before_it_is_saved(house):
    others, after = house
    with pytest.raises(TimeoutError, match="state of step 2"):
        after(2, last=True)
    others.put("state/1/1", published(step=3))
    others.put("state/0/1", published(step=2))
    after(3, last=True)
    assert list(others.keys) == []


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"step": 5}, "at check 0 step is 5 on host 1, and 4 on host 0"),
        ({"data": "plan 2"}, "at check 0 data is 'plan 2' on host 1, and 'plan 1' on host 0"),
    ],
)
def test_another_step_or_plan_is_named(house, other, message):
    others, after = house
    after(4)
    others.put("state/0/1", published(**other))
    with pytest.raises(divergence.DivergenceError, match=f"{message}. No step before"):
        after(5)


def test_intervals():
    assert trainer.Cadence(steps=1, compare_hosts_every=0).compare_hosts_every == 0
    with pytest.raises(ValueError, match="compare_hosts_every: expected at least 0, found -1"):
        trainer.Cadence(steps=1, compare_hosts_every=-1)
