"""Lineage: all versions that led to some files, each once, in the order in which they finished."""

import dataclasses
import shutil

import pytest

from t5x_style.configuration.signatures import Job
from t5x_style.workflow import making
from t5x_style.workflow.lineage import lineage
from tests.kits import store_kit


@pytest.fixture
def clock(monkeypatch):
    """Seconds at which the next version finishes; counts up."""
    times = iter(f"2026-01-01 00:00:{second:02d}" for second in range(60))
    monkeypatch.setattr(making.store, "now", lambda: next(times))


def make(link, job, *inputs, **settings):
    return store_kit.finished(
        store_kit.plan(link, job, *inputs, **settings), {"out.txt": f"{settings}\n"}, {"out": "."}
    )


def ids(versions):
    return [version.id for version in versions]


def test_each_version_once_in_the_order_in_which_they_finished(tmp_path, clock):
    run = tmp_path / "run"
    other = make(run / "other", "corpus", of="another stage")
    corpus = make(run / "corpus", "corpus")
    tokens = make(run / "tokens", "prepare", corpus.output("out"))
    index = make(run / "index", "index", tokens.output("out"), corpus.output("out"))
    unused = make(run / "unused", "index", corpus.output("out"))
    model = make(run / "model", "train", tokens.output("out"))
    found = lineage([model.output("out") / "out.txt", run / "index", str(other.folder)])
    assert ids(found) == ids([other, corpus, tokens, index, model])
    assert unused.id not in ids(found)
    assert ids(lineage([run / "index", run / "model"])) == ids([corpus, tokens, index, model])


def test_an_ancestor_comes_first_within_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr(making.store, "now", lambda: "2026-01-01 00:00:00")
    first = make(tmp_path / "run/z", "z")
    second = make(tmp_path / "run/m", "m", first.output("out"))
    third = make(tmp_path / "run/a", "a", second.output("out"), first.output("out"))
    assert ids(lineage([third.folder, first.folder])) == ids([first, second, third])


def test_a_training_that_was_continued_led_to_the_longer_one(tmp_path, clock):
    link, job = tmp_path / "run/train", Job("train", 1, length=("steps",))
    one, two, three = (
        dataclasses.replace(store_kit.plan(link, "train", steps=steps), job=job)
        for steps in (1, 2, 3)
    )
    short = store_kit.finished(one, {}, {})
    folder = store_kit.started(two)
    parent = making.parent_of(str(folder))
    assert parent is not None and parent.name == short.id
    making.continues(str(folder), parent)
    long = store_kit.finished(two, {}, {})
    assert ids(lineage([long.folder])) == ids([short, long])
    other = store_kit.finished(three, {}, {})  # it could have continued, and did not
    assert ids(lineage([other.folder])) == ids([other])


def test_what_is_in_no_store_or_not_finished_adds_nothing(tmp_path, clock):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/stage.json").write_text('{"fingerprint": "of a time without a store"}')
    store_kit.started(store_kit.plan(tmp_path / "run/stopped", "train"))
    paths = [tmp_path / "corpus", tmp_path / "run/stopped", tmp_path / "nowhere", tmp_path]
    assert lineage(paths) == []
    made = make(tmp_path / "run/made", "made", tmp_path / "corpus")
    assert ids(lineage([*paths, made.folder])) == [made.id]


def test_an_ancestor_that_was_deleted_is_left_out(tmp_path, clock):
    first = make(tmp_path / "run/first", "first")
    second = make(tmp_path / "run/second", "second", first.output("out"))
    third = make(tmp_path / "run/third", "third", second.output("out"))
    shutil.rmtree(second.folder)
    assert ids(lineage([third.folder])) == [third.id]


def test_each_ancestor_is_looked_up_in_the_store_of_what_was_made_from_it(tmp_path, clock):
    """Two stores may hold versions of the same id."""
    one = make(tmp_path / "a/run/corpus", "corpus")
    other = make(tmp_path / "b/run/corpus", "corpus")
    model = make(tmp_path / "b/run/model", "train", other.output("out"))
    assert one.id == other.id and one.folder != other.folder
    found = lineage([model.folder, one.folder])
    assert [version.folder for version in found] == [one.folder, other.folder, model.folder]
