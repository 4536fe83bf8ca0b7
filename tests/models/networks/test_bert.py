"""The encoder: packing, padding, remat, dropout, dtypes and the names of its parameters."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import attention, bert, layers, pooling, stacks
from models.objectives import bi_encoder, mlm, retromae
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape, Objective
from tests.kits import tiny_models

CONFIG = tiny_models.CONFIG
INPUTS = ("tokens", "positions", "segment_ids")
SHAPE = GroupShape(rows=4, length=24, segments=3)

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "mlm": lambda: mlm.Mlm(
        CONFIG,
        tiny_models.EMBEDDING,
        tiny_models.VOCABULARY,
        SHAPE,
        mask_rate=0.3,
        chunk=16,
        rngs=nnx.Rngs(0),
    ),
    "retromae": lambda: retromae.RetroMAE(
        CONFIG,
        tiny_models.EMBEDDING,
        tiny_models.VOCABULARY,
        SHAPE,
        encoder_mask_rate=0.3,
        decoder_mask_rate=0.5,
        chunk=16,
        rngs=nnx.Rngs(0),
    ),
    "bi_encoder": lambda: bi_encoder.BiEncoder(
        CONFIG,
        tiny_models.EMBEDDING,
        tiny_models.VOCABULARY,
        SHAPE,
        SHAPE,
        contrastive.ContrastiveConfig(),
        rngs=nnx.Rngs(0),
    ),
}


def encoder(**changes: object) -> bert.Encoder:
    return bert.Encoder(dataclasses.replace(CONFIG, **changes), rngs=nnx.Rngs(0))


@nnx.jit
def run(
    module: bert.Encoder, group: dict[str, jax.Array], key: jax.Array | None = None
) -> jax.Array:
    return module(group["tokens"], group["positions"], group["segment_ids"], key=key)


def by_example(group: dict[str, jax.Array], hidden: jax.Array) -> dict[int, np.ndarray]:
    """Example id -> states of its tokens."""
    ids, valid = np.asarray(group["example_id"]), np.asarray(group["segment_valid"])
    segment_ids = np.asarray(group["segment_ids"])
    return {
        int(ids[r, s]): np.asarray(hidden[r])[segment_ids[r] == s + 1]
        for r, s in zip(*np.nonzero(valid), strict=True)
    }


def gradients(module: bert.Encoder, group: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    """Of the mean square of all real states, weighted by feature."""
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def total(params: nnx.State) -> jax.Array:
        hidden = run(nnx.merge(graph, params, rest), group).astype(jnp.float32)
        real = (group["segment_ids"] > 0)[..., None]
        return jnp.sum(jnp.where(real, hidden**2 * jnp.arange(CONFIG.hidden), 0.0)) / 100

    grads = jax.jit(jax.grad(total))(params)
    return {"/".join(map(str, p)): np.asarray(v[...]) for p, v in nnx.to_flat_state(grads)}


def test_packed_equals_unpacked_in_states_and_gradients() -> None:
    parts = tiny_models.segments(5, longest=8)
    alone = tiny_models.group([[part] for part in parts], 12, 1)
    packed = tiny_models.group([[parts[3], parts[0], parts[4]], [parts[2], parts[1]]], 24, 3)
    module = encoder()
    expected = by_example(alone, run(module, alone))
    found = by_example(packed, run(module, packed))
    assert expected.keys() == found.keys()
    for example, states in expected.items():
        np.testing.assert_allclose(found[example], states, atol=1e-5)
    one, other = gradients(module, alone), gradients(module, packed)
    for path in one:
        np.testing.assert_allclose(other[path], one[path], atol=1e-5, rtol=1e-5, err_msg=path)


def test_a_row_of_padding_is_finite_and_changes_no_gradient() -> None:
    parts = tiny_models.segments(2)
    with_empty = tiny_models.group([[parts[0]], [], [parts[1]]], 16, 2)
    without = tiny_models.group([[parts[0]], [parts[1]]], 16, 2)
    module = encoder()
    assert np.isfinite(run(module, with_empty)).all()
    one, other = gradients(module, with_empty), gradients(module, without)
    for path, gradient in one.items():
        assert np.isfinite(gradient).all(), path
        np.testing.assert_allclose(gradient, other[path], atol=1e-5, err_msg=path)


def test_visibility_as_a_table() -> None:
    segment_ids = jnp.array([[1, 1, 2, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    found = attention.visibility(segment_ids, segment_ids)
    np.testing.assert_array_equal(found[0].astype(int), expected)


def test_scan_equals_a_loop_over_layers() -> None:
    module = encoder(layers=3)
    group = tiny_models.group([[p] for p in tiny_models.segments(3)], 12, 1)
    segment_ids = group["segment_ids"]
    hidden = module.embeddings(group["tokens"], group["positions"])
    graph, state = nnx.split(module.layers)
    for i in range(3):
        layer = nnx.merge(graph, jax.tree.map(lambda x, i=i: x[i], state))
        hidden = layer(hidden, hidden, attention.visibility(segment_ids, segment_ids))
    np.testing.assert_allclose(run(module, group), hidden, atol=1e-5)


@pytest.mark.parametrize(
    "policy",
    ["full", *(pytest.param(p, marks=pytest.mark.slow) for p in stacks.REMAT_POLICIES[2:])],
)
def test_remat_changes_no_number(policy: str) -> None:
    group = tiny_models.group([[p] for p in tiny_models.segments(2)], 12, 1)
    one, other = gradients(encoder(), group), gradients(encoder(remat=policy), group)
    for path in one:
        np.testing.assert_allclose(other[path], one[path], atol=1e-5, rtol=1e-5, err_msg=path)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 1},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({}, {"remat": "full"})),
    ],
)
def test_states_of_some_tokens_are_those_among_all(changes: dict[str, object]) -> None:
    parts = tiny_models.segments(4, longest=8)
    group = tiny_models.group([parts[:3], parts[3:]], 24, 3)
    graph, params = nnx.split(encoder(**changes))
    at, valid = group["cls_at"], group["segment_valid"][:, :, None]

    @functools.partial(jax.jit, static_argnums=1)
    @functools.partial(jax.value_and_grad, has_aux=True)
    def some(params: nnx.State, alone: bool) -> tuple[jax.Array, jax.Array]:
        module, text = nnx.merge(graph, params), [group[n] for n in INPUTS]
        states = module.states_at(at, *text) if alone else pooling.pool_cls(module(*text), at)
        states = jnp.where(valid, states, 0.0)
        return jnp.sum(states**2 * jnp.arange(CONFIG.hidden)) / 100, states

    (_, found), gradients = some(params, True)
    (_, expected), wanted = some(params, False)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), gradients, wanted)


def test_dropout_follows_the_key_and_the_mode() -> None:
    module = encoder(dropout=0.5, attention_dropout=0.5)
    group = tiny_models.group([[p] for p in tiny_models.segments(2)], 12, 1)
    quiet = run(module, group)
    one, again = (run(module, group, jax.random.key(1)) for _ in range(2))
    other = run(module, group, jax.random.key(2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, quiet) and not np.allclose(one, other)
    module.eval()
    np.testing.assert_allclose(run(module, group, jax.random.key(1)), quiet, atol=1e-6)


def test_dropout_works_under_remat_and_gradient() -> None:
    group = tiny_models.group([[p] for p in tiny_models.segments(2)], 12, 1)
    totals = []
    for policy in ("none", "full"):
        graph, state = nnx.split(encoder(dropout=0.5, attention_dropout=0.5, remat=policy))

        def total(state: nnx.State, graph: nnx.GraphDef = graph) -> jax.Array:
            hidden = run(nnx.merge(graph, state), group, jax.random.key(1))
            return jnp.sum(hidden[:, 0] * jnp.arange(CONFIG.hidden))

        grads = jax.jit(jax.grad(total))(state)
        totals.append(np.concatenate([np.ravel(g) for g in jax.tree.leaves(grads)]))
    np.testing.assert_allclose(totals[0], totals[1], atol=1e-4, rtol=1e-4)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters() -> None:
    group = tiny_models.group([[p] for p in tiny_models.segments(3)], 12, 1)
    module = encoder(dtype="bfloat16")
    hidden = run(module, group)
    assert hidden.dtype == jnp.bfloat16
    assert {v.dtype for _, v in nnx.to_flat_state(nnx.state(module))} == {jnp.dtype("float32")}
    real = np.asarray(group["segment_ids"]) > 0
    exact = np.asarray(run(encoder(), group))[real]
    np.testing.assert_allclose(np.asarray(hidden, np.float32)[real], exact, atol=0.15)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_parameter_has_logical_names_with_a_rule(name: str) -> None:
    abstract = nnx.state(nnx.eval_shape(OBJECTIVES[name]), nnx.Param)
    known = {rule for rule, _ in partitioning.STANDARD_RULES}
    wrong = [
        (path, variable.shape, variable.get_metadata().get("out_sharding"))
        for path, variable in nnx.to_flat_state(abstract)
        if len(variable.get_metadata().get("out_sharding") or ()) != len(variable.shape)
        or not set(variable.get_metadata()["out_sharding"]) <= known
    ]
    assert not wrong, "parameters without a known name for each axis"


@pytest.mark.parametrize(
    "shape",
    [*(pytest.param(one, marks=pytest.mark.slow) for one in [(8, 1, 1), (2, 4, 1)]), (2, 2, 2)],
)
def test_states_on_a_mesh_equal_one_device(shape: tuple[int, int, int]) -> None:
    group = tiny_models.group([[p] for p in tiny_models.segments(8)], 12, 1)
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*shape))
    graph, _ = nnx.split(nnx.eval_shape(encoder))
    state, _ = partitioner.init(lambda: nnx.split(encoder())[1])
    placed = jax.device_put(group, partitioner.batch_sharding)
    found = jax.jit(lambda state, group: run(nnx.merge(graph, state), group))(state, placed)
    np.testing.assert_allclose(found, run(encoder(), group), atol=1e-5)


def test_pooling_takes_each_segment_and_guards_against_none() -> None:
    hidden = jnp.arange(12, dtype=jnp.float32).reshape(1, 6, 2)
    segment_ids = jnp.array([[1, 1, 2, 2, 2, 0]])
    cls = pooling.pool_cls(hidden, jnp.array([[0, 2, 0]]))
    np.testing.assert_array_equal(cls[0, :2], [[0, 1], [4, 5]])
    mean = pooling.pool_mean(hidden, segment_ids, 3)
    np.testing.assert_allclose(mean[0], [[1, 2], [6, 7], [0, 0]])


def test_sizes_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="hidden=16 and heads=3"):
        encoder(heads=3)
    with pytest.raises(ValueError, match="activation must be one of"):
        encoder(activation="swish")
    with pytest.raises(ValueError, match="remat must be one of"):
        encoder(remat="dots")
    with pytest.raises(ValueError, match="dtype must be one of"):
        encoder(dtype="float31")
    with pytest.raises(ValueError, match="attention_dropout must be at least 0 and below 1"):
        encoder(attention_dropout=1.0)
    with pytest.raises(ValueError, match="layers must be at least 1"):
        encoder(layers=0)


def test_the_word_table_is_padded_to_a_multiple() -> None:
    assert encoder(vocab_size=50, vocab_multiple=32).word_table.shape == (64, 16)
    assert encoder(vocab_size=64, vocab_multiple=32).word_table.shape == (64, 16)


def test_gelu_is_exact_in_both_dtypes() -> None:
    x = np.linspace(-6, 6, 2001)
    exact = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    assert np.abs(np.asarray(layers.gelu(jnp.asarray(x, jnp.float32))) - exact).max() < 1e-6
    narrow = jnp.asarray(x, jnp.bfloat16)
    exact = jax.nn.gelu(narrow.astype(jnp.float32), approximate=False)
    found = layers.gelu(narrow)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), exact, rtol=2**-8, atol=1e-6)
    slopes = jax.vmap(jax.grad(layers.gelu))(jnp.asarray([-2.0, 0.0, 2.0]))
    np.testing.assert_allclose(slopes, [-0.085231, 0.5, 1.085232], atol=1e-5)


SCALES = {
    "table_stddev": "embeddings/word",
    "position_stddev": "embeddings/(position|type)",
    "attention_stddev": "layers/attention/out/kernel",
    "mlp_stddev": "layers/mlp/wo/kernel",
    "kernel_stddev": "layers/(attention/(query|key|value)|mlp/wi)/kernel",
}


@pytest.mark.parametrize("name", SCALES)
def test_each_scale_is_that_of_the_parameters_that_it_names(name: str) -> None:
    def scales(config: bert.BertConfig) -> dict[str, float]:
        state = nnx.to_flat_state(nnx.state(config.build(nnx.Rngs(0)), nnx.Param))
        return {"/".join(map(str, path)): float(leaf[...].std()) for path, leaf in state}

    before = scales(CONFIG)
    after = scales(dataclasses.replace(CONFIG, **{name: 3 * CONFIG.initializer_range}))
    own = {path for path in before if re.match(SCALES[name], path)}
    if name == "kernel_stddev":  # the two residual kernels follow it unless they are set
        own |= {path for path in before if re.match("layers/.*(out|wo)/kernel", path)}
    assert own
    for path, scale in before.items():
        assert after[path] == pytest.approx(scale * (3 if path in own else 1), rel=1e-5), path


def test_one_size_gives_the_width_of_the_feed_forward_part():
    assert layers.mlp_width(128, 4) == 512 and layers.mlp_width(128, 1.5) == 192
    with pytest.raises(ValueError, match="expected hidden x times to be 1 or more, found 128 x 0"):
        layers.mlp_width(128, 0)
