"""Folder, SavedModel and search of an encoder with prompts, as stages of a recipe.

The checkpoint is the published encoder untouched: all three must have its published vectors.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t5x_style.interfaces.verdict_record import NOTICE
from tests.kits import published_folders as folders
from tests.kits import virtual_devices
from tests.kits.interop import needs_interop
from tests.kits.toys import verdicts
from tests.models.interop.test_untouched import PROMPTS

REPOSITORY = Path(__file__).resolve().parents[3]
RECIPE = """include 'recipes/untouched.gin'
COMMAND = 'kennel run mine.gin'

finetuned_folder/recipe.Stage:
  kind = 'finetuned_folder'
  inputs = {'CHECKPOINT': %model.model, 'VERDICT': 'verdict.json'}
  publish = {'model_card.md': 'card'}

finetuned_saved_model/recipe.Stage:
  kind = 'finetuned_saved_model'
  inputs = {'CHECKPOINT': %model.model, 'VERDICT': 'verdict.json'}
"""
QUESTION = folders.TEXTS[2]


def kennel(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "launch.cli", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "XLA_FLAGS": virtual_devices.flags()},
        capture_output=True,
        text=True,
    )


def run(folder: Path, *settings: str) -> subprocess.CompletedProcess:
    fixed = ("PUBLISHED=made/tokenizer", "CORPUS=made/texts", "RUN_DIR=run")
    return kennel(folder, "run", "mine.gin", *fixed, "prepare.prepare.workers=1", *settings)


@pytest.fixture(name="place")
def make_place(tmp_path) -> Path:
    folders.published(tmp_path / "made", settings=PROMPTS)
    (tmp_path / "mine.gin").write_text(RECIPE)
    verdicts.write(tmp_path / "verdict.json")
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "message"),
    [((), "Find out the licence"), (("LICENCE=apache2.0",), "Did you mean apache-2.0")],
)
def test_a_licence_is_missed_before_the_first_stage(settings, message, place):
    done = run(place, *settings)
    assert done.returncode == 1 and message in " ".join((done.stdout + done.stderr).split())
    assert not (place / "run/tokenizer").exists()


@pytest.mark.slow
@needs_interop
def test_the_recipe_to_its_end(place):
    from sentence_transformers import SentenceTransformer

    done = run(place, "LICENCE=mit")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    published = SentenceTransformer(str(place / "made/tokenizer"), device="cpu")
    found = SentenceTransformer(str(place / "run/finetuned_folder/encoder"), device="cpu")
    texts, prompt = folders.TEXTS, PROMPTS["prompts"]["query"]
    expected = published.encode_query(texts)
    np.testing.assert_allclose(found.encode_query(texts), expected, atol=1e-5)
    np.testing.assert_allclose(
        found.encode_document(texts), published.encode_document(texts), atol=1e-5
    )
    (version,) = (place / "run/finetuned_saved_model/saved_model").glob("*")
    np.testing.assert_allclose(
        in_tensorflow(version, [prompt + text for text in texts]), expected, atol=1e-5
    )
    assert "VERDICT better" in (place / "run/model_card.md").read_text()
    assert_search(place, published)
    assert_worse(place)


def in_tensorflow(version: Path, texts: list[str]) -> np.ndarray:
    """The SavedModel's vectors of queries with their prefix, by the code of docs/export.md."""
    page = (REPOSITORY / "docs/export.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    given = [text.removeprefix(PROMPTS["prompts"]["query"]) for text in texts]
    done = subprocess.run(
        [sys.executable, "-c", code, str(version), *given], capture_output=True, check=True
    )
    return np.array(json.loads(done.stdout))


def assert_search(place: Path, published) -> None:
    """`kennel search` puts the prompt before a question: scores are those of the library."""
    done = kennel(place, "search", "--run=run", QUESTION)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 4]
    passages = published.encode_document([f"title {text}" for text in folders.TEXTS])
    scores = (published.encode_query([QUESTION]) @ passages.T)[0]
    best = sorted(scores, reverse=True)[: len(rows)]
    assert rows
    np.testing.assert_allclose([float(row[1]) for row in rows], best, atol=1e-4)


def assert_worse(place: Path) -> None:
    """With another verdict, the two stages run again and leave pages; all others are done."""
    verdicts.write(place / "verdict.json", **verdicts.WORSE)
    done = run(place, "LICENCE=mit")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for stage in ("finetuned_folder", "finetuned_saved_model"):
        assert (place / "run" / stage / NOTICE).is_file(), stage
    assert not (place / "run/finetuned_folder/encoder").exists()
    assert not (place / "run/finetuned_saved_model/saved_model").exists()
    assert (place / "run/model_card.md").read_text().startswith("# Not exported")
