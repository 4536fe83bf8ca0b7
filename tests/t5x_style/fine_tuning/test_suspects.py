"""Labelled pairs that are probably wrong are listed, and those that a search finds are not."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from t5x_style import suspects
from t5x_style.mining.candidates import Bm25, Hits
from t5x_style.retrieval import beir_collection

COUNT, WRONG, DEPTH = 200, 40, 10
WORDS = [first + second + "x" for first in "bdfgklmnpr" for second in "aeiou"]


def write(folder: Path) -> set[tuple[str, str]]:
    """A query a passage, with half its words; a fifth of the pairs are shuffled: these."""
    generator = random.Random(0)
    texts = [generator.sample(WORDS, 8) for _ in range(COUNT)]
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": f"p{n}", "title": "", "text": " ".join(t)} for n, t in enumerate(texts)]
    queries = [{"_id": f"q{n}", "text": " ".join(t[:4])} for n, t in enumerate(texts)]
    for name, records in (("corpus", passages), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    answers = list(range(COUNT))
    answers[:WRONG] = [*range(1, WRONG), 0]
    rows = [f"q{n}\tp{answer}\t1" for n, answer in enumerate(answers)]
    text = "\n".join(["query-id\tcorpus-id\tscore", *rows, ""])
    (folder / "qrels/train.tsv").write_text(text)
    return {(f"q{n}", f"p{answers[n]}") for n in range(WRONG)}


class FirstOnly:
    """Finds the passage of one query, and gives the pairs falling scores."""

    made_by = version = "first"

    def __init__(self, passages, queries):
        self.ids = passages.ids

    def search(self, queries, positives, depth):
        for number, rows in enumerate(positives):
            hits = np.array([rows[0] if number == 0 else -1], np.int32)
            yield Hits(np.zeros(1), hits, np.full(len(rows), -float(number)))

    def stems(self, rows):
        raise AssertionError("no text is compared")


def found(folder: Path, searches, out: Path) -> tuple[list[dict], dict]:
    out.mkdir()
    outputs = suspects.suspects(str(folder), "train", searches, DEPTH, str(out))
    lines = [json.loads(line) for line in (out / outputs["suspects"]).read_text().splitlines()]
    return lines, json.loads((out / outputs["report"]).read_text())


def test_shuffled_pairs_are_listed(tmp_path: Path, capsys) -> None:
    wrong = write(tmp_path / "data")
    lines, report = found(tmp_path / "data", [Bm25], tmp_path / "out")
    listed = {(line["query_id"], line["passage_id"]) for line in lines}
    assert listed <= wrong and len(listed) > 0.8 * WRONG  # some are found by chance
    assert report["pairs"] == COUNT and report["suspect"] == len(lines) == len(listed)
    assert report["examples"] == lines[: suspects.SHOWN]
    texts = beir_collection.read_queries(tmp_path / "data")
    assert lines[0]["query"] == texts[lines[0]["query_id"]] and lines[0]["passage"]
    assert f"{len(lines)} of 200 train pairs" in capsys.readouterr().out


def test_one_search_that_finds_a_pair_is_enough(tmp_path: Path) -> None:
    wrong = write(tmp_path / "data")
    one, _ = found(tmp_path / "data", [Bm25], tmp_path / "one")
    both, _ = found(tmp_path / "data", [Bm25, FirstOnly], tmp_path / "both")
    assert {line["query_id"] for line in both} == {line["query_id"] for line in one} - {"q0"}
    numbers = [int(line["query_id"][1:]) for line in both]
    assert numbers == sorted(numbers, reverse=True)  # the last search's lowest scores come first
    assert len(wrong) == WRONG


def test_nothing_to_look_at(tmp_path: Path) -> None:
    write(tmp_path / "data")
    (tmp_path / "data/qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    lines, report = found(tmp_path / "data", [Bm25], tmp_path / "out")
    assert lines == [] and report["pairs"] == report["suspect"] == 0
    with pytest.raises(ValueError, match="suspects.depth: expected at least 1, found 0"):
        suspects.check(str(tmp_path / "data"), "train", 0)
    with pytest.raises(FileNotFoundError):
        suspects.check(str(tmp_path / "data"), "dev", 1)
