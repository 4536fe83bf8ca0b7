"""Next versions of a bundle: what is encoded, that nothing else differs, and what is refused."""

import argparse
import contextlib
import errno
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from t5x_style import export
from t5x_style.configuration import gin_checks
from t5x_style.interfaces.representation import KINDS
from t5x_style.retrieval import representation_files, versioned_folder
from t5x_style.retrieval.beir_collection import Passage, Passages
from t5x_style.serving import bundle, bundle_update, bundling
from t5x_style.serving.bundle import BundleError
from t5x_style.serving.bundle_update import Changes
from tests.t5x_style.serving import bundle_kit

CHANGES = [
    {"_id": "b", "delete": True},
    {"_id": "c", "title": "Bread", "text": "Bread is made of salt alone.", "source": "food/new"},
    {"_id": "a", "title": "Rivers", "text": bundle_kit.PASSAGES[0].text, "source": "water/moved"},
    {"_id": "f", "text": "A new song of salt and water."},
    {"_id": "g", "text": "hills"},
]


def written(path: Path, rows) -> Changes:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Changes.read(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_kit.publish(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def made(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


def held(version: Path) -> dict[str, np.ndarray]:
    """Name -> array, of all representations."""
    found = {}
    for kind in KINDS:
        one = representation_files.read(version / "representations", kind)
        for name, array in representation_files.arrays(kind, one).items():
            found[name] = np.asarray(array[:])
    return found


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Ids of passages that updates encode."""
    found: list[str] = []
    real = bundling.encode

    def counted(programs, tokenizer, contract, passages, kinds):
        found.extend(one.id for one in passages)
        return real(programs, tokenizer, contract, passages, kinds)

    monkeypatch.setattr(bundling, "encode", counted)
    return found


def require_equal(version: Path, other: Path) -> None:
    expected, found = held(other), held(version)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)


def test_only_what_changed_is_encoded_and_the_rest_is_a_full_rebuild(
    made, tmp_path, encoded
) -> None:
    done = bundle_update.update(made, written(tmp_path / "changes.jsonl", CHANGES))
    assert encoded[1:] == ["c", "f", "g"]  # the first is compared with what is stored
    assert (done.encoded, done.deleted, done.unchanged) == (3, 1, 3)
    assert versioned_folder.current(made) == done.version
    passages = list(Passages(done.version))
    assert [one.id for one in passages] == ["a", "c", "d", "e", "f", "g"]
    assert [one.source for one in passages][:2] == ["water/moved", "food/new"]
    again = bundle_kit.publish(tmp_path / "again", passages)
    require_equal(done.version, again / "versions/1")


@pytest.mark.slow  # the model reads 20,100 passages
def test_a_hundred_passages_more_encode_a_hundred(tmp_path, encoded) -> None:
    words = " ".join(one.text for one in bundle_kit.PASSAGES[:4]).split()
    drawn = np.random.default_rng(0).choice(words, (10_100, 8))
    passages = [Passage(f"n{n}", "", " ".join(row), "") for n, row in enumerate(drawn.tolist())]
    before, new = passages[:10_000], passages[10_000:]
    made = bundle_kit.publish(tmp_path / "grown", before)
    done = bundle_update.update(made, Changes({one.id: one for one in new}, frozenset()))
    assert encoded == ["n0", *(one.id for one in new)]  # the first is compared
    assert (done.encoded, done.deleted, done.unchanged) == (100, 0, 10_000)
    whole = bundle_kit.publish(tmp_path / "whole", passages)
    assert Passages(done.version).ids == Passages(whole / "versions/1").ids
    require_equal(done.version, whole / "versions/1")


def test_a_run_may_be_named_in_place_of_its_bundle(made, tmp_path) -> None:
    file = tmp_path / "changes.jsonl"
    written(file, CHANGES[:1])
    options = argparse.Namespace(bundle=str(tmp_path), changes=str(file), to=None)
    assert export.bundle(options, gin_checks.parse_flags([])) == 0
    assert versioned_folder.current_number(made) == 2
    options.bundle = str(tmp_path / "parts")
    with pytest.raises(BundleError, match="found neither. Make a bundle"):
        export.bundle(options, gin_checks.parse_flags([]))


def test_deleting_alone_encodes_nothing(made, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bundling, "encode", lambda *_: pytest.fail("nothing is new"))
    done = bundle_update.update(made, written(tmp_path / "c.jsonl", CHANGES[:1]))
    assert (done.encoded, done.unchanged) == (0, 4)


def test_an_id_that_is_not_there_is_refused_and_nothing_is_published(made, tmp_path) -> None:
    changes = written(tmp_path / "c.jsonl", [{"_id": "zz", "delete": True}])
    with pytest.raises(BundleError, match="found 1 others, the first is 'zz'"):
        bundle_update.update(made, changes)
    assert versioned_folder.published(made) == [1]


def test_the_last_two_versions_stay_and_name_what_they_were_made_of(made) -> None:
    for name in "xyz":
        given = {name: Passage(name, "", "salt", "")}
        bundle_update.update(made, Changes(given, frozenset()))
    assert versioned_folder.published(made) == [3, 4]
    assert bundle.origin(made) == bundle_kit.ORIGIN


def added(name: str) -> Changes:
    return Changes({name: Passage(name, "", "salt", "")}, frozenset())


def test_two_updates_at_a_time_are_both_kept(made, monkeypatch) -> None:
    """The second begins while the first encodes, and waits for it."""
    encodes, waits = threading.Event(), threading.Event()
    real = bundling.encode

    def slow(*arguments):
        encodes.set()
        assert waits.wait(60)
        return real(*arguments)

    monkeypatch.setattr(bundling, "encode", slow)
    monkeypatch.setattr(bundle, "_waiting", lambda folder: waits.set())
    first = threading.Thread(target=bundle_update.update, args=(made, added("x")))
    first.start()
    assert encodes.wait(60)
    bundle_update.update(made, added("y"))
    first.join()
    assert {"x", "y"} <= set(Passages(versioned_folder.current(made)).ids)
    assert bundle.changes(made) == 2
    assert not list(made.rglob("*.lock"))


def test_a_disk_without_locks(made, monkeypatch, capsys) -> None:
    """One update at a time works; of two, the one whose version is no longer current is refused."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    real = bundling.encode

    def meanwhile(*arguments):
        monkeypatch.setattr(bundling, "encode", real)
        bundle_update.update(made, added("y"))
        return real(*arguments)

    monkeypatch.setattr(bundling, "encode", meanwhile)
    with pytest.raises(versioned_folder.PublishError, match="expected version 1, .* found 2"):
        bundle_update.update(made, added("x"))
    assert versioned_folder.published(made) == [1, 2]
    assert capsys.readouterr().err.count(f"{made}: its disk has no locks") == 1


def test_a_version_that_was_copied_under_another_number_can_be_changed(made) -> None:
    (made / "versions/1").rename(made / "versions/5")
    (made / "CURRENT").write_text("5\n")
    bundle_update.update(made, added("x"))
    assert versioned_folder.published(made) == [5, 6]


def test_changes_are_discarded_only_where_somebody_says_so(made, monkeypatch) -> None:
    class Opened(Exception):
        pass

    def opened(flags):
        raise Opened

    monkeypatch.setattr(export.searcher, "find_config", lambda run: made.parent / "config.gin")
    monkeypatch.setattr(export.searcher, "open_searcher", opened)
    monkeypatch.setattr(export.remote_store, "named_here", contextlib.nullcontext)
    settings = {"bundle": str(made.parent), "changes": None, "to": None}

    def again(discard: bool) -> None:
        options = argparse.Namespace(**settings, discard_changes=discard)
        export.bundle(options, gin_checks.parse_flags([]))

    with pytest.raises(Opened):
        again(False)
    bundle_update.update(made, Changes({}, frozenset("b")))
    with pytest.raises(BundleError, match="changed since .* in 1 update .*--discard_changes"):
        again(False)
    with pytest.raises(Opened):
        again(True)
    settings["to"] = str(made.parent / "other/bundle")
    with pytest.raises(Opened):
        again(False)
    assert not (made.parent / "other").exists()


def test_a_bundle_that_does_not_say_may_have_changes(made) -> None:
    for name in "bc":
        bundle_update.update(made, Changes({}, frozenset(name)))
    assert bundle.changes(made) == 2
    path = made / "versions/3/manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["changes"]
    path.write_text(json.dumps(manifest))
    assert bundle.changes(made) == 1
    with pytest.raises(BundleError, match="may have been changed .*before Kennel recorded that"):
        bundle.require_unchanged(made)


def test_deleting_all_is_refused(made, tmp_path) -> None:
    rows = [{"_id": one.id, "delete": True} for one in bundle_kit.PASSAGES]
    with pytest.raises(BundleError, match="no passage would be left"):
        bundle_update.update(made, written(tmp_path / "c.jsonl", rows))


def test_representations_of_another_making_are_refused(made, tmp_path) -> None:
    version = made / "versions/1"
    path = version / "representations/vectors.npy"
    np.save(path, -np.load(path))
    manifest = json.loads((version / "manifest.json").read_text())
    versioned_folder.write_manifest(version, manifest, list(manifest.pop("files")))
    with pytest.raises(BundleError, match="of kind 'dense' is not what its programs make"):
        bundle_update.update(made, Changes({"n": Passage("n", "", "new", "")}, frozenset()))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", ":1: not JSON"),
        ('["a"]', "expected an object"),
        ('{"text": "a"}', "a string in '_id'"),
        ('{"_id": 7, "text": "a"}', "a string in '_id'"),
        ('{"_id": "7"}', "expected _id and text"),
        ('{"_id": "7", "text": null}', "expected _id and text"),
        ('{"_id": "7", "text": "a", "titel": "b"}', "expected _id and text"),
        ('{"_id": "7", "delete": "yes"}', "expected _id and text"),
        ('{"_id": "7", "text": "a"}\n{"_id": "7", "delete": true}', ":2: the id '7' is in"),
        ("\n", "at least one change, found none"),
    ],
)
def test_lines_that_are_no_changes_are_refused(tmp_path, line, message) -> None:
    path = tmp_path / "changes.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(BundleError, match=message):
        Changes.read(path)
