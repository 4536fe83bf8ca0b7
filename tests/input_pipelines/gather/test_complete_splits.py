"""Collections that lack a split are completed; the original is not touched."""

import json
from pathlib import Path

import pytest

from input_pipelines.gather.complete_splits import complete_splits
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords, SourceError

HEADER = "query-id\tcorpus-id\tscore\n"


def collection(folder: Path, **judged: int) -> str:
    """A BEIR folder with so many queries in each split, and a passage for each."""
    (folder / "qrels").mkdir(parents=True)
    names = [f"{split}{i}" for split, count in judged.items() for i in range(count)]
    passages = [{"_id": f"p-{name}", "title": "", "text": "text"} for name in names]
    _lines(folder / "corpus.jsonl", passages or [{"_id": "p", "title": "", "text": "text"}])
    _lines(folder / "queries.jsonl", [{"_id": name, "text": "query"} for name in names])
    for split, count in judged.items():
        rows = [f"{split}{i}\tp-{split}{i}\t1\n" for i in range(count)]
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(rows))
    return str(folder)


def _lines(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def completed(corpus: str, folder: Path) -> dict[str, set[str]]:
    """Split -> queries, after the job."""
    outputs = complete_splits(corpus, 0.2, 500, 50, 0, str(folder))
    made = str(folder / outputs["corpus"])
    return {split: set(beir.query_ids(made, split)) for split in ("train", "dev", "test")}


def test_complete_collections_stay_as_they_are(tmp_path: Path) -> None:
    corpus = collection(tmp_path / "in", train=60, dev=3, test=4)
    found = completed(corpus, tmp_path / "out")
    assert {split: len(names) for split, names in found.items()} == {
        "train": 60,
        "dev": 3,
        "test": 4,
    }


def test_development_queries_are_held_out_of_the_training_queries(tmp_path: Path) -> None:
    corpus = collection(tmp_path / "in", train=200, test=4)
    found = completed(corpus, tmp_path / "out")
    assert 20 <= len(found["dev"]) <= 60
    assert found["train"] | found["dev"] == {f"train{i}" for i in range(200)}
    assert not found["train"] & found["dev"]
    assert sorted(path.name for path in (tmp_path / "in/qrels").iterdir()) == [
        "test.tsv",
        "train.tsv",
    ]


def test_no_more_than_the_limit_is_held_out(tmp_path: Path) -> None:
    corpus = collection(tmp_path / "in", train=400)
    complete_splits(corpus, 0.5, 40, 50, 0, str(tmp_path / "out"))
    held_out = beir.query_ids(str(tmp_path / "out/corpus"), "dev")
    assert 20 <= len(held_out) <= 60


@pytest.mark.parametrize("judged", [{"test": 4}, {"train": 30, "test": 4}])
def test_a_split_without_queries_has_a_file_without_lines(
    tmp_path: Path, judged: dict[str, int]
) -> None:
    corpus = collection(tmp_path / "in", **judged)
    found = completed(corpus, tmp_path / "out")
    assert {split: len(names) for split, names in found.items() if names} == judged
    assert beir.read_qrels(str(tmp_path / "out/corpus"), "dev", BadRecords(0)) == []


def test_text_without_judged_queries_is_refused(tmp_path: Path) -> None:
    corpus = collection(tmp_path / "in")
    with pytest.raises(SourceError, match="expected judged queries, .* run recipes/text.gin"):
        complete_splits(corpus, 0.2, 500, 50, 0, str(tmp_path / "out"))
