"""The account of time: each second in one part, across nesting, threads, kills and restarts."""

import random
import threading

import pytest

from t5x_style.goodput import attempts
from t5x_style.goodput.account import Account

DAY = 1_000_000.0  # any moment, in seconds since the epoch


class Clock:
    """Whole seconds, so that sums are exact."""

    def __init__(self):
        self.time = 0

    def __call__(self):
        return self.time

    def now(self):
        return DAY + self.time


def account(clock, path=None, begun=None):
    return Account(path, begun, clock, clock.now)


def nested(draw, opened, clock, expected, current, depth):
    """Opens parts at random; `expected` is counted by the second, another way than the account."""
    for _ in range(draw.randrange(4)):
        for _ in range(draw.randrange(5)):
            clock.time += 1
            expected[current] = expected.get(current, 0) + 1
        if depth:
            name = draw.choice([part for part in attempts.PARTS if part != attempts.LOST])
            with opened.part(name):
                nested(draw, opened, clock, expected, name, depth - 1)


@pytest.mark.parametrize("seed", range(50))
def test_nested_parts_add_up_exactly(seed):
    draw, clock, expected = random.Random(seed), Clock(), {}
    opened = account(clock)
    nested(draw, opened, clock, expected, "start", 3)
    with opened.loop():
        nested(draw, opened, clock, expected, "step", 4)
    nested(draw, opened, clock, expected, "other", 3)
    kept, lost = opened.seconds()
    assert {part: value for part, value in kept.items() if value} == expected
    assert lost == {} and sum(kept.values()) == clock.time


def test_a_part_that_raises_is_closed():
    clock = Clock()
    opened = account(clock)
    with pytest.raises(KeyError), opened.part("evaluation"):
        clock.time += 3
        raise KeyError
    clock.time += 2
    assert opened.seconds()[0] == {"start": 2, "evaluation": 3}


def test_compiling_is_taken_from_the_part_in_which_it_happened():
    clock = Clock()
    opened = account(clock)
    with opened.part("evaluation"):
        clock.time += 10
        opened.charge("compile", 4)
        opened.charge("compile", 99)  # more than there is
    with opened.part("evaluation"):
        clock.time += 5
        with opened.part("checkpoint"):
            clock.time += 2
        opened.charge("compile", 1)
    assert opened.seconds()[0] == {"start": 0, "evaluation": 4, "compile": 11, "checkpoint": 2}


def test_what_an_earlier_part_of_the_same_name_had_stays_there():
    clock = Clock()
    opened = account(clock)
    for seconds in (5, 2):
        with opened.part("input"):
            clock.time += seconds
            if seconds == 2:
                opened.charge("step", 4)
    assert opened.seconds()[0] == {"start": 0, "input": 5, "step": 2}


def test_other_threads_take_no_time():
    clock = Clock()
    opened = account(clock)

    def elsewhere():
        with opened.part("refresh"):
            clock.time += 5
            opened.charge("compile", 5)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert opened.seconds()[0] == {"start": 5}


def attempt(clock, path, first, steps, saved_at=(), seconds=2):
    """One process: 10 s to start, then steps; killed 1 s after the last of them."""
    begun = clock.now()
    clock.time += 10
    opened = account(clock, path, begun)
    opened.save(first)
    with opened.loop():
        for step in range(first, steps):
            opened.begin_step(step)
            with opened.part("input"):
                clock.time += 1
            clock.time += seconds
            if step + 1 in saved_at:
                with opened.part("checkpoint"):
                    clock.time += 4
            if (step + 1) % 5 == 0:
                opened.save(step + 1)
    clock.time += 1


def test_a_killed_and_resumed_training(tmp_path):
    """Killed at step 23, last recorded at 20, saved at 15; away for 100 s."""
    clock, path = Clock(), tmp_path / "goodput.json"
    attempt(clock, path, 0, 23, saved_at=(15,))
    unseen = 3 * 3 + 1  # steps after the last record, and a second
    clock.time += 100
    attempt(clock, path, 15, 30)
    spent = attempts.total(attempts.read(path))
    again = 10 + 5 * 3  # start, and steps 16 to 20 for the second time
    assert spent.seconds == {
        "step": (20 + 10) * 2,
        "input": 20 + 10,
        "start": 10,
        "compile": 0,
        "checkpoint": 4,
        "evaluation": 0,
        "refresh": 0,
        "lost": unseen + 100 + again,
        "other": 0,
    }
    assert (spent.restarts, spent.away, spent.repeated) == (1, unseen + 100, 5)
    assert spent.total == spent.wall == clock.time - 1


def test_an_attempt_that_never_comes_to_a_new_step_is_lost(tmp_path):
    clock, path = Clock(), tmp_path / "goodput.json"
    attempt(clock, path, 0, 10)
    attempt(clock, path, 0, 7)  # recorded up to step 5
    attempt(clock, path, 0, 12)
    found = attempts.read(path)
    assert [one.step for one in found] == [10, 5, 10]
    assert found[1].seconds == {} and sum(found[1].lost.values()) == 10 + 5 * 3
    spent = attempts.total(found)
    assert spent.repeated == 5 + 10 and spent.seconds["step"] == 20
    assert spent.total == spent.wall


def test_waiting_while_another_process_trained_is_not_counted_twice(tmp_path):
    """It started, waited for the lease, and continues what the other left."""
    clock, path = Clock(), tmp_path / "goodput.json"
    waiting = clock.now()
    attempt(clock, path, 0, 5)
    opened = account(clock, path, waiting)
    clock.time += 6
    spent = opened.save(5)
    assert spent.total == spent.wall == clock.time
    assert spent.seconds["lost"] == 1 + 6 and spent.away == 0


def test_an_account_without_a_file_leaves_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    opened = account(clock)
    clock.time += 1
    assert opened.save(1).seconds["start"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_account_is_refused(tmp_path):
    path = tmp_path / "goodput.json"
    path.write_text('{"attempts": [{"begun": 1.0}]}')
    with pytest.raises(attempts.GoodputError, match=r"expected attempts with begun, .*Move the"):
        Account(path)
    path.write_text('{"attempts": ')  # what a kill has cut short counts as none
    assert attempts.read(path) == []


def test_the_process_that_waited_longest(tmp_path):
    for process, wait in ((0, 3), (1, 2), (12, 9)):
        clock = Clock()
        opened = account(clock, tmp_path / attempts.file_name(process))
        if process == 1:
            assert attempts.slowest_input(tmp_path) is None  # one process
        with opened.part("input"):
            clock.time += wait
        opened.save()
    assert attempts.slowest_input(tmp_path) == (12, 9)
