"""Development texts are made as the model's contract says."""

import dataclasses

import pytest

from t5x_style.evaluation.retrieval_evaluator import RetrievalEvaluator
from t5x_style.interfaces.contract import ContractError
from t5x_style.training import hooks
from tests.kits import retrieval_helpers as helpers


@pytest.fixture
def passages() -> helpers.Source:
    return helpers.Source([row[0] for row in helpers.PASSAGES])


@pytest.fixture
def check(passages, tmp_path):
    """Checks the evaluator against a contract with some fields changed."""
    corpus = helpers.write_corpus(tmp_path / "corpus")
    evaluator = RetrievalEvaluator(
        "dev", helpers.Source(list(helpers.QUERIES)), passages, corpus, "dev"
    )

    def run(**changed: object) -> None:
        contract = dataclasses.replace(helpers.CONTRACT, **changed)
        hooks.check_contracts([object(), evaluator], contract)

    return run


def test_it_is_the_check_of_encoding(check):
    check()
    with pytest.raises(ContractError, match="query_length: expected 9, found 8"):
        check(query_length=9)
    with pytest.raises(ContractError, match="passage_prefix: expected 'passage: ', found ''"):
        check(passage_prefix="passage: ")


def test_several_cls_need_their_pooling(check, passages):
    with pytest.raises(ContractError, match="found cls_every None and pooling 'mcls'"):
        check(pooling="mcls")
    passages.cls_every = 4
    check(pooling="mcls")
    with pytest.raises(ContractError, match="found cls_every 4 and pooling 'cls'"):
        check()
