"""InfoNCE over blocks against the score matrix written out, on one device and on meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import contrastive_memory
from models.losses import contrastive
from models.losses.contrastive import BLOCKS, ContrastiveConfig, Passages, Queries
from t5x_style.distributed.partitioning import BATCH_AXES, MeshShape, Partitioner
from t5x_style.preflight import topology

D = 8
MESHES = [(8, 1, 1), (2, 4, 1), (2, 2, 2)]
FAST = (2, 2, 2)  # the others, by test-all
ALL = {"blocks": BLOCKS, "both_directions": True, "margin": 0.3}


def batch(queries: int = 16, group: int = 3, seed: int = 0) -> tuple[Queries, Passages]:
    """Everything at once: unequal numbers of negatives, copies, known positives, any order.

    Some passages and queries are not valid, one query's positive is missing, passages are in no
    order, and documents are few enough to be brought by several queries.
    """
    rng = np.random.default_rng(seed)
    ids = rng.permutation(1000)[:queries].astype(np.int32)
    owner = np.repeat(ids, group)
    relevant = np.arange(queries * group) % group == 0
    valid = rng.random(queries * group) > 0.2
    valid[::group] = True
    relevant[0] = False  # the first query has no positive
    shuffled = rng.permutation(queries * group)
    known = np.where(rng.random((queries, 2)) > 0.5, rng.integers(0, 30, (queries, 2)), -1)
    query_valid = np.ones(queries, bool)
    query_valid[3] = False
    document = rng.integers(0, 30, queries * group)

    def unit(rows: int) -> jax.Array:
        vectors = rng.normal(size=(rows, D))
        return jnp.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), jnp.float32)

    return (
        Queries(unit(queries), jnp.asarray(ids), jnp.asarray(query_valid), jnp.asarray(known)),
        Passages(
            unit(queries * group),
            *(jnp.asarray(x[shuffled]) for x in (owner, document, relevant, valid)),
        ),
    )


def written_out(
    q: Queries, p: Passages, temperature: float, config: ContrastiveConfig
) -> jax.Array:
    """The loss, by loops over pairs that only numbers, not vectors, decide."""
    numbers = [np.asarray(x) for x in (q.id, q.valid, q.known, *p[1:])]
    ids, query_valid, known, owner, document, relevant, valid = numbers
    positive = {
        i: c
        for i in range(len(ids))
        for c in reversed(range(len(owner)))
        if query_valid[i] and valid[c] and relevant[c] and owner[c] == ids[i]
    }
    queries = sorted(positive)
    k = {i: p.vectors[positive[i]] for i in queries}

    def with_each(vector: jax.Array, others: list[int], of: jax.Array) -> jax.Array:
        """Products of a vector with these rows; -inf with the others, which no softmax feels."""
        return jnp.where(np.isin(np.arange(len(of)), others), of @ vector, -jnp.inf)

    def copy(i: int, c: int) -> bool:
        return document[c] in (document[positive[i]], *known[i])

    losses = []
    for i in queries:
        passages = [
            c
            for c in range(len(owner))
            if valid[c] and not copy(i, c) and not (owner[c] == ids[i] and relevant[c])
            and (config.own_negatives or owner[c] != ids[i])
        ]  # fmt: skip
        others = [j for j in queries if j != i and not copy(i, positive[j])]
        sides = {
            "query_passage": with_each(q.vectors[i], passages, p.vectors),
            "positive_query": with_each(k[i], others, q.vectors),
            "query_query": with_each(q.vectors[i], others, q.vectors),
            "positive_positive": with_each(k[i], [positive[j] for j in others], p.vectors),
        }
        best = (q.vectors[i] @ k[i] - config.margin) / temperature
        softmaxes = [jnp.concatenate([sides[name] for name in config.blocks])]
        softmaxes += [sides["positive_query"]] if config.both_directions else []
        losses += [
            jax.nn.logsumexp(jnp.append(scores / temperature, best)) - best for scores in softmaxes
        ]
    return jnp.sum(jnp.stack(losses)) / len(queries)


def value_and_gradients(loss, q: Queries, p: Passages):
    """The loss and its gradients with respect to both vectors."""

    def total(vectors):
        return loss(q._replace(vectors=vectors[0]), p._replace(vectors=vectors[1]))

    return jax.value_and_grad(total)((q.vectors, p.vectors))


def require_equal(found, expected):
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    for ours, true in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, true, atol=1e-5 * max(1, np.abs(true).max()))


def ours(temperature: float, config: ContrastiveConfig):
    return lambda q, p: contrastive.info_nce(q, p, temperature, config)[0].value()


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.slow), 0.05])
@pytest.mark.parametrize(
    "changes",
    [{}, {"blocks": BLOCKS}, {"own_negatives": False}, ALL, {"blocks": BLOCKS[1::-1], "chunk": 5}],
    ids=["passages", "four blocks", "without own", "all", "in chunks"],
)
def test_equals_the_score_matrix_written_out(changes, temperature):
    config = ContrastiveConfig(**changes)
    expected = value_and_gradients(lambda *x: written_out(*x, temperature, config), *batch())
    assert float(expected[0]) > 0 and all(np.asarray(g).any() for g in expected[1])
    require_equal(value_and_gradients(ours(temperature, config), *batch()), expected)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=[] if one == FAST else pytest.mark.slow) for one in MESHES]
)
@pytest.mark.parametrize("changes", [{}, {**ALL, "chunk": 1}], ids=["passages", "all"])
def test_sharded_equals_one_device(changes, shape, exchange):
    config = ContrastiveConfig(**changes, exchange=exchange)
    expected = value_and_gradients(ours(0.05, config), *batch())
    mesh = Partitioner(MeshShape(*shape)).mesh
    placed = jax.device_put(batch(), jax.NamedSharding(mesh, P(BATCH_AXES)))

    def on_mesh(q, p):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return ours(0.05, config)(q, p)

    found = jax.jit(lambda q, p: value_and_gradients(on_mesh, q, p))(*placed)
    assert all(len(array.devices()) == 8 for array in jax.tree.leaves(found))
    require_equal(found, expected)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_metrics_do_not_depend_on_the_mesh(exchange):
    q, p = batch()
    config = ContrastiveConfig(blocks=BLOCKS, exchange=exchange)
    mesh = Partitioner(MeshShape(2, 4, 1)).mesh

    @jax.jit
    def on_mesh(q, p):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return contrastive.info_nce(q, p, 0.1, config)[1]

    placed = jax.device_put((q, p), jax.NamedSharding(mesh, P(BATCH_AXES)))
    found, expected = on_mesh(*placed), contrastive.info_nce(q, p, 0.1, config)[1]
    assert 0 < float(expected["mrr"].value()) < 1
    for name, metric in expected.items():
        assert float(found[name].value()) == pytest.approx(float(metric.value()))


def table(q_ids, owner, relevant, document, scores):
    """Queries of one-hot vectors, so that `scores` [Q, P] are the inner products."""
    queries = Queries(
        jnp.eye(len(q_ids)), jnp.array(q_ids), jnp.ones(len(q_ids), bool),
        jnp.zeros((len(q_ids), 0), jnp.int32),
    )  # fmt: skip
    passages = Passages(
        jnp.asarray(scores, jnp.float32).T, jnp.array(owner), jnp.array(document),
        jnp.array(relevant) == 1, jnp.array(owner) >= 0,
    )  # fmt: skip
    return queries, passages


def test_a_second_positive_is_no_negative():
    q, p = table([7, 8], [7, 7, 8], [1, 1, 1], [0, 1, 2], [[1.0, 9.0, 2.0], [0.0, 0.0, 3.0]])
    losses = [np.log1p(np.exp(2.0 - 1.0)), np.log1p(2 * np.exp(0.0 - 3.0))]
    loss, _ = contrastive.info_nce(q, p, 1.0, ContrastiveConfig())
    assert float(loss.value()) == pytest.approx(np.mean(losses), rel=1e-6)


def test_nothing_can_be_learnt_without_negatives_or_positives():
    config = ContrastiveConfig(blocks=BLOCKS, both_directions=True)
    alone = table([7], [7], [1], [0], [[90.0]])
    value, gradients = value_and_gradients(ours(1.0, config), *alone)
    assert float(value) == 0 and not any(np.asarray(g).any() for g in gradients)
    nobody = table([7], [7], [0], [0], [[90.0]])
    loss, metrics = contrastive.info_nce(*nobody, 1.0, config)
    assert float(loss.weight.sum()) == 0 and float(loss.value()) == 0
    assert float(metrics["mrr"].weight.sum()) == 0


def test_a_small_temperature_overflows_nothing():
    q, p = table([0, 1], [0, 1], [1, 1], [0, 1], [[-50.0, 50.0], [50.0, -50.0]])
    value, gradients = value_and_gradients(ours(0.01, ContrastiveConfig()), q, p)
    assert float(value) == pytest.approx(1e4)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_ranking_counts_ties_against_the_positive():
    q, p = table([0, 1], [0, 0, 1], [1, 0, 1], [0, 1, 2], [[1.0, 1.0, 0.5], [0.1, 0.2, 0.3]])
    metrics = contrastive.info_nce(q, p, 1.0, ContrastiveConfig())[1]
    assert float(metrics["accuracy"].value()) == 0.5
    assert float(metrics["mrr"].value()) == 0.75


@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_own_scores_find_a_querys_passages_wherever_they_stand(exchange):
    q, p = batch()
    mesh = Partitioner(MeshShape(4, 2, 1)).mesh

    @jax.jit
    def on_mesh(q, p):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return contrastive.own_scores(q, p, 3, 0.5, exchange)

    scores, own = on_mesh(*jax.device_put((q, p), jax.NamedSharding(mesh, P(BATCH_AXES))))
    for i, rows in enumerate(np.asarray(own)):
        there = rows[rows < len(p.owner)]
        expected = np.flatnonzero(np.asarray(p.valid & (p.owner == q.id[i]) & q.valid[i]))
        assert sorted(there) == list(expected)
        relevant = np.asarray(p.relevant)[there]
        assert list(relevant) == sorted(relevant, reverse=True), "positives come first"
        products = np.asarray(q.vectors[i] @ p.vectors[there].T) / 0.5
        np.testing.assert_allclose(scores[i, : len(there)], products, rtol=1e-5, atol=1e-6)
        assert not np.asarray(scores[i, len(there) :]).any()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"blocks": ("query_query",)}, "blocks: expected 'query_passage'"),
        ({"blocks": ("query_passage", "passage_query")}, "blocks: expected"),
        ({"blocks": ("query_passage",) * 2}, "each once"),
        ({"exchange": "all_gather"}, "exchange: expected one of .'gather', 'ring'."),
        ({"chunk": 0}, "chunk: expected 1 or more"),
    ],
)
def test_settings_that_make_no_loss_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveConfig(**changes)


@pytest.mark.slow
@pytest.mark.usefixtures("for_tpus")
def test_on_a_pod_the_ring_holds_a_share_and_no_score_matrix():
    pairs, dimension, chunk = 65_536, 768, 1024
    pod = Partitioner(devices=topology.devices("v5e:8x8"))
    share = pairs // 64 * dimension * 4  # bytes of the vectors of one side on one device
    tile = chunk * pairs // 64 * 4  # of scores
    ring = contrastive_memory.ours("ring", BLOCKS, chunk)
    held = contrastive_memory.temporaries(ring, pairs, dimension, pod)
    # Columns that travel and their gradients, for each right side; a tile and its exponentials.
    assert held < 2 * len(BLOCKS) * share + 3 * tile < pairs * dimension * 4 / 2
