"""The inverse cloze task: what is taken out, what counts, what it learns, on any mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import projected_encoder
from models.objectives import ict
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape, embedder
from t5x_style.step import optimizers, train_state, train_step
from tests.kits import tiny_models

ROWS, LENGTH, BLOCK = 16, 8, 16
VOCABULARY = tiny_models.VOCABULARY


def make(removal_rate=0.9, exchange="gather", **changes):
    settings = {
        "config": tiny_models.CONFIG,
        "projection": projected_encoder.ProjectionConfig(8, dropout=0.0),
        "embedding_config": tiny_models.TITLED,
        "vocabulary": VOCABULARY,
        "query": GroupShape(ROWS, LENGTH, 1),
        "passage": GroupShape(ROWS, BLOCK, 1),
        "removal_rate": removal_rate,
        "contrastive_config": contrastive.ContrastiveConfig(exchange=exchange),
    }
    return functools.partial(ict.ICT, **settings | changes)


def batch(seed=0, alone=False, same=True):
    """Blocks "[CLS] t [SEP] a a a b b b [SEP]" and their second halves; `alone`: no first half.

    `same`: both halves say the same, so that there is something to learn.
    """
    rng = np.random.default_rng(seed)
    body = rng.integers(5, 50, (ROWS, 6))
    if same:
        body[:, 3:] = body[:, :3]
    if alone:
        body = body[:, 3:]
    blocks = [[2, 7, 3, *b, 3] for b in body.tolist()]
    start = 3 if alone else 6
    sentences = [[2, *b[start:-1], 3] for b in blocks]
    query = tiny_models.group([[(i, s)] for i, s in enumerate(sentences)], LENGTH, 1)
    passage = tiny_models.group([[(i, b)] for i, b in enumerate(blocks)], BLOCK, 1)
    one = jnp.ones((ROWS, 1), jnp.int32)
    passage |= {
        "document_id": jnp.arange(ROWS)[:, None],
        "sentence_start": start * one,
        "sentence_end": (start + 3) * one,
    }
    return {"query": query, "passage": passage}


def test_the_sentence_is_taken_out_as_often_as_asked():
    model, clean = make(0.5)(rngs=nnx.Rngs(0)), batch(same=False)
    shares = []
    for seed in range(8):
        found = model.corrupt(clean, jax.random.key(seed))["passage"]
        removed = np.asarray(found["removed"])[:, 0]
        shares.append(removed.mean())
        before, after = np.asarray(clean["passage"]["tokens"]), np.asarray(found["tokens"])
        np.testing.assert_array_equal(after[~removed], before[~removed])
        expected = [[*row[:6], 3] for row in before[removed].tolist()]
        assert after[removed, :7].tolist() == expected
        assert (np.asarray(found["segment_ids"])[removed].sum(1) == 7).all()
        assert (np.asarray(found["segment_ids"])[~removed].sum(1) == 10).all()
    assert 0.35 < np.mean(shares) < 0.65
    assert (
        make(0.0)(rngs=nnx.Rngs(0)).corrupt(clean, jax.random.key(0))["passage"]["removed"].any()
        == np.False_
    )


def test_a_block_of_nothing_but_the_sentence_does_not_count_without_it():
    model = make(1.0)(rngs=nnx.Rngs(0))
    corrupted = model.corrupt(batch(alone=True), jax.random.key(0))
    assert not corrupted["query"]["segment_valid"].any()
    loss, _ = model.loss(corrupted, jax.random.key(0))
    assert float(loss.weight[0]) == 0.0
    kept = make(0.0)(rngs=nnx.Rngs(0)).corrupt(batch(alone=True), jax.random.key(0))
    assert kept["query"]["segment_valid"].all()


def test_two_sentences_of_a_block_are_no_negatives_of_each_other():
    model, clean = make(0.0)(rngs=nnx.Rngs(0)), batch()
    model.eval()
    document = jnp.where(jnp.arange(ROWS) == 1, 0, jnp.arange(ROWS))[:, None]
    same = {**clean, "passage": clean["passage"] | {"document_id": document}}
    key = jax.random.key(0)
    one, two = (model.loss(model.corrupt(b, key), key)[0].value() for b in (clean, same))
    assert float(two) < float(one)


def test_the_null_document_is_a_negative_where_asked_for():
    model, clean = make(0.0, null_negative=True)(rngs=nnx.Rngs(0)), batch()
    model.eval()
    key = jax.random.key(0)
    corrupted = model.corrupt(clean, key)
    loss, metrics = model.loss(corrupted, key)
    queries, blocks = (
        embedder(model.functions(), name)(clean[name])[:, 0] for name in ("query", "passage")
    )
    nothing = tiny_models.group([[(0, [2, 3, 3])]], BLOCK, 1)
    null = embedder(model.functions(), "passage")(nothing)[:, 0]
    scores = np.asarray(queries @ jnp.concatenate([blocks, null]).T, np.float64)
    expected = np.log(np.exp(scores).sum(1)) - np.diag(scores)
    assert float(loss.value()) == pytest.approx(expected.mean(), rel=1e-4)
    assert float(metrics["accuracy"].value()) == (scores.argmax(1) == np.arange(ROWS)).mean()
    without = make(0.0)(rngs=nnx.Rngs(0))
    without.eval()
    assert float(loss.value()) > float(without.loss(corrupted, key)[0].value())
    above = scores[:, -1] > np.diag(scores)
    assert float(metrics["null_above"].value()) == above.mean()
    for wrong in ({"both_directions": True}, {"margin": 0.1}):
        with pytest.raises(ValueError, match="null_negative: expected a loss of one direction"):
            config = contrastive.ContrastiveConfig(**wrong)
            make(null_negative=True, contrastive_config=config)(rngs=nnx.Rngs(0))


def test_with_the_null_document_sentences_that_do_not_count_do_not():
    model = make(1.0, null_negative=True)(rngs=nnx.Rngs(0))
    model.eval()
    key = jax.random.key(0)
    loss, metrics = model.loss(model.corrupt(batch(alone=True), key), key)
    assert float(loss.weight[0]) == 0.0 and np.isfinite(float(loss.total[0]))
    assert float(metrics["null_above"].weight[0]) == 0.0


@functools.cache
def losses(mesh, exchange, steps, null=False):
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    definition, state, shardings = train_state.create(
        make(exchange=exchange, null_negative=null), optimizers.AdamW(1e-2, 2, 200), partitioner, 0
    )
    step = jax.jit(
        functools.partial(train_step.train_step, definition, partitioner.mesh),
        out_shardings=(shardings, None),
    )
    found = []
    for number in range(steps):
        placed = jax.device_put(batch(number), partitioner.batch_sharding)
        state, metrics = step(state, placed)
        found.append(float(metrics["loss"].value()))
    return found


@pytest.mark.slow
def test_it_learns_to_find_the_block():
    found = losses((1, 1, 1), "gather", 80)
    assert np.mean(found[-10:]) < np.mean(found[:10]) * 0.6


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "exchange"), [((8, 1, 1), "ring"), ((2, 2, 2), "gather")])
def test_it_is_the_same_on_any_mesh(mesh, exchange):
    np.testing.assert_allclose(
        losses(mesh, exchange, 4), losses((1, 1, 1), "gather", 80)[:4], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("mesh", "exchange"),
    [((2, 2, 2), "ring"), pytest.param((2, 2, 2), "gather", marks=pytest.mark.slow)],
)
def test_the_null_document_is_the_same_on_any_mesh(mesh, exchange):
    found = losses(mesh, exchange, 4, null=True)
    np.testing.assert_allclose(found, losses((1, 1, 1), "gather", 4, null=True), rtol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="removal_rate: expected 0 to 1, found 1.5"):
        make(1.5)(rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="ICT.query: expected 1 segment a row, found 2"):
        make(query=GroupShape(ROWS, LENGTH, 2))(rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="ICT trains the .CLS. vector"):
        pooled = dataclasses.replace(tiny_models.TITLED, pooling="mean")
        make(embedding_config=pooled)(rngs=nnx.Rngs(0))
    for change in (
        {"normalise": True},
        {"similarity": "cosine"},
        {"temperature": 0.1},
        {"passage_layout": "text"},
    ):
        with pytest.raises(ValueError, match="ICT: expected EmbeddingConfig with .*; found"):
            make(embedding_config=dataclasses.replace(tiny_models.TITLED, **change))(
                rngs=nnx.Rngs(0)
            )
    with pytest.raises(ValueError, match="expected size of at least 1"):
        projected_encoder.ProjectionConfig(0)
