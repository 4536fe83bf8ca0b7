"""The re-ranker: its batch, its scores, its loss."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from models.objectives import cross_encoder
from t5x_style.interfaces.objective import Batch, GroupShape, check_batch
from tests.kits import tiny_models
from tests.parity import parity_kit

QUERIES, GROUP, LENGTH = 4, 4, 14
PAIR = GroupShape(rows=QUERIES * GROUP, length=LENGTH, segments=1)
PARTS = tiny_models.segments(QUERIES * GROUP, seed=3, longest=LENGTH)


def objective(pair: GroupShape = PAIR, config: Any = tiny_models.CONFIG, **changes: Any) -> Any:
    settings = {"query_length": 6, "passage_length": 9, "queries": QUERIES, "group_size": GROUP}
    settings = {"keep": GROUP, **settings, **changes}
    vocabulary = tiny_models.VOCABULARY
    return cross_encoder.CrossEncoder(config, vocabulary, pair, rngs=nnx.Rngs(0), **settings)


def layout(rows: list[list[int]], length: int, most: int) -> Batch:
    """The pairs with these numbers in these rows; GROUP for each query, its positive first."""
    parts = [[(100 + i // GROUP, PARTS[i][1]) for i in row] for row in rows]
    group = tiny_models.group(parts, length, most)
    relevance, document = (np.zeros((len(rows), most), np.int32) for _ in range(2))
    for r, row in enumerate(rows):
        for s, i in enumerate(row):
            relevance[r, s], document[r, s] = i % GROUP == 0, i
    types = (np.asarray(group["positions"]) >= 3) & (np.asarray(group["segment_ids"]) > 0)
    added = {"relevance": relevance, "document_id": document, "token_types": types.astype(np.int32)}
    return {"pair": {**group, **{name: jnp.asarray(array) for name, array in added.items()}}}


PLAIN = layout([[i] for i in range(QUERIES * GROUP)], LENGTH, 1)
PACKED = layout([[9, 2, 15], [0, 11, 4], [3, 1, 10], [13, 8, 6], [12, 5, 7], [14]], 44, 3)


def test_the_batch_is_as_specified() -> None:
    check_batch(objective().batch_specs()[0], PLAIN, "the test")


def test_the_loss_is_that_of_its_own_scores() -> None:
    module = objective()
    loss, metrics = module.loss(PLAIN, jax.random.key(0))
    scores = np.asarray(module.score(PLAIN["pair"])).reshape(QUERIES, GROUP)
    shifted = scores - scores.max(axis=1, keepdims=True)
    expected = np.log(np.exp(shifted).sum(axis=1)) - shifted[:, 0]
    assert float(loss.value()) == pytest.approx(expected.mean(), rel=1e-5)
    right = (scores[:, :1] > scores[:, 1:]).all(axis=1)
    assert float(metrics["accuracy"].value()) == pytest.approx(right.mean())


def test_packing_and_order_change_nothing() -> None:
    one, one_gradients = parity_kit.value_and_gradients(objective(), PLAIN)
    packed = objective(GroupShape(rows=6, length=44, segments=3))
    other, other_gradients = parity_kit.value_and_gradients(packed, PACKED)
    assert one == pytest.approx(other, rel=1e-5)
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(other_gradients[name], gradient, atol=1e-5, err_msg=name)


def test_a_query_whose_pairs_are_missing_counts_nothing() -> None:
    valid = np.ones((QUERIES * GROUP, 1), bool)
    valid[4] = False  # the second query's positive
    valid[9:12] = False  # all negatives of the third
    pair = PLAIN["pair"] | {"segment_valid": jnp.asarray(valid)}
    loss, _ = objective().loss({"pair": pair}, jax.random.key(0))
    assert loss.weight.tolist() == [2.0]


def test_the_hardest_are_kept() -> None:
    module = objective(keep=2)
    scores = np.asarray(module.score(PLAIN["pair"])).reshape(QUERIES, GROUP)
    kept = module.corrupt(PLAIN, jax.random.key(0))["pair"]
    expected = np.stack([np.zeros(QUERIES, int), 1 + scores[:, 1:].argmax(axis=1)], axis=1)
    numbers = np.arange(QUERIES)[:, None] * GROUP + expected
    np.testing.assert_array_equal(kept["document_id"].reshape(QUERIES, 2), numbers)
    np.testing.assert_array_equal(kept["tokens"], PLAIN["pair"]["tokens"][numbers.reshape(-1)])
    loss, _ = module.loss({"pair": kept}, jax.random.key(0))
    assert np.isfinite(float(loss.value())) and loss.weight.tolist() == [4.0]


def test_r_drop_draws_two_passes_together() -> None:
    config = dataclasses.replace(tiny_models.CONFIG, dropout=0.2)
    module, key = objective(config=config, r_drop=True), jax.random.key(1)
    module.train()
    loss, _ = module.loss(PLAIN, key)
    assert loss.total.shape == (2,)  # the cross-entropies, and how far they are apart
    assert float(loss.total[1]) > 1e-6
    module.eval()
    loss, _ = module.loss(PLAIN, key)
    assert float(loss.total[1]) == pytest.approx(0, abs=1e-6)
    plain, _ = objective(config=config).loss(PLAIN, None)
    assert float(loss.value()) == pytest.approx(float(plain.value()), rel=1e-5)


def test_token_types_count_where_the_encoder_has_them() -> None:
    flipped = {"pair": PLAIN["pair"] | {"token_types": 1 - PLAIN["pair"]["token_types"]}}
    module = objective()
    assert not np.allclose(module.score(PLAIN["pair"]), module.score(flipped["pair"]))
    module = objective(config=dataclasses.replace(tiny_models.CONFIG, type_vocab=1))
    np.testing.assert_array_equal(module.score(PLAIN["pair"]), module.score(flipped["pair"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1, "keep": 1}, "of one passage alone the loss would be 0"),
        ({"keep": 5}, "keep from 2 to group_size; found 4 and 5"),
        ({"queries": 5}, "5 queries with 4 passages each do not fit"),
        ({"keep": 2, "pair": GroupShape(8, 44, 3)}, "needs a separate row"),
        ({"r_drop": True}, "two passes without dropout are the same"),
        ({"passage_length": 40}, "pairs of up to 45, found .* max_positions 24"),
        ({"pair": GroupShape(16, 13, 1)}, "pairs of up to 14, found rows of 13 "),
        ({"separators": 2, "pair": GroupShape(16, 14, 1)}, "pairs of up to 15, found rows of 14 "),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**changes)
    objective(pair=GroupShape(16, 14, 1))


WORDS = np.arange(5, 17)


def matching(seed: int) -> Batch:
    """Pairs [CLS] w [SEP] x y [SEP]: w is among x and y in a query's positive alone."""
    rng = np.random.default_rng(seed)
    asked = rng.permutation(WORDS)[:QUERIES]
    rows = []
    for number in range(QUERIES * GROUP):
        word = asked[number // GROUP]
        others = rng.choice(np.setdiff1d(WORDS, [word]), 2, replace=False)
        body = rng.permutation([word, others[0]] if number % GROUP == 0 else others)
        rows.append([(100 + number // GROUP, [2, int(word), 3, *body.tolist(), 3])])
    group = tiny_models.group(rows, LENGTH, 1)
    number = np.arange(QUERIES * GROUP, dtype=np.int32)[:, None]
    types = (np.asarray(group["positions"]) >= 3).astype(np.int32)
    added = {"relevance": (number % GROUP == 0).astype(np.int32), "document_id": number}
    return {"pair": {**group, **jax.tree.map(jnp.asarray, {**added, "token_types": types})}}


@pytest.mark.slow
def test_it_learns_which_passage_holds_the_word_that_is_asked_for() -> None:
    config = dataclasses.replace(tiny_models.CONFIG, hidden=32, mlp=64, heads=4)
    config = dataclasses.replace(config, initializer_range=0.1)
    graph, params, rest = nnx.split(objective(config=config), nnx.Param, ...)
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(params: Any, state: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            return nnx.merge(graph, params, rest).loss(batch, jax.random.key(0))[0].value()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimizer.init(params), []
    for number in range(800):
        params, state, value = step(params, state, matching(number))
        losses.append(float(value))
    assert np.mean(losses[:50]) > 0.9 * np.log(GROUP) and np.mean(losses[-50:]) < 0.5
