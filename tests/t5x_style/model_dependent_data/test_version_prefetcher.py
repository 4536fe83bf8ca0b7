"""A version of an index is in use while the next is read."""

import threading
import types

import pytest

from t5x_style.model_dependent_data import version_log
from t5x_style.model_dependent_data.version_log import RECORD, Follower, Leader, Record
from t5x_style.model_dependent_data.version_prefetcher import VersionReader
from t5x_style.model_dependent_data.versioned_index import VersionError
from t5x_style.storage.errors import Unreachable


class Versions:
    """Versions that are read as soon as `go_on` says so; those in `gone` are not there."""

    def __init__(self):
        self.go_on, self.gone = threading.Event(), set()
        self.numbers, self.threads = [], set()

    def read(self, number):
        self.numbers.append(number)
        self.threads.add(threading.current_thread().name)
        assert self.go_on.wait(60)
        if number in self.gone:
            raise VersionError(f"version {number} is not there any more")
        return types.SimpleNamespace(version=types.SimpleNamespace(number=number))


def yes(version):
    return True


def no(version):
    return False


@pytest.fixture
def versions():
    return Versions()


@pytest.fixture
def reader(versions):
    """The first version is in use; others wait to be read."""
    reader = VersionReader(versions.read)
    versions.go_on.set()
    reader.start()
    assert reader.open(1).version.number == 1
    versions.go_on.clear()
    yield reader
    versions.go_on.set()
    reader.close()


def number(opened):
    return opened.version.number


def until_read(reader, asked, there):
    """Asks, as steps do, until that version is there; which versions they got on the way."""
    found = [number(reader.open_beside(asked, yes))]
    for _ in range(10_000_000):
        if found[-1] == there:
            return found
        found.append(number(reader.open_beside(asked, yes)))
    raise AssertionError(f"version {there} never came")


def test_the_one_in_use_goes_on_until_the_next_is_there(versions, reader):
    assert [number(reader.open_beside(2, yes)) for _ in range(3)] == [1, 1, 1]
    versions.go_on.set()
    assert set(until_read(reader, 2, 2)) <= {1, 2}
    assert versions.numbers == [1, 2] and len(versions.threads) == 2


def test_one_that_will_not_do_is_waited_for_and_read_once(versions, reader):
    assert number(reader.open_beside(2, yes)) == 1
    threading.Timer(0.05, versions.go_on.set).start()
    assert number(reader.open_beside(2, no)) == 2
    assert versions.numbers == [1, 2]


def test_a_newer_one_does_not_stop_what_is_being_read(versions, reader):
    for newest in (2, 3, 4):
        assert number(reader.open_beside(newest, yes)) == 1
    versions.go_on.set()
    found = until_read(reader, 4, 4)
    assert versions.numbers == [1, 2, 4] and sorted(found) == found


def test_one_that_goes_while_it_is_read_is_passed_over_for_a_newer_one(versions, reader):
    assert number(reader.open_beside(2, yes)) == 1
    versions.gone.add(2)
    versions.go_on.set()
    assert set(until_read(reader, 3, 3)) == {1, 3}
    versions.gone.add(4)
    with pytest.raises(VersionError, match="version 4"):
        until_read(reader, 4, 4)


def test_an_older_one_is_never_taken_for_the_one_in_use(versions, reader):
    assert number(reader.open_beside(2, yes)) == 1
    versions.go_on.set()
    assert number(reader.open(3)) == 3  # as a resumed run sees what it saw
    assert [number(reader.open_beside(3, yes)) for _ in range(2)] == [3, 3]
    assert set(until_read(reader, 4, 4)) == {3, 4}


def test_closing_waits_for_what_is_read_and_without_start_all_is_waited_for(versions, reader):
    assert number(reader.open_beside(2, yes)) == 1
    threading.Timer(0.05, versions.go_on.set).start()
    reader.close()
    assert versions.numbers == [1, 2]
    assert number(reader.open_beside(3, yes)) == 3, "not beside"
    assert versions.numbers == [1, 2, 3]


# --- which step saw which -------------------------------------------------------------------------


def test_a_line_that_was_cut_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / RECORD
    path.write_text('{"step": 0, "version": 1}\n{"step": 1, "version": 1}\n{"step": 2, "ver')
    record = Record(path)
    assert [record.of(step) for step in range(4)] == [1, 1, None, None]
    record.add(2, 5)
    record.replace(0, 7)
    assert [Record(path).of(step) for step in range(4)] == [7, 1, 5, None]


@pytest.fixture
def shared(monkeypatch):
    """The values that processes share, without processes."""
    values = {}
    module = version_log.shared_values
    monkeypatch.setattr(module, "put", values.__setitem__)
    monkeypatch.setattr(module, "find", values.get)
    monkeypatch.setattr(module, "forget", values.pop)
    monkeypatch.setattr(
        module, "below",
        lambda folder: {k: v for k, v in values.items() if k.startswith(f"{folder}/")},
    )  # fmt: skip
    return values


def test_what_process_0_decides_is_heard_by_the_others(tmp_path, shared):
    leader, follower = Leader(tmp_path / RECORD, 2), Follower(1)
    assert follower.decision(0) is None
    for step in range(3):
        leader.add(step, 1 + step // 2)
        leader.publish(step, 1 + step // 2)
    assert [follower.decision(step) for step in range(4)] == [(1, 0), (1, 0), (2, 0), None]
    leader.publish(1002, 2)
    assert [follower.decision(step) for step in (1, 2, 1002)] == [(1, 0), None, (2, 0)]


def test_a_version_is_used_once_all_have_read_it(tmp_path, shared):
    leader, first, second = Leader(tmp_path / RECORD, 2), Follower(1), Follower(2)
    assert leader.ask(5) == "waits"
    leader.publish(0, 4)
    assert first.decision(0) == (4, 5)
    first.answer(5, "waits")
    first.answer(5, "ready")
    assert leader.ask(5) == "waits"
    second.answer(5, "ready")
    assert leader.ask(5) == "ready"
    assert leader.ask(6) == "waits", "of another version nobody has said anything"
    second.answer(6, "gone")
    assert leader.ask(6) == "gone"


def test_what_others_have_not_read_does_not_take_the_place_of_the_one_in_use(versions, reader):
    said = iter(["waits", "ready"])

    def others(version):
        return "waits" if version != 2 else next(said, "ready")

    versions.go_on.set()
    found = [number(reader.open_beside(2, yes, others))]
    assert reader.state(2) in ("waits", "ready") and reader.state(3) == "waits"
    while found[-1] == 1:
        found.append(number(reader.open_beside(2, yes, others)))
    assert len(found) >= 2 and reader.state(2) == "ready"


def test_one_that_others_cannot_read_any_more_is_passed_over(versions, reader):
    versions.go_on.set()
    assert number(reader.open_beside(2, yes, lambda version: "gone")) == 1
    assert set(until_read(reader, 3, 3)) <= {1, 3}
    versions.gone.add(4)
    reader.expect(4)
    while (state := reader.state(4)) == "waits":
        pass
    assert state == "gone"


def stated(reader, number):
    """What a reader says of a version that is read in the background, once it has been read."""
    reader.expect(number)
    for _ in range(10_000_000):
        if (state := reader.state(number)) != "waits":
            return state
        reader.expect(number)
    raise AssertionError(f"version {number} never came")


def test_a_follower_reads_a_newer_one_after_one_that_was_passed_over(versions, reader):
    versions.go_on.set()
    assert stated(reader, 2) == "ready"  # which another process could not read any more
    assert stated(reader, 3) == "ready"
    assert number(reader.open(3)) == 3 and versions.numbers == [1, 2, 3]


def test_an_outage_while_one_is_read_beside_is_no_end(versions, reader, monkeypatch):
    outage = iter([Unreachable("away"), None])
    read = versions.read

    def away(version):
        if error := next(outage, None):
            raise error
        return read(version)

    monkeypatch.setattr(reader, "_read", away)
    versions.go_on.set()
    assert stated(reader, 2) == "ready"
