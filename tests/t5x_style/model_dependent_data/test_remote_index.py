"""A training whose index is published to a bucket: copied next to the steps, seen again later."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest

from t5x_style.model_dependent_data import versioned_index
from t5x_style.model_dependent_data.version_log import RECORD, RUN
from t5x_style.retrieval import remote_versions, versioned_folder
from t5x_style.storage import places
from tests.kits.host_kit import Builder, refresher, retrieval, seen, train
from tests.kits.toys.remote_folder import another_machine
from tests.models.objectives import test_realm

URL = "gs://bucket/index"


def publishing(folder):
    """A refresher that builds on its own disk, and uploads."""
    work = folder / "work"
    remote_versions.begin(work, URL)
    push = functools.partial(remote_versions.push, work, URL)
    return dataclasses.replace(refresher(folder), folder=str(work), published=push)


def reading(folder):
    return dataclasses.replace(retrieval(folder), folder=URL)


@pytest.mark.slow
def test_a_run_sees_what_is_published_there_and_on_another_disk_the_same(
    bucket, tmp_path, monkeypatch
):
    monkeypatch.setattr(remote_versions, "POLL_SECONDS", 0.02)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    with Builder(first, publishing):
        run, lines = train(first, host=reading(first))
    versions = seen(first)
    there = set(remote_versions.published(URL))
    assert len(set(versions.values())) >= 2 and set(versions.values()) <= there
    assert set(versioned_folder.published(places.local(URL))) <= there
    another_machine()
    second.mkdir()
    for name in (RECORD, RUN):
        shutil.copy(first / name, second / name)
    again, found = train(second, host=reading(second))
    assert [line["train/loss"] for line in found] == [line["train/loss"] for line in lines]
    for ours, theirs in zip(test_realm.arrays(again), test_realm.arrays(run), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert seen(second) == versions


def test_a_version_that_is_gone_there_is_named_with_those_that_are_left(bucket):
    with pytest.raises(versioned_index.VersionError, match=r"version 7 is not .*there are \[\]"):
        versioned_index.read(URL, 7, None)
