"""Heads of an encoder: the MLM head, poolers, the score of a pair.

Letters: B rows, L row length, S segments a row, D hidden width, E width of the embedding tables
(D but in ELECTRA's layout), V padded vocabulary.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import cross_entropy
from models.networks import layers, pooling
from t5x_style.interfaces.encoder import TokenEncoder, TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Group

_PAIR_ACTIVATIONS = layers.ACTIVATIONS | {"tanh": jnp.tanh}


def projection(
    config: TokenEncoderConfig, outputs: int, rngs: nnx.Rngs, bias: bool = True
) -> layers.Dense:
    """[..., D] -> [..., outputs].

    Its output axis is named `mlp`: an array may use a mesh axis once, and `embed` is taken.
    """
    return layers.Dense(
        {"embed": config.hidden},
        {"mlp": outputs},
        stddev=config.kernels,
        dtype=config.dtype,
        rngs=rngs,
        bias=bias,
    )


class MlmHead(nnx.Module):
    """LN(act(T . x + b)) . table^T + bias, the table being the encoder's word table.

    The logits are never formed here: `models.losses.cross_entropy` takes `transform(hidden)`,
    the table and `bias`.
    """

    def __init__(self, config: TokenEncoderConfig, *, rngs: nnx.Rngs) -> None:
        width, bias = config.table_width, config.head_biases
        self.dense = projection(config, width, rngs, bias)
        self.norm = layers.layer_norm(width, config.layer_norm_eps, config.dtype, rngs, bias)
        zeros = nnx.with_partitioning(nnx.initializers.zeros_init(), ("vocab",))
        self.bias = nnx.Param(zeros(rngs.params(), (config.padded_vocab,), jnp.float32))
        self.activation = config.activation

    def transform(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> [..., E], what is multiplied with the word table."""
        return self.norm(layers.ACTIVATIONS[self.activation](self.dense(hidden)))


def predict(
    encoder: TokenEncoder,
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

    def __init__(self, config: TokenEncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = projection(config, config.hidden, rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return jnp.tanh(self.dense(hidden))


class PairPooler(nnx.Module):
    """Computes the state that the classifier of a re-ranker reads: see `PairHead`."""

    def __init__(self, config: TokenEncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        head = config.pair_head
        self.dense = projection(config, config.hidden, rngs, head.bias)
        self.norm = (
            layers.layer_norm(
                config.hidden, config.layer_norm_eps, config.dtype, rngs, bias=head.bias
            )
            if head.norm
            else None
        )
        self.dropout = layers.Dropout(config.dropout)

    def __call__(self, encoder: TokenEncoder, group: Group, key: jax.Array | None) -> jax.Array:
        """[B, S, D] in the compute dtype.

        Args:
            encoder: of `config`.
            group: a token group of pairs, with `token_types` where the encoder reads them.
            key: for dropout; None turns it off.
        """
        head = self.config.pair_head
        encoder_key, after = layers.split_key(key, 2)
        states = self._states(encoder, group, encoder_key)
        if head.dropout:
            before, after = layers.split_key(after, 2)
            states = self.dropout(states, before)
        hidden = _PAIR_ACTIVATIONS[head.activation](self.dense(states))
        return self.dropout(hidden if self.norm is None else self.norm(hidden), after)

    def _states(self, encoder: TokenEncoder, group: Group, key: jax.Array | None) -> jax.Array:
        types = group["token_types"] if self.config.type_vocab > 1 else None
        text = (group["tokens"], group["positions"], group["segment_ids"], types, key)
        if self.config.pair_head.pooling == "cls":
            return encoder.states_at(group["cls_at"], *text)
        states = pooling.of_states(encoder(*text), group, self.config.pair_head.pooling)
        return states.astype(self.config.dtype)


def score_head(config: TokenEncoderConfig, outputs: int = 1, *, rngs: nnx.Rngs) -> layers.Dense:
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
