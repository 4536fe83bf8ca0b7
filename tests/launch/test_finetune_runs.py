"""`kennel finetune` to its end on a tiny encoder: verdicts, planted traps, kills."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t5x_style.checkpoints import checkpointing
from t5x_style.interfaces.representation import KINDS
from tests.kits import published_folders, virtual_devices
from tests.kits.interop import needs_interop

ROOT = Path(__file__).resolve().parents[2]
# What makes a run short, and a tiny encoder of random weights learn.
SETTINGS = ["EPOCHS=40", "LEARNING_RATE=5e-3", "QUERIES=32", "BAG_STEPS=2", "BAG_QUERIES=8"]
SETTINGS += ["prepare.prepare.workers=1", "DEVELOPMENT_SAMPLE=100", "LICENCE=mit"]
SIZES = {"train": 1000, "dev": 220, "test": 300}


def passages(count: int, seed: int) -> list[list[str]]:
    """Different sets of five words."""
    words, found = sorted(set(published_folders.WORDS)), set()
    generator = random.Random(seed)
    while len(found) < count:
        found.add(tuple(sorted(generator.sample(words, 5))))
    return [list(one) for one in sorted(found, key=lambda _: generator.random())]


def write(folder: Path, wrong: float = 0.0, shared: int = 0) -> Path:
    """Pairs by split. A query asks with other words than its passage has: word i for word i + 5.

    Only a training can find out which; the first `shared` words are those of the passage. The first
    `wrong` of the training pairs have the passage of another query; with 1.0 there is nothing to
    find out.
    """
    folder.mkdir(parents=True)
    words = sorted(set(published_folders.WORDS))
    other = dict(zip(words, words[5:] + words[:5], strict=True))
    texts = iter(passages(sum(SIZES.values()), 0))
    for split, size in SIZES.items():
        chosen = [next(texts) for _ in range(size)]
        asked = [[*one[:shared], *(other[word] for word in one[shared:])] for one in chosen]
        queries = [" ".join(one) for one in asked]
        positives = [" ".join(one) for one in chosen]
        if split == "train":
            count = round(wrong * size)
            positives[:count] = positives[1:count] + positives[: min(1, count)]
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [("query", "passage"), *zip(queries, positives, strict=True)]
            )
    return folder


@pytest.fixture(scope="module", name="place")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two encoders, one of them with prompts, and four kinds of data."""
    place = tmp_path_factory.mktemp("finetune")
    published_folders.published(place / "st").rename(place / "encoder")
    prompts = {"prompts": {"query": "list: ", "passage": "file: "}}
    published_folders.published(place / "st_prompts", settings=prompts).rename(place / "prompted")
    write(place / "right")
    write(place / "words", shared=2)
    write(place / "fifth", wrong=0.2)
    write(place / "wrong", wrong=1.0)
    return place


def start(
    place: Path, data: str, run: str, encoder: str = "encoder", *more: str
) -> subprocess.Popen:
    words = [f"--model={place}/{encoder}", f"--data={place}/{data}", f"--run_dir={place}/{run}/run"]
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "launch.cli", "finetune", *words, *SETTINGS, *more],
        env=os.environ | {"XLA_FLAGS": virtual_devices.flags(), "COLUMNS": "120"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip


def finished(process: subprocess.Popen) -> str:
    output = process.communicate()[0]
    assert process.returncode == 0, output[-3000:]
    return output


def rows(file: Path) -> list[tuple[str, str]]:
    """(query, passage) of a file of `write`."""
    with file.open(newline="") as opened:
        return [(query, passage) for query, passage in list(csv.reader(opened))[1:]]


def verdict(place: Path, run: str) -> dict:
    """verdict.json, after a look at the page."""
    folder = place / run / "run"
    found = json.loads((folder / "verdict/verdict.json").read_text())
    page = (folder / "report/summary.md").read_text()
    assert page.splitlines()[0] == found["line"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["encoder", "prompted"])
def test_pairs_that_can_be_learned_make_it_better(place: Path, encoder: str) -> None:
    run = f"right_{encoder}"
    # Random weights and a prompt in common make all texts alike: no score is far below another.
    more = ["MAX_SCORE_RATIO=0.0"] if encoder == "prompted" else []
    finished(start(place, "right", run, encoder, *more))
    found = verdict(place, run)
    assert found["verdict"] == "better" and found["interpolation"] > 0, found["line"]
    assert found["queries"] == {"train": 1000, "dev": 220, "test": 300}
    log = (place / run / "run/retriever/metrics.jsonl").read_text().splitlines()
    evaluated = [one for one in map(json.loads, log) if "eval/dev/nDCG@10" in one]
    assert len(evaluated) >= 9  # eight, and the start
    settings = "config_sentence_transformers.json"
    prompts = [
        json.loads((folder / settings).read_text()).get("prompts", {})
        for folder in (place / encoder, place / run / "run/export/encoder")
    ]
    assert prompts[0].items() <= prompts[1].items()


@pytest.mark.slow
def test_three_representations_are_one_search(place: Path) -> None:
    """The verdict is on their sum, here and elsewhere; folder, SavedModel and search have all."""
    published_folders.corpus(place / "elsewhere")
    more = [f"OTHER_COLLECTIONS=['{place}/elsewhere']", "VECTOR_SIZE=8", "EVALUATIONS=2"]
    more += ["m3/LEARNING_RATE=1e-3", "STEPS=300", "MAX_SCORE_RATIO=0.0"]
    more += ["LEAKS=drop"]  # some queries have the same words in another order
    finished(start(place, "words", "m3_run", "prompted", "--kind=m3", *more))
    found, folder = verdict(place, "m3_run"), place / "m3_run/run"
    assert found["verdict"] == "better" and found["system"] == "m3_all", found["line"]
    assert set(found["others"]["elsewhere"]["systems"]) == {"untouched", "m3_all"}
    weights = json.loads((folder / "m3_weights/contract.json").read_text())["combination"]
    exported = json.loads((folder / "export/encoder/contract.json").read_text())
    assert exported["combination"] == weights and set(weights["weights"]) == set(KINDS)
    heads = {"sparse_linear.pt", "colbert_linear.pt"}
    assert heads < {one.name for one in (folder / "export/encoder").iterdir()}
    assert (folder / "export/multi_vector/modules.json").exists()
    (saved,) = (folder / "saved_model/saved_model").glob("*/assets/contract.json")
    assert json.loads(saved.read_text())["combination"] == weights
    assert 0 <= json.loads((folder / "search_fusion/fusion.json").read_text())["weight"] <= 1
    command = [sys.executable, "-m", "launch.cli", "search", f"--run={folder}", "-k3", "close file"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split("\t")[0] for line in answer.strip().splitlines()] == ["1", "2", "3"]


@pytest.mark.slow
def test_shuffled_pairs_never_make_it_better(place: Path) -> None:
    finished(start(place, "wrong", "wrong_run"))
    assert verdict(place, "wrong_run")["verdict"] in ("no difference", "worse")


@pytest.mark.slow
@needs_interop
def test_a_fifth_of_the_pairs_wrong(place: Path) -> None:
    """The verdict is that of the saved encoder on clean test queries; wrong pairs are listed."""
    from sentence_transformers import SentenceTransformer

    finished(start(place, "fifth", "fifth_run"))
    folder, found = place / "fifth_run/run", verdict(place, "fifth_run")
    saved = SentenceTransformer(str(folder / "export/encoder"), device="cpu")
    pairs = {split: rows(place / "fifth" / f"{split}.csv") for split in SIZES}
    texts = sorted({passage for split in pairs.values() for _, passage in split})
    scores = saved.encode_query([query for query, _ in pairs["test"]]) @ saved.encode(texts).T
    right = [texts.index(passage) for _, passage in pairs["test"]]
    rank = (scores > scores[np.arange(len(right)), right][:, None] + 1e-6).sum(axis=1)
    ndcg = np.where(rank < 10, 1 / np.log2(rank + 2), 0.0).mean()
    judged = found["systems"]["finetuned"]["nDCG@10"]["value"]
    assert judged == pytest.approx(ndcg, abs=0.002), found["line"]
    assert found["difference"] == pytest.approx(
        judged - found["systems"]["untouched"]["nDCG@10"]["value"], abs=1e-9
    )
    lines = (folder / "suspects/suspects.jsonl").read_text().splitlines()
    listed = {(one["query"], one["passage"]) for one in map(json.loads, lines)}
    # Each of the two searches has 100 of 1,520 passages: an eighth is found by chance.
    assert len(listed & set(pairs["train"][:200])) >= 160


@pytest.mark.slow
def test_ten_kills_change_nothing(place: Path) -> None:
    """Killed in ten stages: the same verdict, figures of each query, and weights, bit for bit."""
    if not (place / "right_run").exists():
        finished(start(place, "right", "right_run"))
    stages = ["tokenizer", "collection", "passages", "vectors", "negatives", "bag_of_embeddings"]
    stages += ["retriever", "finetuned", "finetuned_vectors", "evaluation"]
    for stage in stages:
        process = start(place, "right", "killed")
        assert process.stdout is not None
        for line in process.stdout:
            if f"run/{stage}] writes" in line or f"run/{stage}] continues" in line:
                break
        else:
            pytest.fail(f"stage {stage} never began")
        if stage == "retriever":  # in the middle of the training
            for line in process.stdout:
                if "] step 40/" in line:
                    break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    finished(start(place, "right", "killed"))
    one, other = (place / name / "run" for name in ("right_run", "killed"))
    for name in (
        *("verdict/verdict.json", "verdict/verdict.md", "evaluation/metrics.json"),
        *("evaluation/per_query.json", "finetuned/interpolation.json", "negatives/negatives.jsonl"),
    ):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    weights = [checkpointing.read_parameters(folder / "finetuned") for folder in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(value, weights[1][path]) for path, value in weights[0].items())
