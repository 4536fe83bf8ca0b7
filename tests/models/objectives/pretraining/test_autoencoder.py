"""The auto-encoder: its loss by another road, who sees what, packing, TPUs, and that it learns."""

import dataclasses
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy.special import erf, log_softmax, softmax

from models.corruption.masking import IGNORED
from models.objectives import autoencoder
from t5x_style.configuration import gin_checks
from t5x_style.interfaces.objective import Batch, GroupShape
from t5x_style.preflight import configuration, program
from tests.kits import tiny_models
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[3]
PARTS = tiny_models.segments(6, seed=4, longest=14)
UNPACKED = tiny_models.group([[part] for part in PARTS], 16, 1)
PACKED = tiny_models.group([PARTS[4:], PARTS[1:4], PARTS[:1]], 44, 3)
KEY = jax.random.key(5)


def objective(**changes: object) -> autoencoder.AutoEncoder:
    settings = {
        "config": tiny_models.CONFIG,
        "embedding_config": tiny_models.EMBEDDING,
        "text": GroupShape(rows=6, length=16, segments=1),
        "mask_rate": 0.3,
        "chunk": 16,
    }
    module = autoencoder.AutoEncoder(
        **settings | changes, vocabulary=tiny_models.VOCABULARY, rngs=nnx.Rngs(0)
    )
    module.eval()
    return module


@nnx.jit
def corrupted(module: autoencoder.AutoEncoder, text: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return module.corrupt({"text": text}, KEY)["text"]


@nnx.jit
def encoded(module: autoencoder.AutoEncoder, text: dict[str, jax.Array]) -> jax.Array:
    return module.encode(text)


@nnx.jit
def evaluated(module: autoencoder.AutoEncoder, text: dict[str, jax.Array]) -> dict[str, jax.Array]:
    loss, metrics = module.loss({"text": text}, KEY)
    return {name: mean.value() for name, mean in {"loss": loss, **metrics}.items()}


# --- the loss -------------------------------------------------------------------------------------


def states_of_one_passage(
    weights: dict[str, np.ndarray], tokens: list[int], cls: np.ndarray, span: int
) -> np.ndarray:
    """[n, D]: the decoder's states, in loops, after its docstring. Only `cls` [D] is given."""

    def dense(name: str, x: np.ndarray, layer: int, axes: int = 1) -> np.ndarray:
        kernel, bias = (weights[f"decoder/{name}/{part}"][layer] for part in ("kernel", "bias"))
        return np.tensordot(x, kernel, axes) + bias

    def norm(name: str, x: np.ndarray, layer: int | slice) -> np.ndarray:
        scale, bias = (weights[f"{name}/{part}"][layer] for part in ("scale", "bias"))
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * scale + bias

    tables = {name: weights[f"encoder/embeddings/{name}/embedding"] for name in ("word", "type")}
    x = tables["word"][tokens] + tables["type"][0]
    x += weights["encoder/embeddings/position/embedding"][: len(tokens)]
    x = norm("encoder/embeddings/norm", x, slice(None))
    x[0] = cls
    for layer in range(len(weights["decoder/mlp/wi/bias"])):
        query, key, value = (dense(f"attention/{p}", x, layer) for p in ("query", "key", "value"))
        attended = np.zeros_like(value)  # [n, H, d]
        for at in range(len(tokens)):
            seen = sorted({0, *range(max(0, at - span + 1), at + 1)})
            scores = np.einsum("hd,shd->hs", query[at], key[seen]) / np.sqrt(query.shape[-1])
            attended[at] = np.einsum("hs,shd->hd", softmax(scores, axis=-1), value[seen])
        x = norm("decoder/attention_norm", x + dense("attention/out", attended, layer, 2), layer)
        inner = dense("mlp/wi", x, layer)
        inner = inner * (1 + erf(inner / np.sqrt(2))) / 2
        x = norm("decoder/mlp_norm", x + dense("mlp/wo", inner, layer), layer)
    return x


@pytest.mark.parametrize("depth, span", [(3, 2), pytest.param(1, 4, marks=pytest.mark.slow)])
def test_the_reconstruction_is_that_of_loops_over_passages(depth: int, span: int) -> None:
    module = objective(decoder_layers=depth, attention_span=span)
    text = corrupted(module, PACKED)
    hidden = encoded(module, text)
    weights = {
        name: np.asarray(variable, np.float64)
        for name, variable in parity_kit.parameters(module).items()
    }
    table = weights["encoder/embeddings/word/embedding"][: tiny_models.VOCABULARY.size]
    losses = []
    for row, parts in enumerate((PARTS[4:], PARTS[1:4], PARTS[:1])):
        for segment, (_, tokens) in enumerate(parts):
            cls = np.asarray(hidden[row, text["cls_at"][row, segment]], np.float64)
            states = states_of_one_passage(weights, tokens, cls, span)
            features = module.head.transform(jnp.asarray(states, jnp.float32))
            logits = np.asarray(features, np.float64) @ table.T + weights["head/bias"][: len(table)]
            losses += [-log_softmax(logits[at])[token] for at, token in enumerate(tokens[1:])]
    found = {name: float(value) for name, value in evaluated(module, text).items()}
    assert found["decoder_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["loss"] == pytest.approx(found["encoder_loss"] + found["decoder_loss"], rel=1e-6)


def test_every_token_but_cls_is_predicted_from_the_place_before_it() -> None:
    text = corrupted(objective(), PACKED)
    masked = np.asarray(text["encoder_labels"]) != IGNORED
    np.testing.assert_array_equal(text["tokens"], PACKED["tokens"])
    np.testing.assert_array_equal(
        np.where(masked, text["encoder_labels"], text["encoder_tokens"]), PACKED["tokens"]
    )
    expected = np.full(PACKED["tokens"].shape, IGNORED)
    for row, parts in enumerate((PARTS[4:], PARTS[1:4], PARTS[:1])):
        flat = [t for _, tokens in parts for t in [*tokens[1:], IGNORED]]
        expected[row, : len(flat)] = flat
    np.testing.assert_array_equal(text["decoder_labels"], expected)


def test_packing_changes_no_mask_no_loss_and_no_gradient() -> None:
    module, results, masks = objective(), [], []
    for text in (UNPACKED, PACKED):
        batch: Batch = {"text": corrupted(module, text)}
        labels = np.asarray(batch["text"]["encoder_labels"])
        masks.append(sorted(labels[labels != IGNORED].tolist()))
        results.append(parity_kit.value_and_gradients(module, batch, lambda flat, _: dict(flat)))
    assert masks[0] == masks[1]
    (one, one_gradients), (other, other_gradients) = results
    assert one == pytest.approx(other, rel=1e-5)
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(
            other_gradients[name], gradient, atol=1e-4, rtol=1e-4, err_msg=name
        )


# --- who sees what --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth, span", [(1, 1), (1, 3), (3, 2)])
def test_a_state_depends_on_the_last_tokens_alone(depth: int, span: int) -> None:
    """For every token that is changed: whose states change while [CLS] is held."""
    module = objective(decoder_layers=depth, attention_span=span)
    hidden = jax.random.normal(KEY, (*PACKED["tokens"].shape, tiny_models.CONFIG.hidden))
    decode = nnx.jit(lambda module, tokens: module.decode({**PACKED, "tokens": tokens}, hidden))
    before = np.asarray(decode(module, PACKED["tokens"]))
    row, reach = 1, depth * (span - 1)  # after a token, through all layers
    segment, position = (np.asarray(PACKED[name][row]) for name in ("segment_ids", "positions"))
    for at in np.flatnonzero(segment):
        tokens = PACKED["tokens"].at[row, at].add(1)
        changed = np.abs(np.asarray(decode(module, tokens)) - before).max(-1) > 1e-6
        distance = np.arange(len(segment)) - at
        expected = (segment == segment[at]) & (distance >= 0) & (distance <= reach)
        # [CLS] as a token is not read at all: the encoder's state is in its place.
        np.testing.assert_array_equal(changed[row], expected & (position[at] > 0))
        assert not np.delete(changed, row, axis=0).any()


def test_the_encoder_reaches_the_decoder_through_cls_alone() -> None:
    module = objective()
    hidden = encoded(module, corrupted(module, PACKED))
    before = np.asarray(module.decode(PACKED, hidden))
    elsewhere = (PACKED["positions"] > 0)[:, :, None]
    np.testing.assert_array_equal(
        module.decode(PACKED, jnp.where(elsewhere, hidden + 1.0, hidden)), before
    )
    own = (PACKED["segment_ids"] == 2) & (PACKED["positions"] == 0)
    shifted = hidden.at[..., 0].add(jnp.where(own, 1.0, 0.0))
    changed = np.abs(np.asarray(module.decode(PACKED, shifted)) - before).max(-1) > 1e-6
    np.testing.assert_array_equal(changed, PACKED["segment_ids"] == 2)


def test_the_reconstruction_trains_every_layer_of_the_encoder() -> None:
    module = objective()
    text = corrupted(module, PACKED)
    text["encoder_labels"] = jnp.full_like(text["encoder_labels"], IGNORED)
    _, gradients = parity_kit.value_and_gradients(module, {"text": text}, lambda f, _: dict(f))
    own = {
        name: gradient
        for name, gradient in gradients.items()
        # Softmax does not see a key's bias.
        if name.startswith("encoder/layers/") and not name.endswith("attention/key/bias")
    }
    largest = [np.abs(g).max(axis=tuple(range(1, g.ndim))) for g in own.values()]  # of each layer
    assert largest and np.min(largest) > 1e-5


# --- in use ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_learns_to_hand_a_word_over_in_cls() -> None:
    """Each passage repeats one word: its first occurrence is predicted from [CLS] alone."""
    parts = [(i, [2, *[i] * 4, 3]) for i in range(5, 21)]
    text = tiny_models.group([[part] for part in parts], 6, 1)
    module = objective(text=GroupShape(16, 6, 1))
    optimizer = nnx.Optimizer(module, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(module, optimizer, key):
        def total(module):
            return module.loss(module.corrupt({"text": text}, key), key)[0].value()

        optimizer.update(module, nnx.grad(total)(module))

    def first_words(module) -> float:
        clean = corrupted(module, text) | {"encoder_tokens": text["tokens"]}
        clean["decoder_labels"] = clean["decoder_labels"].at[:, 1:].set(IGNORED)
        return float(evaluated(module, clean)["decoder_loss"])

    before = first_words(module)
    for number in range(150):
        step(module, optimizer, jax.random.key(number))
    after = first_words(module)
    assert before > np.log(16) and after < np.log(16) / 4, (before, after)


@pytest.mark.slow
@pytest.mark.usefixtures("for_tpus")
def test_the_shipped_configuration_compiles_sharded_for_tpus(monkeypatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    files = (
        "runs/training/train",
        "models/tiny",
        "objectives/autoencoder",
        "data/pretraining/packed",
        "hardware/mesh",
    )
    values = {"STORE": "/nowhere", "TOKENIZER": "/nowhere", "SEED": 1, "FSDP": 2, "TENSOR": 2}
    values |= {"ROWS": 8, "ROW_LENGTH": 32, "SEGMENTS": 2, "QUERY_LENGTH": 16, "PASSAGE_LENGTH": 32}
    values |= {"LEARNING_RATE": 1e-3, "STEPS": 10, "WARMUP_STEPS": 1}
    values |= {"bert.BertConfig.layers": 1, "autoencoder.AutoEncoder.decoder_layers": 1}
    argv = [f"--gin_file=gin_configs/{name}.gin" for name in files]
    argv += [f"--gin.{name}={value}" for name, value in values.items()]
    try:
        vocabulary = configuration.VocabularySize(200, "the test")
        parsed = gin_checks.parse_flags(argv)
        (found,) = program.trace(configuration.resolve(parsed, "v5e:2x2", vocabulary)[0])
        assert found.step.lower().compile().memory_analysis().temp_size_in_bytes > 0
    finally:
        gin.clear_config()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"decoder_layers": 0}, "decoder_layers and attention_span of at least 1, found 0 and 2"),
        ({"attention_span": 0}, "found 3 and 0"),
        ({"mask_rate": 0.0}, "mask rate: expected more than 0 and at most 1, found 0.0"),
        (
            {"embedding_config": dataclasses.replace(tiny_models.EMBEDDING, pooling="mean")},
            "AutoEncoder trains the .CLS. vector",
        ),
    ],
)
def test_settings_that_fit_no_autoencoder(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**changes)
