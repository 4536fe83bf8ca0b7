"""Golden cases `bert`: the encoder, the MLM loss and all its gradients; NSP head where stored."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.interop import import_hf
from models.networks import heads, layers
from tests.parity import parity_kit
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("BertForMaskedLM", "BertForPreTraining weights")

GIN = """
from models.objectives import mlm
from t5x_style.interfaces import objective
parity_kit.build.objective = @mlm.Mlm
mlm.Mlm.config = @bert.BertConfig()
mlm.Mlm.embedding_config = @text_embedding.EmbeddingConfig()
mlm.Mlm.text = @objective.GroupShape()
mlm.Mlm.vocabulary = @contract.Vocabulary()
mlm.Mlm.mask_rate = 1.0  # the official labels are fed; this only bounds how many a row may have
mlm.Mlm.chunk = 32
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our MLM objective."""
    rows, length = case.batch["input_ids"].shape
    lines = [
        *parity_kit.vocabulary_lines(case),
        GIN,
        f"objective.GroupShape.rows = {rows}",
        f"objective.GroupShape.length = {length}",
        "objective.GroupShape.segments = 1",
    ]
    mlm = parity_kit.objective_from_gin(case, lines, overrides)
    text = parity_kit.token_group(
        case.batch["input_ids"], case.batch["attention_mask"], case.batch.get("token_type_ids")
    )
    text["labels"] = jnp.asarray(case.batch["labels"])
    values, gradients = parity_kit.value_and_gradients(mlm, {"text": text})
    return [
        parity_kit.loss(case, "mlm_loss", values["loss"]),
        *_activations(case, mlm, text),
        *_pretraining_heads(case, mlm, text),
        *parity_kit.gradients(case, gradients, group_of),
    ]


def group_of(name: str) -> str:
    """`embeddings`, `encoder.layer.N` or `mlm_head`."""
    if name.startswith("bert.embeddings."):
        return "embeddings"
    if name.startswith("bert.encoder.layer."):
        return "encoder.layer." + name.split(".")[3]
    return "mlm_head"


def _hidden(mlm: nnx.Module, text: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Embeddings and last states under the official mask, which hides padded keys only.

    Our own mask also separates padded queries, whose official states are defined in these cases.
    """
    embedded = mlm.encoder.embeddings(text["tokens"], text["positions"], text.get("token_types"))
    length = text["tokens"].shape[1]
    visible = jnp.repeat(text["segment_ids"][:, None, :] > 0, length, axis=1)
    return embedded, mlm.encoder.run(embedded, visible, 0, mlm.encoder.config.layers)


def _activations(case: Case, mlm: nnx.Module, text: dict[str, jax.Array]) -> list[Quantity]:
    embedded, official = _hidden(mlm, text)
    hidden = mlm.encoder(
        text["tokens"], text["positions"], text["segment_ids"], text.get("token_types")
    )
    states = mlm.head.transform(hidden)
    logits = states @ mlm.encoder.word_table.T + mlm.head.bias[...]
    logits = logits[..., : mlm.config.vocab_size]
    labels, real = case.batch["labels"], case.batch["attention_mask"] == 1
    chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    token_loss = jnp.where(labels >= 0, jax.nn.logsumexp(logits, axis=-1) - chosen, 0.0)
    at_real = parity_kit.activation(case, "last_hidden_state", hidden, real)
    return [
        parity_kit.activation(case, "embedding_output", embedded),
        parity_kit.activation(case, "last_hidden_state", official),
        Quantity("last_hidden_state (segments)", at_real.error, at_real.tolerance, at_real.note),
        parity_kit.activation(case, "logits_at_targets", np.asarray(logits)[labels >= 0]),
        parity_kit.activation(case, "token_loss", token_loss),
    ]


class _Heads(nnx.Module):
    """The two heads of the original release that no objective of ours uses."""

    def __init__(self, mlm: nnx.Module, next_sentence: bool) -> None:
        config, rngs = mlm.config, nnx.Rngs(0)
        self.pooler = heads.Pooler(config, rngs=rngs)
        if next_sentence:
            self.next_sentence = layers.Dense(
                {"embed": config.hidden}, {"type": 2}, stddev=1.0, dtype=config.dtype, rngs=rngs
            )


def _pretraining_heads(case: Case, mlm: nnx.Module, text: dict[str, jax.Array]) -> list[Quantity]:
    if "pooler_output" not in case.arrays:
        return []
    extra = _Heads(mlm, "nsp_logits" in case.arrays)
    file = str(parity_kit.weights_file(case))
    parity_kit.fill(extra, import_hf.HuggingFace(file, mlm.config.vocab_size))
    pooled = extra.pooler(_hidden(mlm, text)[1][:, 0])
    found = [parity_kit.activation(case, "pooler_output", pooled)]
    if "nsp_logits" in case.arrays:
        found.append(parity_kit.activation(case, "nsp_logits", extra.next_sentence(pooled)))
    return found
