"""Golden cases `dupmae`: RetroMAE with the other query and the loss on the bag of words."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.losses import bag_of_words
from tests.parity import parity_kit
from tests.parity.cases import retromae
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("DupMAEForPretraining",)


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our objective."""
    lines = [
        *retromae.bindings(case),
        "retromae.RetroMAE.decoder_query = 'embedded'",
        f"retromae.RetroMAE.bow_weight = {case.config['bow_loss_weight']}",
    ]
    model = parity_kit.objective_from_gin(case, lines, overrides)
    text = retromae.corrupted(case)
    return [
        *retromae.compare(case, model, text, ("encoder_loss", "decoder_loss", "bow_loss")),
        *_bag(case, model, text),
    ]


def _bag(case: Case, model: nnx.Module, text: dict[str, jax.Array]) -> list[Quantity]:
    """The pooled logits, and our weights against the official ones."""
    pooled = model.largest_logits(text, model.encode(text))[:, 0, : model.config.vocab_size]
    weights = bag_of_words.word_weights(text["decoder_labels"], text["segment_ids"], 1)
    row = jnp.arange(weights.shape[0])[:, None]
    dense = jnp.zeros(case.batch["bag_word_weight"].shape).at[row, text["tokens"]].add(weights)
    error = float(np.max(np.abs(dense - case.batch["bag_word_weight"])))
    return [
        parity_kit.activation(case, "ot_embedding", pooled),
        Quantity("bag_word_weight", error, 1e-7),
    ]
