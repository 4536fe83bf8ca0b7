"""Golden cases `simlm_finetune`: fine-tuning losses over explicit vectors, and their gradients.

Row i * N of the passages is query i's positive, the next N - 1 are its hard negatives.
"""

import functools
from collections.abc import Callable
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np

from models.losses import contrastive, distillation, listwise
from models.networks import text_embedding
from t5x_style.interfaces.metrics import MetricSum
from tests.parity import parity_kit
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ()  # config.json names none: the parent folder's name says it

# At temperatures of 0.02 and below logits are large, and float32 resolves less of a loss.
LOW_TEMPERATURE, LOW_TEMPERATURE_RTOL = 0.02, 1e-4
GRADIENT_ATOL = 5e-5

Arrays = dict[str, Any]


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Every loss and its gradients; gin binds `settings`."""
    weight = case.config["kd_cont_loss_weight"]
    header = ["from __gin__ import dynamic_registration"]
    header += ["from tests.parity.cases import simlm_finetune"]
    header += [f"simlm_finetune.settings.contrastive_weight = {weight}"]
    gin.clear_config()
    try:
        with gin.unlock_config():
            gin.parse_config("\n".join([*header, *overrides]))
            return [*_vectors(case, *gin.get_configurable(settings)()), *_scores(case)]
    finally:
        gin.clear_config()


def settings(
    contrastive_weight: float, margin: float = 0.0
) -> tuple[Callable[..., contrastive.ContrastiveConfig], float]:
    """What the official code fixes; tests perturb it."""
    return functools.partial(contrastive.ContrastiveConfig, margin=margin), contrastive_weight


def _vectors(case: Case, config: Callable[..., Any], weight: float) -> list[Quantity]:
    full = config(blocks=contrastive.BLOCKS)
    temperature = case.config["temperature"]
    teacher = jnp.asarray(case.batch["teacher_scores"])

    def info_nce(q: Any, p: Any, config: Any, temperature: float) -> MetricSum:
        return contrastive.info_nce(q, p, temperature, config)[0]

    def kl(q: Any, p: Any) -> MetricSum:
        student, own = contrastive.own_scores(q, p, teacher.shape[1], temperature, full.exchange)
        return distillation.kl_divergence(teacher, student, own < p.owner.shape[0])

    def distill(config: Any) -> Callable[..., MetricSum]:
        return lambda q, p: kl(q, p) + weight * info_nce(q, p, config, temperature)

    losses = {
        "contrastive_full": lambda q, p: info_nce(q, p, full, temperature),
        "contrastive_query_to_passage_only": lambda q, p: info_nce(q, p, config(), temperature),
        "contrastive_no_l2norm": lambda q, p: info_nce(q, p, full, 1.0),
        "distill_official": distill(full),
        "distill_kl_only": kl,
        "distill_mask_hard_negatives": distill(
            config(blocks=contrastive.BLOCKS, own_negatives=False)
        ),
    }
    arrays = {
        "query_emb": jnp.asarray(case.batch["query_emb"]),
        "passage_emb": jnp.asarray(case.batch["passage_emb"]),
    }
    found = []
    for name, loss in losses.items():
        unit = (lambda x: x) if name == "contrastive_no_l2norm" else text_embedding.unit
        found += _compare(case, name, _of_vectors(loss, unit), arrays)
    return found


def _of_vectors(
    loss: Callable[..., MetricSum], unit: Callable[..., Any]
) -> Callable[[Arrays], Any]:
    def total(arrays: Arrays) -> jax.Array:
        queries, passages = batch(unit(arrays["query_emb"]), unit(arrays["passage_emb"]))
        return loss(queries, passages).value()

    return total


def batch(query: jax.Array, passage: jax.Array) -> tuple[contrastive.Queries, contrastive.Passages]:
    """The cases' layout: each query's positive, then its negatives; every document once."""
    queries, passages = query.shape[0], passage.shape[0]
    group = passages // queries
    asked, given = jnp.arange(queries), jnp.arange(passages)
    nothing_known = jnp.zeros((queries, 0), jnp.int32)
    return (
        contrastive.Queries(query, asked, jnp.ones(queries, bool), nothing_known),
        contrastive.Passages(
            passage, given // group, given, given % group == 0, jnp.ones(passages, bool)
        ),
    )


def _scores(case: Case) -> list[Quantity]:
    def all_valid(scores: jax.Array) -> jax.Array:
        return jnp.ones(scores.shape, bool)

    scores = jnp.asarray(case.batch["reranker_scores"])
    keep = scores.shape[1] // case.config["rerank_forward_factor"]
    index = listwise.hardest(scores, all_valid(scores), keep)

    def plain(arrays: Arrays) -> jax.Array:
        return listwise.cross_entropy(arrays["scores"], all_valid(arrays["scores"])).value()

    def chosen(arrays: Arrays) -> jax.Array:
        kept = jnp.take_along_axis(arrays["scores"], index, axis=1)
        return listwise.cross_entropy(kept, all_valid(kept)).value()

    def r_drop(arrays: Arrays) -> jax.Array:
        one, other = arrays["scores"], arrays["scores_b"]
        return listwise.r_drop(one, other, all_valid(one)).value()

    pair = {
        "scores": jnp.asarray(case.batch["reranker_scores_rdrop_a"]),
        "scores_b": jnp.asarray(case.batch["reranker_scores_rdrop_b"]),
    }
    different = np.sum(np.asarray(index) != case.arrays["rerank_forward_factor/selected_index"])
    return [
        Quantity("rerank_forward_factor/selected_index", float(different), 0.0),
        *_compare(case, "rerank_listwise", plain, {"scores": scores}),
        *_compare(case, "rerank_forward_factor", chosen, {"scores": scores}),
        *_compare(case, "rerank_rdrop", r_drop, pair),
    ]


def _compare(
    case: Case, name: str, loss: Callable[[Arrays], jax.Array], arrays: Arrays
) -> list[Quantity]:
    """The value, and each array's gradient relative to the largest entry of the true one."""
    value, gradients = jax.jit(jax.value_and_grad(loss))(arrays)
    truth = case.float64[name]["loss"]
    scaled = name not in ("contrastive_no_l2norm", *(n for n in case.float64 if "rerank" in n))
    low = scaled and case.config["temperature"] <= LOW_TEMPERATURE
    tolerance = (LOW_TEMPERATURE_RTOL if low else parity_kit.LOSS_RTOL) * abs(truth)
    found = [Quantity(name, abs(float(value) - truth), tolerance, f"{float(value):.7g}")]
    for array, gradient in gradients.items():
        key = f"grad/{name}/{array}"
        expected = case.truth(key)
        scale = max(1.0, float(np.abs(expected).max()))
        error = float(np.abs(np.asarray(gradient, np.float64) - expected).max())
        found.append(Quantity(key, error, GRADIENT_ATOL * scale))
    return found
