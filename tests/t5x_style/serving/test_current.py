"""The version that is served: replaced while requests run, kept where a new one is damaged."""

import contextlib
import shutil
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.service.server_metrics import Metrics
from t5x_style.retrieval.beir_collection import Passage
from t5x_style.serving import bundle_update, token_batches
from t5x_style.serving.bundle_update import Changes
from t5x_style.serving.opened import bundle_service, current
from tests.t5x_style.serving import bundle_kit


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_kit.publish(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def made(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


@pytest.fixture
def served(made: Path, monkeypatch):
    monkeypatch.setattr(
        current.BundleService, "warm_up", lambda self, **settings: 0
    )  # takes seconds
    found = current.open_current(made)
    yield found
    found.close()


def changes(number: int) -> Changes:
    """A passage whose text names the version in which it is new."""
    return Changes({"n": Passage("n", "", f"salt {number}", "")}, frozenset())


def ask(service) -> list[str]:
    query = service.submit("query", service.tokenize("query", "salt"), ["dense"]).result(10)
    return [hit.text for hit in service.search(query, "dense", 10) if hit.id == "n"]


def test_a_request_keeps_its_version_and_the_next_gets_the_new_one(made, served) -> None:
    with served.use() as old:
        bundle_update.update(made, changes(2))
        assert served.refresh()
        assert not served.refresh()
        with served.use() as new:
            assert (old.facts.version, new.facts.version) == (1, 2)
            assert ask(new) == ["salt 2"]
        assert ask(old) == []  # still open
    with pytest.raises(RuntimeError, match="closed"):
        ask(old)


def test_a_version_is_served_whole_after_its_files_were_deleted(made, served) -> None:
    for number in (2, 3):
        bundle_update.update(made, changes(number))
    assert not (made / "versions/1").exists()
    with served.use() as service:
        question = service.tokenize("query", bundle_kit.QUESTION)
        query = service.submit("query", question, service.facts.kinds).result(10)
        for mode in service.facts.modes:
            for hit in service.search(query, mode, 3):
                assert service.evidence(question, query, hit.id).content
        assert list(service.map().result(60).ids) == [one.id for one in bundle_kit.PASSAGES]
    assert served.refresh()
    with served.use() as service:
        assert ask(service) == ["salt 3"]


def test_a_version_that_no_request_uses_is_gone_when_the_next_is_served(made, served) -> None:
    with served.use() as service:
        old = weakref.ref(service)
    del service
    bundle_update.update(made, changes(2))
    assert served.refresh()
    assert old() is None


def test_a_version_is_gone_when_the_last_request_that_uses_it_has_ended(made, served) -> None:
    with served.use() as service:
        old = weakref.ref(service)
        bundle_update.update(made, changes(2))
        assert served.refresh()
        assert old() is service
    del service
    assert old() is None


def test_a_change_of_passages_compiles_nothing(made) -> None:
    with contextlib.closing(current.open_current(made)) as served:
        with served.use() as service:
            before = service.programs
            service.batches._compiling.join()  # the other half of the programs
            count = before.compiled
        bundle_update.update(made, changes(2))
        assert served.refresh()
        with served.use() as service:
            assert service.programs is before and before.compiled == count
            assert ask(service) == ["salt 2"]


def test_another_model_has_its_programs(made, served, tmp_path) -> None:
    with served.use() as service:
        before = service.programs
    other = bundle_kit.publish(tmp_path / "other", seed=1)
    shutil.copytree(other / "versions" / "1", made / "versions" / "2")
    manifest = made / "versions" / "2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    (made / "CURRENT").write_text("2\n")
    assert served.refresh()
    with served.use() as service:
        assert service.facts.version == 2 and service.programs is not before


def test_no_request_fails_and_none_mixes_versions_while_they_change(made, served) -> None:
    failed: list[BaseException] = []
    versions: set[int] = set()
    stop, newest = threading.Event(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                with served.use() as service:
                    version = service.facts.version
                    assert ask(service) == ([] if version == 1 else [f"salt {version}"])
                    versions.add(version)
                    if version == 3:
                        newest.set()
            except BaseException as error:
                failed.append(error)
                newest.set()
                return

    threads = [threading.Thread(target=run) for _ in range(3)]
    for one in threads:
        one.start()
    for number in (2, 3):
        bundle_update.update(made, changes(number))
        assert served.refresh()
    assert newest.wait(60)
    stop.set()
    for one in threads:
        one.join()
    assert failed == []
    assert {1, 3} <= versions


def test_a_damaged_version_is_not_served_and_tried_again_ever_more_rarely(
    made, served, monkeypatch, capsys
) -> None:
    now = [0.0]
    monkeypatch.setattr(current, "time", SimpleNamespace(monotonic=lambda: now[0]))
    opened = []
    real = current.BundleService
    monkeypatch.setattr(
        current, "BundleService", lambda *given: opened.append(now[0]) or real(*given)
    )
    done = bundle_update.update(made, changes(2))
    corpus = (done.version / "corpus.jsonl").read_text()
    (done.version / "corpus.jsonl").write_text(corpus + "\n")  # as if the rest were on its way
    for now[0] in range(10):
        assert not served.refresh()
    assert opened == [0, 4]  # and 12
    assert capsys.readouterr().err.count("version 2 is not served") == 1
    assert (served.failure.version, served.failure.reason) == (2, "IndexDamaged")
    with served.use() as service:
        assert service.facts.version == 1
        assert ask(service) == []
    (done.version / "corpus.jsonl").write_text(corpus)
    now[0] = 11
    assert not served.refresh()
    now[0] = 12
    assert served.refresh() and served.failure is None
    with served.use() as service:
        assert ask(service) == ["salt 2"]


def test_the_metrics_say_which_version_is_wanted_and_which_failed(made, monkeypatch) -> None:
    def fail(service, **settings):
        raise MemoryError

    def found() -> list[str]:
        lines = metrics.text(0, 0, 1).decode().splitlines()
        return [one for one in lines if one.startswith(("kennel_version_w", "kennel_version_f"))]

    monkeypatch.setattr(current.BundleService, "warm_up", lambda service, **settings: 0)
    metrics = Metrics()
    with contextlib.closing(current.open_current(made, metrics)) as served:
        assert found() == ["kennel_version_wanted 1.0", "kennel_version_failed 0.0"]
        monkeypatch.setattr(current.BundleService, "warm_up", fail)
        bundle_update.update(made, changes(2))
        assert not served.refresh()
        assert found() == ["kennel_version_wanted 2.0", "kennel_version_failed 2.0"]
        (made / "CURRENT").unlink()
        assert not served.refresh()
        assert served.failure.reason == "FileNotFoundError"
        (made / "CURRENT").write_text("1\n")
        assert not served.refresh() and served.failure is None
        assert found() == ["kennel_version_wanted 1.0", "kennel_version_failed 0.0"]


def test_closing_stops_the_opening_of_a_version(made, served, monkeypatch, capsys) -> None:
    opening = threading.Event()

    def slow(service, threads, stopped):
        opening.set()
        assert served._stop.wait(60) and stopped()
        raise token_batches.Stopped("now")

    monkeypatch.setattr(current.BundleService, "warm_up", slow)
    bundle_update.update(made, changes(2))
    served.watch(0.01)
    assert opening.wait(60)
    served.close()
    assert not served._watcher.is_alive()
    assert served.failure is None and "not served" not in capsys.readouterr().err


def test_memory_of_a_version_that_failed_is_given_back(made, served, monkeypatch) -> None:
    def fail(service, **settings):
        raise MemoryError

    monkeypatch.setattr(current.BundleService, "warm_up", fail)
    given = threading.Event()
    monkeypatch.setattr(current.freed_memory, "give_back", given.set)
    bundle_update.update(made, changes(2))
    served.watch(0.01)
    assert given.wait(60) and served.failure.version == 2


def test_a_copy_under_another_number_is_opened_once(made, served) -> None:
    shutil.copytree(made / "versions/1", made / "versions/5")
    (made / "CURRENT").write_text("5\n")
    assert served.refresh() and not served.refresh()
    with served.use() as service:
        assert service.facts.version == 5


def test_a_version_that_cannot_be_opened_leaves_no_thread(made, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no facts")

    monkeypatch.setattr(bundle_service, "_facts", fail)
    before = threading.active_count()
    with pytest.raises(ValueError, match="no facts"):
        current.open_current(made)
    assert threading.active_count() == before


def test_a_folder_without_versions_is_refused(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="CURRENT: not found"):
        current.open_current(tmp_path)
