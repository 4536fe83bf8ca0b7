"""A version of an index is in use while the next is read."""

import threading
import types

import pytest

from t5x_style.model_dependent_data.version_log import RECORD, Record, RemoteLog
from t5x_style.model_dependent_data.version_prefetcher import VersionReader
from t5x_style.model_dependent_data.versioned_index import VersionError


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
    assert number(reader.open(3)) == 3  # as a run that goes on sees what it saw
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


def test_what_another_process_decides_is_read_as_it_is_written(tmp_path):
    told = RemoteLog(tmp_path / RECORD)
    assert told.of(0) is None
    record = Record(tmp_path / RECORD)
    for step in range(3):
        record.add(step, 1 + step // 2)
    assert [told.of(step) for step in range(4)] == [1, 1, 2, None]
    with (tmp_path / RECORD).open("a") as file:
        file.write('{"step": 3, "ver')
        file.flush()
        assert told.of(3) is None, "half a line"
        file.write('sion": 2}\n')
    assert told.of(3) == 2
    Record(tmp_path / RECORD).replace(1, 9)
    assert told.of(1) == 1
    told.forget()
    assert [told.of(step) for step in range(5)] == [1, 9, 2, 2, None]
