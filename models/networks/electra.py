"""A generator in ELECTRA's manner (arXiv:2003.10555): a small masked language model that replaces.

Its layout is that of published generators: embedding tables of another width than the layers, and
an MLM head tied to them. `models/objectives/mlm.py` trains one on a user's own text;
`models/interop/import_hf.py` reads published ones.

Letters: B rows, L row length, N positions of all rows, E width of the tables.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import generator_sampling, masking
from models.networks import heads
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum

Group = Mapping[str, jax.Array]


class Generator(nnx.Module):
    """Encoder and MLM head.

    Args:
        config: its sizes; `embedding_size` is that of the tables.
        chunk: positions whose logits exist at a time on a device.
        rngs: stream `params`.
    """

    def __init__(self, config: TokenEncoderConfig, chunk: int, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.chunk = chunk
        self.encoder = config.build(rngs)
        self.head = heads.MlmHead(config, rngs=rngs)

    def replace(
        self, group: Group, tokens: jax.Array, labels: jax.Array, budget: int, key: jax.Array
    ) -> jax.Array:
        """[B, L] int32: `tokens` with an independent sample at each position with a label.

        Samples are drawn at temperature 1, each position by itself, without dropout.

        Args:
            group: positions, segments, token types and example ids of the rows.
            tokens: [B, L] int32, masked.
            labels: [B, L] int32, -100 where nothing is replaced.
            budget: a bound on the labels of a row.
            key: of the step.
        """
        hidden = self.states(group, tokens, None)
        chosen = labels != masking.IGNORED
        at = jnp.argsort(~chosen, axis=1, stable=True)[:, :budget]  # those with a label first
        states = self.head.transform(jnp.take_along_axis(hidden, at[:, :, None], axis=1))
        numbers = jnp.take_along_axis(masking.token_numbers(group, key), at, axis=1)
        drawn = generator_sampling.sample_tokens(
            states.reshape(-1, states.shape[-1]),
            self.encoder.word_table,
            self.head.bias[...],
            numbers.reshape(-1),
            vocab_size=self.config.vocab_size,
            chunk=self.chunk,
        ).reshape(at.shape)
        kept = jnp.take_along_axis(tokens, at, axis=1)
        values = jnp.where(jnp.take_along_axis(chosen, at, axis=1), drawn, kept)
        return jnp.put_along_axis(tokens, at, values, axis=1, inplace=False)

    def loss(
        self, group: Group, tokens: jax.Array, labels: jax.Array, budget: int, key: jax.Array | None
    ) -> MetricSum:
        """Mean cross-entropy at the labels, in nats; arguments as in `replace`, key for dropout."""
        hidden = self.states(group, tokens, key)
        return heads.predict(self.encoder, self.head, hidden, labels, budget, self.chunk)[0]

    def states(self, group: Group, tokens: jax.Array, key: jax.Array | None) -> jax.Array:
        """[B, L, D] of the encoder, for `tokens` [B, L] in place of the group's."""
        return self.encoder(
            tokens, group["positions"], group["segment_ids"], group.get("token_types"), key
        )


def require_fit(generator: TokenEncoderConfig, config: TokenEncoderConfig, objective: str) -> None:
    """Raises ValueError unless a generator reads what an objective's encoder `config` reads."""
    shorter = generator.max_positions < config.max_positions
    if generator.vocab_size != config.vocab_size or shorter:
        raise ValueError(
            f"{objective}.generator_config: expected the encoder's vocabulary of "
            f"{config.vocab_size} and at least its {config.max_positions} positions, found "
            f"{generator.vocab_size} and {generator.max_positions}"
        )
