"""Wrong inputs as a newcomer makes them: each is refused before the first stage."""

import hashlib
import json
import os

import pytest

from input_pipelines.store.store_writer import FORMAT, FORMAT_VERSION, MANIFEST
from launch import recipe
from t5x_style.configuration import gin_checks
from t5x_style.preflight import stage_checks
from t5x_style.workflow import links, recipe_checks, recipe_planning, recipe_reader, recipe_stage


def folder(path, queries=4, corpus=None, splits=("train", "test")):
    """A BEIR folder of so many queries, each with a passage that answers it."""
    (path / "qrels").mkdir(parents=True)
    rows = [{"_id": f"{i}", "text": f"all about number {i}"} for i in range(queries)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "corpus.jsonl").write_text(lines if corpus is None else corpus)
    (path / "queries.jsonl").write_text(lines)
    for split in splits:
        judged = "".join(f"{i}\t{i}\t1\n" for i in range(queries))
        (path / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return path


@pytest.fixture
def place(tmp_path):
    """Folders of all sorts; none of them is written to."""
    folder(tmp_path / "good")
    folder(tmp_path / "empty", corpus="")
    folder(tmp_path / "unjudged", splits=())
    folder(tmp_path / "no_test", splits=("train",))
    (tmp_path / "file").write_text("text")
    published = tmp_path / "published"
    published.mkdir()
    config = {"model_type": "bert", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 64}
    (published / "config.json").write_text(json.dumps(config))
    return tmp_path


def flags_of(name, place, *settings):
    """The command line of a recipe; {} in a setting is the folder of the fixture."""
    given = dict(one.format(place).split("=", 1) for one in settings)
    values = {"RUN_DIR": f"{place}/run"} | given
    words = [f"--gin.{setting}={value}" for setting, value in values.items()]
    words.append(f"--gin_file=gin_configs/recipes/{name}.gin")
    return gin_checks.parse_flags(words)


def refused(name, place, *settings):
    """All that a recipe's check says, in this process; "" where there is nothing."""
    flags = flags_of(name, place, *settings)
    try:
        loaded = recipe_reader.load(flags)
    except (ValueError, recipe_stage.RecipeError) as error:
        return str(error)
    pending = recipe_planning.all_pending(loaded)
    commands = [recipe_checks.command(loaded, item.name, flags, pending) for item in loaded.stages]
    return "\n".join(text for one in commands for text in stage_checks.of_stage(one))


def test_a_good_folder_is_not_refused(place):
    assert refused("beir", place, "CORPUS={}/good") == ""


@pytest.mark.parametrize(
    ("recipe_name", "settings", "messages"),
    [
        ("beir", ["STPES=3"], ["macro STPES is set, but nothing refers", "did you mean STEPS?"]),
        ("beir", ["STEPS=-5", "BUDGET=-1"], ["--gin.STEPS: STEPS must be 0 or more, found -5",
                                             "BUDGET must be above 0, found -1"]),
        ("beir", ["STEPS=many"], ["--gin.STEPS: STEPS must be int, found 'many'"]),
        ("beir", ["STORE_LIMIT=lots"], ["STORE_LIMIT: expected a size such as '200GB'"]),
        ("beir", ["RUN_DIR={}/file"], ["RUN_DIR: expected a folder", "file is a file"]),
        ("beir", ["LEARNING_RATE=3e-4x"], ["learning_rate must be float, found '3e-4x' (a str)"]),
        ("beir", ["CORPUS={}/file"], ["file: expected a folder in BEIR's layout", "it is a file"]),
        ("text", ["CORPUS={}/file"], ["file: expected a folder in BEIR's layout", "it is a file"]),
        ("text", ["CORPUS={}/empty"], ["corpus.jsonl: expected a line of JSON", "an empty file"]),
        ("beir", ["CORPUS={}/empty"], ["corpus.jsonl: expected a line of JSON", "an empty file"]),
        ("beir", ["CORPUS={}/unjudged"], ["expected judged queries", "run recipes/text.gin"]),
        ("beir", ["DEV_SHARE=2"], ["complete_splits.dev_share: expected", "found 2 (dev_share = 2 "
                                   "at command line --gin.DEV_SHARE"]),
        ("beir", ["VOCABULARY_SIZE=0"], ["train_tokenizer.vocabulary_size: expected at least 6, "
                                         "found 0", "--gin.VOCABULARY_SIZE"]),
        ("beir", ["PASSAGE_LENGTH=0"], ["prepare.length: expected at least 3, found 0"]),
        ("beir", ["WEIGHTS={{'labelled': 0}}"], ["PairMixture.weights: expected a weight above 0"]),
        ("beir", ["TEMPERATURE=0"], ["EmbeddingConfig.temperature must be above 0, found 0"]),
        ("beir", ["EVALUATE_EVERY=0", "LOG_EVERY=0"], ["Cadence."]),
        ("beir", ["evaluation/BASELINE=bm52"], ["expected some of ['bag_of_embeddings', 'bm25',",
                                                "found 'bm52'"]),
        ("beir", ["evaluate.evaluate.samples=0"], ["evaluate.samples: expected at least 1"]),
        ("beir", ["prepare.prepare.max_bad_records=-1"], ["max_bad_records: expected 0 or more"]),
        ("beir", ["retriever/train.train.development_metric=dve/MRR@10"],
         ["train.development_metric: expected 'evaluator/metric', found 'dve/MRR@10'"]),
        ("beir", ["retriever/train.train.development_metric=dev/nDGC@10"],
         ["found 'dev/nDGC@10'; train.evaluators gives dev/MRR@10", "did you mean dev/nDCG@10?"]),
        ("beir", ["evaluate.evaluate.splits=3"],
         ["evaluate.evaluate has no parameter 'splits'; did you mean split?"]),
        ("simlm", ["HEADS=5"], ["set by --gin.bert.BertConfig.heads=VALUE"]),
        ("simlm", ["bert.BertConfig.heads=5"], ["hidden must be a multiple of heads"]),
        ("untouched", ["CORPUS={}/no_test", "PUBLISHED={}/published"],
         ["qrels/test.tsv", "its tokenizer, one of tokenizer.json, vocab.txt",
          "{}/published: expected weights, a .safetensors file", "into the folder"]),
    ],
)  # fmt: skip
def test_a_wrong_input_is_refused_before_the_first_stage(recipe_name, settings, messages, place):
    inputs = {"simlm": ["CORPUS={}/good"], "untouched": []}.get(recipe_name, ["CORPUS={}/good"])
    given = {one.partition("=")[0] for one in settings}
    inputs = [one for one in inputs if one.partition("=")[0] not in given]
    found = refused(recipe_name, place, *inputs, *settings)
    for message in messages:
        assert message.format(place) in found, found
    assert "same command" not in found and not (place / "run").exists()


def test_what_is_wrong_with_a_recipe_comes_in_one_message(place):
    found = refused("beir", place, "CORPUS={}/good", "STEPS=-5", "PASSES=x", "RUN_DIR={}/file/a")
    assert set(found.splitlines()[1:]) == {
        "command line --gin.STEPS: STEPS must be 0 or more, found -5.",
        "command line --gin.PASSES: PASSES must be int, found 'x'.",
    }
    assert found.startswith("RUN_DIR: expected a folder")


def test_a_folder_without_permission_is_refused_before_the_first_stage(place, monkeypatch):
    flags = flags_of("beir", place, "CORPUS={}/good")
    loaded = recipe_reader.load(flags)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(place))
    monkeypatch.setattr(recipe_checks, "survey", lambda *a: pytest.fail("asked too late"))
    with pytest.raises(links.StoreError, match="no permission to write in .*Choose another"):
        recipe.execute(loaded, flags)


def store(path, count):
    """A token store of which only the manifest is there."""
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "count": count}
    text = json.dumps(manifest, sort_keys=True)
    path.mkdir()
    manifest["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(manifest))
    return str(path)


@pytest.mark.parametrize(
    ("queries", "passages", "message"),
    [
        (7, 50, "a batch of 8 queries needs as many different ones, found 7. Set QUERIES to 7"),
        (8, 1, "the store holds 1 passages: expected 2 or more"),
        (8, 50, ""),
        (None, 50, ""),  # still to be made
    ],
)
def test_a_batch_is_compared_with_stores_that_are_there(queries, passages, message, tmp_path):
    folders = {
        name: str(tmp_path / name) if count is None else store(tmp_path / name, count)
        for name, count in (("queries", queries), ("passages", passages))
    }
    values = {
        "QUERY_STORE": folders["queries"], "STORE": folders["passages"],
        "NEGATIVES": f"{tmp_path}/negatives", "TOKENIZER": f"{tmp_path}/tokenizer",
        "QUERIES": 8, "PASSAGES": 16, "GROUP_SIZE": 2, "QUERY_LENGTH": 16, "PASSAGE_LENGTH": 16,
        "LEARNING_RATE": 1e-3, "STEPS": 10, "WARMUP_STEPS": 1, "SEED": 1, "TEMPERATURE": 0.1,
        "MODEL_DIR": f"{tmp_path}/run",
    }  # fmt: skip
    stage = {
        "name": "retriever",
        "job": "t5x_style.train.train",
        "files": [
            "gin_configs/runs/training/train.gin",
            "gin_configs/objectives/bi_encoder.gin",
            "gin_configs/models/tiny_pairs.gin",
            "gin_configs/data/pairs/pairs.gin",
        ],
        "overrides": [[name, repr(value)] for name, value in values.items()],
        "search_paths": ["."],
        "allow": [],
    }
    found = "\n".join(stage_checks.of_stage(stage))
    assert message in found if message else found == ""
