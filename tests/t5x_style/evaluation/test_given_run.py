"""A system whose lists an earlier evaluation wrote."""

import pytest

from t5x_style.evaluation import ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.evaluation.given_run import GivenRun
from tests.kits import retrieval_helpers as helpers

RUN = {"q0": [("p3", 2.0), ("p0", 1.5), ("p4", -1.0)]}  # nothing was found for q1


@pytest.fixture
def system(tmp_path):
    ranking.write_run(tmp_path / "mine.trec", RUN, "mine")
    return GivenRun("mine", str(tmp_path))


@pytest.fixture
def suite(tmp_path, system):
    return EvaluationSuite(helpers.write_corpus(tmp_path / "corpus"), [system], 2)


def test_its_lists_are_those_of_the_file(suite):
    assert suite.run("mine", "test") == {"q0": RUN["q0"][:2], "q1": []}


def test_another_split_is_refused(suite):
    with pytest.raises(ValueError, match="mine: expected hits for queries of split 'dev' in .*q0"):
        suite.run("mine", "dev")


def test_development_queries_are_read_from_a_second_folder(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    for split, run in {"test": RUN, "dev": {"q2": [("p1", 3.0)]}}.items():
        (tmp_path / split).mkdir()
        ranking.write_run(tmp_path / split / "mine.trec", run, "mine")
    given = GivenRun("mine", str(tmp_path / "test"), str(tmp_path / "dev"))
    suite = EvaluationSuite(corpus, [given], 2)
    assert suite.run("mine", "dev") == {"q2": [("p1", 3.0)], "q3": []}
    assert suite.run("mine", "test") == {"q0": RUN["q0"][:2], "q1": []}


def test_pseudo_queries_are_refused(suite):
    suite.changed = {"p0": suite.passages.passage(0)}
    with pytest.raises(ValueError, match="cannot answer pseudo-queries"):
        suite.run("mine", "test")


def test_a_missing_file_is_named(tmp_path, suite):
    with pytest.raises(FileNotFoundError, match="other.trec"):
        GivenRun("other", str(tmp_path)).run(suite, "test")
