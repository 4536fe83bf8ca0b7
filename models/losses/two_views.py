"""Contrastive learning of texts that are encoded twice: SimCSE's loss (arXiv:2104.08821)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from models.losses import contrastive
from t5x_style.interfaces.metrics import MetricSum


def between_views(
    one: jax.Array,
    other: jax.Array,
    text: Mapping[str, jax.Array],
    temperature: float,
    config: contrastive.ContrastiveConfig,
) -> tuple[MetricSum, dict[str, MetricSum]]:
    """A text's first view must score its second one above those of all other texts.

    Args:
        one, other: [B * S, D] float32 of unit length, two views of each text.
        text: `example_id` and `segment_valid` [B, S] of the token group.
        temperature: what cosines are divided by.
        config: how devices share the loss.

    Returns:
        The loss in nats a text, and metrics: `accuracy` and `mrr` of a text's other vector among
        all texts' ones; `alignment`, the mean of |one - other|^2 (Wang and Isola 2020,
        arXiv:2005.10242).
    """
    # A text that is in the batch twice has two ids: its copy is a negative, as published.
    pair = {**text, "document_id": text["example_id"]}
    loss, metrics = contrastive.info_nce(
        contrastive.Queries.of(one, text),
        contrastive.Passages.of(other, pair),
        temperature,
        config,
    )
    apart = jax.lax.stop_gradient(jnp.sum(jnp.square(one - other), axis=-1))
    valid = text["segment_valid"].reshape(-1)
    return loss, metrics | {"alignment": MetricSum.of(apart, valid)}
