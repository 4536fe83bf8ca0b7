"""Attention's kernels: in blocks on CPUs; the TPU's, interpreted; programs for TPUs not at hand."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from models.networks import attention, bert, blocked_attention
from models.objectives import mlm
from t5x_style.distributed.partitioning import BATCH_AXES, MeshShape, Partitioner
from t5x_style.interfaces.objective import GroupShape, embedding_function
from t5x_style.preflight import topology
from t5x_style.step import jitted_functions
from tests.kits import tiny_models

KERNEL = "tpu_custom_call"  # what a Pallas kernel is called in a compiled program
LENGTH = 256
CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1, max_positions=LENGTH, attention="fused")


@pytest.fixture
def kernel_on_cpu(monkeypatch):
    """A CPU interprets the TPU's kernel, in several blocks."""
    monkeypatch.setattr(attention, "_BLOCKS", (128,))
    interpreted = functools.partial(attention.on_tpu, interpret=True)
    monkeypatch.setattr(attention, "on_cpu", interpreted)


def packed(rows: int) -> dict[str, jax.Array]:
    """Rows of three segments and padding; the last row is padding alone."""
    parts = tiny_models.segments(3 * rows, longest=80)
    grouped = [parts[3 * row : 3 * row + 3] for row in range(rows - 1)]
    return tiny_models.group([*grouped, []], LENGTH, 3)


def states_and_gradients(kind: str, group: dict[str, jax.Array], mesh: MeshShape | None):
    """(states of real tokens, gradients by path), on a mesh as the trainer would have it."""
    config = dataclasses.replace(CONFIG, attention=kind)
    graph, state = nnx.split(bert.Encoder(config, rngs=nnx.Rngs(0)))
    real = (group["segment_ids"] > 0)[..., None]

    def total(state: nnx.State, group: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        module = nnx.merge(graph, state)
        hidden = module(group["tokens"], group["positions"], group["segment_ids"])
        hidden = jnp.where(real, hidden, 0.0)
        return jnp.sum(hidden**2 * jnp.arange(config.hidden)) / 100, hidden

    call = jax.value_and_grad(total, has_aux=True)
    if mesh is not None:
        partitioner = Partitioner(mesh)
        state = jax.device_put(state, partitioner.shardings(state))
        group = jax.device_put(group, partitioner.batch_sharding)
        inner = call

        def call(state, group):
            with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
                return inner(state, group)

    (_, hidden), grads = jax.jit(call)(state, group)
    flat = {"/".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(grads)}
    return np.asarray(hidden), {path: np.asarray(value) for path, value in flat.items()}


@pytest.mark.parametrize("mesh", [None, MeshShape(2, 2, 2)])
def test_the_kernel_equals_the_plain_form(kernel_on_cpu, mesh):
    group = packed(4)
    hidden, gradients = states_and_gradients("fused", group, mesh)
    expected, expected_gradients = states_and_gradients("plain", group, None)
    np.testing.assert_allclose(hidden, expected, atol=2e-5)
    for path, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[path], gradient, atol=2e-5, rtol=2e-5, err_msg=path)


def test_rows_that_do_not_divide_are_computed_by_every_device(kernel_on_cpu):
    hidden, _ = states_and_gradients("fused", packed(4), MeshShape(2, 2, 2))
    group = jax.tree.map(lambda leaf: leaf[:1], packed(4))
    partitioner = Partitioner(MeshShape(2, 2, 2))
    graph, state = nnx.split(bert.Encoder(CONFIG, rngs=nnx.Rngs(0)))
    state = jax.device_put(state, partitioner.shardings(state))

    def call(state, group):
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            module = nnx.merge(graph, state)
            return module(group["tokens"], group["positions"], group["segment_ids"])

    found = np.asarray(jax.jit(call)(state, group))
    real = np.asarray(group["segment_ids"][0] > 0)
    np.testing.assert_allclose(found[0, real], hidden[0, real], atol=2e-5)


@pytest.fixture
def blocks_at_any_size(monkeypatch):
    """On CPUs, heads one by one, however few scores there are."""
    monkeypatch.setattr(blocked_attention, "WORTH_IT", 0)
    monkeypatch.setattr(blocked_attention, "SCORES", 1)


@pytest.mark.parametrize("kind", ["auto", "fused"])
@pytest.mark.parametrize("mesh", [None, MeshShape(2, 2, 2)])
def test_in_blocks_as_written_out(blocks_at_any_size, kind, mesh):
    group = packed(4)
    hidden, gradients = states_and_gradients(kind, group, mesh)
    expected, expected_gradients = states_and_gradients("plain", group, None)
    np.testing.assert_allclose(hidden, expected, atol=2e-5)
    for path, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[path], gradient, atol=2e-5, rtol=2e-5, err_msg=path)


@pytest.mark.parametrize(
    "heads,scores,groups", [(1, 2**18, 1), (2, 2**18, 2), (6, 4 * 24**2, 2), (6, 1, 6), (5, 900, 5)]
)
@pytest.mark.parametrize("dtype,tolerance", [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_blocks_of_heads(monkeypatch, heads, scores, groups, dtype, tolerance):
    monkeypatch.setattr(blocked_attention, "SCORES", scores)
    segments = jnp.array([[1] * 10 + [2] * 9 + [0] * 5, [0] * 24, [1] * 24])
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, weight = (jax.random.normal(key, (3, 24, heads, 8)).astype(dtype) for key in keys)

    def total(form, q, k, v):
        out = form(q, k, v).astype(jnp.float32)
        return jnp.sum(out * weight.astype(jnp.float32)), out

    def found(form):
        return jax.jit(jax.grad(functools.partial(total, form), (0, 1, 2), has_aux=True))(q, k, v)

    seen = attention.visibility(segments, segments)
    blocked = found(lambda q, k, v: blocked_attention.attend(q, k, v, segments))
    written_out = found(lambda q, k, v: attention.plain(q, k, v, seen))
    assert blocked_attention._grouped(q).shape[1] == groups
    for one, other in zip(jax.tree.leaves(blocked), jax.tree.leaves(written_out), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance * max(1, np.abs(other).max()))


@pytest.mark.parametrize("heads_of_mask", [0, 1, 2])
@pytest.mark.parametrize("dtype,tolerance", [(jnp.float32, 1e-6), (jnp.bfloat16, 2e-2)])
def test_a_mask_is_applied_to_blocks_of_many_queries(monkeypatch, heads_of_mask, dtype, tolerance):
    monkeypatch.setattr(attention, "MANY_QUERIES", 12)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
    keys = jax.random.split(jax.random.key(0), 5)
    q, weight = (jax.random.normal(key, (3, 12, 2, 8)).astype(dtype) for key in keys[:2])
    k, v = (jax.random.normal(key, (3, 7, 2, 8)).astype(dtype) for key in keys[2:4])
    shape = (3, heads_of_mask, 12, 7) if heads_of_mask else (3, 12, 7)
    seen = jax.random.bernoulli(keys[4], 0.5, shape).at[0, ..., 3, :].set(False)

    def found(form):
        def total(q, k, v):
            out = form(q, k, v).astype(jnp.float32)
            return jnp.sum(out * weight.astype(jnp.float32)), out

        return jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(q, k, v)

    in_blocks = found(lambda *heads: attention.attend(*heads, seen, "auto", attention.keep_all))
    at_once = found(lambda *heads: attention.plain(*heads, seen))
    for one, other in zip(jax.tree.leaves(in_blocks), jax.tree.leaves(at_once), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(x, np.float32) for x in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance * max(1, np.abs(other).max()))


def test_the_scores_of_a_long_row_are_never_whole():
    head = jax.ShapeDtypeStruct((1, 8192, 4, 8), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, 8192, 8192), bool)

    def total(q, k, v, mask):
        return jnp.sum(attention.attend(q, k, v, mask, "auto", attention.keep_all))

    compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(head, head, head, mask).compile()
    scores = 4 * 8192**2 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < scores / 3


def test_blocks_hold_no_scores_of_all_heads():
    heads = jax.ShapeDtypeStruct((8, 256, 16, 16), jnp.float32)
    ids = jax.ShapeDtypeStruct((8, 256), jnp.int32)

    def temporaries(form) -> int:
        loss = jax.grad(lambda q, k, v, ids: jnp.sum(form(q, k, v, ids)), (0, 1, 2))
        compiled = jax.jit(loss).lower(heads, heads, heads, ids).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(attention.on_cpu) < temporaries(attention._on_others) / 4


@pytest.mark.parametrize(
    "kind,length,drops,fused,why",
    [
        ("plain", 4096, False, False, "'plain'"),
        ("auto", 256, False, False, "shorter than 1024"),
        ("auto", 1024, False, True, "1024 tokens"),
        ("auto", 1024, True, False, "attention_dropout is above 0"),
        ("auto", 1100, False, False, "no multiple of 128"),
        ("fused", 128, False, True, "'fused'"),
    ],
)
def test_which_form_is_taken(kind, length, drops, fused, why):
    choice = attention.choose(kind, length, drops)
    assert choice.fused == fused and why in choice.why


@pytest.mark.parametrize(
    "length,drops,message",
    [
        (100, False, "length 100 is no multiple of 128: choose one"),
        (128, True, "attention_dropout is above 0 in training.*set 0, or bind attention='auto'"),
        (jax.export.symbolic_shape("b")[0], False, "symbolic: export with attention 'plain'"),
    ],
)
def test_fused_where_it_cannot_be_is_an_error(length, drops, message):
    with pytest.raises(attention.AttentionError, match=message):
        attention.choose("fused", length, drops)


def test_dropout_forbids_the_kernels_in_training_only():
    module = bert.Encoder(dataclasses.replace(CONFIG, attention_dropout=0.1), rngs=nnx.Rngs(0))
    segment_ids, key = jnp.ones((1, 1024), jnp.int32), jax.random.key(0)
    with pytest.raises(attention.AttentionError, match="attention_dropout"):
        module.layers.attention.segment_mask(segment_ids, key)
    module.layers.attention.kind = "auto"
    with pytest.warns(UserWarning, match="attention of 1024 tokens is plain: attention_dropout"):
        assert not isinstance(
            module.layers.attention.segment_mask(segment_ids, key), attention.Segments
        )
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(
            module.layers.attention.segment_mask(segment_ids, key), attention.Segments
        )


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="attention must be one of .*'auto'.*found 'flash'"):
        bert.Encoder(dataclasses.replace(CONFIG, attention="flash"), rngs=nnx.Rngs(0))


@pytest.mark.parametrize("dtype,dimension", [("float32", 64), ("bfloat16", 12)])
def test_a_gpu_needs_bfloat16_and_fitting_heads(monkeypatch, dtype, dimension):
    monkeypatch.setattr(attention, "_gpu_at_hand", lambda: True)
    query = jnp.zeros((1, 128, 2, dimension), dtype)
    segments = attention.Segments(jnp.ones((1, 128), jnp.int32))
    with pytest.raises(attention.AttentionError, match=f"found {dtype} and {dimension}"):
        attention.fused(query, query, query, segments, "fused")
    assert attention.fused(query, query, query, segments, "auto").shape == query.shape


@pytest.fixture
def v5e(for_tpus):
    return topology.devices("v5e:4x4")


@pytest.mark.slow
def test_the_kernels_gradient_takes_less_memory_on_a_tpu(v5e):
    partitioner = Partitioner(MeshShape(4, 1, 4), devices=v5e)
    by_head = NamedSharding(partitioner.mesh, PartitionSpec(BATCH_AXES, None, "tensor"))
    head = jax.ShapeDtypeStruct((16, 2048, 12, 64), jnp.bfloat16, sharding=by_head)
    ids = jax.ShapeDtypeStruct((16, 2048), jnp.int32, sharding=partitioner.batch_sharding)

    def compiled(form) -> jax.stages.Compiled:
        def total(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
            with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
                return jnp.sum(form(q, k, v, ids).astype(jnp.float32) ** 2)

        return jax.jit(jax.grad(total, (0, 1, 2))).lower(head, head, head, ids).compile()

    fused = compiled(lambda q, k, v, i: attention.fused(q, k, v, attention.Segments(i), "fused"))
    plain = compiled(lambda q, k, v, i: attention.plain(q, k, v, attention.visibility(i, i)))
    assert KERNEL in fused.as_text() and KERNEL not in plain.as_text()
    sizes = [one.memory_analysis().temp_size_in_bytes for one in (fused, plain)]
    assert sizes[0] < sizes[1] / 4, sizes


@pytest.mark.parametrize(
    "kind,fused", [("auto", True), pytest.param("plain", False, marks=pytest.mark.slow)]
)
def test_an_encoder_on_a_mesh_compiles_for_a_tpu(v5e, kind, fused):
    partitioner = Partitioner(MeshShape(16, 1, 1), devices=v5e)
    shape = GroupShape(rows=16, length=1024, segments=4)
    config = dataclasses.replace(CONFIG, layers=2, hidden=128, max_positions=1024, attention=kind)
    sizes = (config, tiny_models.EMBEDDING, tiny_models.VOCABULARY, shape, 0.15, 64)
    abstract = nnx.eval_shape(lambda: mlm.Mlm(*sizes, rngs=nnx.Rngs(0)))
    graph, params, rest = nnx.split(abstract, nnx.Param, ...)
    functions = jitted_functions.jitted_functions(graph, abstract.functions(), partitioner.mesh)
    embed = embedding_function(functions, "passage", ["dense"]).call
    params, rest = (
        jax.tree.map(
            lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
            part,
            partitioner.shardings(part),
        )
        for part in (params, rest)
    )
    group = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=partitioner.batch_sharding)
        for name, leaf in shape.spec().items()
    }
    text = embed.lower(params, rest, group, kinds=("dense",)).compile().as_text()
    assert (KERNEL in text) == fused


# --- a short causal view --------------------------------------------------------------------------


def view(group: dict[str, jax.Array], span: int) -> jax.Array:
    """[B, L, L]: the mask of `attention.Local`, pair by pair."""
    segment, at = (np.asarray(group[name]) for name in ("segment_ids", "positions"))
    query, key = at[:, :, None], at[:, None, :]
    near = (key <= query) & (query - key < span) | (key == 0)
    return jnp.asarray(near & (segment[:, :, None] == segment[:, None, :]))


@pytest.mark.parametrize("span", [1, 2, 30])
def test_a_short_view_is_plain_attention_with_its_mask(span):
    parts = tiny_models.segments(6, longest=7)
    group = tiny_models.group([parts[:2], parts[2:3], parts[3:5], []], 14, 2)
    real = (group["segment_ids"] > 0)[:, :, None, None]
    keys = jax.random.split(jax.random.key(0), 4)
    heads = [jax.random.normal(key, (4, 14, 2, 8)) for key in keys]

    def total(form, visible, query, key, value):
        out = jnp.where(real, form(query, key, value, visible), 0.0)
        return jnp.sum(out * heads[3]), out

    found, expected = (
        jax.jit(jax.value_and_grad(functools.partial(total, *one), (0, 1, 2), has_aux=True))
        for one in (
            (attention.local, attention.Local(group["positions"], span)),
            (attention.plain, view(group, span)),
        )
    )
    outputs = (jax.tree.leaves(form(*heads[:3])) for form in (found, expected))
    for one, other in zip(*outputs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
