"""Golden cases `retromae`: losses, activations and all gradients, from the official masks."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.corruption import masking
from models.losses import cross_entropy
from tests.parity import parity_kit
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("RetroMAEForPretraining",)

GIN = """
from models.objectives import retromae
from t5x_style.interfaces import objective
parity_kit.build.objective = @retromae.RetroMAE
retromae.RetroMAE.config = @bert.BertConfig()
retromae.RetroMAE.embedding_config = @text_embedding.EmbeddingConfig()
retromae.RetroMAE.text = @objective.GroupShape()
retromae.RetroMAE.vocabulary = @contract.Vocabulary()
retromae.RetroMAE.chunk = 32
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our objective."""
    model = parity_kit.objective_from_gin(case, bindings(case), overrides)
    return compare(case, model, corrupted(case), ("encoder_loss", "decoder_loss"))


def compare(
    case: Case, model: nnx.Module, text: dict[str, jax.Array], losses: tuple[str, ...]
) -> list[Quantity]:
    """The total and its terms, activations and gradients of a model with the case's weights."""
    values, gradients = parity_kit.value_and_gradients(model, {"text": text})
    return [
        parity_kit.loss(case, "total_loss", values["loss"]),
        *(parity_kit.loss(case, name, values[name]) for name in losses),
        _labels(case, text),
        *_activations(case, model, text),
        *parity_kit.gradients(case, gradients, group_of),
    ]


def bindings(case: Case) -> list[str]:
    """The system's gin for this case's sizes and rates."""
    rows, length = case.batch["encoder_input_ids"].shape
    return [
        *parity_kit.vocabulary_lines(case),
        GIN,
        f"objective.GroupShape.rows = {rows}",
        f"objective.GroupShape.length = {length}",
        "objective.GroupShape.segments = 1",
        f"retromae.RetroMAE.encoder_mask_rate = {_encoder_rate(case)}",
        f"retromae.RetroMAE.decoder_mask_rate = {case.config['decoder_mlm_probability']}",
    ]


def _encoder_rate(case: Case) -> float:
    """The case's rate; in `loss` it only bounds how many labels a row may have.

    1.0 where labels were not made by the collator and are more than it could have made.
    """
    labels, rate = case.batch["encoder_labels"], float(case.config["encoder_mlm_probability"])
    bound = masking.WholeWordMask(rate, ()).row_budget(labels.shape[1], 1)
    return rate if (labels != cross_entropy.IGNORED).sum(1).max() <= bound else 1.0


def corrupted(case: Case) -> dict[str, jax.Array]:
    """The group `text` as `RetroMAE.corrupt` leaves it, but with the official masks."""
    batch = case.batch
    text = parity_kit.token_group(batch["decoder_input_ids"], batch["encoder_attention_mask"])
    return text | {
        "encoder_tokens": jnp.asarray(batch["encoder_input_ids"], jnp.int32),
        "encoder_labels": jnp.asarray(batch["encoder_labels"], jnp.int32),
        "decoder_labels": jnp.asarray(batch["decoder_labels"], jnp.int32),
        "decoder_visible": jnp.asarray(batch["decoder_attention_mask"] == 1),
    }


def group_of(name: str) -> str:
    """`embeddings`, `encoder.layer.N`, `mlm_head` or `decoder(c_head)`."""
    if name.startswith("bert.embeddings."):
        return "embeddings"
    if name.startswith("bert.encoder.layer."):
        return "encoder.layer." + name.split(".")[3]
    return "decoder(c_head)" if name.startswith("c_head.") else "mlm_head"


def _labels(case: Case, text: dict[str, jax.Array]) -> Quantity:
    """Our choice of decoder labels against the official one."""
    differing = np.asarray(masking.inner_labels(text)) != case.batch["decoder_labels"]
    return Quantity("decoder_labels (differing positions)", float(differing.sum()), 0.0)


def _activations(case: Case, model: nnx.Module, text: dict[str, jax.Array]) -> list[Quantity]:
    hidden = model.encode(text)
    query, decoded = model.decode(text, hidden)
    real = case.batch["encoder_attention_mask"] == 1

    def token_loss(states: jax.Array, labels: jax.Array) -> jax.Array:
        table, bias = model.encoder.word_table, model.head.bias[...]
        size = {"vocab_size": model.config.vocab_size, "chunk": 7}
        return cross_entropy.cross_entropy(
            model.head.transform(states), table, bias, labels, **size
        )

    encoder_losses = token_loss(hidden, text["encoder_labels"])
    decoder_losses = token_loss(decoded, text["decoder_labels"])
    return [
        parity_kit.activation(case, "cls_embedding", hidden[:, 0]),
        parity_kit.activation(case, "encoder_last_hidden_state", hidden, real),
        parity_kit.activation(case, "decoder_query", query, real),
        parity_kit.activation(case, "decoder_hidden", decoded, real),
        parity_kit.activation(case, "encoder_token_loss", encoder_losses),
        parity_kit.activation(case, "decoder_token_loss", decoder_losses),
    ]
