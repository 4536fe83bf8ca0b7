"""Which version a step sees, while object storage does not answer, and what stays on the disk."""

import concurrent.futures
import contextlib
import types

import pytest

from t5x_style.model_dependent_data import version_selector
from t5x_style.model_dependent_data.version_log import RECORD, Follower, Record
from t5x_style.model_dependent_data.version_selector import VersionChoice
from t5x_style.model_dependent_data.versioned_index import VersionError
from t5x_style.retrieval import remote_versions, versioned_folder
from t5x_style.storage import places
from t5x_style.storage.errors import Unreachable

URL = "gs://bucket/index"


def opened(number):
    return types.SimpleNamespace(version=types.SimpleNamespace(number=number, step=0))


def publish(folder):
    with versioned_folder.new_version(folder, {"run": "a", "step": 0}, 1) as version:
        (version / "vectors").write_text("vectors")
    remote_versions.push(folder, URL)


class Decided(Follower):
    """Of a process whose leader has each step see the version with its number."""

    def __init__(self):
        super().__init__(1)

    def decision(self, step):
        return step, 0


def test_a_follower_deletes_its_copies_of_versions_that_are_gone(bucket, tmp_path):
    work, copies = tmp_path / "work", places.local(URL)
    remote_versions.begin(work, URL)

    def read(number):
        remote_versions.fetch(copies, URL, number)
        return opened(number)

    choice = VersionChoice("HostRetrieval", "the index", URL, None, "warn", read)
    choice.begin("a", Decided())
    for number in (1, 2, 3):
        publish(work)
        assert choice.of(number).version.number == number
        assert versioned_folder.published(copies) == [number]


@pytest.fixture
def choice(tmp_path, monkeypatch):
    """`choice(read, record)` among one version of a local folder."""
    monkeypatch.setattr(version_selector, "_POLL_SECONDS", 0.0)
    with versioned_folder.new_version(tmp_path / "index", {"run": "a", "step": 0}, 1):
        pass

    def made(read, record):
        folder = str(tmp_path / "index")
        choice = VersionChoice("HostRetrieval", "the index", folder, None, "warn", read)
        choice.begin("a", record)
        return choice

    return made


def away_twice():
    outage = iter([Unreachable("away"), Unreachable("away")])

    def read(number):
        if error := next(outage, None):
            raise error
        return opened(number)

    return read


@pytest.mark.parametrize("seen", [False, True])
def test_a_step_waits_until_storage_answers(choice, tmp_path, capsys, seen):
    record = Record(tmp_path / RECORD)
    if seen:
        record.add(1, 1)
    assert choice(away_twice(), record).of(1).version.number == 1
    assert choice(away_twice(), Decided()).of(1).version.number == 1
    assert capsys.readouterr().err.count("away; this is tried again") == 2
    assert record.of(1) == 1


def test_a_training_that_is_stopped_waits_no_longer_for_storage(choice, tmp_path):
    def read(number):
        waits.stop_waiting()
        raise Unreachable("away")

    waits = choice(read, Record(tmp_path / RECORD))
    with pytest.raises(concurrent.futures.CancelledError):
        waits.of(1)


class Seen(Record):
    """Of a run whose step 9 saw version 1."""

    def __init__(self, path):
        super().__init__(path)
        self.add(9, 1)


class Undecided(Follower):
    """Of a process whose leader has decided nothing yet."""

    def __init__(self):
        super().__init__(1)

    def decision(self, step):
        return None


def gone(number):
    raise VersionError(f"version {number} is not there any more.")


@pytest.mark.parametrize(
    ("when_stale", "record", "read", "said"),
    [
        ("pause", Record, opened, "step 9: waiting for a version of the negatives, at most 4 "),
        ("warn", Record, opened, "step 9: version 1 of the negatives is 9 steps old"),
        ("warn", Record, opened, "(RefreshedNegatives.when_stale = 'warn')"),
        ("warn", Seen, gone, "step 9 saw version 1 of the negatives: version 1 is not there"),
        ("warn", Undecided, opened, "decide which version of the negatives in"),
    ],
)
def test_messages_name_what_is_waited_for(
    tmp_path, capsys, monkeypatch, when_stale, record, read, said
):
    monkeypatch.setattr(version_selector, "_REMIND_SECONDS", 0.01)  # at once
    with versioned_folder.new_version(tmp_path / "mined", {"run": "a", "step": 0}, 1):
        pass
    folder = str(tmp_path / "mined")
    choice = VersionChoice("RefreshedNegatives", "the negatives", folder, 4, when_stale, read)
    choice.begin("a", Undecided() if record is Undecided else record(tmp_path / RECORD))
    choice.stop_waiting()
    with contextlib.suppress(concurrent.futures.CancelledError, VersionError):
        choice.of(9)
    printed = capsys.readouterr().err
    assert said in printed and "index" not in printed.replace("watch_index", "")
