"""Every form of `kennel finetune` runs to its end, and leaves what the page promises."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from t5x_style.evaluation import ranking
from t5x_style.retrieval import beir_collection
from tests import test_short_paths
from tests.kits import published_folders, virtual_devices
from tests.kits.interop import needs_interop
from tests.models.interop import test_export_reranker

pytestmark = pytest.mark.slow
SETTINGS = ["STEPS=2", "QUERIES=4", "BAG_STEPS=2", "BAG_QUERIES=4", "EVALUATIONS=1"]
SETTINGS += ["prepare.prepare.workers=1", "LICENCE=mit", "LEAKS=drop"]
Run = Callable[..., Path]


@pytest.fixture(scope="module", name="place")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, a labelled folder of 48 passages, and their text alone."""
    place = tmp_path_factory.mktemp("forms")
    published_folders.published(place / "st").rename(place / "encoder")
    splits = {"train": range(24), "dev": range(24, 34), "test": range(34, 48)}
    test_short_paths.judged(place / "data", splits)
    (place / "text").mkdir()
    shutil.copy(place / "data/corpus.jsonl", place / "text")
    return place


@pytest.fixture(scope="module", name="run")
def make_run(place: Path) -> Run:
    """Runs a form once; the folder of its run."""

    def run(name: str, *flags: str, data: str = "data", settings: list[str] = SETTINGS) -> Path:
        folder = place / "runs" / name
        if not folder.exists():
            words = [f"--model={place}/encoder", f"--data={place}/{data}", f"--run_dir={folder}"]
            done = subprocess.run(
                [sys.executable, "-m", "launch.cli", "finetune", *words, *flags, *settings],
                env=os.environ | {"XLA_FLAGS": virtual_devices.flags()},
                cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return folder

    return run


def reranker(run: Run) -> Path:
    return run("reranker", "--kind=reranker", settings=[*RERANKER, "LEAKS=drop"])


RERANKER = ["STEPS=2", "RERANKER_QUERIES=2", "RERANKER_GROUP_SIZE=2", "BAG_STEPS=2"]
RERANKER += ["BAG_QUERIES=4", "prepare.prepare.workers=1", "LICENCE=mit"]
RERANKER += ["QUERY_LENGTH=12", "PASSAGE_LENGTH=20", "PAIR_LENGTH=32", "RERANKED=10"]


def begins_with_a_verdict(page: Path) -> bool:
    return page.read_text(encoding="utf-8").startswith("VERDICT no verdict: nDCG@10 of ")


def test_a_reranker(run: Run) -> None:
    folder = reranker(run)
    assert begins_with_a_verdict(folder / "summary.md")
    card = (folder / "export/cross_encoder/README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text-ranking" in card and "kind=reranker" in card
    assert "### With the scores of the search" in card


def test_a_reranker_is_searched_as_it_was_judged(place: Path, run: Run) -> None:
    folder = reranker(run)
    lists = ranking.read_run(folder / "evaluation/runs/reranker_and_search.trec")
    name, hits = next(iter(lists.items()))
    question = beir_collection.read_queries(folder / "collection/corpus")[name]
    command = [sys.executable, "-m", "launch.cli", "search", f"--run={folder}", "-k3", question]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    titles = [line.split("\t")[2] for line in answer.strip().splitlines()]
    passages = beir_collection.Passages(folder / "collection/corpus")
    found = [passages.passage(passages.row(one)) for one, _ in hits[:3]]
    assert titles == [one.title or one.id for one in found]


def test_a_reranker_over_a_retriever(place: Path, run: Run) -> None:
    flags = ["--kind=reranker", f"--retriever={place}/encoder"]
    folder = run("dense", *flags, settings=[*RERANKER, "LEAKS=drop"])
    assert begins_with_a_verdict(folder / "summary.md")
    found = json.loads((folder / "verdict/verdict.json").read_text(encoding="utf-8"))
    assert (found["system"], found["baseline"]) == ("reranker_and_search", "retriever")
    assert (found["weighed"]["first"], found["weighed"]["second"]) == ("reranker", "retriever")


def test_a_judge_of_negatives(run: Run) -> None:
    judge = reranker(run) / "export/cross_encoder"
    lengths = ["JUDGE_QUERY_LENGTH=12", "JUDGE_PASSAGE_LENGTH=20", "JUDGE_PAIR_LENGTH=32"]
    folder = run("judged", f"--judge={judge}", settings=[*SETTINGS, *lengths])
    assert begins_with_a_verdict(folder / "summary.md")
    assert (folder / "judged_negatives/negatives.jsonl").stat().st_size
    assert (folder / "export/encoder/README.md").exists()


@needs_interop
def test_a_judge_of_another_family(place: Path, run: Run) -> None:
    """A RoBERTa re-ranker has another head, and two [SEP]; its scores equal CrossEncoder's."""
    from sentence_transformers import CrossEncoder

    judge = roberta_judge(place / "roberta", place / "encoder/tokenizer.json")
    lengths = ["JUDGE_QUERY_LENGTH=16", "JUDGE_PASSAGE_LENGTH=40", "JUDGE_PAIR_LENGTH=56"]
    flags = [f"--judge={judge}", "--until=judge_scores"]
    folder = run("judged_otherwise", *flags, settings=[*SETTINGS, *lengths])
    scored = [json.loads(line) for line in (folder / "judge_scores/scored.jsonl").open()]
    passages = beir_collection.Passages(place / "data")
    asked = beir_collection.read_queries(place / "data")
    model = CrossEncoder(str(judge), device="cpu")
    for line in scored[:4]:
        found = line["teacher_scores"]
        texts = [passages.passage(passages.row(name)).content for name in found]
        pairs = [(asked[line["query_id"]], text) for text in texts]
        scores = list(found.values())
        np.testing.assert_allclose(model.predict(pairs), scores, atol=1e-4)
        assert np.std(scores) > 0


def roberta_judge(folder: Path, tokenizer: Path) -> Path:
    """A re-ranker with random weights, over the words of this tokenizer."""
    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    special = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", special
    )
    (folder / "words").mkdir(parents=True)
    words = test_export_reranker.write(made, folder / "words")
    config = test_export_reranker.size(words, position_offset=1, type_vocab=1)
    config = dataclasses.replace(config, max_positions=64)
    trained = test_export_reranker.trained(config, words, folder)
    return folder / trained.export(folder)["cross_encoder"]


def test_shorter_vectors(run: Run) -> None:
    folder = run("short", "--matryoshka=8,4")
    found = json.loads((folder / "verdict/verdict.json").read_text(encoding="utf-8"))
    assert {"8", "4"} <= found["short"].keys()
    assert "number of dimensions kept" in (folder / "summary.md").read_text(encoding="utf-8")


def test_folds(run: Run) -> None:
    folder = run("folds", "--folds=2", settings=[*SETTINGS[:-1], "KEEP_GIVEN=False"])
    assert (folder / "folds/summary.md").read_text(encoding="utf-8").startswith("VERDICT")
    assert not list(folder.glob("folds/fold_*/export"))


def test_text_without_queries(run: Run) -> None:
    settings = ["STEPS=2", "QUERIES=4", "prepare.prepare.workers=1", "LICENCE=mit"]
    folder = run("text", data="text", settings=settings)
    card = (folder / "model_card.md").read_text(encoding="utf-8")
    assert "license: mit" in card and "48 passages" in card and "--data=text" in card
    assert "0 passages" not in card and "its weights are 0.5 of the fine-tuned ones" in card
    assert "There were no test queries, so nothing was measured." in card
    assert (folder / "export/encoder/modules.json").exists()
    assert list((folder / "saved_model/saved_model").glob("*/saved_model.pb"))
