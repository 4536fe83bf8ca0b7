"""CONTRIBUTING.md is run as written: its files in a folder, then its command."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits import virtual_devices

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(mine/\S+)`\n```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMAND = re.search(r"^```\n(python -m launch\.recipe [^\n]*)\n```$", PAGE, re.MULTILINE)


def test_every_block_has_a_file_or_is_the_command() -> None:
    assert PAGE.count("\n```") == 2 * (len(FILES) + 1) and COMMAND is not None
    sections = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    wanted = ["source of text", "encoder", "objective", "source of batches", "index", "stage"]
    assert [f"A{'n' if one[0] in 'eio' else ''} {one}" for one in wanted] == sections[1:-1]
    assert sections[0] == "Where things are"


def run(folder: Path, *flags: str) -> str:
    """Runs the command in the folder, with packages and gin files of the checkout; its output."""
    assert COMMAND is not None
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    paths = os.pathsep.join([str(folder), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, "XLA_FLAGS": virtual_devices.flags()}
    done = subprocess.run(
        [sys.executable, *COMMAND[1].split()[1:], *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_recipe_is_whole(tmp_path: Path) -> None:
    """Its gin files, modules and arguments; the next test runs it."""
    assert "what would run (nothing was)" in run(tmp_path, "--dry_run")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_recipe_runs_each_of_them(tmp_path: Path) -> None:
    run(tmp_path)
    runs = tmp_path / "runs" / "mine"
    counts = json.loads((runs / "words" / "counts.json").read_text())
    assert counts[0] == ["the", 9]
    published = next((runs / "index").rglob("manifest.json"))
    manifest = json.loads(published.read_text())
    assert manifest["kind"] == "mine.int8_index.Int8" and manifest["count"] == 4
    lines = (runs / "model" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line) for line in lines]
    assert any("loss" in key for line in losses for key in line)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_its_code_has_docstrings_and_short_lines(name: str) -> None:
    tree = ast.parse(FILES[name])
    assert ast.get_docstring(tree) and max(map(len, FILES[name].splitlines())) <= 100
