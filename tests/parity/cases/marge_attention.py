"""Golden cases `marge_attention`: cross-attention that is biased by how relevant evidence is."""

import gin
import jax
import jax.numpy as jnp
import numpy as np

from models.networks import attention
from models.objectives import marge
from models.objectives.marge import RelevanceConfig
from tests.parity import parity_kit
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ()  # the cases name none: their folder identifies them


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Relevance, attention, its sum over documents, and output; gin binds `settings`."""
    header = ["from __gin__ import dynamic_registration"]
    header += ["from tests.parity.cases import marge_attention"]
    header += [f"marge_attention.settings.beta = {case.config['beta']}"]
    gin.clear_config()
    try:
        with gin.unlock_config():
            gin.parse_config("\n".join([*header, *overrides]))
            return _compare(case, gin.get_configurable(settings)())
    finally:
        gin.clear_config()


def settings(beta: float) -> RelevanceConfig:
    """What the case fixes; tests perturb it."""
    return RelevanceConfig(layers=1, beta=beta)


def _compare(case: Case, config: RelevanceConfig) -> list[Quantity]:
    batch = {name: jnp.asarray(array) for name, array in case.batch.items()}
    documents, length = batch["evidence_mask"].shape[1:]
    relevance = marge.cosines(batch["target_doc_vector"][:, None], batch["evidence_doc_vector"])
    target, evidence = _groups(batch)
    query = batch["query"].swapaxes(1, 2)  # [B, T, H, d]
    key, value = (_in_a_row(batch[name]) for name in ("key", "value"))
    kept: list[jax.Array] = []

    def keep(weights: jax.Array) -> jax.Array:
        kept.append(weights)
        return weights

    visible = marge.per_token(marge.seen(target, evidence), target, evidence)
    bias = config.beta * marge.per_token(relevance, target, evidence)
    output = attention.plain(query, key, value, visible, keep, bias).swapaxes(1, 2)
    weights = kept[0].reshape(*kept[0].shape[:3], documents, length)
    return [
        parity_kit.activation(case, "relevance", relevance[:, 0]),
        parity_kit.activation(case, "attention", weights),
        parity_kit.activation(case, "attention_mass_per_document", weights.sum(-1)),
        parity_kit.activation(case, "output", output),
        parity_kit.loss(case, "sum_output", float(np.asarray(output, np.float64).sum())),
        parity_kit.loss(
            case, "mean_attention_on_first_document", float(weights[..., 0, :].sum(-1).mean())
        ),
    ]


def _groups(batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Target and evidence as token groups: one sub-batch a row, a segment a document."""
    rows, documents, length = batch["evidence_mask"].shape
    number = jnp.arange(1, documents + 1)[None, :, None] * batch["evidence_mask"]
    target_ids = jnp.ones((rows, batch["query"].shape[2]), jnp.int32)

    def group(segment_ids: jax.Array, segments: int) -> dict[str, jax.Array]:
        return {
            "segment_ids": segment_ids.astype(jnp.int32),
            "sub_batch": jnp.zeros((rows, segments), jnp.int32),
            "segment_valid": jnp.ones((rows, segments), bool),
        }

    return group(target_ids, 1), group(number.reshape(rows, documents * length), documents)


def _in_a_row(array: jax.Array) -> jax.Array:
    """[B, M * L, H, d] from [B, M, L, H, d]."""
    return array.reshape(array.shape[0], -1, *array.shape[3:])
