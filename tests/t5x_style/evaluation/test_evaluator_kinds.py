"""Metrics inside training: of other kinds than vectors, and on more devices than rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style.distributed import partitioning
from t5x_style.evaluation import ranking
from t5x_style.evaluation.retrieval_evaluator import RetrievalEvaluator
from t5x_style.interfaces.objective import ModelFunction
from t5x_style.interfaces.representation import RepresentationError
from tests.kits import retrieval_helpers as helpers
from tests.t5x_style.evaluation.test_retrieval_evaluator import (
    FUNCTIONS,
    PASSAGE_IDS,
    PASSAGE_TABLE,
    QUERY_IDS,
    QUERY_TABLE,
    RIGHT,
)


@pytest.fixture
def corpus(tmp_path):
    return helpers.write_corpus(tmp_path / "corpus")


def sparse_function(side: str, tokens: np.ndarray) -> ModelFunction:
    """Text i has the token `tokens[i]` alone."""

    @jax.jit
    def embed(group):
        names = group["example_id"]
        segments = jnp.where(names >= 0, jnp.arange(1, names.shape[1] + 1), 0)
        found = jnp.asarray(tokens, jnp.int32)[jnp.maximum(names, 0)]
        return {"segments": segments, "tokens": found, "weights": jnp.ones(names.shape)}

    call = lambda group, kinds: {"sparse": embed(group)}  # noqa: E731
    return ModelFunction(call, {}, "weights of words", "embed", side, ("sparse",))


def test_other_kinds_are_compared_as_well(corpus):
    answers = np.array([PASSAGE_IDS.index(RIGHT[query]) for query in QUERY_IDS])
    functions = {
        "embed_query": sparse_function("query", answers),
        "embed_passage": sparse_function("passage", np.arange(len(PASSAGE_IDS))),
    }
    sources = helpers.Source(QUERY_IDS), helpers.Source(PASSAGE_IDS)
    evaluator = RetrievalEvaluator("dev", *sources, corpus, "dev", kind="sparse")
    assert evaluator.evaluate(functions, 7) == dict.fromkeys(ranking.METRICS, 1.0)
    with pytest.raises(RepresentationError, match="expected a function that embeds a 'query'"):
        evaluator.evaluate(FUNCTIONS, 7)  # these make dense vectors
    with pytest.raises(RepresentationError, match=r"RetrievalEvaluator\.kind.*found \['lexical'\]"):
        RetrievalEvaluator("dev", *sources, corpus, "dev", kind="lexical")


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_fewer_rows_than_devices_are_measured_as_on_one_device(corpus, kind):
    """As on 64 chips, with the 32 rows of runs/development/retrieval_evaluator.gin."""
    tables = {"query": QUERY_TABLE, "passage": PASSAGE_TABLE}
    functions = {
        f"embed_{side}": sparse_function(side, table.argmax(axis=1))
        for side, table in tables.items()
    }
    functions = FUNCTIONS if kind == "dense" else functions

    def scores(rows, mesh):
        sources = helpers.Source(QUERY_IDS, rows), helpers.Source(PASSAGE_IDS, rows)
        partitioner = partitioning.Partitioner(mesh, devices=jax.devices()[: mesh.data])
        evaluator = RetrievalEvaluator(
            *("dev", *sources, corpus, "dev"), partitioner=partitioner, kind=kind
        )
        return evaluator.evaluate(functions, 7)

    many, one = scores(4, partitioning.MeshShape(8)), scores(4, partitioning.MeshShape(1))
    assert many == one == dict.fromkeys(ranking.METRICS, 1.0)
