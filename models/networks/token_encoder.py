"""Common part of encoders with a state for each token: an embedding block, then layers.

A family says what its block and its layers are; whole texts, a few tokens, and the states of an
early layer follow from them here.
"""

from typing import Any, NamedTuple

import jax
from flax import nnx

from models.networks import layers, tables
from models.networks.pooling import POOLINGS, pooled
from t5x_style.interfaces.objective import Group


class TokenEncoder(nnx.Module):
    """See `t5x_style.interfaces.encoder.TokenEncoder`.

    Subclasses set `config` and `embeddings`, whose `word` is the word table, define `embed`,
    `embed_vectors` and `position_rows`, and say below how their layers run.
    """

    config: Any
    embeddings: Any

    def view(self, positions: jax.Array, segment_ids: jax.Array, key: jax.Array | None) -> Any:
        """Inputs of `run` for the rows, from [B, L] each; `key` as `run` will get it."""
        raise NotImplementedError

    def run(
        self, hidden: jax.Array, view: Any, start: int, end: int, key: jax.Array | None
    ) -> jax.Array:
        """[B, L, D]: layers `start` to `end` - 1, at least one, from `hidden` [B, L, D]."""
        raise NotImplementedError

    def run_at(
        self,
        hidden: jax.Array,
        at: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        number: int,
        key: jax.Array | None,
    ) -> jax.Array:
        """[B, S, D]: layer `number`, for the tokens `at` [B, S] of `hidden` [B, L, D] alone."""
        raise NotImplementedError

    def finish(self, hidden: jax.Array) -> jax.Array:
        """[..., D]: what comes after the last layer."""
        return hidden

    # What follows is the same for all families.

    @property
    def word_table(self) -> jax.Array:
        """[padded_vocab, E] float32."""
        return self.embeddings.word.embedding[...]

    def words(self, tokens: jax.Array) -> jax.Array:
        """[..., E] float32."""
        return tables.rows_of(self.embeddings.word, tokens)

    @property
    def poolings(self) -> tuple[str, ...]:
        """See `Encoder`."""
        return POOLINGS

    def pool(self, group: Group, pooling: str, key: jax.Array | None = None) -> jax.Array:
        """See `Encoder`."""
        return pooled(self, group, pooling, key)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D] in the compute dtype, see the interface."""
        first, rest = layers.split_key(key, 2)
        hidden = self.embed(tokens, positions, token_types, first)
        view = self.view(positions, segment_ids, rest)
        return self.finish(self.run(hidden, view, 0, self.config.layers, rest))

    def early_and_late(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        early: int,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """[B, L, D] twice, see the interface; what comes after the last layer is in both."""
        first, before, after = layers.split_key(key, 3)
        hidden = self.embed(tokens, positions, token_types, first)
        view = self.view(positions, segment_ids, after)
        states = []
        for start, end, part_key in ((0, early, before), (early, self.config.layers, after)):
            if end > start:
                hidden = self.run(hidden, view, start, end, part_key)
            states.append(self.finish(hidden))
        return states[0], states[1]

    def states_at(
        self,
        at: jax.Array,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
        depth: int | None = None,
    ) -> jax.Array:
        """[B, S, D] in the compute dtype, see the interface.

        Of the other tokens, the last layer needs nothing but keys and values: a sixth of its
        products.
        """
        below = (depth or self.config.layers) - 1
        first, lower, last = layers.split_key(key, 3)
        hidden = self.embed(tokens, positions, token_types, first)
        if below:
            hidden = self.run(hidden, self.view(positions, segment_ids, lower), 0, below, lower)
        return self.finish(self.run_at(hidden, at, positions, segment_ids, below, last))

    def embed(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D], see the interface."""
        raise NotImplementedError


class FirstLayers(NamedTuple):
    """The lower part of an encoder, as an encoder of its [CLS] tokens."""

    encoder: Any  # a TokenEncoder
    depth: int  # layers, at least 1

    @property
    def poolings(self) -> tuple[str, ...]:
        """See `Encoder`."""
        return ("cls",)

    def pool(self, group: Group, pooling: str, key: jax.Array | None = None) -> jax.Array:
        """See `Encoder`."""
        text = (group["tokens"], group["positions"], group["segment_ids"], group.get("token_types"))
        states = self.encoder.states_at(group["cls_at"], *text, key, depth=self.depth)
        return states.astype("float32")
