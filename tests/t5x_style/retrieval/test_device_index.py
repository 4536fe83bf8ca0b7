"""The index in the step: against the exact one, on meshes; what it never returns; its refresh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.corruption import evidence_layout
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval import device_index, recall_probes
from t5x_style.retrieval.device_index import DeviceIndex, DeviceIndexConfig
from t5x_style.step import static_tables
from tests.kits.tiny_corpus import TinyCorpus

MESHES = [(1, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2)]
D = 6
CONFIG = DeviceIndexConfig(D, None, "float32", multiple=16, chunk=5, encode_rows=3)


def embed(group):
    """Vectors that distinguish rows: random, of the sum of a row's tokens."""
    keys = jax.vmap(lambda one: jax.random.fold_in(jax.random.key(0), one))
    numbers = jnp.sum(group["tokens"] * (1 + group["positions"]), axis=1)
    return jax.vmap(lambda key: jax.random.normal(key, (D,)))(keys(numbers))


def rows(tokens, lengths):
    return evidence_layout.row_group(tokens, lengths, lengths)


class OnMesh:
    """An index, filled, on a mesh; `run` calls a function of it and of arrays."""

    def __init__(self, shape, corpus, config=CONFIG, embed=embed):
        devices = jax.devices()[: int(np.prod(shape))]
        self.partitioner = Partitioner(MeshShape(*shape), devices=devices)
        make = lambda: nnx.split(DeviceIndex(corpus, config))  # noqa: E731
        self.graphdef = nnx.eval_shape(make)[0]
        state, self.shardings = self.partitioner.init(lambda: make()[1])
        sources = nnx.merge(self.graphdef, state).table_sources()
        self.state = static_tables.fill(state, sources, self.shardings)
        self.change(lambda index: index.fill(embed, rows))

    def _call(self, function, state, *arguments):
        index = nnx.merge(self.graphdef, state, copy=True)
        with jax.sharding.use_abstract_mesh(self.partitioner.mesh.abstract_mesh):
            found = function(index, *arguments)
        return found, nnx.split(index)[1]

    def change(self, function):
        run = jax.jit(lambda state: self._call(function, state)[1], out_shardings=self.shardings)
        self.state = run(self.state)

    def run(self, function, *arguments):
        placed = jax.device_put(arguments, self.partitioner.batch_sharding)
        return jax.jit(lambda state, *rest: self._call(function, state, *rest)[0])(
            self.state, *placed
        )

    def array(self, name):
        return np.asarray(getattr(nnx.merge(self.graphdef, self.state), name)[...])


def search(k):
    return lambda index, queries, source: index.search(queries, k, source)


def exact(corpus, queries, barred, k):
    """[B, k] scores and rows by plain numpy; `barred` [B, N] bool."""
    tokens, lengths = corpus.tokens(0, corpus.rows), corpus.column("length", 0, corpus.rows)
    vectors = np.asarray(embed(rows(jnp.asarray(tokens), jnp.asarray(lengths))))
    scores = np.where(barred, -np.inf, queries @ vectors.T)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


def queries(count, seed=1):
    return np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)


@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("exclude", [("row",), ("row", "page"), ("duplicate", "row"), ()])
def test_sharded_search_is_exact_search_and_never_finds_its_own(shape, exclude):
    corpus = TinyCorpus(37)  # does not divide: 48 rows, 11 of them padding
    index = OnMesh(shape, corpus, dataclasses.replace(CONFIG, exclude=exclude))
    asked, source = queries(16), np.arange(16, dtype=np.int32) * 2
    source[3] = NO_ROW
    scores, found = (np.asarray(x) for x in index.run(search(7), asked, source))
    own = {name: corpus.column(name, 0, 37) for name in ("page", "duplicate")}
    own["row"] = np.arange(37)
    barred = np.zeros((16, 37), bool)
    for name in exclude:
        barred |= (own[name][source][:, None] == own[name][None]) & (source >= 0)[:, None]
    expected_scores, expected = exact(corpus, asked, barred, 7)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    if "row" in exclude:
        assert not (found == source[:, None])[source >= 0].any()


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_recall_is_the_share_of_what_an_exact_search_finds(shape):
    index = OnMesh(shape, TinyCorpus(37), dataclasses.replace(CONFIG, exclude=("row", "page")))
    asked, source = queries(16), np.arange(16, dtype=np.int32) * 2
    exact_scores, exact_rows = (np.asarray(x) for x in index.run(search(20), asked, source))
    kept = np.sort(np.argsort(np.random.default_rng(0).random((16, 20)), axis=1)[:, :7], axis=1)
    scores = np.take_along_axis(exact_scores, kept, axis=1)
    rows = np.take_along_axis(exact_rows, kept, axis=1)
    rows[0, 5:], scores[0, 5:] = NO_ROW, -np.inf  # found fewer

    def recall(index, *asked_and_found):
        return index.recall(*asked_and_found)

    found = [set(row[:7]) & set(some) for row, some in zip(exact_rows, rows, strict=True)]
    expected = sum(map(len, found)) / (16 * 7)
    assert 0.1 < expected < 0.9
    assert float(index.run(recall, asked, source, scores, rows)) == pytest.approx(expected)
    best = exact_scores[:, :7], exact_rows[:, :7]
    assert float(index.run(recall, asked, source, *best)) == 1


@pytest.mark.parametrize("shape", MESHES)
def test_where_there_are_fewer_rows_the_rest_is_no_row(shape):
    corpus = TinyCorpus(5)
    index = OnMesh(shape, corpus)
    scores, found = (np.asarray(x) for x in index.run(search(9), queries(8), np.zeros(8, np.int32)))
    assert (np.sort(found, axis=1)[:, -4:] == [1, 2, 3, 4]).all()
    assert (found[:, 4:] == NO_ROW).all() and np.isneginf(scores[:, 4:]).all()


@pytest.mark.parametrize("shape", MESHES)
def test_the_tokens_of_rows_come_from_every_device(shape):
    corpus = TinyCorpus(37)
    index = OnMesh(shape, corpus)
    wanted = np.array([[0, 36], [NO_ROW, 5], [17, 17], [30, NO_ROW]] * 2, np.int32)
    tokens, lengths = (
        np.asarray(x) for x in index.run(lambda index, rows: index.tokens_at(rows), wanted)
    )
    there = wanted != NO_ROW
    np.testing.assert_array_equal(
        tokens, np.where(there[:, :, None], corpus.tokens(0, 37)[wanted], 0)
    )
    np.testing.assert_array_equal(
        lengths, np.where(there, corpus.column("length", 0, 37)[wanted], 0)
    )


@pytest.mark.parametrize("shape", MESHES)
def test_vectors_and_judgements_come_from_every_device(shape):
    corpus = TinyCorpus(37)
    index = OnMesh(shape, corpus)
    wanted = np.random.default_rng(0).integers(-1, 37, (8, 7)).astype(np.int32)
    about = np.arange(8, dtype=np.int32) + 5  # of each query, a token that a row may hold

    def judge(tokens, lengths, about):
        inside = jnp.arange(tokens.shape[2]) < lengths[:, :, None] - 1
        return jnp.any(inside & (tokens == about[:, None, None]), axis=2)

    vectors = index.run(lambda index, rows: index.vectors_at(rows), wanted)
    there = wanted != NO_ROW
    own = index.array("embeddings")[wanted]
    np.testing.assert_array_equal(vectors, np.where(there[:, :, None], own, 0))
    judged = index.run(lambda index, rows, about: index.judge(rows, about, judge), wanted, about)
    tokens, lengths = corpus.tokens(0, 37)[wanted], corpus.column("length", 0, 37)[wanted]
    expected = there & np.asarray(judge(tokens, jnp.asarray(lengths), jnp.asarray(about)))
    np.testing.assert_array_equal(judged, expected)
    assert expected.any() and not expected.all()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), pytest.param((8, 1, 1), marks=pytest.mark.slow), (2, 2, 2)]
)
@pytest.mark.parametrize(
    "staleness",
    [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow), 1000],
)
def test_no_row_is_older_than_the_bound(shape, staleness):
    corpus = TinyCorpus(37)
    config = dataclasses.replace(CONFIG, max_staleness_steps=staleness)
    index = OnMesh(shape, corpus, config)
    for step in range(1, 9):
        index.change(lambda index, step=step: index.refresh(jnp.int32(step), embed, rows))
        steps = index.array("row_steps")
        assert (steps[37:] == device_index.NEVER).all() and (steps[:37] >= 0).all()
        assert step - steps[:37].min() <= staleness
        assert int(index.run(lambda index: index.oldest())) == step - steps[:37].min()
    assert staleness == 1000 or steps[:37].min() > 0


def test_churn_is_the_share_of_hits_that_are_new():
    asked = recall_probes.Probes(2, 3)
    assert float(asked.churn[...]) == 1  # before the first round
    asked.ask(lambda: (jnp.array([[1, 2, 3], [4, 5, 6]], jnp.int32), jnp.float32(0.5)))
    later = lambda: (jnp.array([[3, 1, 9], [6, 5, 4]], jnp.int32), jnp.float32(0.9))  # noqa: E731
    asked.ask_if(jnp.array(False), later)
    assert float(asked.churn[...]) == 1 and asked.rows[...][0].tolist() == [1, 2, 3]
    assert float(asked.recall[...]) == 0.5
    asked.ask_if(jnp.array(True), later)
    assert float(asked.churn[...]) == pytest.approx(1 / 6)  # 9 is new, the order does not count
    assert float(asked.recall[...]) == pytest.approx(0.9)
    asked.ask_if(jnp.array(True), later)
    assert float(asked.churn[...]) == 0


@pytest.mark.parametrize("staleness", [1, 3, None])
def test_a_round_ends_once_every_row_was_embedded_anew(staleness):
    config = dataclasses.replace(CONFIG, max_staleness_steps=staleness)
    index = OnMesh((1, 1, 1), TinyCorpus(20), config)
    ends = [bool(index.run(lambda index, s=s: index.round_ends(jnp.int32(s)))) for s in range(7)]
    assert ends == [bool(staleness) and s % staleness == staleness - 1 for s in range(7)]


def test_never_refreshed_means_never():
    index = OnMesh((2, 2, 2), TinyCorpus(20))
    index.change(lambda index: index.refresh(jnp.int32(7), lambda _: 1 / 0, rows))
    assert (index.array("row_steps")[:20] == 0).all() and index.array("now") == 7


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_a_vector_that_is_not_finite_is_never_written(shape):
    corpus = TinyCorpus(20)
    index = OnMesh(shape, corpus, dataclasses.replace(CONFIG, max_staleness_steps=1))
    before = index.array("embeddings")

    def broken(group):
        bad = jnp.arange(group["tokens"].shape[0]) % 3 == 0
        return jnp.where(bad[:, None], jnp.nan, embed(group) + 1)

    index.change(lambda index: index.refresh(jnp.int32(1), broken, rows))
    after, steps = index.array("embeddings"), index.array("row_steps")
    assert np.isfinite(after).all()
    kept = steps[:20] == 0
    np.testing.assert_array_equal(after[:20][kept], before[:20][kept])
    assert kept.any() and not kept.all() and index.array("refused") == kept.sum()


def test_a_row_that_was_never_finite_is_not_found():
    broken = OnMesh((2, 2, 2), TinyCorpus(20), embed=lambda group: embed(group) * jnp.nan)
    _, found = broken.run(search(3), queries(8), np.full(8, NO_ROW, np.int32))
    assert (np.asarray(found) == NO_ROW).all() and broken.array("refused") >= 20


def test_ids_too_large_for_the_table_are_refused():
    corpus = TinyCorpus(20, vocabulary_size=60)
    large = corpus.tokens(0, 20).copy()
    large[3, 2] = 1 << 16
    corpus.tokens = lambda start, end: large[start:end]
    with pytest.raises(ValueError, match="from 0 to 59, .* found 0 to 65536.*prepare it again"):
        OnMesh((1, 1, 1), corpus)
    corpus.vocabulary_size = 1 << 17
    index = OnMesh((1, 1, 1), corpus)
    assert index.array("tokens").dtype == np.int32 and index.array("tokens")[3, 2] == 1 << 16


@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": 0},
        {"max_staleness_steps": 0},
        {"dtype": "float16"},
        {"exclude": ("author",)},
        {"recall_target": 0.0},
        {"chunk": 0},
    ],
)
def test_settings_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match="expected"):
        dataclasses.replace(CONFIG, **changes)


def test_for_tpus_the_search_is_approximate_and_one_program(for_tpus):
    from t5x_style.preflight import topology

    devices = topology.devices("v5e:2x2")
    partitioner = Partitioner(MeshShape(4, 1, 1), devices=devices)
    config = dataclasses.replace(CONFIG, dtype="bfloat16", multiple=1024, chunk=1024)
    corpus = TinyCorpus(8000)
    make = lambda: nnx.split(DeviceIndex(corpus, config))  # noqa: E731
    graphdef = nnx.eval_shape(make)[0]
    state, _ = partitioner.abstract(lambda: make()[1])

    def found(state, asked, source):
        index = nnx.merge(graphdef, state)
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            scores, rows = index.search(asked, 7, source)
            return index.tokens_at(rows), index.recall(asked, source, scores, rows)

    asked = jax.ShapeDtypeStruct((8, D), jnp.float32, sharding=partitioner.batch_sharding)
    source = jax.ShapeDtypeStruct((8,), jnp.int32, sharding=partitioner.batch_sharding)
    text = jax.jit(found).lower(state, asked, source).compile().as_text()
    assert "PartialReduce" in text or "ApproxTopK" in text
    for transfer in ("infeed", "outfeed", "host_transfer=true"):
        assert transfer not in text
