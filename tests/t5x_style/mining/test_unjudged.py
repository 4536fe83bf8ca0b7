"""A split whose file of qrels is empty: nothing is mined, measured or tuned on it."""

import json
from pathlib import Path

import pytest

from t5x_style import mine
from t5x_style.evaluation.retrieval_evaluator import RetrievalEvaluator
from t5x_style.mining import candidates, hard_negatives
from t5x_style.retrieval.beir_collection import has_judgements

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "qrels").mkdir(parents=True)
    passage = {"_id": "p", "title": "", "text": "the only passage"}
    (folder / "corpus.jsonl").write_text(json.dumps(passage) + "\n")
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "only"}) + "\n")
    (folder / "qrels/test.tsv").write_text(HEADER + "q\tp\t1\n")
    (folder / "qrels/dev.tsv").write_text(HEADER)
    return folder


def test_a_header_alone_judges_nothing(corpus: Path) -> None:
    assert has_judgements(corpus, "test")
    assert not has_judgements(corpus, "dev")
    with pytest.raises(FileNotFoundError, match="train"):
        has_judgements(corpus, "train")


def test_mining_for_no_query_leaves_an_empty_file(corpus: Path, tmp_path: Path) -> None:
    settings = hard_negatives.MiningSettings(10, 2, 0, 0.8, 0.0)
    outputs = mine.mine(str(corpus), "dev", candidates.Bm25, settings, 100, str(tmp_path))
    assert (tmp_path / outputs["negatives"]).read_text() == ""


class NoTexts:
    """A source of no texts; whoever reads batches from it fails."""

    ids: tuple[str, ...] = ()


def test_an_evaluator_without_queries_measures_nothing(corpus: Path) -> None:
    made = RetrievalEvaluator("dev", NoTexts(), NoTexts(), str(corpus), "dev")  # type: ignore[arg-type]
    assert made.metrics == ()
    assert made.evaluate({}, 0) == {}
