"""What is put on top of an encoder: the MLM head, poolers.

Letters: B rows, L row length, S segments per row, D hidden width, E width of the embedding tables
(D but in ELECTRA's layout), V padded vocabulary.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import cross_entropy
from models.networks import bert, layers
from t5x_style.interfaces.metrics import MetricSum


def projection(config: bert.BertConfig, outputs: int, rngs: nnx.Rngs) -> layers.Dense:
    """[..., D] -> [..., outputs].

    Its output axis is named `mlp`: an array may use a mesh axis once, and `embed` is taken.
    """
    return layers.Dense(
        {"embed": config.hidden},
        {"mlp": outputs},
        stddev=config.kernels,
        dtype=config.dtype,
        rngs=rngs,
    )


class MlmHead(nnx.Module):
    """LN(act(T . x + b)) . table^T + bias, the table being the encoder's word table.

    The logits are never formed here: `models.losses.cross_entropy` takes `transform(hidden)`,
    the table and `bias`.
    """

    def __init__(self, config: bert.BertConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = projection(config, config.table_width, rngs)
        self.norm = layers.layer_norm(config.table_width, config.layer_norm_eps, config.dtype, rngs)
        zeros = nnx.with_partitioning(nnx.initializers.zeros_init(), ("vocab",))
        self.bias = nnx.Param(zeros(rngs.params(), (config.padded_vocab,), jnp.float32))
        self.activation = config.activation

    def transform(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> [..., E], what is multiplied with the word table."""
        return self.norm(layers.ACTIVATIONS[self.activation](self.dense(hidden)))


def predict(
    encoder: bert.Encoder,
    head: MlmHead,
    hidden: jax.Array,
    labels: jax.Array,
    budget: int | None,
    chunk: int,
) -> tuple[MetricSum, MetricSum]:
    """Mean cross-entropy in nats, and accuracy, through an MLM head tied to the encoder's table.

    Args:
        encoder, head: whose table and head.
        hidden: [B, L, D], states of the encoder or of a decoder.
        labels: [B, L] int32, -100 where nothing is predicted.
        budget: a bound on the labels of a row, so that the others cost nothing; None: many.
        chunk: positions whose logits exist at a time on a device.
    """
    if budget is not None:
        hidden, labels = cross_entropy.gather_predicted(hidden, labels, budget)
    return cross_entropy.cross_entropy_mean(
        head.transform(hidden),
        encoder.word_table,
        head.bias[...],
        labels,
        vocab_size=encoder.config.vocab_size,
        chunk=chunk,
    )


class Pooler(nnx.Module):
    """tanh(P . h + b), BERT's pooler."""

    def __init__(self, config: bert.BertConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = projection(config, config.hidden, rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return jnp.tanh(self.dense(hidden))


def score_head(config: bert.BertConfig, outputs: int = 1, *, rngs: nnx.Rngs) -> layers.Dense:
    """[..., D] -> [..., outputs]: one number for a text, the classifier of published re-rankers, or
    one for each class. In float32 whatever the compute dtype: bfloat16 would make ties.
    """
    return layers.Dense(
        {"embed": config.hidden},
        {"score": outputs},
        stddev=config.kernels,
        dtype="float32",
        rngs=rngs,
    )


def pool_cls(hidden: jax.Array, cls_at: jax.Array) -> jax.Array:
    """The state at each segment's [CLS]: [B, S, D] from `hidden` [B, L, D] and `cls_at` [B, S]."""
    return jnp.take_along_axis(hidden, cls_at[:, :, None], axis=1)


def own_cls(hidden: jax.Array, group: Mapping[str, jax.Array]) -> jax.Array:
    """[B, L, D]: for each token the state at its own segment's [CLS]; at padding the first's.

    Args:
        hidden: [B, L, D].
        group: `cls_at` [B, S] and `segment_ids` [B, L] count.
    """
    own = jnp.maximum(group["segment_ids"] - 1, 0)
    return jnp.take_along_axis(pool_cls(hidden, group["cls_at"]), own[:, :, None], axis=1)


def behind_cls(hidden: jax.Array, others: jax.Array, group: Mapping[str, jax.Array]) -> jax.Array:
    """[B, L, D]: each segment's [CLS] of `hidden` at its first place, `others` elsewhere.

    Args:
        hidden, others: [B, L, D].
        group: `positions` and `segment_ids` [B, L] and `cls_at` [B, S] count.
    """
    first = (group["positions"] == 0)[:, :, None]
    return jnp.where(first, own_cls(hidden, group), others)


def pool_mean(hidden: jax.Array, segment_ids: jax.Array, segments: int) -> jax.Array:
    """The mean state of each segment, [CLS] and [SEP] included.

    Args:
        hidden: [B, L, D].
        segment_ids: [B, L] int32, 0 = padding, s + 1 = segment s.
        segments: S.

    Returns:
        [B, S, D] float32; zeros for a segment without tokens.
    """
    ids = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
    member = (segment_ids[:, None, :] == ids[None, :, None]).astype(jnp.float32)  # [B, S, L]
    total = jnp.einsum("bsl,bld->bsd", member, hidden.astype(jnp.float32))
    return total / jnp.maximum(member.sum(-1, keepdims=True), 1.0)
