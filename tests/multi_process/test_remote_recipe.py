"""The smoke recipe in two processes that share no disk: killed in a training, it loses nothing."""

import re
import shutil

import pytest

from t5x_style.checkpoints import checkpointing
from t5x_style.storage import places
from t5x_style.workflow import links, remote_store
from t5x_style.workflow.store import version_at
from tests.kits import process_group
from tests.kits.toys.remote_folder import another_machine, names

# Every stage, on less text and with fewer steps than by itself.
SETTINGS = {
    "corpus/PACKAGES": ["optax", "flax"],
    "corpus/python_docs.QueryRules.dev": 40,
    "corpus/python_docs.QueryRules.test": 60,
    "PASSAGE_LENGTH": 64,
    "QUERIES": 64,
    "WIDTH": 32,
    "ROW_MULTIPLE": 4,
    "STEPS": 1000,  # times the recipe's budget
    "PASSES": 1000,
    "EVALUATE_EVERY": 5,
    "LOG_EVERY": 1,
}
STAGES = 16
# Of these the content holds times or names of places; parameters are compared without their files.
DIFFERENT = re.compile(
    r"goodput|tensorboard/|metrics\.jsonl|curves\.png|summary\.|config\.gin"
    r"|/checkpoints/|/saved_model/|/manifest\.json"
    r"|^/(passages|queries)/report\.json"  # has the seconds that it took
)
TRAININGS = ("retriever", "bag_of_embeddings")


def start(run_dir, caches):
    """Starts the recipe in two processes, each with a separate disk."""
    given = {"RUN_DIR": str(run_dir)} | SETTINGS
    command = ["launch.recipe", "--gin_file=gin_configs/recipes/smoke.gin"]
    command += [f"--gin.{name}={value!r}" for name, value in given.items()]
    port = process_group.free_port()
    return [
        process_group.start(
            [*command, *process_group.flags(port, 2, number, heartbeat=30)],
            {places.CACHE: str(cache)},
            devices=2,
        )
        for number, cache in enumerate(caches)
    ]


def succeed(started):
    """Their outputs, once they have ended well."""
    ended = process_group.finish(started)
    assert [code for code, _ in ended] == [0, 0], "\n".join(output for _, output in ended)
    return [output for _, output in ended]


def kill_in_training(bucket, started, stage="retriever"):
    """Kills process 1 after a checkpoint of the stage is in the bucket, before its end."""
    first, second = started
    for line in first.stdout:
        step = re.search(rf"\[{stage}\] step (\d+)/(\d+)", line)
        saved = [name for name in names(bucket) if re.search(r"/checkpoints/.*integrity", name)]
        if step and saved:
            assert int(step[1]) < int(step[2]), line
            second.kill()
            break
    ended = process_group.finish(started)
    assert all(code for code, _ in ended), ended


def outputs_of(run_dir):
    """What counts of a finished run, by stage and name: the bytes of files, and parameters."""
    here = places.local(run_dir)
    store = links.of_run(here)
    remote_store.refresh(store, here)
    found = {}
    for stage in sorted(path.name for path in here.iterdir() if path.is_symlink()):
        version = version_at(here / stage)
        with remote_store.fetched([version]):
            for name in version.manifest["files"]:
                if not DIFFERENT.search(f"/{stage}/{name}"):
                    found[f"{stage}/{name}"] = (version.folder / name).read_bytes()
            if stage in TRAININGS:
                parameters = checkpointing.read_parameters(version.folder)
                found |= {f"{stage}/{name}": a.tobytes() for name, a in parameters.items()}
    return found


@pytest.mark.slow
def test_the_smoke_recipe_in_a_bucket_equals_that_on_a_disk(tmp_path, monkeypatch, bucket):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 3600)
    run_dir, disks = "gs://bucket/runs/smoke", [tmp_path / "first", tmp_path / "second"]
    kill_in_training(bucket, start(run_dir, disks))
    for disk in disks:
        shutil.rmtree(disk)
    said = succeed(start(run_dir, [tmp_path / "third", tmp_path / "fourth"]))
    assert f"all {STAGES} stages done" in said[0] and "resumed at step" in said[0], said[0]
    whole = tmp_path / "runs/smoke"
    succeed(start(whole, [tmp_path / "none"] * 2))
    another_machine()
    found, expected = outputs_of(run_dir), outputs_of(whole)
    assert found.keys() == expected.keys()
    assert {name.partition("/")[0] for name in found} > {"vectors", "index", "evaluation"}
    assert [name for name in expected if found[name] != expected[name]] == []
