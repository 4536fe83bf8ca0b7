"""The bi-encoder: its batch, its vectors, its loss."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive, distillation
from models.networks import bert, text_embedding
from models.objectives import bi_encoder
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Batch, GroupShape, check_batch, embedder
from t5x_style.preflight import hlo
from tests.kits import tiny_models
from tests.parity import parity_kit

QUERIES, GROUP = 4, 3
QUERY = GroupShape(rows=QUERIES, length=12, segments=1)
PASSAGE = GroupShape(rows=QUERIES * GROUP, length=12, segments=1)
PLAIN = contrastive.ContrastiveConfig()


def objective(
    config: bert.BertConfig = tiny_models.CONFIG,
    query: GroupShape = QUERY,
    passage: GroupShape = PASSAGE,
    encode_chunks: int = 1,
    known_positives: int = 0,
    contrastive_config: contrastive.ContrastiveConfig = PLAIN,
    distillation_config: distillation.DistillationConfig | None = None,
    matryoshka: tuple[int, ...] = (),
    **vectors: object,
) -> bi_encoder.BiEncoder:
    return bi_encoder.BiEncoder(
        config,
        dataclasses.replace(tiny_models.EMBEDDING, **vectors),
        tiny_models.VOCABULARY,
        query,
        passage,
        contrastive_config,
        encode_chunks,
        known_positives,
        distillation_config,
        matryoshka,
        rngs=nnx.Rngs(0),
    )


QUERY_PARTS = tiny_models.segments(QUERIES, seed=1, longest=8)
PASSAGE_PARTS = [
    (100 + i // GROUP, tokens)
    for i, (_, tokens) in enumerate(tiny_models.segments(QUERIES * GROUP, seed=2, longest=8))
]
DOCUMENTS = [0, 1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10]  # passage 4 copies the first positive


def layout(rows: list[list[int]], length: int, most: int) -> dict[str, jax.Array]:
    """The passages with these numbers in these rows."""
    group = tiny_models.group([[PASSAGE_PARTS[i] for i in row] for row in rows], length, most)
    relevance, document = (np.zeros((len(rows), most), np.int32) for _ in range(2))
    for r, row in enumerate(rows):
        for s, i in enumerate(row):
            relevance[r, s], document[r, s] = i % GROUP == 0, DOCUMENTS[i]
    return {**group, "relevance": jnp.asarray(relevance), "document_id": jnp.asarray(document)}


UNPACKED: Batch = {
    "query": tiny_models.group([[part] for part in QUERY_PARTS], 12, 1),
    "passage": layout([[i] for i in range(QUERIES * GROUP)], 12, 1),
}
PACKED: Batch = {
    "query": tiny_models.group([QUERY_PARTS[2:], QUERY_PARTS[:2]], 20, 2),
    "passage": layout([[7, 2, 5], [0, 11, 4], [3, 1, 10], [9, 8, 6]], 24, 3),
}


@pytest.mark.parametrize("pooling", [pytest.param("cls", marks=pytest.mark.slow), "mean"])
def test_packing_and_order_change_nothing(pooling: str) -> None:
    module = objective(pooling=pooling, normalise=True, temperature=0.05)
    one, one_gradients = parity_kit.value_and_gradients(module, UNPACKED)
    other, other_gradients = parity_kit.value_and_gradients(module, PACKED)
    assert one == pytest.approx(other, rel=1e-5)
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(
            other_gradients[name], gradient, atol=1e-4, rtol=1e-4, err_msg=name
        )


def test_loss_equals_info_nce_of_its_own_vectors() -> None:
    module = objective(normalise=True, temperature=0.1)
    functions = module.functions()
    q = np.asarray(embedder(functions, "query")(UNPACKED["query"]))[:, 0]
    p = np.asarray(embedder(functions, "passage")(UNPACKED["passage"]))[:, 0]
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1.0, rtol=1e-5)
    scores = np.exp(q @ p.T / 0.1)  # [Q, Q * GROUP]; query i's positive is passage i * GROUP
    scores[0, 4] = 0.0  # a copy of query 0's positive is no negative of it
    own = scores[np.arange(QUERIES), np.arange(QUERIES) * GROUP]
    loss, metrics = module.loss(UNPACKED, jax.random.key(0))
    expected = np.mean(np.log(scores.sum(1) / own))
    assert float(loss.value()) == pytest.approx(expected, rel=1e-4)
    assert set(metrics) == {"accuracy", "mrr"}


def test_what_is_known_to_answer_is_no_negative() -> None:
    settings = {"normalise": True, "temperature": 0.1}
    known = np.full((QUERIES, 1, 2), -1, np.int32)
    known[1, 0, 1] = DOCUMENTS[6]  # query 2's positive answers query 1, too
    batch = {**UNPACKED, "query": {**UNPACKED["query"], "known": jnp.asarray(known)}}
    module = objective(**settings, known_positives=2)
    check_batch(module.batch_specs()[0], batch, "the test")
    found = module.loss(batch, jax.random.key(0))[0]
    queries, passages = module.embed(batch)
    scores = np.exp(np.asarray(queries.vectors @ passages.vectors.T) / 0.1)
    scores[0, 4] = scores[1, 6] = 0.0
    own = scores[np.arange(QUERIES), np.arange(QUERIES) * GROUP]
    assert float(found.value()) == pytest.approx(np.mean(np.log(scores.sum(1) / own)), rel=1e-4)
    assert float(objective(**settings).loss(UNPACKED, jax.random.key(0))[0].value()) > float(
        found.value()
    )


def test_cosine_does_not_depend_on_lengths() -> None:
    one = objective(similarity="cosine", normalise=False).loss(UNPACKED, jax.random.key(0))[0]
    other = objective(similarity="dot", normalise=True).loss(UNPACKED, jax.random.key(0))[0]
    assert float(one.value()) == pytest.approx(float(other.value()), rel=1e-5)


def test_the_batch_it_asks_for_and_what_it_refuses() -> None:
    module = objective()
    assert module.requires_full_batch
    check_batch(module.batch_specs()[0], UNPACKED, "the test")
    assert module.contract().temperature == 1.0
    with pytest.raises(ValueError, match="pooling must be one of"):
        objective(pooling="max")
    with pytest.raises(ValueError, match="temperature must be above 0"):
        objective(temperature=0.0)


def test_a_zero_vector_has_no_direction_and_no_gradient() -> None:
    value, pull = jax.vjp(text_embedding.unit, jnp.zeros((1, 4)))
    assert not np.asarray(value).any()
    assert not np.asarray(pull(jnp.ones((1, 4)))[0]).any()


# --- Matryoshka ----------------------------------------------------------------------------------


def test_the_first_components_are_trained_to_be_vectors() -> None:
    """As MatryoshkaLoss of sentence-transformers does: cut, of unit length, weight 1 each."""
    lengths = (8, 3)
    module = objective(normalise=True, temperature=0.1, matryoshka=lengths)
    loss, metrics = module.loss(UNPACKED, jax.random.key(0))
    whole = objective(normalise=True, temperature=0.1)
    queries, passages = (np.asarray(side.vectors) for side in whole.embed(UNPACKED))
    expected = 0.0
    for length in (queries.shape[1], *lengths):
        q, p = (side[:, :length] for side in (queries, passages))
        q, p = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (q, p))
        scores = np.exp(q @ p.T / 0.1)
        scores[0, 4] = 0.0  # a copy of query 0's positive is no negative of it
        own = scores[np.arange(QUERIES), np.arange(QUERIES) * GROUP]
        expected += np.mean(np.log(scores.sum(1) / own))
    assert float(loss.value()) == pytest.approx(expected, rel=1e-4)
    of_whole = whole.loss(UNPACKED, jax.random.key(0))[1]
    assert {name: float(one.value()) for name, one in metrics.items()} == {
        name: float(one.value()) for name, one in of_whole.items()
    }
    assert module.contract() == whole.contract()


def test_shorter_inner_products_are_of_the_components_as_they_are() -> None:
    module = objective(normalise=False, similarity="dot", matryoshka=(4,))
    queries, passages = (np.asarray(side.vectors) for side in module.embed(UNPACKED))
    logits = queries[:, :4] @ passages[:, :4].T
    logits[0, 4] = -np.inf
    own = logits[np.arange(QUERIES), np.arange(QUERIES) * GROUP]
    short = np.mean(np.log(np.exp(logits - own[:, None]).sum(1)))
    whole = objective(normalise=False, similarity="dot").loss(UNPACKED, jax.random.key(0))[0]
    loss = module.loss(UNPACKED, jax.random.key(0))[0]
    assert float(loss.value() - whole.value()) == pytest.approx(short, rel=1e-4)


@pytest.mark.parametrize("lengths", [(0,), (tiny_models.CONFIG.hidden,), (8, 8), (-1, 4)])
def test_lengths_that_are_no_shorter_vectors_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="distinct lengths from 1 to"):
        objective(matryoshka=lengths)


# --- a teacher -----------------------------------------------------------------------------------


def taught(batch: Batch, scores: np.ndarray) -> Batch:
    """With the teacher's scores [QUERIES * GROUP], by passage number."""
    number = np.zeros(batch["passage"]["document_id"].shape, np.int32)
    for i, (row, segment) in enumerate(zip(*np.nonzero(number == 0), strict=True)):
        number[row, segment] = i
    if number.shape[1] > 1:
        number = np.array([[7, 2, 5], [0, 11, 4], [3, 1, 10], [9, 8, 6]])  # as in PACKED
    given = jnp.asarray(scores[number].astype(np.float32))
    return {**batch, "passage": {**batch["passage"], "teacher_score": given}}


TEACHER = np.random.default_rng(4).normal(size=QUERIES * GROUP) * 3
LEARNING = distillation.DistillationConfig(contrastive_weight=0.2, group_size=GROUP)


def test_a_teachers_scores_are_learned_beside_the_contrastive_loss() -> None:
    settings = {"normalise": True, "temperature": 0.1}
    module = objective(**settings, distillation_config=LEARNING)
    batch = taught(UNPACKED, TEACHER)
    check_batch(module.batch_specs()[0], batch, "the test")
    loss, metrics = module.loss(batch, jax.random.key(0))
    queries, passages = module.embed(batch)
    student = np.asarray(queries.vectors @ passages.vectors.T) / 0.1
    student = np.stack([student[q, q * GROUP : (q + 1) * GROUP] for q in range(QUERIES)])
    teacher = TEACHER.reshape(QUERIES, GROUP)
    logs = [x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (teacher, student)]
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).mean()
    contrast = float(objective(**settings).loss(UNPACKED, jax.random.key(0))[0].value())
    assert float(metrics["distillation"].value()) == pytest.approx(divergence, rel=1e-4)
    assert float(metrics["contrastive"].value()) == pytest.approx(contrast, rel=1e-5)
    assert float(loss.value()) == pytest.approx(divergence + 0.2 * contrast, rel=1e-4)
    packed, _ = module.loss(taught(PACKED, TEACHER), jax.random.key(0))
    assert float(packed.value()) == pytest.approx(float(loss.value()), rel=1e-5)


def test_passages_that_the_teacher_has_not_seen_teach_nothing() -> None:
    module = objective(normalise=True, temperature=0.1, distillation_config=LEARNING)
    unseen = TEACHER.copy()
    unseen[[2, 5, 7, 8]] = -np.inf  # one each of two queries, two of a third's three
    loss, metrics = module.loss(taught(UNPACKED, unseen), jax.random.key(0))
    assert metrics["distillation"].weight.tolist() == [3.0]  # one passage alone teaches nothing
    _, gradients = parity_kit.value_and_gradients(module, taught(UNPACKED, unseen))
    assert np.isfinite(float(loss.value()))
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize("weight, group", [(-1.0, 3), (0.2, 1), (float("nan"), 3)])
def test_a_teacher_that_teaches_nothing_is_refused(weight: float, group: int) -> None:
    with pytest.raises(ValueError, match="of one passage alone the loss would be 0"):
        distillation.DistillationConfig(weight, group)


# --- encoding in chunks ---------------------------------------------------------------------------


def dropping(chunks: int) -> bi_encoder.BiEncoder:
    config = dataclasses.replace(tiny_models.CONFIG, dropout=0.3, attention_dropout=0.3)
    return objective(config=config, normalise=True, temperature=0.1, encode_chunks=chunks)


def gradients_with_dropout(
    module: bi_encoder.BiEncoder, chunked_by_hand: int, seeds: tuple[int, ...] = (3,)
) -> list[nnx.State]:
    """Of the loss, for the keys of these seeds.

    `chunked_by_hand` encodes chunk by chunk, and differentiates through it all.
    """
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def encode(module: bi_encoder.BiEncoder, group: dict, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, chunked_by_hand)
        rows = group["tokens"].shape[0]
        vectors = jnp.zeros((rows, tiny_models.CONFIG.hidden))
        for c, one in enumerate(keys):
            part = {name: array[c::chunked_by_hand] for name, array in group.items()}
            found = text_embedding.embed(module.encoder, part, module.embedding_config, one)
            vectors = vectors.at[c::chunked_by_hand].set(found[:, 0])
        return vectors

    @jax.jit
    @jax.grad
    def gradients(params: nnx.State, key: jax.Array) -> jax.Array:
        module = nnx.merge(graph, params, rest)
        module.train()
        queries, passages = module.embed(UNPACKED, key)
        if chunked_by_hand:
            keys = jax.random.split(key)
            queries = queries._replace(vectors=encode(module, UNPACKED["query"], keys[0]))
            passages = passages._replace(vectors=encode(module, UNPACKED["passage"], keys[1]))
        loss, _ = contrastive.info_nce(queries, passages, 0.1, module.contrastive_config)
        return loss.value()

    return [gradients(params, jax.random.key(seed)) for seed in seeds]


@pytest.mark.parametrize("chunks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_chunks_are_encoded_with_the_same_dropout_both_times(chunks: int) -> None:
    found, other = gradients_with_dropout(dropping(chunks), 0, seeds=(3, 4))
    (expected,) = gradients_with_dropout(dropping(1), chunks)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
    differs = jax.tree.map(lambda a, b: not np.allclose(a, b, atol=1e-3), found, other)
    assert any(jax.tree.leaves(differs)), "dropout did something"


MANY_QUERIES = 32  # on 8 devices in 4 chunks


def compiled(chunks: int, exchange: str) -> Any:
    """The gradient's program on 8 devices, for rows of 64 tokens."""
    mesh = partitioning.Partitioner(partitioning.MeshShape(8, 1, 1))
    config = dataclasses.replace(tiny_models.CONFIG, max_positions=64, layers=4, hidden=64, mlp=256)
    shape = GroupShape(rows=MANY_QUERIES, length=64, segments=1)
    module = objective(
        config=config, query=shape, passage=shape, encode_chunks=chunks,
        contrastive_config=contrastive.ContrastiveConfig(exchange=exchange),
    )  # fmt: skip
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def total(params: nnx.State, batch: Batch) -> jax.Array:
        with jax.sharding.use_abstract_mesh(mesh.mesh.abstract_mesh):
            return nnx.merge(graph, params, rest).loss(batch, jax.random.key(0))[0].value()

    batch = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=mesh.batch_sharding),
        module.batch_specs()[0],
    )
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=mesh.replicated), params
    )
    return jax.jit(jax.grad(total)).lower(shapes, batch).compile()


def products(program: Any) -> int:
    """FLOPs of one device's matrix products, loops times their trips."""
    module, total = hlo.parse(program.as_text()), 0
    for visit in hlo.walk(module, into_fusions=True):
        item = visit.instruction
        if item.op == "dot":
            shape = re.search(r"\[([\d,]*)\]", item.type)
            left = re.search(r"\[([\d,]*)\]", visit.computation[item.operands[0]].type)
            over = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", item.attributes)
            assert shape and left and over and not visit.unknown
            sides = [int(side) for side in left[1].split(",")]
            contracted = [sides[int(axis)] for axis in over[1].split(",")]
            total += 2 * visit.times * math.prod([*map(int, shape[1].split(",")), *contracted])
    return total


@pytest.mark.slow
def test_chunks_cost_little_more_and_hold_less() -> None:
    whole, chunked = compiled(1, "ring"), compiled(4, "ring")
    assert 1.2 < products(chunked) / products(whole) <= 1.4, "one more forward pass: 4/3"
    sizes = [p.memory_analysis().temp_size_in_bytes for p in (whole, chunked)]
    assert sizes[1] < 0.6 * sizes[0]


def test_chunks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="encode_chunks: expected 1 or more, found 0"):
        objective(encode_chunks=0)
    with pytest.raises(ValueError, match="3 pieces .*found 4 rows"):
        objective(encode_chunks=3).loss(UNPACKED, jax.random.key(0))
