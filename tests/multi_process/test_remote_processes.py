"""Processes that share no disk, with their run on object storage: killed, they lose nothing."""

import shutil

import pytest

from t5x_style.checkpoints import checkpointing
from t5x_style.storage import places
from tests.kits import process_group
from tests.kits.toys.remote_folder import another_machine

URL = "gs://bucket/run/training"
SETTINGS = {"SAVE_EVERY": 2, "STEPS": 10}


def train(folder, caches, kill=None, **settings):
    """Exit codes and outputs of two processes, each with a separate disk; two devices each."""
    env = {number: {places.CACHE: str(cache)} for number, cache in enumerate(caches)}
    if kill is not None:
        number, step = kill
        env[number] |= {"ACCIDENT": "SIGKILL", "ACCIDENT_STEP": str(step)}
    command = process_group.train(folder, **SETTINGS | settings)
    return process_group.run(command, env=env, devices=2)


@pytest.mark.slow  # the rehearsal of tests/launch/cloud does the same through a launcher's texts
@pytest.mark.parametrize("kills", [[(1, 5)], [(0, 3), (1, 7), (0, 9)]])
def test_a_run_on_object_storage_equals_one_on_a_disk(tmp_path, bucket, kills):
    whole = train(tmp_path / "whole", [tmp_path / "none"] * 2)
    assert [code for code, _ in whole] == [0, 0], whole[0][1]
    for kill in kills:
        disks = [tmp_path / "first", tmp_path / "second"]
        ended = train(URL, disks, kill)
        assert all(code for code, _ in ended), ended[0][1]
        for disk in disks:  # preempted: the machines are gone
            shutil.rmtree(disk)
    ended = train(URL, [tmp_path / "third", tmp_path / "fourth"])
    assert [code for code, _ in ended] == [0, 0], "\n".join(output for _, output in ended)
    assert "resum" in ended[0][1], ended[0][1]
    another_machine()
    found = read(fetched(URL))
    expected = checkpointing.read_parameters(tmp_path / "whole")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name


def fetched(url):
    """The files of a finished run, as somebody else reads them."""
    from t5x_style.workflow import links, remote_store

    link = places.local(url)
    store = links.open_store(f"{url}.store")
    remote_store.refresh(store, link.parent)
    (version,) = [one for one in store.all() if one.manifest is not None]
    with remote_store.fetched([version]):
        return version.folder


def read(folder):
    return checkpointing.read_parameters(folder)
