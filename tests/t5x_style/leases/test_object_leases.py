"""Leases on object storage: lost answers, outages, processes that contend."""

import json
import os
import subprocess
import sys
import threading

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.leases.lease import LeaseLost
from t5x_style.leases.object_leases import FENCED, ObjectLeases
from t5x_style.storage import errors
from t5x_style.storage.objects import Objects
from tests.kits.toys.storage_faults import Fault, forbidden
from tests.kits.toys.storage_fixtures import BUCKET, HASTY

NAME = "train-0123456789abcdef"
PLACE, RECORD = f"{BUCKET}/leases", f"{BUCKET}/versions/train/stage.json"
LOST = Fault("lose_response", operations=("insert",))
SEVERAL = """
import json, sys
from t5x_style.storage import objects
from t5x_style.leases.object_leases import ObjectLeases
leases = ObjectLeases("gs://bucket/leases", beat=0.05)
leases.poll = 0.01
client = objects.default()
for _ in range(int(sys.argv[1])):
    lease = leases.acquire("counter", lambda holder: None, lambda: None)
    count = json.loads(client.read("gs://bucket/counter.json")[0])["count"]
    lease.publish("gs://bucket/counter.json", {"count": count + 1})
    print(lease.token, flush=True)
    lease.release()
"""


def ignore(*_):
    """Nobody waits, nothing is lost."""


def lose_next(server):
    server.faults.add(Fault(LOST.kind, operations=LOST.operations))


@pytest.fixture
def free(client):
    """Leases without heartbeats; time passes when somebody waits."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    return ObjectLeases(PLACE, beat=3600, clock=lambda: now[0], sleep=sleep, client=client)


def test_each_step_survives_a_lost_answer(free, server, client):
    lose_next(server)
    lease = free.acquire(NAME, ignore, ignore)
    assert lease.token == 1
    lose_next(server)
    with lease.guard():
        pass
    lose_next(server)
    assert free.renew(NAME, 1)
    lose_next(server)
    lease.publish(RECORD, {"made": 1})
    assert json.loads(client.read(RECORD)[0]) == {"made": 1}
    lose_next(server)
    lease.fence(RECORD)
    lose_next(server)
    lease.release()
    assert free.holder(NAME) is None
    second = free.acquire(NAME, ignore, ignore)
    assert (second.token, second.before) == (2, "released")
    second.release()


def test_of_two_that_take_a_free_lease_at_once_one_gets_it(free, server, monkeypatch):
    """Both have read that it is free before either writes."""
    other = ObjectLeases(PLACE, beat=3600, client=Objects())
    read, taken = free._read, []

    def read_and_be_overtaken(name):
        found = read(name)
        if not taken:
            taken.append(other.claim(name, ignore))
        return found

    monkeypatch.setattr(free, "_read", read_and_be_overtaken)
    assert free.claim(NAME, ignore) is None
    assert taken[0].token == 1
    taken[0].release()


def test_a_fence_comes_before_or_after_a_result_never_between(free, client, monkeypatch):
    """The holder is stopped after it looked, and before it writes."""
    first = free.acquire(NAME, ignore, ignore)
    second, write_if = [], Objects.write_if

    def stopped(self, path, *args, **kwargs):
        if path == RECORD and not second:
            second.append(free.acquire(NAME, ignore, ignore))
            second[0].fence(RECORD)
        return write_if(self, path, *args, **kwargs)

    monkeypatch.setattr(Objects, "write_if", stopped)
    with pytest.raises(LeaseLost, match="not recorded"):
        first.publish(RECORD, {"made": 1})
    assert json.loads(client.read(RECORD)[0]) == {FENCED: 2}
    second[0].publish(RECORD, {"made": 2})
    assert json.loads(client.read(RECORD)[0]) == {"made": 2}


def test_a_fence_keeps_what_was_published_in_time(free, client, monkeypatch):
    """The follower has seen no record; one is published before its fence is written."""
    first = free.acquire(NAME, ignore, ignore)
    published, find = [], Objects.find

    def overtaken(self, path):
        found = find(self, path)
        if path == RECORD and not published:
            published.append(1)
            client.write_if(RECORD, b'{"made": 1}', 0, {"kennel-token": "1"})
        return found

    second = free.acquire(NAME, ignore, ignore)
    monkeypatch.setattr(Objects, "find", overtaken)
    second.fence(RECORD)
    assert published and json.loads(client.read(RECORD)[0]) == {"made": 1}
    assert client.stat(RECORD).metadata["kennel-token"] == "2"
    with pytest.raises(LeaseLost):
        first.publish(RECORD, {"made": 3})


def test_an_outage_in_a_heartbeat_passes(server):
    """Nobody knows whether the lease is held: the next heartbeat finds out."""
    leases = ObjectLeases(PLACE, beat=0.01, client=Objects(HASTY))
    lost = threading.Event()
    lease = leases.acquire(NAME, ignore, lost.set)
    before = server.count("insert")
    server.faults.add(Fault("status", 503, times=40))
    wait_for(lambda: server.count("insert") > before + 3)
    assert not lost.is_set()
    with lease.guard():
        pass
    lease.release()


def wait_for(condition):
    """Until a condition holds; a test that waits for ever is ended by its runner."""
    turn = threading.Event()
    while not condition():
        turn.wait(0.01)


def test_a_lease_that_cannot_be_renewed_guards_nothing(free, server, monkeypatch):
    lease = free.acquire(NAME, ignore, ignore)
    monkeypatch.setattr(free, "_client", Objects(HASTY))
    server.faults.add(Fault("status", 503, times=None))
    with pytest.raises(errors.Unreachable), lease.guard():
        raise AssertionError("guarded")
    with pytest.raises(errors.Unreachable):
        lease.publish(RECORD, {"made": 1})
    server.faults.clear()
    assert server.objects.find("bucket", "versions/train/stage.json") is None


def test_a_bucket_without_permission_is_named(free, server):
    server.faults.add(forbidden("storage.objects.create", operations=("insert",)))
    with pytest.raises(errors.NoPermission, match=r"storage\.objects\.create on bucket bucket"):
        free.acquire(NAME, ignore, ignore)


def test_a_missing_bucket_is_named(client):
    with pytest.raises(errors.Missing, match="bucket does not exist"):
        ObjectLeases("gs://elsewhere/leases", client=client).acquire(NAME, ignore, ignore)


def test_two_processes_count_without_losing_one(server, client):
    client.write(f"{BUCKET}/counter.json", b'{"count": 0}')
    environment = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SEVERAL, "10"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    tokens = [int(line) for one in processes for line in one.communicate(timeout=300)[0].split()]
    assert sorted(tokens) == list(range(1, 21))
    assert json.loads(client.read(f"{BUCKET}/counter.json")[0]) == {"count": 20}
