"""Leases in files and on object storage: one holder, followed when it is dead or silent, fenced."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.leases import holders
from t5x_style.leases.file_leases import FileLeases
from t5x_style.leases.lease import LeaseLost
from t5x_style.leases.object_leases import ObjectLeases
from t5x_style.storage import paths
from tests.kits.toys.storage_fixtures import BUCKET

NAME = "train-0123456789abcdef"
RECORD = f"{NAME}.json"
HOLD = """
import sys
from t5x_style.leases.file_leases import FileLeases
from t5x_style.leases.object_leases import ObjectLeases
kind = ObjectLeases if sys.argv[1].startswith("gs://") else FileLeases
leases = kind(sys.argv[1], beat=float(sys.argv[2]))
lease = leases.acquire("{name}", print, lambda: None)
print("token", lease.token, flush=True)
sys.stdin.readline()
try:
    with lease.guard():
        print("published", flush=True)
except ValueError as error:
    print(f"refused: {{error}}", flush=True)
"""


class Clock:
    """A clock that moves only when somebody sleeps; `beats` says what happens meanwhile."""

    def __init__(self, meanwhile=lambda: None):
        self.now, self.meanwhile = 0.0, meanwhile

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile()


def ignore(*_):
    """Nobody waits, nothing is lost."""


class InFiles:
    """Leases in a local folder."""

    def __init__(self, folder):
        self.place = folder

    def leases(self, **options):
        return FileLeases(self.place, **options)

    def write(self, name, text):
        """Replaces a record whoever holds the lease."""
        with self.leases()._locked(NAME):
            (self.place / name).write_text(text)

    def read(self, name):
        return json.loads((self.place / name).read_text())

    def make_old(self, name):
        os.utime(self.place / name, (1, 1))


class OnObjects:
    """Leases on the fake Cloud Storage."""

    def __init__(self, server, client):
        self.place, self._server, self._client = f"{BUCKET}/leases", server, client

    def leases(self, **options):
        return ObjectLeases(self.place, client=self._client, **options)

    def write(self, name, text):
        self._client.write(f"{self.place}/{name}", text.encode())

    def read(self, name):
        return json.loads(self._client.read(f"{self.place}/{name}")[0])

    def make_old(self, name):
        stored = self._server.objects.find(*paths.split(f"{self.place}/{name}"))
        stored.updated = datetime.datetime.fromtimestamp(1, datetime.UTC)


@pytest.fixture(params=["files", "objects"])
def world(request, tmp_path):
    """Where leases are kept."""
    if request.param == "files":
        return InFiles(tmp_path)
    return OnObjects(request.getfixturevalue("server"), request.getfixturevalue("client"))


@pytest.fixture
def holder(world):
    """Starts another process that holds the lease; ends it at the end of the test."""
    started = []

    def start(beat=0.05):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(name=NAME), str(world.place), str(beat)],
            env=os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline().startswith("token")
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def test_tokens_rise_and_a_released_lease_is_free(world):
    free = world.leases()
    first = free.acquire(NAME, ignore, ignore)
    assert (first.token, first.before) == (1, "none")
    assert free.holder(NAME).process == os.getpid()
    with first.guard():
        pass
    first.release()
    assert free.holder(NAME) is None
    second = free.acquire(NAME, ignore, ignore)
    assert (second.token, second.before) == (2, "released")
    with (
        pytest.raises(LeaseLost, match="acquired the lease while this process was stopped"),
        first.guard(),
    ):
        pass
    second.release()


def test_a_dead_holder_is_followed_at_once(world, holder):
    process = holder()
    assert world.leases().holder(NAME).process == process.pid
    process.kill()
    process.wait()
    assert world.leases().holder(NAME) is None
    clock = Clock()
    lease = world.leases(clock=clock.time, sleep=clock.sleep).acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before, clock.now) == (2, "dead", 0.0)
    lease.release()


def test_a_claim_never_waits(world, holder):
    process = holder()
    mine = world.leases()
    assert mine.claim(NAME, ignore) is None and mine.holder(NAME) is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    lease = mine.claim(NAME, ignore)
    assert lease is not None and lease.before == "dead"
    assert world.leases().claim(NAME, ignore) is None
    lease.release()
    again = world.leases().claim(NAME, ignore)
    assert again is not None and (again.token, again.before) == (lease.token + 1, "released")
    again.release()


def test_a_reused_process_id_is_not_the_holder(world):
    state = {"token": 4, "beat": 1, "holder": vars(holders.myself()) | {"started": "1"}}
    world.write(RECORD, json.dumps(state))
    lease = world.leases().acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before) == (5, "dead")
    lease.release()


def test_a_holder_from_before_a_reboot_is_dead(world):
    me = vars(holders.myself())
    state = {"token": 4, "beat": 1, "holder": me | {"boot": "an earlier boot:1"}}
    world.write(RECORD, json.dumps(state))
    lease = world.leases().acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before) == (5, "dead")
    lease.release()


def test_a_holder_that_was_silent_for_long_keeps_nothing_from_being_collected(world):
    state = {"holder": {"host": "elsewhere:1", "boot": "", "process": 1, "started": ""}}
    world.write(RECORD, json.dumps(state | {"token": 7, "beat": 0}))
    assert world.leases().holder(NAME) is not None
    world.make_old(RECORD)
    assert world.leases().holder(NAME) is None


def test_a_stopped_holder_loses_the_lease_and_its_result_is_refused(world, holder):
    process = holder(beat=0.02)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    clock, waited = Clock(), []
    free = world.leases(expiry=60, clock=clock.time, sleep=clock.sleep)
    lease = free.acquire(NAME, waited.append, ignore)
    assert (lease.token, lease.before) == (2, "silent") and clock.now >= 60
    assert [one.process for one in waited] == [process.pid]
    process.send_signal(signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    assert "refused: " + NAME in process.stdout.readline()
    with lease.guard():
        pass
    lease.release()


def test_a_holder_on_another_host_is_judged_by_its_heartbeat_alone(world):
    """Its clock is not looked at: the observer counts by its own since the beat last changed."""
    state = {
        "token": 7,
        "beat": 0,
        "holder": {"host": "elsewhere:1", "boot": "", "process": 1, "started": ""},
    }
    world.write(RECORD, json.dumps(state))

    def beats_ten_times():
        current = world.read(RECORD)
        if current["beat"] < 10:
            world.write(RECORD, json.dumps(current | {"beat": current["beat"] + 1}))

    clock = Clock(beats_ten_times)
    free = world.leases(expiry=60, clock=clock.time, sleep=clock.sleep)
    assert free.holder(NAME).host == "elsewhere:1"
    lease = free.acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before) == (8, "silent") and clock.now >= 60 + 10 * 0.5
    lease.release()


def test_a_heartbeat_that_finds_the_lease_lost_says_so(world):
    told = threading.Event()
    lease = world.leases(beat=0.01).acquire(NAME, ignore, told.set)
    state = world.read(RECORD)
    world.write(RECORD, json.dumps(state | {"token": 2}))
    assert told.wait(30)
    lease.release()
    assert world.read(RECORD)["token"] == 2


def test_a_damaged_record_is_a_free_lease_with_a_higher_token(world):
    """A record that is replaced atomically is never cut by us; a disk may still lose it."""
    world.write(RECORD, '{"token": 5, "hol')
    assert world.leases().holder(NAME) is None
    lease = world.leases().acquire(NAME, ignore, ignore)
    assert lease.before == "none" and lease.token > 5
    lease.release()


def test_many_threads_hold_it_one_after_another(world):
    free, held, tokens = world.leases(beat=0.01), threading.Lock(), []
    free.poll = 0.01

    def take():
        lease = free.acquire(NAME, ignore, ignore)
        assert held.acquire(blocking=False)
        tokens.append(lease.token)
        held.release()
        lease.release()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(tokens) == list(range(1, 9))


@pytest.fixture
def record(world, tmp_path):
    """Where a record is published."""
    return tmp_path / "record.json" if isinstance(world, InFiles) else f"{world.place}/record.json"


def test_a_record_is_published_by_who_holds_the_lease(world, record):
    lease = world.leases().acquire(NAME, ignore, ignore)
    lease.publish(record, {"made": 1})
    lease.publish(record, {"made": 2})
    assert world.read("record.json") == {"made": 2}
    lease.release()


def test_a_holder_that_was_followed_cannot_publish(world, record):
    clock = Clock()
    mine = world.leases(expiry=1, clock=clock.time, sleep=clock.sleep)
    first = mine.acquire(NAME, ignore, ignore)
    first._released.set()  # no heartbeat any more
    first._thread.join()
    second = mine.acquire(NAME, ignore, ignore)
    assert second.before == "silent"
    second.fence(record)
    with pytest.raises(LeaseLost, match=r"token 1"):
        first.publish(record, {"made": 1})
    second.publish(record, {"made": 2})
    second.fence(record)
    assert world.read("record.json") == {"made": 2}
    with pytest.raises(LeaseLost):
        first.publish(record, {"made": 1})
    second.release()
    assert world.leases().holder(NAME) is None
