"""Every objective that takes a token encoder trains over ModernBERT, packed and unpacked."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import bag, decoding, modernbert, seq2seq
from models.objectives import (
    autoencoder,
    bi_encoder,
    condenser,
    cross_encoder,
    extractive_qa,
    labse,
    marge,
    mlm,
    pair_classifier,
    retromae,
    simlm,
)
from t5x_style.interfaces.objective import Batch, GroupShape, Objective, embedder
from tests.kits import tiny_models
from tests.models.networks.test_modernbert import ALONE, CONFIG, PACKED

Make = Callable[[GroupShape], Objective]


def _text_objective(kind: type, **settings: object) -> Make:
    def make(text: GroupShape) -> Objective:
        return kind(
            CONFIG, tiny_models.EMBEDDING, tiny_models.VOCABULARY, text, chunk=16, **settings,
            rngs=nnx.Rngs(0),
        )  # fmt: skip

    return make


OBJECTIVES: dict[str, Make] = {
    "mlm": _text_objective(mlm.Mlm, mask_rate=0.3),
    "retromae": _text_objective(retromae.RetroMAE, encoder_mask_rate=0.3, decoder_mask_rate=0.5),
    "dupmae": _text_objective(
        retromae.RetroMAE,
        encoder_mask_rate=0.3,
        decoder_mask_rate=0.5,
        decoder_query="embedded",
        bow_weight=0.1,
    ),
    "condenser": _text_objective(condenser.Condenser, mask_rate=0.3, skip_from=2),
    "autoencoder": _text_objective(autoencoder.AutoEncoder, mask_rate=0.3, decoder_layers=2),
    "simlm": _text_objective(
        simlm.SimLM, encoder_mask_rate=0.3, decoder_mask_rate=0.5, generator_config=CONFIG
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "retromae",
        *(pytest.param(n, marks=pytest.mark.slow) for n in OBJECTIVES if n != "retromae"),
    ],
)
def test_objectives_train_every_parameter_and_packing_changes_nothing(name: str) -> None:
    found = {}
    for group in (ALONE, PACKED):
        model = OBJECTIVES[name](GroupShape(*group["tokens"].shape, 2))
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        @jax.jit
        @jax.value_and_grad
        def loss(
            params: nnx.State, graph: nnx.GraphDef = graph, rest: nnx.State = rest,
            group: dict[str, jax.Array] = group,
        ) -> jax.Array:  # fmt: skip
            module, key = nnx.merge(graph, params, rest), jax.random.key(3)
            return module.loss(module.corrupt({"text": group}, key), key)[0].value()

        value, gradients = loss(params)
        flat = nnx.to_flat_state(gradients)
        found[len(group["tokens"])] = (
            float(value), {"/".join(map(str, path)): np.asarray(v[...]) for path, v in flat},
        )  # fmt: skip
    (alone, of_alone), (packed, of_packed) = found[4], found[2]
    assert packed == pytest.approx(alone, rel=1e-5)
    for path, gradient in of_alone.items():
        np.testing.assert_allclose(of_packed[path], gradient, atol=2e-5, err_msg=path)
        assert gradient.any() or path.startswith("generator/"), path


@pytest.mark.parametrize("pooled", ["cls", "mean"])
def test_a_bi_encoder_over_it(pooled: str) -> None:
    shape = GroupShape(4, 20, 2)
    model = bi_encoder.BiEncoder(
        CONFIG, dataclasses.replace(tiny_models.EMBEDDING, pooling=pooled), tiny_models.VOCABULARY,
        shape, shape, contrastive.ContrastiveConfig(), rngs=nnx.Rngs(0),
    )  # fmt: skip
    vectors = embedder(model.functions(), "passage")(ALONE)
    assert vectors.shape == (4, 2, 16) and np.isfinite(vectors).all()


PAIR = GroupShape(rows=4, length=20, segments=1)
OTHERS: dict[str, Callable[[modernbert.ModernBertConfig], Objective]] = {
    "cross_encoder": lambda config: cross_encoder.CrossEncoder(
        config, tiny_models.VOCABULARY, PAIR, 8, 12, 2, 2, 2, rngs=nnx.Rngs(0)
    ),
    "pair_classifier": lambda config: pair_classifier.PairClassifier(
        config, tiny_models.VOCABULARY, PAIR, 8, ("a", "b"), rngs=nnx.Rngs(0)
    ),
    "extractive_qa": lambda config: extractive_qa.ExtractiveQA(
        config, tiny_models.VOCABULARY, PAIR, 6, 20, 4, rngs=nnx.Rngs(0)
    ),
    "labse": lambda config: labse.LaBSE(
        config,
        dataclasses.replace(tiny_models.EMBEDDING, pooling="pooler", similarity="cosine"),
        tiny_models.VOCABULARY,
        PAIR,
        PAIR,
        contrastive.ContrastiveConfig(),
        rngs=nnx.Rngs(0),
    ),
    "marge": lambda config: marge.Marge(
        config,
        seq2seq.DecoderConfig(layers=1, mlp=24, base_layers=1, base_mlp=24, max_positions=24),
        marge.RelevanceConfig(layers=2),
        dataclasses.replace(tiny_models.EMBEDDING, similarity="cosine"),
        tiny_models.VOCABULARY,
        PAIR,
        PAIR,
        16,
        decoding.GenerationConfig(length=8),
        rngs=nnx.Rngs(0),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_objectives_take_it_in_bfloat16(name: str) -> None:
    """Shapes and dtypes alone: a loss and gradients of each parameter exist."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16", remat="full", dropout=0.1)
    model = OTHERS[name](config)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    (batch,) = model.batch_specs()

    def loss(params: nnx.State, batch: Batch) -> jax.Array:
        module, key = nnx.merge(graph, params, rest), jax.random.key(0)
        return module.loss(module.corrupt(batch, key), key)[0].value()

    value, gradients = jax.eval_shape(jax.value_and_grad(loss), params, batch)
    assert value.shape == () and value.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}


def test_an_encoder_without_states_is_refused_with_the_reason() -> None:
    bags = bag.BagConfig(50, 16, ())
    with pytest.raises(ValueError, match="Mlm: expected an encoder with a state for each token"):
        mlm.Mlm(
            bags, tiny_models.EMBEDDING, tiny_models.VOCABULARY, PAIR, 0.3, 16, rngs=nnx.Rngs(0)
        )
    with pytest.raises(ValueError, match="CrossEncoder: expected an encoder .* found BagConfig"):
        OTHERS["cross_encoder"](bags)
