"""ModernBERT: packing, windows, long rows in blocks, and each objective over it."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.networks import (
    attention,
    modernbert,
    pooling,
    rotary,
    window_attention,
)
from t5x_style.distributed import partitioning
from tests.kits import tiny_models

CONFIG = modernbert.ModernBertConfig(
    vocab_size=50,
    hidden=16,
    layers=5,
    heads=2,
    mlp=24,
    max_positions=24,
    window=4,
    initializer_range=0.2,
    vocab_multiple=32,
)
INPUTS = ("tokens", "positions", "segment_ids")
SEGMENTS = tiny_models.segments(4, longest=9)
ALONE = tiny_models.group([[segment] for segment in SEGMENTS], 20, 2)
PACKED = tiny_models.group([SEGMENTS[:2], SEGMENTS[2:]], 20, 2)


def encoder(**changes: object) -> modernbert.Encoder:
    return dataclasses.replace(CONFIG, **changes).build(nnx.Rngs(0))


def states(module: modernbert.Encoder, group: dict[str, jax.Array]) -> np.ndarray:
    graph, params = nnx.split(module)
    return np.asarray(jax.jit(lambda p: nnx.merge(graph, p)(*(group[n] for n in INPUTS)))(params))


def real(group: dict[str, jax.Array]) -> np.ndarray:
    return np.asarray(group["segment_ids"]) > 0


def test_packing_changes_no_state() -> None:
    module = encoder()
    alone, packed = states(module, ALONE), states(module, PACKED)
    np.testing.assert_allclose(packed[real(PACKED)], alone[real(ALONE)], atol=1e-5)


def test_a_window_hides_what_is_far_from_every_layer_but_the_whole_ones() -> None:
    """With windows alone, 5 layers of reach 1 cannot see past 5 tokens; the first layer can."""
    far = jnp.asarray([[2, *range(10, 29), 3]])
    length = far.shape[1]
    group = {
        "tokens": far,
        "positions": jnp.arange(length)[None],
        "segment_ids": jnp.ones((1, length), jnp.int32),
    }
    changed = group | {"tokens": far.at[0, 15].set(9)}
    module = encoder(window=2, whole_every=5, max_positions=length)
    # Layer 0 sees everything: queries of its attention are made to look at nothing.
    module.first.attention.out.kernel[...] = jnp.zeros_like(module.first.attention.out.kernel[...])
    apart = np.abs(states(module, group) - states(module, changed)).max(-1)[0]
    assert apart[15] > 0.1 and apart[11:20].all() and not apart[:11].any() and not apart[20:].any()
    seeing = encoder(window=2, whole_every=5, max_positions=length)
    assert np.abs(states(seeing, group) - states(seeing, changed)).max(-1)[0].all()


@pytest.mark.parametrize(
    "number", [1, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, 4)), 5]
)
def test_states_of_some_tokens_are_those_among_all(number: int) -> None:
    """After the first layer, a layer that sees all, one with a window, and the last."""
    module = encoder(layers=number)
    text, at = [PACKED[n] for n in INPUTS], PACKED["cls_at"]
    found = nnx.jit(lambda m: m.states_at(at, *text))(module)
    wanted = nnx.jit(lambda m: pooling.pool_cls(m(*text), at))(module)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    early, late = nnx.jit(lambda m: m.early_and_late(*text, early=number - 1))(module)
    depth = nnx.jit(lambda m: m.states_at(at, *text, depth=number - 1))
    if number > 1:
        shallow = depth(module)
        np.testing.assert_allclose(pooling.pool_cls(early, at), shallow, atol=1e-5)
    np.testing.assert_allclose(pooling.pool_cls(late, at), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"remat": "full"}, pytest.param({"unroll": 3}, marks=pytest.mark.slow)]
)
def test_remat_and_unrolling_change_no_gradient(changes: dict[str, object]) -> None:
    def gradients(module: modernbert.Encoder) -> dict[str, np.ndarray]:
        graph, params = nnx.split(module)

        @jax.jit
        @jax.grad
        def total(params: nnx.State) -> jax.Array:
            found = nnx.merge(graph, params)(*(PACKED[n] for n in INPUTS))
            return jnp.sum(jnp.where(real(PACKED)[..., None], found, 0.0)[..., :3] ** 2)

        flat = nnx.to_flat_state(total(params))
        return {"/".join(map(str, path)): np.asarray(v[...]) for path, v in flat}

    one, other = gradients(encoder()), gradients(encoder(**changes))
    for path in one:
        np.testing.assert_allclose(other[path], one[path], atol=2e-4, rtol=1e-4, err_msg=path)
        assert np.isfinite(one[path]).all() and one[path].any(), path


def test_blocks_of_a_window_are_the_masked_formula() -> None:
    length, reach = 384, 5
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, length, 2, 8)) for key in keys)
    lengths = [[100, 60, 200], [7, 250, 100]]  # the rest is padding
    ids = np.zeros((2, length), np.int32)
    for row, parts in enumerate(lengths):
        ids[row, : sum(parts)] = np.repeat(np.arange(1, len(parts) + 1), parts)
    columns = jnp.arange(length)[None].repeat(2, 0)
    visible = attention.visibility(ids, ids) & window_attention.near(columns, columns, reach)
    window = window_attention.Window(jnp.asarray(ids), reach)

    def value_and_gradients(attend: Callable[..., jax.Array]) -> list[np.ndarray]:
        def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = jnp.where((ids > 0)[..., None, None], attend(q, k, v), 0.0)
            return jnp.sum(found**2), found

        (_, found), gradients = jax.value_and_grad(total, (0, 1, 2), has_aux=True)(q, k, v)
        return [found, *gradients]

    blocks = value_and_gradients(functools.partial(window_attention.windowed, window=window))
    masked = value_and_gradients(lambda q, k, v: attention.plain(q, k, v, visible))
    for one, other in zip(blocks, masked, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_long_rows_take_kernels_and_blocks_with_the_same_states() -> None:
    length = attention.AUTO_LENGTH
    rng = np.random.default_rng(0)
    ids = np.repeat([1, 2, 3, 0], [500, 300, 200, length - 1000])[None].astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in (500, 300, 200, length - 1000)])[None]
    group = {
        "tokens": jnp.asarray(rng.integers(5, 50, (1, length))),
        "positions": jnp.asarray(positions),
        "segment_ids": jnp.asarray(ids),
    }
    one = encoder(attention="auto", max_positions=500, layers=4)
    view = one.view(group["positions"], group["segment_ids"], None)
    assert isinstance(view[0].visible, attention.Segments)
    assert isinstance(view[1].visible, window_attention.Window)
    other = encoder(attention="plain", max_positions=500, layers=4)
    np.testing.assert_allclose(
        states(one, group)[real(group)], states(other, group)[real(group)], atol=1e-4
    )


def test_turning_keeps_products_of_equal_distance() -> None:
    x, y = jax.random.normal(jax.random.key(1), (2, 1, 1, 1, 8))

    def product(at: int, to: int) -> float:
        a, b = (rotary.angles(jnp.full((1, 1), p), 8, 100.0) for p in (at, to))
        return float(jnp.sum(rotary.turned(x, a) * rotary.turned(y, b)))

    assert product(3, 7) == pytest.approx(product(30, 34), rel=1e-4)
    assert product(3, 7) != pytest.approx(product(3, 8), rel=1e-3)
    assert product(5, 5) == pytest.approx(float(jnp.sum(x * y)), rel=1e-5)


@pytest.mark.parametrize("shape", [(2, 2, 2), pytest.param((8, 1, 1), marks=pytest.mark.slow)])
def test_states_on_a_mesh_equal_one_device(shape: tuple[int, int, int]) -> None:
    group = tiny_models.group([[p] for p in tiny_models.segments(8)], 12, 1)
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*shape))
    graph, _ = nnx.split(nnx.eval_shape(encoder))
    state, _ = partitioner.init(lambda: nnx.split(encoder())[1])
    placed = jax.device_put(group, partitioner.batch_sharding)
    found = jax.jit(lambda s, g: nnx.merge(graph, s)(*(g[n] for n in INPUTS)))(state, placed)
    np.testing.assert_allclose(found, states(encoder(), group), atol=1e-5)


@pytest.mark.slow
def test_long_rows_have_gradients_on_a_mesh() -> None:
    """Kernels and blocks, chosen by layer, within a loop that is recomputed."""
    length, rows = attention.AUTO_LENGTH, 4
    group = {
        "tokens": jax.random.randint(jax.random.key(0), (rows, length), 5, 50),
        "positions": jnp.broadcast_to(jnp.arange(length) % 512, (rows, length)),
        "segment_ids": jnp.broadcast_to(jnp.arange(length) // 512 + 1, (rows, length)),
    }
    settings = {"layers": 2, "max_positions": 512, "remat": "full", "window": 8}

    def make() -> nnx.State:
        return nnx.split(encoder(**settings))[1]

    graph = nnx.split(nnx.eval_shape(lambda: encoder(**settings)))[0]

    def total(state: nnx.State, group: dict[str, jax.Array]) -> jax.Array:
        return jnp.sum(nnx.merge(graph, state)(*(group[n] for n in INPUTS))[..., :3] ** 2)

    expected = jax.jit(jax.grad(total))(make(), group)
    partitioner = partitioning.Partitioner(partitioning.MeshShape(2, 2, 2))
    state, _ = partitioner.init(make)
    placed = jax.device_put(group, partitioner.batch_sharding)
    with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
        found = jax.jit(jax.grad(total))(state, placed)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3, rtol=2e-3), found, expected
    )


def test_bfloat16_computes_in_bfloat16() -> None:
    module = encoder(dtype="bfloat16", remat="full", dropout=0.1)
    text = [PACKED[n] for n in INPUTS]
    found = nnx.jit(lambda m: m(*text, key=jax.random.key(0)))(module)
    assert found.dtype == jnp.bfloat16 and np.isfinite(np.asarray(found, np.float32)).all()
    exact = states(encoder(), PACKED)[real(PACKED)]
    near = np.asarray(nnx.jit(lambda m: m(*text))(module), np.float32)[real(PACKED)]
    np.testing.assert_allclose(near, exact, atol=0.25)


def test_sizes_that_are_unknown_can_be_exported() -> None:
    module = encoder()
    graph, params = nnx.split(module)
    rows, length = jax.export.symbolic_shape("b, l")
    shapes = [jax.ShapeDtypeStruct((rows, length), jnp.int32)] * 3
    exported = jax.export.export(jax.jit(lambda *text: nnx.merge(graph, params)(*text)))(*shapes)
    found = exported.call(*(PACKED[n] for n in INPUTS))
    np.testing.assert_allclose(
        np.asarray(found)[real(PACKED)], states(module, PACKED)[real(PACKED)], atol=1e-5
    )


def test_dropout_follows_the_key() -> None:
    module = encoder(dropout=0.3, attention_dropout=0.3)
    text = [PACKED[n] for n in INPUTS]
    dropped = nnx.jit(lambda m, k: m(*text, key=k))
    one, again, other = (dropped(module, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other) and not np.allclose(one, states(module, PACKED))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "hidden=16 and heads=3"),
        ({"heads": 16}, "multiple of 2 heads"),
        ({"window": 400}, "window: expected at most 256 tokens, found 400"),
        ({"whole_every": 0}, "whole_every: expected at least 1, found 0"),
        ({"dropout": 1.0}, "dropout: expected a rate from 0 to below 1"),
        ({"whole_theta": 0.0}, "whole_theta: expected a number above 0"),
        ({"remat": "some"}, "remat: expected one of"),
        ({"table_stddev": -1.0}, "standard deviations of 0 or more"),
        ({"activation": "swish"}, "ModernBertConfig.activation: expected one of"),
        ({"attention": "flash"}, "ModernBertConfig.attention: expected one of"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)
