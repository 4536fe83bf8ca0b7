"""A training on two hosts and the builder of its index on a third, which share a bucket alone."""

import json
import shutil
from pathlib import Path

import pytest

from t5x_style.storage import places
from tests.kits import process_group
from tests.kits.toys.remote_folder import content, names
from tests.multi_process.test_host_commands import command, prepared

URL = "gs://bucket/run"
OBJECTIVE = ["models/tiny_joint", "objectives/realm", "objectives/mask_salient_span"]


@pytest.mark.slow
def test_two_hosts_see_what_a_third_publishes(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 1200)
    shared = {"QUERIES": 4, "QUERY_LENGTH": 32, "PASSAGE_LENGTH": 48}
    for name, made in prepared(tmp_path).items():  # their versions are in a store of this disk
        shared[name] = str(shutil.copytree(made, tmp_path / name))
    shared["INDEX_VERSIONS"] = f"{URL}/index"
    trained = {"MODEL_DIR": f"{URL}/training", "SEED": 1, "STEPS": 16, "WARMUP_STEPS": 2}
    trained |= {"LEARNING_RATE": 1e-4, "EVALUATE_EVERY": 4, "LOG_EVERY": 2}
    trained |= {"HOST_STALENESS_STEPS": 6, "WHEN_STALE": "pause", "AHEAD": 1}
    watched = {"TRAINING": f"{URL}/training", "CORPUS_TABLE": None, "POLL_SECONDS": 0.2}
    watched |= {"KEEP_VERSIONS": 2}
    files = ["runs/training/train", *OBJECTIVE, "data/pretraining/sentences"]
    train = command(
        "t5x_style.train", [*files, "runs/training/retrieve_on_host", "hardware/mesh"],
        **shared, **trained,
    )  # fmt: skip
    watch = command(
        "t5x_style.watch_index", ["runs/indexes/watch", *OBJECTIVE], **shared, **watched
    )
    disks = [{places.CACHE: str(tmp_path / name)} for name in ("first", "second", "builder")]
    port = process_group.free_port()
    started = [
        process_group.start([*train, *process_group.flags(port, 2, number, 60)], disks[number])
        for number in (0, 1)
    ]
    *ended, (built, output) = process_group.finish([*started, process_group.start(watch, disks[2])])
    assert [code for code, _ in ended] == [0, 0], "\n".join(text for _, text in ended)
    assert built == 0, output
    (record,) = [name for name in names(bucket) if name.endswith("/index_versions.jsonl")]
    seen = [json.loads(line)["version"] for line in content(bucket, record).splitlines()]
    assert len(seen) >= 16 and len(set(seen)) > 1 and sorted(seen) == seen, output
    for disk in disks[:2]:
        copies = Path(disk[places.CACHE]) / "gs/bucket/run/index/versions"
        here = {int(path.name) for path in copies.iterdir() if path.name.isdigit()}
        # two stay, and one more where the last look was between an upload and its deletion
        assert seen[-1] in here and min(here) >= seen[-1] - 2 > seen[0], "old ones are gone"
