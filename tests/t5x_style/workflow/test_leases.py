"""Leases: one holder, taken over when it is dead or silent, and fenced when it wakes up."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from t5x_style.configuration import gin_reader
from t5x_style.workflow import leases, records
from t5x_style.workflow.leases import FileLeases, LeaseLost

NAME = "train-0123456789abcdef"
HOLD = """
import sys
from pathlib import Path
from t5x_style.workflow.leases import FileLeases
leases = FileLeases(Path(sys.argv[1]), beat=float(sys.argv[2]))
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


@pytest.fixture
def holder(tmp_path):
    """Starts another process that holds the lease; ends it at the end of the test."""
    started = []

    def start(beat=0.05):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(name=NAME), str(tmp_path), str(beat)],
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


def test_tokens_rise_and_a_released_lease_is_free(tmp_path):
    free = FileLeases(tmp_path)
    first = free.acquire(NAME, ignore, ignore)
    assert (first.token, first.before) == (1, "none")
    assert free.holder(NAME).process == os.getpid()
    with first.guard():
        pass
    first.release()
    assert free.holder(NAME) is None
    second = free.acquire(NAME, ignore, ignore)
    assert (second.token, second.before) == (2, "released")
    with pytest.raises(LeaseLost, match="took over while this process was stopped"), first.guard():
        pass
    second.release()


def test_a_dead_holder_is_followed_at_once(tmp_path, holder):
    process = holder()
    assert FileLeases(tmp_path).holder(NAME).process == process.pid
    process.kill()
    process.wait()
    assert FileLeases(tmp_path).holder(NAME) is None
    clock = Clock()
    lease = FileLeases(tmp_path, clock=clock.time, sleep=clock.sleep).acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before, clock.now) == (2, "dead", 0.0)
    lease.release()


def test_a_claim_never_waits(tmp_path, holder):
    process = holder()
    mine = FileLeases(tmp_path)
    assert mine.claim(NAME, ignore) is None and mine.holder(NAME) is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    lease = mine.claim(NAME, ignore)
    assert lease is not None and lease.before == "dead"
    assert FileLeases(tmp_path).claim(NAME, ignore) is None
    lease.release()
    again = FileLeases(tmp_path).claim(NAME, ignore)
    assert again is not None and (again.token, again.before) == (lease.token + 1, "released")
    again.release()


def test_a_reused_process_id_is_not_the_holder(tmp_path):
    state = {"token": 4, "beat": 1, "holder": vars(leases._myself()) | {"started": "1"}}
    records.write_json(tmp_path / f"{NAME}.json", state)
    lease = FileLeases(tmp_path).acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before) == (5, "dead")
    lease.release()


def test_a_holder_from_before_a_reboot_is_dead(tmp_path):
    me = vars(leases._myself())
    state = {"token": 4, "beat": 1, "holder": me | {"boot": "an earlier boot:1"}}
    records.write_json(tmp_path / f"{NAME}.json", state)
    lease = FileLeases(tmp_path).acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before) == (5, "dead")
    lease.release()


def test_a_holder_that_was_silent_for_long_keeps_nothing_from_being_collected(tmp_path):
    state = {"holder": {"host": "elsewhere:1", "boot": "", "process": 1, "started": ""}}
    records.write_json(tmp_path / f"{NAME}.json", state | {"token": 7, "beat": 0})
    assert FileLeases(tmp_path).holder(NAME) is not None
    os.utime(tmp_path / f"{NAME}.json", (1, 1))
    assert FileLeases(tmp_path).holder(NAME) is None


def test_a_stopped_holder_loses_the_lease_and_its_result_is_refused(tmp_path, holder):
    process = holder(beat=0.02)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    clock, waited = Clock(), []
    free = FileLeases(tmp_path, expiry=3600, clock=clock.time, sleep=clock.sleep)
    lease = free.acquire(NAME, waited.append, ignore)
    assert (lease.token, lease.before) == (2, "silent") and clock.now >= 3600
    assert [one.process for one in waited] == [process.pid]
    process.send_signal(signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    assert "refused: " + NAME in process.stdout.readline()
    with lease.guard():
        pass
    lease.release()


def test_a_holder_on_another_host_is_judged_by_its_heartbeat_alone(tmp_path):
    """Its clock is not looked at: the observer counts by its own since the beat last changed."""
    path = tmp_path / f"{NAME}.json"
    state = {
        "token": 7,
        "beat": 0,
        "holder": {"host": "elsewhere:1", "boot": "", "process": 1, "started": ""},
    }
    records.write_json(path, state)

    def beats_ten_times():
        current = records.read_json(path)
        if current["beat"] < 10:
            records.write_json(path, current | {"beat": current["beat"] + 1})

    clock = Clock(beats_ten_times)
    free = FileLeases(tmp_path, expiry=60, clock=clock.time, sleep=clock.sleep)
    assert free.holder(NAME).host == "elsewhere:1"
    lease = free.acquire(NAME, ignore, ignore)
    assert (lease.token, lease.before) == (8, "silent") and clock.now >= 60 + 10 * 0.5
    lease.release()


def test_a_heartbeat_that_finds_the_lease_lost_says_so(tmp_path):
    told = threading.Event()
    lease = FileLeases(tmp_path, beat=0.01).acquire(NAME, ignore, told.set)
    state = records.read_json(tmp_path / f"{NAME}.json")
    with FileLeases(tmp_path)._locked(NAME):
        records.write_json(tmp_path / f"{NAME}.json", state | {"token": 2})
    assert told.wait(30)
    lease.release()
    assert records.read_json(tmp_path / f"{NAME}.json")["token"] == 2


def test_a_damaged_record_is_a_free_lease_with_a_higher_token(tmp_path):
    """A record that is replaced atomically is never cut by us; a disk may still lose it."""
    (tmp_path / f"{NAME}.json").write_text('{"token": 5, "hol')
    assert FileLeases(tmp_path).holder(NAME) is None
    lease = FileLeases(tmp_path).acquire(NAME, ignore, ignore)
    assert lease.before == "none" and lease.token > 5
    lease.release()


def test_many_threads_hold_it_one_after_another(tmp_path):
    free, held, tokens = FileLeases(tmp_path, beat=0.01), threading.Lock(), []

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
