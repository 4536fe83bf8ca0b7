"""Retrieval on the host by the commands of docs/realm.md: a training, and its index in parallel."""

import json

import pytest

from tests.gin_configs.test_realm_recipe import write_collection
from tests.kits import process_group


def command(module, files, **macros):
    """What is run: `python -m module` with files of gin_configs/."""
    given = [f"--gin.{name}={value!r}" for name, value in macros.items()]
    return [*module.split(), *(f"--gin_file=gin_configs/{name}.gin" for name in files), *given]


def finished(*commands):
    """The outputs of commands that run in parallel and succeed."""
    ended = process_group.finish([process_group.start(one) for one in commands])
    assert not any(code for code, _ in ended), "\n".join(output for _, output in ended)
    return [output for _, output in ended]


def prepared(folder):
    """The blocks of a toy collection and their tokenizer."""
    corpus, words, blocks = (str(folder / name) for name in ("corpus", "words", "blocks"))
    write_collection(folder / "corpus")
    learn = ["runs/tokenizers/corpus"]
    finished(command("t5x_style.stage", learn, CORPUS=corpus, MODEL_DIR=words))
    cut = ["runs/stores/blocks", "sources/beir_passages"]
    given = {"CORPUS": corpus, "TOKENIZER": f"{words}/tokenizer", "LENGTH": 48}
    finished(command("t5x_style.stage", cut, **given, MODEL_DIR=blocks))
    return {"STORE": f"{blocks}/store", "TOKENIZER": f"{words}/tokenizer"}


@pytest.mark.slow
def test_a_training_sees_what_its_builder_publishes(tmp_path, monkeypatch):
    monkeypatch.setattr(process_group, "LIMIT_SECONDS", 600)
    training = tmp_path / "training"
    objective = ["models/tiny_joint", "objectives/realm", "objectives/mask_salient_span"]
    shared = {"QUERIES": 4, "QUERY_LENGTH": 32, "PASSAGE_LENGTH": 48} | prepared(tmp_path)
    shared["INDEX_VERSIONS"] = str(tmp_path / "versions")
    trained = {"MODEL_DIR": str(training), "SEED": 1, "STEPS": 12, "WARMUP_STEPS": 2}
    trained |= {"LEARNING_RATE": 1e-4, "EVALUATE_EVERY": 4, "LOG_EVERY": 2}
    trained |= {"HOST_STALENESS_STEPS": 8, "WHEN_STALE": "pause", "AHEAD": 1}
    files = [
        "runs/training/train",
        *objective,
        "data/pretraining/sentences",
        "runs/training/retrieve_on_host",
    ]
    watched = {"TRAINING": str(training), "CORPUS_TABLE": None, "POLL_SECONDS": 0.2}
    _, builder = finished(
        command("t5x_style.train", files, **shared, **trained),
        command(
            "t5x_style.watch_index",
            ["runs/indexes/watch", *objective],
            **shared,
            **watched,
        ),
    )
    record = (training / "index_versions.jsonl").read_text().splitlines()
    seen = [json.loads(line)["version"] for line in record]
    assert len(seen) >= 12 and len(set(seen)) > 1 and sorted(seen) == seen, builder
    assert '"train/retrieval_utility"' in (training / "metrics.jsonl").read_text()
