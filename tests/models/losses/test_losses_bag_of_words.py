"""DupMAE's loss: the obvious form, ties, memory, meshes, and in the objective, packed or not."""

import dataclasses
import functools

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.corruption import masking
from models.losses import bag_of_words, cross_entropy
from models.objectives import retromae
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state, train_step
from tests.kits import packed_rows, shipped_gin, tiny_models
from tests.kits.interop import needs_interop

IGNORED = cross_entropy.IGNORED
PASSAGES = [packed_rows.passage(n, 7 * n) for n in (3, 4, 9, 10, 12, 14, 17, 24)]
ALONE = [[one] for one in PASSAGES]
PACKED = [[PASSAGES[4], PASSAGES[5]], [PASSAGES[7], PASSAGES[0]], [PASSAGES[2], PASSAGES[6]]]
PACKED += [[PASSAGES[3], PASSAGES[1]]]


def obvious(hidden, table, bias, segment_ids, labels, vocab_size):
    """The formula in float64 numpy: one segment after the other, all logits at once."""
    logits = np.asarray(hidden, np.float64) @ np.asarray(table, np.float64).T + np.asarray(bias)
    losses = []
    for row in range(len(hidden)):
        for segment in range(1, segment_ids.max() + 1):
            mine = segment_ids[row] == segment
            words = labels[row][mine][labels[row][mine] != IGNORED]
            if not len(words):
                continue
            top = logits[row, mine][1:, :vocab_size].max(0)  # without the segment's first token
            log_softmax = top - np.log(np.exp(top - top.max()).sum()) - top.max()
            losses.append(-log_softmax[np.unique(words)].sum() / len(words))
    return np.mean(losses)


def problem(rows=3, length=13, width=5, vocab=17, padded=24, seed=0):
    rng = np.random.default_rng(seed)
    lengths = [(4, 6), (13,), (2, 5)]
    segment_ids, labels = np.zeros((rows, length), np.int32), np.full((rows, length), IGNORED)
    positions = np.zeros((rows, length), np.int32)
    for row, several in enumerate(lengths):
        at = 0
        for number, n in enumerate(several, start=1):
            segment_ids[row, at : at + n] = number
            positions[row, at : at + n] = np.arange(n)
            labels[row, at + 1 : at + n - 1] = rng.integers(0, vocab, n - 2)
            at += n
    hidden = rng.normal(size=(rows, length, width)).astype(np.float32)
    table = rng.normal(size=(padded, width)).astype(np.float32)
    bias = rng.normal(size=padded).astype(np.float32)
    return hidden, table, bias, segment_ids, positions, labels.astype(np.int32), vocab


def loss(hidden, table, bias, segment_ids, positions, labels, vocab, chunk, segments=3):
    maxima = bag_of_words.largest_logits(
        hidden, table, bias, jnp.where(positions > 0, segment_ids, 0),
        segments=segments, vocab_size=vocab, chunk=chunk,
    )  # fmt: skip
    return bag_of_words.bag_of_words(maxima, labels, segment_ids)


@pytest.mark.parametrize("chunk", [1, 6, 15, 1000])  # 1, 2, 5 and all 13 columns at a time
def test_the_obvious_form_gives_the_same(chunk):
    *arrays, vocab = problem()
    hidden, table, bias, segment_ids, _, labels = arrays
    found = loss(*arrays, vocab, chunk)
    expected = obvious(hidden, table, bias, segment_ids, labels, vocab)
    np.testing.assert_allclose(found.value(), expected, rtol=1e-6)
    assert found.weight.sum() == 4  # a segment of two special tokens counts nothing


def through_torch(hidden, table, bias, segment_ids, positions, labels, vocab):
    """Loss and gradients by torch's autograd, with torch's own max."""
    import torch

    leaves = [torch.tensor(x, requires_grad=True) for x in (hidden, table, bias)]
    logits = (leaves[0] @ leaves[1].T + leaves[2])[..., :vocab]
    losses = []
    for row in range(len(hidden)):
        for segment in range(1, segment_ids.max() + 1):
            mine = segment_ids[row] == segment
            words = labels[row][mine][labels[row][mine] != IGNORED]
            if len(words):
                top = logits[row][torch.tensor(mine & (positions[row] > 0))].max(0)[0]
                at = torch.tensor(np.unique(words))
                losses.append(-torch.log_softmax(top, 0)[at].sum() / len(words))
    total = torch.stack(losses).mean()
    total.backward()
    return total.item(), [leaf.grad.numpy() for leaf in leaves]


@needs_interop
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk", [1, 6, 1000])
def test_gradients_are_those_of_torch_also_where_tokens_tie(chunk, tied):
    *arrays, vocab = problem()
    if tied:  # equal states: each maximum is reached twice, the first gets the gradient
        arrays[0][1, 2:4] *= 3
        arrays[0][1, 7:9] = arrays[0][1, 2:4]
    expected, gradients = through_torch(*arrays, vocab)
    value = lambda *leaves: loss(*leaves, *arrays[3:], vocab, chunk).value()  # noqa: E731
    found, ours = jax.jit(jax.value_and_grad(value, (0, 1, 2)))(*arrays[:3])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for a, b in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    if tied:
        assert not np.any(ours[0][1, 7:9]) and np.any(ours[0][1, 2:4])


def test_weights_by_hand():
    labels = np.array([[IGNORED, 7, 5, 7, IGNORED, IGNORED, 5, IGNORED, IGNORED]], np.int32)
    segment_ids = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]], np.int32)
    third = 1 / 3
    expected = [[0, third, third, 0, 0, 0, 1, 0, 0]]
    np.testing.assert_allclose(bag_of_words.word_weights(labels, segment_ids, 2), expected)


def test_bfloat16_products_have_float32_maxima():
    *arrays, vocab = problem()
    small = jnp.asarray(arrays[0], jnp.bfloat16)
    found = loss(small, *arrays[1:], vocab, 6)
    assert found.total.dtype == jnp.float32
    np.testing.assert_allclose(found.value(), loss(*arrays, vocab, 6).value(), rtol=2e-2)


def test_rows_of_padding_have_no_loss_and_finite_gradients():
    hidden, table, bias, segment_ids, positions, labels, vocab = problem()
    none = np.zeros_like(segment_ids), np.zeros_like(positions), np.full_like(labels, IGNORED)
    value = lambda *leaves: loss(*leaves, *none, vocab, 6).value()  # noqa: E731
    found, gradients = jax.value_and_grad(value, (0, 1, 2))(hidden, table, bias)
    assert found == 0 and not any(np.any(g) for g in gradients)


# --- in the objective -----------------------------------------------------------------------------

DUPMAE = functools.partial(retromae.RetroMAE, decoder_query="embedded", bow_weight=0.1)


def model(rows, length, segments, make=DUPMAE, config=tiny_models.CONFIG, chunk=16):
    made = make(
        config, tiny_models.EMBEDDING, tiny_models.VOCABULARY, GroupShape(rows, length, segments),
        0.3, 0.5, chunk, rngs=nnx.Rngs(0),
    )  # fmt: skip
    made.eval()
    return made


def terms(objective, rows, length, segments):
    """The total and its terms; every fourth token is masked, and nothing is hidden from rows."""
    text = packed_rows.group(rows, length, segments)
    masked = (text["positions"] % 4 == 0) & (text["positions"] > 0)
    ids = text["segment_ids"]
    text |= {
        "encoder_tokens": jnp.where(masked, 4, text["tokens"]),
        "encoder_labels": jnp.where(masked, masking.inner_labels(text), IGNORED),
        "decoder_labels": masking.inner_labels(text),
        "decoder_visible": (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] > 0),
    }
    graph, state = nnx.split(objective)

    @jax.jit
    def run(state):
        mean, metrics = nnx.merge(graph, state).loss({"text": text}, None)
        return mean.value(), {name: metric.value() for name, metric in metrics.items()}

    total, metrics = run(state)
    return {"total": total, **{n: v for n, v in metrics.items() if n.endswith("_loss")}}


def test_packed_passages_have_the_same_losses():
    alone = terms(model(8, 24, 1), ALONE, 24, 1)
    expected = alone["encoder_loss"] + alone["decoder_loss"] + 0.1 * alone["bow_loss"]
    np.testing.assert_allclose(alone["total"], expected, rtol=1e-6)
    packed = terms(model(5, 40, 3), [*PACKED, []], 40, 3)
    for name, value in alone.items():
        np.testing.assert_allclose(packed[name], value, rtol=1e-5, err_msg=name)


def test_packed_passages_have_the_same_gradients():
    _, table, bias, *_ = problem(vocab=tiny_models.VOCABULARY.size, padded=64)
    rng = np.random.default_rng(1)
    states = {one.example_id: rng.normal(size=(len(one.tokens), 5)) for one in PASSAGES}

    def gradients(rows, length, segments):
        """Of each passage's states, the table and the bias."""
        group = packed_rows.group(rows, length, segments)
        hidden = np.zeros((len(rows), length, 5), np.float32)
        places = packed_rows.places(rows)
        for example, (row, columns) in places.items():
            hidden[row, columns] = states[example]
        parts = (group["segment_ids"], group["positions"], masking.inner_labels(group))
        value = lambda *x: loss(*x, *parts, 50, 9, segments).value()  # noqa: E731
        to_hidden, *rest = jax.jit(jax.grad(value, (0, 1, 2)))(hidden, table, bias)
        return [*(to_hidden[places[one.example_id]] for one in PASSAGES), *rest]

    for a, b in zip(gradients(ALONE, 24, 1), gradients([*PACKED, []], 40, 3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_loss_alone_on_eight_devices_equals_one():
    hidden, table, bias, segment_ids, positions, labels, vocab = problem()
    rows = [np.concatenate([x, x, x[:2]]) for x in (hidden, segment_ids, positions, labels)]
    value = lambda h, t, b: loss(h, t, b, *rows[1:], vocab, 16).value()  # noqa: E731
    expected = jax.value_and_grad(value, (0, 1, 2))(rows[0], table, bias)
    mesh = partitioning.Partitioner(partitioning.MeshShape(2, 2, 2)).mesh
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        placed = jax.device_put(rows[0], jax.NamedSharding(mesh, jax.P(("data", "fsdp"))))
        found = jax.jit(jax.value_and_grad(value, (0, 1, 2)))(placed, table, bias)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # noqa: E731
    jax.tree.map(close, found, expected)


@pytest.mark.slow  # two compilations of a training step
def test_three_steps_on_eight_devices_equal_one():
    def run(mesh):
        devices = jax.devices()[: int(np.prod(mesh))]
        partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
        config = dataclasses.replace(tiny_models.CONFIG, dropout=0.1)
        make = functools.partial(
            DUPMAE, config, tiny_models.EMBEDDING, tiny_models.VOCABULARY,
            GroupShape(8, 40, 3), 0.3, 0.5, 16,
        )  # fmt: skip
        optimizer = optimizers.AdamW(2e-3, 2, 10, epsilon=1e-4)
        definition, state, shardings = train_state.create(make, optimizer, partitioner, 0)
        step = jax.jit(
            functools.partial(train_step.train_step, definition, partitioner.mesh),
            donate_argnums=0,
            out_shardings=(shardings, partitioner.replicated),
        )
        group = packed_rows.group([*PACKED, *ALONE[:4]], 40, 3)
        losses = []
        for _ in range(3):
            batch = jax.device_put({"text": group}, partitioner.batch_sharding)
            state, metrics = step(state, batch)
            losses.append(float(metrics["bow_loss"].value()))
        return losses, jax.tree.leaves(jax.device_get(state.params))

    expected, found = run((1, 1, 1)), run((2, 2, 2))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def shapes(jaxpr):
    """Shapes of all values in a jaxpr and in those inside it."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield variable.aval.shape
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


def test_no_array_is_as_large_as_all_logits():
    """The step's largest array with the vocabulary in it is [B, S, V], not [B, L, V]."""
    config = dataclasses.replace(tiny_models.CONFIG, vocab_multiple=1000)  # a unique size
    objective = model(4, 40, 3, config=config, chunk=8)
    group = packed_rows.group(PACKED, 40, 3)
    graph, params, rest = nnx.split(objective, nnx.Param, ...)

    def total(params):
        module = nnx.merge(graph, params, rest)
        return module.loss(module.corrupt({"text": group}, jax.random.key(3)), None)[0].value()

    jaxpr = jax.make_jaxpr(jax.grad(total))(params)
    sizes = {int(np.prod(s)) for s in shapes(jaxpr.jaxpr) if config.padded_vocab in s}
    assert max(sizes) == config.padded_vocab * max(4 * 3, config.hidden)


def test_the_embedded_query_is_the_embedding_block_around_the_vector():
    objective = model(8, 24, 1)
    embeddings = objective.encoder.embeddings
    cls = jax.random.normal(jax.random.key(0), (2, 5, 16))
    positions = jnp.tile(jnp.arange(5), (2, 1))
    summed = cls + embeddings.position.embedding[:5] + embeddings.type.embedding[0]
    np.testing.assert_allclose(
        embeddings.around(cls, positions), embeddings.norm(summed), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_query": "raw"}, r"expected one of \('position', 'embedded'\), found 'raw'"),
        (
            {"config": dataclasses.replace(tiny_models.CONFIG, embedding_size=8)},
            "embedding_size None, found 8. Use 'position'",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    config = options.pop("config", tiny_models.CONFIG)
    with pytest.raises(ValueError, match=message):
        model(8, 24, 1, make=functools.partial(DUPMAE, **options), config=config)


def test_vectors_cannot_be_added_to_narrower_tables():
    config = dataclasses.replace(tiny_models.CONFIG, embedding_size=8)
    embeddings = model(8, 24, 1, make=retromae.RetroMAE, config=config).encoder.embeddings
    with pytest.raises(ValueError, match="found 8 for vectors of 16"):
        embeddings.around(jnp.zeros((1, 2, 16)), jnp.zeros((1, 2), jnp.int32))


def test_the_shipped_configuration_sets_both_options():
    with shipped_gin.parsed("objectives/dupmae.gin"):
        assert gin.query_parameter("retromae.RetroMAE.bow_weight") == 0.1
        assert gin.query_parameter("retromae.RetroMAE.decoder_query") == "embedded"
