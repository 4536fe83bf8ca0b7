"""The chunked cross-entropies against the plain form: values, gradients, memory."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from models.losses import chunked
from models.losses import cross_entropy as ce
from t5x_style.preflight import hlo

N, D, V, PADDED = 37, 8, 29, 32
ARGUMENTS = (0, 1, 2)


def plain(hidden, table, bias, labels, vocab_size=V):
    """[N] losses with all logits at once."""
    table = table.astype(hidden.dtype)
    logits = jnp.einsum("nd,vd->nv", hidden, table, preferred_element_type=jnp.float32) + bias
    log_p = jax.nn.log_softmax(logits[:, :vocab_size])
    gold = jnp.take_along_axis(log_p, jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]
    return jnp.where(labels == ce.IGNORED, 0.0, -gold)


def problem(dtype=jnp.float32, n=N):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(n, D)), dtype)
    table = jnp.asarray(rng.normal(size=(PADDED, D)), jnp.float32)
    bias = jnp.asarray(rng.normal(size=PADDED), jnp.float32)
    labels = np.where(rng.random(n) < 0.4, ce.IGNORED, rng.integers(0, V, n)).astype(np.int32)
    return hidden, table, bias, jnp.asarray(labels)


def per_position(chunk):
    return functools.partial(ce.cross_entropy, vocab_size=V, chunk=chunk)


def mean(chunk):
    return lambda *args: ce.cross_entropy_mean(*args, vocab_size=V, chunk=chunk)[0].value()


def plain_mean(hidden, table, bias, labels):
    return plain(hidden, table, bias, labels).sum() / (labels != ce.IGNORED).sum()


# 37 is prime; 1 is a chunk a position, 12 and 36 leave a remainder, 37 divides, 64 is larger than N
CHUNKS = (1, 12, 36, 37, 64)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_per_position_value_and_gradient_equal_the_plain_form(chunk):
    arguments = problem()
    scale = jnp.linspace(-1.0, 2.0, N)  # a different cotangent at each position
    found, pull = jax.vjp(lambda *a: per_position(chunk)(*a, arguments[3]), *arguments[:3])
    expected, plain_pull = jax.vjp(lambda *a: plain(*a, arguments[3]), *arguments[:3])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(pull(scale), plain_pull(scale), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_mean_value_and_gradient_equal_the_plain_form(chunk):
    arguments = problem()
    found, gradients = jax.jit(jax.value_and_grad(mean(chunk), ARGUMENTS))(*arguments)
    expected, plain_gradients = jax.value_and_grad(plain_mean, ARGUMENTS)(*arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for ours, theirs in zip(gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [mean, lambda c: lambda *a: per_position(c)(*a).mean()])
def test_bfloat16_products_with_float32_softmax(form):
    arguments = problem(jnp.bfloat16)
    reference = plain_mean if form is mean else lambda *a: plain(*a).mean()
    found, gradients = jax.value_and_grad(form(12), ARGUMENTS)(*arguments)
    expected, plain_gradients = jax.value_and_grad(reference, ARGUMENTS)(*arguments)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)  # float32 from the logits on
    assert [g.dtype for g in gradients] == [jnp.bfloat16, jnp.float32, jnp.float32]
    for ours, theirs in zip(gradients, plain_gradients, strict=True):
        size = float(jnp.abs(theirs.astype(jnp.float32)).max())
        np.testing.assert_allclose(
            ours.astype(jnp.float32), theirs.astype(jnp.float32), rtol=2e-2, atol=1e-2 * size
        )


def test_hand_computed():
    hidden, table = jnp.asarray([[1.0, 0.0], [0.0, 0.0]]), jnp.asarray([[math.log(3.0), 0], [0, 1]])
    loss = ce.cross_entropy(hidden, table, jnp.zeros(2), jnp.asarray([0, 1]), vocab_size=2, chunk=1)
    np.testing.assert_allclose(loss, [math.log(4 / 3), math.log(2)], rtol=1e-6)


@pytest.mark.parametrize("form", [mean, lambda c: lambda *a: per_position(c)(*a).sum()])
def test_padded_rows_and_ignored_positions_have_no_gradient(form):
    hidden, table, bias, labels = problem()
    table = table.at[V:].set(1e3)  # would win every softmax
    loss, (to_hidden, to_table, to_bias) = jax.value_and_grad(form(12), ARGUMENTS)(
        hidden, table, bias, labels
    )
    assert np.isfinite(loss)
    assert not np.any(to_table[V:]) and not np.any(to_bias[V:])
    assert not np.any(to_hidden[labels == ce.IGNORED])
    assert np.all(np.any(to_hidden[labels != ce.IGNORED], axis=1))


def test_nothing_to_predict_is_zero_and_finite():
    hidden, table, bias, labels = problem()
    loss, gradients = jax.value_and_grad(mean(12), ARGUMENTS)(
        hidden, table, bias, jnp.full_like(labels, ce.IGNORED)
    )
    assert loss == 0.0
    assert not any(np.any(g) for g in gradients)


def test_accuracy_is_the_share_of_top_labels():
    hidden, table, bias, labels = problem()
    _, accuracy = ce.cross_entropy_mean(hidden, table, bias, labels, vocab_size=V, chunk=10)
    top = jnp.argmax((hidden @ table.T + bias)[:, :V], axis=1)
    best = jnp.where(labels == ce.IGNORED, labels, top)
    valid = labels != ce.IGNORED
    np.testing.assert_allclose(accuracy.value(), (top == labels)[valid].mean(), rtol=1e-6)
    _, perfect = ce.cross_entropy_mean(hidden, table, bias, best, vocab_size=V, chunk=10)
    assert perfect.value() == 1.0


def test_leading_axes_are_kept():
    hidden, table, bias, labels = problem(n=24)
    flat = ce.cross_entropy(hidden, table, bias, labels, vocab_size=V, chunk=7)
    shaped = ce.cross_entropy(
        hidden.reshape(2, 3, 4, D), table, bias, labels.reshape(2, 3, 4), vocab_size=V, chunk=7
    )
    np.testing.assert_allclose(shaped.reshape(-1), flat, rtol=1e-6)


@pytest.mark.parametrize("form", [mean, lambda c: lambda *a: per_position(c)(*a).mean()])
def test_no_array_of_all_logits_exists(form):
    n, vocab = 4096, 512
    shapes = [
        jax.ShapeDtypeStruct(s, d)
        for s, d in [((n, D), "float32"), ((vocab, D), "float32"), ((vocab,), "float32")]
    ] + [jax.ShapeDtypeStruct((n,), jnp.int32)]

    def loss(h, t, b, labels):
        size = {"vocab_size": vocab, "chunk": 128}
        if form is mean:
            return ce.cross_entropy_mean(h, t, b, labels, **size)[0].value()
        return ce.cross_entropy(h, t, b, labels, **size).mean()

    lowered = jax.jit(jax.value_and_grad(loss, ARGUMENTS)).lower(*shapes)
    assert largest(jax.make_jaxpr(jax.value_and_grad(loss, ARGUMENTS))(*shapes).jaxpr) < n * vocab
    temporaries = lowered.compile().memory_analysis().temp_size_in_bytes
    assert temporaries < n * vocab * 4 / 4


def largest(jaxpr):
    """Elements of the largest array that any equation makes, inner jaxprs included."""
    sizes = [math.prod(v.aval.shape) for eqn in jaxpr.eqns for v in eqn.outvars]
    for eqn in jaxpr.eqns:
        sizes += [largest(inner) for inner in jaxprs_in_params(eqn.params)]
    return max(sizes, default=0)


@pytest.mark.parametrize(
    ("positions", "chunk", "expected"),
    [
        (8192, 1024, 8),
        (8192, 3000, 4),
        (320, 60, 8),  # 6 would pad
        (37, 12, 4),  # prime: pads
        (5, 64, 1),
        (96, 10, 12),
    ],
)
def test_number_of_chunks(positions, chunk, expected):
    assert chunked.number_of_chunks(positions, chunk) == expected


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=3, max_size=3))
def test_gathering_predicted_positions_keeps_the_loss(rows):
    predicted = np.asarray(rows)
    rng = np.random.default_rng(1)
    hidden = jnp.asarray(rng.normal(size=(3, 12, D)), jnp.float32)
    labels = jnp.asarray(np.where(predicted, rng.integers(0, V, (3, 12)), ce.IGNORED))
    budget = max(1, int(predicted.sum(1).max()))
    kept, kept_labels = ce.gather_predicted(hidden, labels, budget)
    assert kept.shape == (3, budget, D)
    for row in range(3):
        np.testing.assert_array_equal(
            kept_labels[row][kept_labels[row] != ce.IGNORED], labels[row][predicted[row]]
        )
        np.testing.assert_array_equal(
            kept[row][: predicted[row].sum()], hidden[row][predicted[row]]
        )


def test_more_labels_than_the_budget_is_loud():
    hidden, labels = jnp.ones((2, 4, D)), jnp.asarray([[1, 2, 3, -100], [1, -100, -100, -100]])
    kept, _ = ce.gather_predicted(hidden, labels, 2)
    assert np.isnan(kept[0]).all() and np.isfinite(kept[1]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": jnp.zeros(N + 1, jnp.int32)}, "labels' shape"),
        ({"bias": jnp.zeros(PADDED + 1)}, "table must be"),
        ({"vocab_size": PADDED + 1}, "rows of the table"),
        ({"chunk": 0}, "chunk must be at least 1"),
    ],
)
def test_errors_name_what_is_wrong(change, message):
    names = ("hidden", "table", "bias", "labels")
    arguments = dict(zip(names, problem(), strict=True)) | {"vocab_size": V, "chunk": 4} | change
    with pytest.raises(ValueError, match=message):
        ce.cross_entropy(**arguments)


FORMS = [mean, lambda c: lambda *a: per_position(c)(*a).mean()]


def mesh_of(shape):
    axes = ("data", "fsdp", "tensor")
    return jax.make_mesh(shape, axes, axis_types=(jax.sharding.AxisType.Auto,) * 3)


def under(mesh, loss):
    """`loss` traced as the train step does it."""

    def under_mesh(*arguments):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return loss(*arguments)

    return under_mesh


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8)])
@pytest.mark.parametrize("form", FORMS)
def test_sharded_equals_one_device(form, shape):
    mesh = mesh_of(shape)
    hidden, table, bias, labels = problem(n=192)
    hidden, labels = hidden.reshape(8, 24, D), labels.reshape(8, 24)
    kernel = jnp.asarray(np.random.default_rng(2).normal(size=(D, D)), jnp.float32)

    def loss(hidden, kernel, table, bias, labels):
        return form(16)(hidden @ kernel, table, bias, labels)

    arguments = (hidden, kernel, table, bias, labels)
    rows = ("data", "fsdp")
    specs = [(rows,), ("fsdp", "tensor"), ("tensor", "fsdp"), ("tensor",), (rows,)]
    placed = [
        jax.device_put(a, jax.NamedSharding(mesh, jax.P(*spec)))
        for a, spec in zip(arguments, specs, strict=True)
    ]
    found = jax.jit(jax.value_and_grad(under(mesh, loss), (0, 1, 2, 3)))(*placed)
    assert all(len(array.devices()) == 8 for array in jax.tree.leaves(found))
    require_equal(found, jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*arguments))


def require_equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_no_mesh_axis_divides(form):
    hidden, table, bias, labels = problem()  # 37 positions
    arguments = (hidden[:, :7], table[:31, :7], bias[:31], labels)
    mesh = mesh_of((2, 2, 2))
    placed = jax.device_put(arguments, jax.NamedSharding(mesh, jax.P()))
    found = jax.jit(jax.value_and_grad(under(mesh, form(16)), ARGUMENTS))(*placed)
    assert all(len(array.devices()) == 8 for array in jax.tree.leaves(found))
    require_equal(found, jax.value_and_grad(form(16), ARGUMENTS)(*arguments))


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
@pytest.mark.parametrize("form", FORMS)
def test_the_table_gradient_crosses_devices_once_however_many_chunks(form, shape):
    mesh = mesh_of(shape)
    rows, vocabulary = ("data", "fsdp"), 128
    specs = {
        (192, D): jax.P(rows),
        (vocabulary, D): jax.P("tensor", "fsdp"),
        (vocabulary,): jax.P("tensor"),
    }
    shapes = [
        jax.ShapeDtypeStruct(size, jnp.float32, sharding=jax.NamedSharding(mesh, spec))
        for size, spec in specs.items()
    ] + [jax.ShapeDtypeStruct((192,), jnp.int32, sharding=jax.NamedSharding(mesh, jax.P(rows)))]

    def reductions(chunk):
        gradient = jax.grad(under(mesh, form(chunk)), ARGUMENTS)
        kept = tuple(one.sharding for one in shapes[:3])
        program = jax.jit(gradient, out_shardings=kept).lower(*shapes).compile()
        return sum(
            visit.times
            for visit in hlo.walk(hlo.parse(program.as_text()), into_fusions=True)
            if visit.instruction.op in ("all-reduce", "reduce-scatter")
            and is_table(visit.instruction, visit.computation)
        )

    def is_table(instruction, computation):
        types = " ".join(computation[name].type for name in instruction.operands)
        return re.search(rf"f32\[{vocabulary // shape[2]},\d+\]", types)

    # With 'data' and 'fsdp' both in use: scattered over one, then its piece summed over the other.
    expected = 2 if shape == (2, 2, 2) else 1
    assert [reductions(chunk) for chunk in (192, 16)] == [expected, expected]
