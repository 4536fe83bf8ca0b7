"""The weights that an evaluation chose, from its metrics to a contract and to a search."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.evaluation import hybrid_weights
from t5x_style.interfaces.contract import Combination, Contract, ContractError
from t5x_style.interfaces.representation import DENSE, KINDS, SPARSE
from t5x_style.retrieval import embedding_shards, exact_index, hybrid
from tests.kits.toys import three_kinds

COUNT = 50
WEIGHTS = {DENSE: 0.7, SPARSE: 0.3}


def job_runs() -> dict[str, dict]:
    """For tests/job_outputs.py."""
    contract = three_kinds.restored().contract
    contract.save(".")
    facts = {
        "candidates_by": [DENSE], "candidates": 1000, "contract": contract.facts(),
        "method": "weighted", "weights": WEIGHTS, "kinds": [*WEIGHTS],
    }  # fmt: skip
    Path("metrics.json").write_text(json.dumps({"facts": {"m3_all": facts}}))
    return {"": {"checkpoint": ".", "metrics": "metrics.json", "system": "m3_all"}}


@pytest.fixture(scope="module")
def model() -> Trained:
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


@pytest.fixture(scope="module")
def embedded(model, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("embeddings")
    return three_kinds.encoded(model, three_kinds.texts(COUNT), COUNT, folder)


@pytest.fixture
def searched(embedded) -> hybrid.Hybrid:
    return hybrid.load(embedded, [exact_index.load(embedded, DENSE)], KINDS)


@pytest.fixture
def queries(model) -> dict:
    return model.represent("query", three_kinds.Texts(three_kinds.texts(23)[::-1]), KINDS)


@pytest.fixture
def metrics(model, tmp_path) -> str:
    of_hybrid = {
        "candidates_by": [DENSE], "candidates": 1000, "contract": model.contract.facts(),
        "kinds": [DENSE, SPARSE],
    }  # fmt: skip
    weighted = {**of_hybrid, "method": "weighted"}
    ranks = {**of_hybrid, "method": "reciprocal_rank"}
    facts = {
        "bm25": {},
        "m3_all": {**weighted, "weights": WEIGHTS},
        "m3_ranks": ranks,
        "m3_fewer": {**ranks, "candidates": 10},
        "m3_broken": weighted,
        "m3_mcls": {**ranks, "contract": {**of_hybrid["contract"], "pooling": "mcls"}},
        "m3_other": {**ranks, "contract": {**of_hybrid["contract"], "pooling": "mean"}},
    }
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"facts": facts}))
    return str(path)


@pytest.fixture
def keep(model, metrics, tmp_path):
    """Runs the stage for a system of the metrics; returns its folder."""

    def run(system: str) -> str:
        for name in ("model", system):
            (tmp_path / name).mkdir(exist_ok=True)
        model.contract.save(tmp_path / "model")
        folder = str(tmp_path / system)
        assert hybrid_weights.keep(str(tmp_path / "model"), metrics, system, folder) == {
            "contract": "."
        }
        return folder

    return run


def test_a_search_combines_as_the_contract_says(model, searched, queries, keep):
    folder = keep("m3_all")
    kept = Contract.load(folder)
    assert kept == model.contract  # no representation depends on the weights
    assert kept.combination == Combination((DENSE, SPARSE), WEIGHTS, 1000)
    found = hybrid_weights.of_contract(searched, folder)
    assert found.weights == WEIGHTS
    expected = searched.search(queries, 5, WEIGHTS)
    for ours, plain in zip(found.search(queries, 5), expected, strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_reciprocal_ranks_are_kept_too(searched, queries, keep):
    found = hybrid_weights.of_contract(searched, keep("m3_ranks"))
    assert found.weights is None and found.kinds == (DENSE, SPARSE)
    rows = searched.propose(queries, 5)
    scores = searched.scores({kind: queries[kind] for kind in (DENSE, SPARSE)}, rows)
    order = np.argsort(-hybrid.reciprocal_ranks(scores), axis=1, kind="stable")[:, :5]
    best = np.take_along_axis(rows, order, axis=1)
    np.testing.assert_array_equal(found.search(queries, 5)[1], best)


def test_several_cls_need_no_training_of_their_own(model, keep):
    """Weights that were chosen with pooling 'mcls' are kept for a search with 'mcls'."""
    assert model.contract.pooling == "cls"
    kept = Contract.load(keep("m3_mcls"))
    assert kept == dataclasses.replace(model.contract, pooling="mcls")


def test_older_searches_read_metrics(searched, metrics):
    assert hybrid_weights.combined(searched, metrics, "m3_all").weights == WEIGHTS
    with pytest.raises(hybrid.HybridError, match="Set CANDIDATES"):
        hybrid_weights.combined(searched, metrics, "m3_fewer")


def test_what_cannot_be_kept_is_refused(keep):
    for name, message in {"bm25": "HYBRID_SYSTEM", "m3_broken": "not recorded"}.items():
        with pytest.raises(hybrid.HybridError, match=message):
            keep(name)
    with pytest.raises(ContractError, match="another contract.*'pooling': 'mean'"):
        keep("m3_other")


def test_a_weight_of_a_kind_that_is_not_indexed_is_refused(embedded, keep):
    of_one = hybrid.load(embedded, [exact_index.load(embedded, DENSE)], [DENSE])
    with pytest.raises(ContractError, match=r"only \['dense'\] are there: no sparse") as error:
        hybrid_weights.of_contract(of_one, keep("m3_all"))
    assert "contract.json" in str(error.value)


def test_contracts_that_do_not_fit_are_refused(model, searched, keep, tmp_path):
    with pytest.raises(hybrid.HybridError, match="Set CANDIDATES"):
        hybrid_weights.of_contract(searched, keep("m3_fewer"))
    model.contract.save(tmp_path)
    with pytest.raises(ContractError, match="found none.*hybrid_weights.gin"):
        hybrid_weights.of_contract(searched, str(tmp_path))
    kept = Contract.load(keep("m3_all"))
    dataclasses.replace(kept, query_prefix="ask: ").save(tmp_path)
    with pytest.raises(ContractError, match="query_prefix"):
        hybrid_weights.of_contract(searched, str(tmp_path))


@pytest.mark.parametrize(
    "weights", [{}, {DENSE: 0.0}, {DENSE: -1.0}, {SPARSE: 1.0}, {DENSE: float("nan")}]
)
def test_weights_that_do_not_fit_are_refused(model, weights, tmp_path):
    with pytest.raises(ContractError, match="expected a weight of at least 0"):
        Combination((DENSE,), weights, 10)
    fields = {"kinds": [DENSE], "weights": weights, "candidates": 10}
    for damaged in (fields, {"kinds": [DENSE]}, 3):
        content = {**model.contract.facts(), "combination": damaged}
        (tmp_path / "contract.json").write_text(json.dumps(content))
        with pytest.raises(ContractError, match=r"contract.json: combination"):
            Contract.load(tmp_path)


def test_contracts_without_weights_are_as_before(model, keep, tmp_path):
    """Their file, and the version of vectors, which does not depend on weights."""
    model.contract.save(tmp_path)
    fields = json.loads(Path(tmp_path / "contract.json").read_text())
    assert "combination" not in fields and Contract.load(tmp_path).combination is None
    with_weights = Contract.load(keep("m3_all"))
    assert embedding_shards.version(with_weights) == embedding_shards.version(model.contract)
