"""MARGE against its equations in float64: the loss, every gradient; packing, meshes, generation."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.networks import decoding, seq2seq
from models.objectives import marge
from t5x_style.distributed import partitioning
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import GroupShape, embedder
from tests.kits import tiny_models
from tests.models.objectives import marge_oracle
from tests.models.objectives.marge_oracle import SubBatch

CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=3, hidden=8, mlp=12, max_positions=12)
DECODER = seq2seq.DecoderConfig(layers=2, mlp=10, base_layers=2, base_mlp=14, max_positions=12)
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING, similarity="cosine", query_length=12, passage_length=12
)
SIZES = marge_oracle.Sizes(CONFIG.vocab_size, 2)
GERMAN, SWAHILI = 20, 21
KEY = jax.random.key(0)


def texts(*lengths, seed):
    rng = np.random.default_rng(seed)
    return [[2, *rng.integers(5, CONFIG.vocab_size, n - 2).tolist(), 3] for n in lengths]


SUB_BATCHES = [
    SubBatch(texts(7, 5, seed=1), [GERMAN, SWAHILI], texts(6, 9, 4, seed=2)),
    SubBatch(texts(8, seed=3), [SWAHILI], texts(5, seed=4)),
    SubBatch(texts(4, 6, seed=5), [GERMAN, GERMAN], texts(6, 5, seed=6)),
    SubBatch(texts(12, seed=7), [GERMAN], texts(7, 5, seed=8)),
]
APART = [[one] for one in SUB_BATCHES]
TOGETHER = [SUB_BATCHES[:1], SUB_BATCHES[3:], SUB_BATCHES[1:3]]


def batch(rows, rows_in_all=4, length=24, segments=5):
    """A batch with these sub-batches in these rows; further rows are empty."""
    rows = [*rows, *[[]] * (rows_in_all - len(rows))]
    made = {}
    for group, side in (("target", "targets"), ("evidence", "evidence")):
        parts = [[(n, text) for n, one in enumerate(row) for text in getattr(one, side)]
                 for row in rows]  # fmt: skip
        made[group] = tiny_models.group(parts, length, segments)
        numbers = np.full((rows_in_all, segments), -1, np.int32)
        for row, own in enumerate(parts):
            numbers[row, : len(own)] = [7 - n for n, _ in own]
        made[group]["sub_batch"] = jnp.asarray(numbers)
    languages = np.zeros((rows_in_all, segments), np.int32)
    for row, ones in enumerate(rows):
        told = [language for one in ones for language in one.languages]
        languages[row, : len(told)] = told
    made["target"]["language"] = jnp.asarray(languages)
    return made


def make(beta=1.5, decoder=DECODER, rows=4, **changes):
    shape = GroupShape(rows, 24, 5)
    model = marge.Marge(
        dataclasses.replace(CONFIG, **changes), decoder, marge.RelevanceConfig(2, beta), EMBEDDING,
        tiny_models.VOCABULARY, shape, shape, 16, decoding.GenerationConfig(8),
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    model.eval()
    return model


@pytest.fixture(scope="module")
def model():
    return make()


def arrays(model):
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {"/".join(map(str, path)): np.asarray(leaf[...], np.float64) for path, leaf in flat}


def loss_and_gradients(model, given, mesh=(1, 1, 1)):
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, given):
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            total, metrics = nnx.merge(graph, params, rest).loss(given, KEY)
        return total.value(), jax.tree.map(MetricSum.value, metrics, is_leaf=_is_mean)

    placed = jax.device_put(given, partitioner.batch_sharding)
    (value, metrics), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, placed)
    flat = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(gradients)}
    return float(value), metrics, {name: np.asarray(x) for name, x in flat.items()}


def _is_mean(leaf):
    return isinstance(leaf, MetricSum)


@pytest.fixture(scope="module")
def found(model):
    return loss_and_gradients(model, batch(APART))


def test_the_loss_is_that_of_the_equations(model, found):
    truth = marge_oracle.loss(arrays(model), SUB_BATCHES, SIZES)
    assert found[0] == pytest.approx(truth, rel=1e-5)


def test_every_gradient_is_that_of_the_equations(model, found):
    parameters, gradients = arrays(model), found[2]
    assert parameters.keys() == gradients.keys()
    rng = np.random.default_rng(0)
    for name, gradient in gradients.items():
        # Along a direction through all of an array, and at its place of the largest gradient.
        largest = np.zeros(gradient.size)
        largest[np.argmax(np.abs(gradient))] = 1.0
        drawn = rng.standard_normal(gradient.size)
        for direction in (largest, drawn / np.linalg.norm(drawn)):
            step = 1e-5 * direction.reshape(gradient.shape)
            around = [
                marge_oracle.loss(parameters | {name: parameters[name] + way}, SUB_BATCHES, SIZES)
                for way in (step, -step)
            ]
            truth = (around[0] - around[1]) / 2e-5
            ours = float(gradient.ravel().astype(np.float64) @ direction)
            assert ours == pytest.approx(truth, rel=1e-4, abs=2e-6), name


def test_packed_sub_batches_do_not_see_each_other(model, found):
    value, metrics, gradients = loss_and_gradients(model, batch(TOGETHER))
    assert_same((value, gradients), found)
    assert metrics["relevance"] == pytest.approx(float(found[1]["relevance"]), rel=1e-5)


@pytest.mark.parametrize(
    ("mesh", "remat"),
    [
        ((2, 2, 2), "full"),  # also the fast form of the next test
        pytest.param((8, 1, 1), "none", marks=pytest.mark.slow),
        pytest.param((2, 2, 2), "none", marks=pytest.mark.slow),
        pytest.param((1, 1, 8), "none", marks=pytest.mark.slow),
    ],
)
def test_a_mesh_gives_the_numbers_of_one_device(mesh, remat, found):
    value, _, gradients = loss_and_gradients(
        make(rows=8, heads=2, remat=remat), batch(APART, rows_in_all=8), mesh
    )
    assert_same((value, gradients), found)


def assert_same(pair, found):
    assert pair[0] == pytest.approx(found[0], rel=1e-5)
    for name, gradient in found[2].items():
        scale = max(float(np.abs(gradient).max()), 1e-3)
        np.testing.assert_allclose(pair[1][name], gradient, atol=1e-4 * scale, err_msg=name)


@pytest.mark.slow
def test_recomputing_layers_changes_nothing(found):
    value, _, gradients = loss_and_gradients(make(remat="full"), batch(APART))
    assert_same((value, gradients), found)


def test_without_beta_nothing_teaches_the_retriever():
    model, given = make(beta=0.0), batch(APART)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def to_retriever(params):
        return jax.grad(loss, argnums=1)(params, params)

    def loss(params, retriever):
        model = nnx.merge(graph, params, rest, copy=True)
        states, _ = model.encode(given["evidence"])
        other = nnx.merge(graph, retriever, rest, copy=True)
        relevance = marge.cosines(other.embed(given["target"]), other.encode(given["evidence"])[1])
        return model.reconstruct(given, states, relevance)[0].value()

    assert all(not np.any(leaf) for leaf in jax.tree.leaves(to_retriever(params)))
    with_beta = nnx.merge(graph, params, rest, copy=True)
    with_beta.beta.set_value(jnp.asarray(1.0))
    taught = to_retriever(nnx.state(with_beta, nnx.Param))
    assert np.any(taught["encoder"]["layers"]["mlp"]["wi"]["kernel"][...])
    # The first layers alone are g: the last of three learns nothing from it.
    assert not np.any(taught["encoder"]["layers"]["mlp"]["wi"]["kernel"][...][2])


def test_relevance_is_read_behind_the_first_layers(model):
    given = batch(APART)
    _, vectors = model.encode(given["evidence"])
    embedded = embedder(model.functions(), "passage")(given["evidence"])
    valid = np.asarray(given["evidence"]["segment_valid"])
    np.testing.assert_allclose(np.asarray(vectors)[valid], np.asarray(embedded)[valid], atol=1e-6)
    for row, one in enumerate(SUB_BATCHES):
        for segment, tokens in enumerate(one.evidence):
            states = marge_oracle.encode(arrays(model), tokens)
            np.testing.assert_allclose(embedded[row, segment], states[2][0], atol=1e-5)


# --- generation -----------------------------------------------------------------------------------


def evidence_of(*row):
    return tiny_models.group([[(n, text) for n, text in enumerate(row)]], 24, 5)


def test_token_by_token_is_all_at_once(model):
    given = batch(TOGETHER)
    target, evidence = given["target"], given["evidence"]
    first = {name: array[1:2] for name, array in target.items()}  # one target of 12 tokens
    read_by = {name: array[1:2] for name, array in evidence.items()}
    states, _ = model.encode(read_by)
    words = model.encoder.embeddings.word.embedding[...][marge.decoder_tokens(first)]
    visible = jnp.broadcast_to(read_by["segment_ids"][:, None] > 0, (1, 24, 24))
    bias = jnp.linspace(-1, 1, 24)[None, None] * jnp.ones((1, 24, 1))
    read = seq2seq.Evidence(states, visible, bias)
    whole = model.decoder(words, first["positions"], first["segment_ids"], read)
    once = read._replace(visible=visible[:, :1], bias=bias[:, :1])
    cache = model.decoder.begin(states, 1, 12)
    step = nnx.jit(lambda decoder, word, at, cache: decoder.step(word, at, cache, once))
    for at in range(12):
        hidden, cache = step(model.decoder, words[:, at : at + 1], jnp.asarray(at), cache)
        np.testing.assert_allclose(hidden[0, 0], whole[0, at], atol=1e-5)


def write(model, evidence, config, key=None, languages=(GERMAN,)):
    graph, state = nnx.split(model)
    run = jax.jit(
        lambda evidence, key: nnx.merge(graph, state, copy=True).generate(
            evidence, jnp.asarray(languages), config, key
        )
    )
    return jax.tree.map(np.asarray, run(evidence, key))


def log_p(model, evidence, language, tokens):
    """log p of the tokens after the language's, by the equations."""
    memory = np.concatenate([marge_oracle.encode(arrays(model), z)[-1] for z in evidence])
    p = arrays(model)
    hidden = marge_oracle.decode(p, [language, *tokens[:-1]], memory, np.zeros(len(memory)))
    logits = hidden @ p["encoder/embeddings/word/embedding"].T + p["bias"]
    logits[:, [0, *range(CONFIG.vocab_size, logits.shape[1])]] = -np.inf
    logits = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(logits[np.arange(len(tokens)), tokens].sum())


def test_the_best_token_each_time(model):
    evidence = texts(6, 5, seed=9)
    written = write(model, evidence_of(*evidence), decoding.GenerationConfig(6))
    tokens = written.tokens[0, 0].tolist()
    assert tokens[0] == GERMAN
    candidates = [t for t in range(1, CONFIG.vocab_size)]
    for at in range(1, 6):
        scores = [log_p(model, evidence, GERMAN, [*tokens[1:at], t]) for t in candidates]
        assert tokens[at] == candidates[int(np.argmax(scores))]
        if tokens[at] == 3:
            break
    told = [t for t in tokens[1:] if t]
    assert written.scores[0, 0] == pytest.approx(
        log_p(model, evidence, GERMAN, told) / len(told), rel=1e-4
    )


def toy_step(table):
    """A network whose next token depends on the last alone, by logits [V, V]."""

    class Nothing:
        def reordered(self, of_parent):
            return self

    jax.tree_util.register_pytree_node(Nothing, lambda _: ((), None), lambda *_: Nothing())
    return (lambda tokens, at, cache: (jnp.asarray(table)[tokens], cache)), Nothing()


def best_of_all(table, length, penalty, end=1):
    """The likeliest text among all, by trying them."""
    log_p = table - np.log(np.exp(table).sum(1, keepdims=True))
    found = {}
    for rest in itertools.product(range(1, len(table)), repeat=length - 1):
        cut = rest.index(end) + 1 if end in rest else len(rest)
        text = (2, *rest[:cut])
        total = sum(log_p[a, b] for a, b in itertools.pairwise(text))
        found[text] = total / cut**penalty
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_enough_beams_find_the_likeliest_of_all_texts(penalty):
    table = np.random.default_rng(4).standard_normal((5, 5)) * 1.5
    table[:, 0] = -np.inf  # padding
    step, cache = toy_step(table)
    config = decoding.GenerationConfig(5, beams=120, length_penalty=penalty)
    written = decoding.write(step, cache, jnp.asarray([2, 2]), config, end=1, pad=0)
    truth = best_of_all(table, 5, penalty)
    for rank, (_, score) in enumerate(truth[:5]):  # texts of the same tokens pairwise are as likely
        text = tuple(t for t in np.asarray(written.tokens[1, rank]).tolist() if t)
        assert dict(truth)[text] == pytest.approx(score)
        assert written.scores[1, rank] == pytest.approx(score, rel=1e-5)


def test_more_beams_find_what_is_likelier(model):
    evidence = evidence_of(*texts(6, 5, seed=9))
    scores = [
        write(model, evidence, decoding.GenerationConfig(8, n, length_penalty=0.0)).scores[0, 0]
        for n in (1, 4)
    ]
    # where both found the same text, its score differs by the rounding of another batch's sums
    assert scores[1] >= scores[0] or scores[1] == pytest.approx(scores[0], rel=1e-6)


def test_what_is_drawn_has_the_shares_that_the_network_says():
    table = np.log(np.tile([[1e-30, 0.1, 0.2, 0.3, 0.4]], (5, 1)))
    step, cache = toy_step(table)

    def draw(**options):
        config = decoding.GenerationConfig(2, beams=4000, temperature=1.0, **options)
        written = decoding.write(step, cache, jnp.asarray([2]), config, end=1, pad=0, key=KEY)
        return np.bincount(np.asarray(written.tokens[0, :, 1]), minlength=5) / 4000

    np.testing.assert_allclose(draw(), [0, 0.1, 0.2, 0.3, 0.4], atol=0.03)
    np.testing.assert_allclose(draw(top_k=2), [0, 0, 0, 3 / 7, 4 / 7], atol=0.03)
    np.testing.assert_allclose(draw(top_p=0.65), [0, 0, 0, 3 / 7, 4 / 7], atol=0.03)
    assert draw(top_k=1)[4] == 1.0


def test_behind_the_end_there_is_padding():
    table = np.full((5, 5), -5.0)
    table[2, 3], table[3, 1] = 5.0, 5.0  # 2, then 3, then the end
    step, cache = toy_step(table)
    for config in (
        decoding.GenerationConfig(6),
        decoding.GenerationConfig(6, beams=2),
        decoding.GenerationConfig(6, temperature=0.1),
    ):
        written = decoding.write(step, cache, jnp.asarray([2]), config, end=1, pad=0, key=KEY)
        assert written.tokens[0, 0].tolist() == [2, 3, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"length": 1}, "length: expected at least 2, found 1"),
        ({"beams": 0}, "beams: expected at least 1"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p: expected above 0"),
        ({"temperature": 0.0}, "temperature: expected above 0"),
        ({"top_k": 3}, "expected a temperature"),
    ],
)
def test_ways_of_writing_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        decoding.GenerationConfig(**{"length": 5, **changes})


def test_drawing_wants_a_key():
    step, cache = toy_step(np.zeros((5, 5)))
    config = decoding.GenerationConfig(3, temperature=1.0)
    with pytest.raises(ValueError, match="expected a key"):
        decoding.write(step, cache, jnp.asarray([2]), config, end=1, pad=0)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="RelevanceConfig.layers: expected 1 to 1"):
        make(layers=1)
    with pytest.raises(ValueError, match="DecoderConfig.layers: expected at least 1, found 0"):
        dataclasses.replace(DECODER, layers=0)
    with pytest.raises(ValueError, match="tables as wide as the layers"):
        make(embedding_size=4)


@pytest.mark.slow
def test_a_decoder_without_layers_below_is_one(found):
    model = make(decoder=dataclasses.replace(DECODER, base_layers=0))
    value, _, gradients = loss_and_gradients(model, batch(APART))
    assert value != found[0] and not [name for name in gradients if "base" in name]
    written = write(model, evidence_of(*texts(6, seed=9)), decoding.GenerationConfig(4, 2))
    assert written.tokens.shape == (1, 2, 4)


def test_padding_is_told_nothing():
    given = batch(APART, rows_in_all=6)["target"]
    labels = np.asarray(marge.next_tokens(given))
    assert np.all(labels[4:] == -100) and np.sum(labels != -100) == sum(
        len(text) - 1 for one in SUB_BATCHES for text in one.targets
    )
