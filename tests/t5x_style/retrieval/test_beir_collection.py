"""Collections in BEIR's layout, plain and gzipped, under both names of judgements."""

import gzip
import shutil
from pathlib import Path

import pytest

from t5x_style.retrieval.beir_collection import Passages, read_qrels, read_queries
from tests.kits import retrieval_helpers as helpers


@pytest.fixture
def plain(tmp_path):
    return helpers.write_corpus(tmp_path / "plain")


@pytest.fixture
def zipped(plain, tmp_path):
    folder = tmp_path / "zipped"
    folder.mkdir()
    for source, name in (
        ("corpus.jsonl", "corpus.jsonl.gz"),
        ("queries.jsonl", "queries.jsonl.gz"),
        ("qrels/test.tsv", "qrels.test.tsv.gz"),
    ):
        (folder / name).write_bytes(gzip.compress(Path(plain, source).read_bytes()))
    return folder


def test_a_gzipped_collection_is_the_same(plain, zipped):
    one, other = Passages(plain), Passages(zipped)
    assert list(one) == list(other)
    assert [one.passage(row) for row in (3, 0, 2)] == [other.passage(row) for row in (3, 0, 2)]
    queries = read_queries(zipped)
    assert queries == read_queries(plain)
    assert read_qrels(zipped, "test", queries, other) == read_qrels(plain, "test", queries, one)


def test_what_is_missing_is_named(zipped):
    with pytest.raises(FileNotFoundError, match=r"qrels/dev.tsv.*qrels.test.tsv.gz"):
        read_qrels(zipped, "dev", {}, {})
    (zipped / "corpus.jsonl.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"corpus.jsonl.*queries.jsonl.gz"):
        Passages(zipped)
    shutil.rmtree(zipped)
    with pytest.raises(FileNotFoundError, match="BEIR's layout"):
        read_queries(zipped)
