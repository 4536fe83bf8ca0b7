"""The store and its links: what is recognised, and what is never written over."""

import json
import os
import shutil

import pytest

from t5x_style.storage import records
from t5x_style.workflow import collection, files, links, stages
from t5x_style.workflow.store import Store, StoreError, version_at
from tests.kits import store_kit


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A folder with a run `runs/a` that has made one version; returns `make(...)`."""
    monkeypatch.chdir(tmp_path)

    def make(link="runs/a/made", width=3, **options):
        plan = planned(tmp_path, link, width, **options)
        return store_kit.finished(plan, {"out.txt": f"width {width}"}, {"text": "out.txt"})

    return make


def store():
    return Store(links.of_run(links.Path("runs/a")).root)


def planned(tmp_path, link="runs/a/made", width=3, **options):
    root = links.of_run((tmp_path / link).parent).root
    return store_kit.plan(tmp_path / link, "toy", store=root, width=width, **options)


def test_a_run_keeps_its_versions_next_to_it(house, tmp_path):
    version = house()
    assert version.folder.parent == tmp_path / "runs/.store/versions"
    assert os.readlink("runs/a/made") == f"../.store/versions/{version.id}"
    assert store().root == links.Path("runs/.store")
    assert version_at(tmp_path / "runs/a/made/out.txt").id == version.id
    assert version_at(tmp_path) is None


def test_a_store_without_its_index_is_indexed_again(house):
    house()
    house(width=4)
    before = store().summaries()
    assert len(before) == 2 and all(one["bytes"] for one in before.values())
    index = store().root / "index.json"
    index.unlink()
    assert store().summaries() == before and index.is_file()
    index.write_text('{"versions": {"toy-')
    assert store().summaries() == before
    gone = records.read_json(index)
    gone["versions"].popitem()
    records.write_json(index, gone)
    assert store().summaries() == before
    assert store().size() == sum(one["bytes"] for one in before.values())


@pytest.mark.parametrize("damage", ["", '{"format": 2, "finge', "[]"])
def test_a_manifest_that_is_missing_or_half_written_does_not_count(house, tmp_path, damage):
    version = house()
    manifest = version.folder / "stage.json"
    manifest.unlink()
    if damage:
        manifest.write_text(damage)
    found = store().read(version.folder)
    assert found.manifest is None and bool(found.damage) == bool(damage)
    assert store().summaries()[version.id]["finished"] == ""
    decision = stages.decide(planned(tmp_path))
    assert decision.status == "resume" and decision.version.id == version.id
    again = house()
    assert again.id == version.id and again.manifest is not None


def test_a_version_of_another_format_is_left_alone(house, tmp_path):
    """An older checkout on a shared store must not continue, or change, what it does not know."""
    version = house()
    manifest = records.read_json(version.folder / "stage.json") | {"format": 3}
    records.write_json(version.folder / "stage.json", manifest)
    found = store().read(version.folder)
    assert found.foreign and found.damage == "manifest: expected format 2, found 3"
    assert stages.decide(planned(tmp_path)).status != "resume"
    again = house()
    assert again.id == f"{version.id}.2"
    assert records.read_json(version.folder / "stage.json") == manifest
    (entry,) = [one for one in collection.plan(store(), 0).entries if one.version.foreign]
    assert entry.stays == found.damage


def test_an_empty_folder_of_a_version_that_was_never_begun_is_taken(house, tmp_path):
    plan = planned(tmp_path)
    (tmp_path / "runs/.store/versions" / plan.id).mkdir(parents=True)
    assert stages.decide(plan).status == "new"
    assert house().id == plan.id


def test_a_run_that_is_moved_with_its_store(house, tmp_path):
    version = house()
    os.rename("runs", "elsewhere")
    moved = planned(tmp_path, "elsewhere/a/made")
    decision = stages.decide(moved)
    assert decision.status == "done"
    assert decision.version.folder == tmp_path / "elsewhere/.store/versions" / version.id
    links.point(moved.store, moved.link, decision.version.folder)
    assert links.all_of(moved.store) == {tmp_path / "elsewhere/a/made": version.id}


def test_a_run_that_is_moved_away_from_its_store_finds_it(house, tmp_path):
    version = house()
    (tmp_path / "far/away").mkdir(parents=True)
    os.rename("runs/a", "far/away/a")
    moved = planned(tmp_path, "far/away/a/made")
    assert moved.store.root == tmp_path / "runs/.store"
    decision = stages.decide(moved)
    assert decision.status == "done" and decision.version.id == version.id
    links.point(moved.store, moved.link, decision.version.folder)
    assert (tmp_path / "far/away/a/made/out.txt").read_text() == "width 3"
    assert links.all_of(moved.store) == {tmp_path / "far/away/a/made": version.id}


def test_a_run_that_lost_its_store_says_so(house, tmp_path):
    version = house()
    (tmp_path / "far").mkdir()
    os.rename("runs/a", "far/a")
    shutil.rmtree("runs")
    decision = stages.decide(planned(tmp_path, "far/a/made"))
    assert decision.status == "new"
    assert f"{version.id}, is not in the store {tmp_path}/far/.store" in decision.reason


def test_a_copied_run_uses_the_same_versions(house, tmp_path):
    version = house()
    shutil.copytree("runs/a", "runs/b", symlinks=True)
    assert stages.decide(planned(tmp_path, "runs/b/made")).version.id == version.id
    names = {path.parent.name for path in links.all_of(store())}
    assert names == {"a", "b"}  # before it was ever run
    house("runs/b/made", width=4)
    assert stages.decide(planned(tmp_path)).status == "done"


def test_a_run_that_was_copied_with_what_links_lead_to(house, tmp_path):
    house()
    shutil.copytree("runs/a", "runs/b")
    with pytest.raises(StoreError, match="or a copy of a version. Nothing was changed in it"):
        stages.decide(planned(tmp_path, "runs/b/made"))
    assert (tmp_path / "runs/b/made/out.txt").read_text() == "width 3"


def test_a_link_that_leads_out_of_the_store(house, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/thesis.txt").write_text("years of work")
    (tmp_path / "runs/a").mkdir(parents=True)
    os.symlink(tmp_path / "disk", "runs/a/made")
    with pytest.raises(StoreError, match="outside of the store .* Nothing was written there"):
        house()
    assert os.listdir("disk") == ["thesis.txt"] and os.readlink("runs/a/made").endswith("disk")
    os.unlink("runs/a/made")
    os.symlink(tmp_path / "nowhere", "runs/a/made")
    with pytest.raises(StoreError, match="and there is nothing"):
        house()


def test_a_link_into_another_store(house, tmp_path):
    other = house("others/b/made")
    (tmp_path / "runs/a").mkdir(parents=True)
    os.symlink(other.folder, "runs/a/made")
    with pytest.raises(StoreError, match=r"name that store \(recipe: --gin.STORE=.*others/.store;"):
        house()


def test_a_file_in_the_place_of_a_link(house, tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/made").write_text("mine")
    with pytest.raises(StoreError, match="is a file; a stage's link goes there"):
        house()


def test_an_empty_folder_in_the_place_of_a_link_is_replaced(house, tmp_path):
    (tmp_path / "runs/a/made").mkdir(parents=True)
    house()
    assert (tmp_path / "runs/a/made").is_symlink()


def test_two_fingerprints_that_begin_alike(house, tmp_path):
    version = house()
    started = records.read_json(version.folder / "stage.started.json")
    manifest = records.read_json(version.folder / "stage.json")
    other = started["fingerprint"][:-1] + "x"
    records.write_json(version.folder / "stage.json", manifest | {"fingerprint": other})
    with pytest.raises(StoreError, match="starts the same. Move that folder out of the store"):
        stages.decide(planned(tmp_path))


def test_files_that_changed(house):
    version = house()
    assert files.changed_files(version) == []
    os.utime(version.folder / "out.txt", (1, 1))
    assert files.changed_files(version) == []
    (version.folder / "out.txt").write_text("width 7")
    os.utime(version.folder / "out.txt", ns=(1, version.manifest["files"]["out.txt"][1]))
    assert files.changed_files(version) == []  # same size and time
    assert files.changed_files(version, thorough=True) == ["out.txt"]
    (version.folder / "out.txt").write_text("longer than before")
    assert files.changed_files(version) == ["out.txt"]
    assert files.changed_files(version, "other") == []
    (version.folder / "out.txt").unlink()
    assert files.changed_files(version) == ["out.txt"]


def test_large_files_count_by_their_size(house, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "HASHED_BYTES", 3)
    version = house()
    assert version.manifest["files"]["out.txt"][2] == ""
    (version.folder / "out.txt").write_text("width 4")
    assert files.changed_files(version) == []


def test_a_read_only_store_still_answers(house, tmp_path, monkeypatch):
    """A finished stage on a disk that cannot be written is found, not made again."""
    version = house()

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(records, "write_json", refuse)
    monkeypatch.setattr(links.Path, "touch", refuse)
    decision = stages.decide(planned(tmp_path))
    links.point(
        decision.version and planned(tmp_path).store, tmp_path / "runs/a/made", version.folder
    )
    store().mark_used(version.folder)
    assert decision.status == "done" and store().summaries()[version.id]["finished"]


def test_where_a_stage_run_by_hand_keeps_its_versions(house, tmp_path):
    assert links.of_stage(links.Path("out")).root == links.Path(".store")
    assert links.of_stage(links.Path("runs/a/made")).root == links.Path("runs/a/.store")
    house()
    assert links.of_stage(links.Path("runs/a/made")).root == links.Path("runs/.store")
    assert links.of_stage(links.Path("runs/new/made")).root == links.Path("runs/.store")
    assert links.of_run(links.Path("runs/new")).root == links.Path("runs/.store")
    assert json.loads((tmp_path / "runs/a/.run.json").read_text()) == {
        "run": json.loads((tmp_path / "runs/a/.run.json").read_text())["run"],
        "store": "../.store",
        "absolute": str(tmp_path / "runs/.store"),
    }
