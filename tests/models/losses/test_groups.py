"""Rules that say which queries belong together."""

import numpy as np
import pytest

from t5x_style.evaluation import query_groups
from t5x_style.retrieval.beir_collection import Passage, Passages
from tests.kits import retrieval_helpers as helpers


def passage(source="", title=""):
    return Passage("p", title, "text", source)


@pytest.mark.parametrize(
    "source,levels,name",
    [
        ("numpy/linalg/_linalg.py:12", None, "numpy/linalg/_linalg.py"),
        ("numpy/linalg/_linalg.py:12", 1, "numpy"),
        ("numpy/linalg/_linalg.py:12", 9, "numpy/linalg/_linalg.py"),
        ("pydoc_data/topics.py#assert", None, "pydoc_data/topics.py"),
        ("C:notes.txt", None, "C:notes.txt"),
        ("plain", None, "plain"),
    ],
)
def test_the_file_of_a_passage_is_its_group(source, levels, name):
    assert query_groups.BySource(levels)(passage(source)) == name


def test_the_title_of_a_passage_is_its_group():
    assert query_groups.ByTitle()(passage(title=" An  article ")) == "An article"


def test_passages_without_the_field_are_refused():
    with pytest.raises(query_groups.GroupError, match="'source'.*found '' in passage 'p'"):
        query_groups.BySource()(passage(title="t"))
    with pytest.raises(query_groups.GroupError, match="found none in passage 'p'"):
        query_groups.ByTitle()(passage(source="s"))
    with pytest.raises(ValueError, match="levels: expected at least 1 or None, found 0"):
        query_groups.BySource(0)


def test_the_most_relevant_passage_decides(tmp_path):
    passages = Passages(helpers.write_corpus(tmp_path))
    qrels = {"a": {"p0": 1}, "b": {"p3": 1, "p1": 2}, "c": {"p3": 1, "p1": 1}}
    found = query_groups.numbers(query_groups.BySource(), ["a", "b", "c"], qrels, passages)
    assert found.dtype == np.int64 and found.tolist() == [0, 1, 0]  # csv, json, csv
    with pytest.raises(query_groups.GroupError, match="passage 'p4'"):
        query_groups.numbers(query_groups.BySource(), ["a"], {"a": {"p4": 1}}, passages)
