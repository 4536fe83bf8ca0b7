"""A new source is one file and a gin binding: the one below is defined here and nowhere else.

`Threads` reads a format that no shipped source reads. The tests use it as a user would, by gin
files that they write themselves: to train a tokenizer, to prepare stores, mixed with other sources.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, Record
from input_pipelines.store.token_store import TokenStore

REPOSITORY = Path(__file__).resolve().parents[3]
GIN = """\
from __gin__ import dynamic_registration

from tests.input_pipelines.sources import test_new_source

SOURCE = @test_new_source.Threads()

test_new_source.Threads.path = %CORPUS
"""
MIXED = """\
from __gin__ import dynamic_registration

from input_pipelines.sources import mixtures
from input_pipelines.sources import text_sources
from input_pipelines.tokenizers import tokenization
from t5x_style import stage
from tests.input_pipelines.sources import test_new_source

SOURCE = @mixtures.Mixture()

stage.run.inputs = [%CORPUS, %PLAIN]

tokenization.train_tokenizer.sample = 12

mixtures.Mixture:
  members = [('threads', @test_new_source.Threads(), 1.0), ('plain', @text_sources.Lines(), 2.0)]
  alpha = 0.7

test_new_source.Threads.path = %CORPUS

text_sources.Lines:
  paths = [%PLAIN]
  max_line_bytes = 1000
"""
TEXT = """\
Größe
the sea is blue
---
Title of two
the sand is white. The sky is wide.
---
no text
---
"""


@dataclasses.dataclass(frozen=True)
class Threads:
    """Entries of a title and a text, each a line, with '---' after each."""

    path: str

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """See `text_sources.TextSource`."""
        entry: list[str] = []
        for number, line in text_sources.lines(self.path, 1000, bad):
            if line != "---":
                entry.append(line)
                continue
            if len(entry) == 2:
                yield Record(f"e{number}", entry[0], entry[1], f"{Path(self.path).name}:{number}")
            else:
                where = f"{self.path}:{number}"
                bad.add(where, "not_an_entry", "expected a title and a text", " ".join(entry))
            entry = []


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "threads.txt"
    path.write_text(TEXT, encoding="utf-8")
    (tmp_path / "threads.gin").write_text(GIN)
    return path


def run_stage(folder: Path, *arguments: str) -> None:
    """Runs a stage as a user does whose code is not one of Kennel's packages."""
    command = [sys.executable, "-m", "t5x_style.stage", "--gin_allow=tests", *arguments]
    done = subprocess.run(
        [*command, f"--gin.MODEL_DIR={folder}"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def train(folder: Path, *arguments: str) -> Path:
    more = ("--gin.VOCABULARY_SIZE=120", "--gin.tokenization.train_tokenizer.max_bad_records=1")
    run_stage(folder, "--gin_file=gin_configs/runs/tokenizers/wordpiece.gin", *arguments, *more)
    return folder / "tokenizer"


@pytest.mark.parametrize(("run", "ids"), [("prepare", ""), ("prepare_blocks", "#0")])
def test_one_file_and_a_gin_binding_are_enough(
    run: str, ids: str, corpus: Path, tmp_path: Path
) -> None:
    source = (f"--gin_file={tmp_path}/threads.gin", f"--gin.CORPUS={corpus}")
    tokenizer = train(tmp_path / "trained", *source)
    folder = tmp_path / "prepared"
    run_stage(
        folder, f"--gin_file=gin_configs/runs/{run}.gin", *source, f"--gin.TOKENIZER={tokenizer}",
        "--gin.KIND=passage", "--gin.LENGTH=32", "--gin.prepare.prepare.workers=1",
        "--gin.prepare.prepare.max_bad_records=1",
    )  # fmt: skip
    opened = TokenStore.open(str(folder / "store"))
    assert list(opened.ids) == [f"e3{ids}", f"e6{ids}"]
    assert opened.text(0).title == "Größe"
    assert opened.text(1).text == "the sand is white. The sky is wide."
    report = json.loads((folder / "report.json").read_text())
    assert report["dropped"] == {"not_an_entry": 1}
    assert report["bad_records"] == [f"{corpus}:8: expected a title and a text: 'no text'"]


def test_the_source_gives_the_tokenizer_of_its_texts(corpus: Path, tmp_path: Path) -> None:
    threads = train(
        tmp_path / "threads", f"--gin_file={tmp_path}/threads.gin", f"--gin.CORPUS={corpus}"
    )
    path = tmp_path / "plain.txt"
    texts = [f"{one.title} {one.text}\n" for one in Threads(str(corpus)).records(BadRecords(1))]
    path.write_text("".join(texts), encoding="utf-8")
    lines = train(
        tmp_path / "lines", "--gin_file=gin_configs/sources/lines.gin", f"--gin.CORPUS={path}"
    )
    for name in ("tokenizer.json", "vocab.txt"):
        assert (threads / name).read_bytes() == (lines / name).read_bytes()


def test_it_is_mixed_with_other_sources_by_gin(corpus: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("a line of its own\nand another\n")
    (tmp_path / "mixed.gin").write_text(MIXED)
    folder = train(
        tmp_path / "mixed", f"--gin_file={tmp_path}/mixed.gin", f"--gin.CORPUS={corpus}",
        f"--gin.PLAIN={plain}",
    )  # fmt: skip
    entries = set((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    assert {"sea", "another"} <= entries
