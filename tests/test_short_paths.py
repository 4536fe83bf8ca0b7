"""docs/short_paths.md: commands and files fit together, are short, and run on a small folder."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import cli
from t5x_style.configuration import gin_checks, gin_reader
from t5x_style.workflow import recipe_planning, recipe_reader
from tests.kits import published_folders, virtual_devices

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/short_paths.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^(?:`(mine/\S+)`\n)?```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {name: text for name, text in BLOCKS if name}
COMMANDS = [line for name, text in BLOCKS if not name for line in text.splitlines()]
RUNS = [line for line in COMMANDS if line.startswith("kennel run ")]
JOBS = ["1", "2", "3", "4", "5", "6"]

# What makes any of the jobs a matter of seconds; the model is that of the page.
COMMON = ["STEPS=2", "WARMUP_STEPS=1", "QUERIES=4", "BAG_STEPS=2", "BAG_QUERIES=4"]
COMMON += ["EVALUATE_EVERY=2", "prepare.prepare.workers=1"]
PRETRAINING = ["VOCABULARY_SIZE=300", "ROWS=2", "QUERY_LENGTH=16", "PASSAGE_LENGTH=32"]
PRETRAINING += ["PRETRAIN_STEPS=2", "PRETRAIN_WARMUP_STEPS=1"]
SETTINGS = {
    "retromae": [*COMMON, *PRETRAINING],
    "retromae_text": [one for one in [*COMMON, *PRETRAINING] if "BAG" not in one],
    "retromae_published": [*COMMON, *PRETRAINING[1:]],
    # Texts of so few words nearly repeat each other.
    "finetune": [*COMMON, "LEAKS=drop"],
    "untouched": ["prepare.prepare.workers=1"],
}


def settings(command: str) -> list[str]:
    """NAME=VALUE of a command."""
    return [word for word in shlex.split(command)[3:] if "=" in word]


def recipe_of(command: str) -> str:
    """The name of our recipe that a command runs, in a file of the page or by itself."""
    named = shlex.split(command)[2]
    text = FILES.get(named, f"include 'gin_configs/recipes/{named}.gin'")
    (found,) = re.findall(r"include 'gin_configs/recipes/(\w+)\.gin'", text)
    return found


def judged(folder: Path, splits: dict[str, range]) -> Path:
    """A BEIR folder of 48 passages; query i asks for passage i."""
    words = published_folders.WORDS
    folder.mkdir(parents=True)
    texts = [
        " ".join(words[(n * step + n // 7) % len(words)] for step in range(3, 15))
        for n in range(48)
    ]
    passages = [
        {"_id": f"p{n}", "title": words[n % len(words)], "text": t} for n, t in enumerate(texts)
    ]
    queries = [{"_id": f"q{n}", "text": t[:30]} for n, t in enumerate(texts)]
    for name, rows in (("corpus", passages), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "qrels").mkdir()
    for split, numbers in splits.items():
        lines = "".join(f"q{n}\tp{n}\t1\n" for n in numbers)
        (folder / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


@pytest.fixture(scope="module", name="place")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page calls path/to/..., and its files."""
    place = tmp_path_factory.mktemp("short_paths")
    path = place / "path/to"
    judged(path / "folder", {"train": range(24), "dev": range(24, 34), "test": range(34, 48)})
    judged(path / "test_only", {"test": range(40)})
    (path / "text").mkdir()
    shutil.copy(path / "folder/corpus.jsonl", path / "text")
    published_folders.published(place / "st").rename(path / "encoder")
    published_folders.encoder(place / "plain", "electra").rename(path / "electra")
    for name in ("encoder", "electra"):
        (path / name / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    (place / "mine").mkdir()
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    return place


@pytest.fixture(name="inside")
def go_inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(place)
    yield place


def test_each_job_has_a_command_and_all_are_short() -> None:
    assert re.findall(r"^## (\d)\.", PAGE, re.MULTILINE) == JOBS
    for part in re.split(r"^## \d\.", PAGE, flags=re.MULTILINE)[1:]:
        assert "\nkennel run " in part
    assert all(len(settings(command)) <= 6 for command in RUNS)
    assert all(len([line for line in text.splitlines() if line]) <= 15 for text in FILES.values())
    assert {shlex.split(one)[2] for one in RUNS} >= FILES.keys()


@pytest.mark.parametrize("command", RUNS)
def test_every_stage_fits_together(command: str, inside: Path) -> None:
    """As the page has it: names, types, and a plan of every stage; nothing is run."""
    _, module, *argv = cli.python_arguments(shlex.split(command)[1:])
    assert module == "launch.recipe"
    flags = gin_checks.parse_flags(argv)
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    for stage in recipe.stages:
        config = recipe_planning.stage_flags(recipe, stage, flags, pending).read()
        gin_checks.check_names(config, (gin_reader.RUN, stage.job))
        gin_checks.check_code(config)
        gin_checks.check_job(config, stage.job)
    assert {"vectors", "index", "search"} <= {stage.name for stage in recipe.stages}


def kennel(folder: Path, *words: str) -> str:
    """What a command prints, run in a folder with one device."""
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": virtual_devices.flags()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_dir(command: str) -> Path:
    """Where a command writes, relative to the folder that it is run in."""
    text = FILES.get(shlex.split(command)[2], "")
    (found,) = re.findall(r"RUN_DIR ?= ?'?([\w/]+)", command + text)
    return Path(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
def test_it_runs_to_its_end(command: str, place: Path) -> None:
    """With as few steps as there can be; stages that commands share are made once."""
    recipe = recipe_of(command)
    given = [one for one in SETTINGS[recipe] if one.partition("=")[0] not in command]
    kennel(place, *shlex.split(command)[1:], *given)
    made = place / run_dir(command)
    assert (made / "index").is_dir()
    if recipe != "retromae_text":
        folder = made if recipe == "untouched" else made / "evaluation"
        measured = json.loads((folder / "metrics.json").read_text())
        names = {
            "untouched": {"bm25", "published"},
            "finetune": {"bm25", "untouched", "finetuned", "bag_of_embeddings", "fusion"},
        }.get(recipe, {"bm25", "retriever", "bag_of_embeddings", "fusion"})
        assert set(measured["systems"]) == names
    answer = kennel(place, "search", f"--run={run_dir(command)}", "-k", "3", "sort a list")
    hits = [line for line in answer.splitlines() if re.match(r"\d+\t", line)]
    assert len(hits) == 3 and hits[0].startswith("1\t")
