"""A decoder that writes a text while it reads others: causal layers over encoded evidence.

Post-LN, as BERT's encoder and BART (arXiv:1910.13461). The lower layers have self-attention alone,
so that what was written is understood before the others look at the evidence (MARGE,
arXiv:2006.15020, section 3):

    base    a = LN(x + Self(x))                             y = LN(a + FFN(a))
    upper   a = LN(x + Self(x))    c = LN(a + Cross(a, memory))    y = LN(c + FFN(c))

Letters: B rows, T tokens that are written, K tokens that are read, D hidden width, H heads, d head
dimension, N hypotheses of a row.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import attention, layers, stacks, tables
from models.networks.layers import KeysAndValues
from t5x_style.interfaces.encoder import TokenEncoderConfig


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder; what is not here is the encoder's.

    Attributes:
        layers, mlp: depth and feed-forward width of the layers that read the evidence.
        base_layers, base_mlp: the same of the layers below them.
        max_positions: the longest text that is written.
    """

    layers: int
    mlp: int
    base_layers: int
    base_mlp: int
    max_positions: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            min_value = 0 if field.name == "base_layers" else 1
            if getattr(self, field.name) < min_value:
                raise ValueError(
                    f"DecoderConfig.{field.name}: expected at least {min_value}, found "
                    f"{getattr(self, field.name)}"
                )


class Evidence(NamedTuple):
    """Evidence that a decoder reads, with its bias.

    Attributes:
        states: [B, K, D], of an encoder.
        visible: bool [B, T, K]; in decoding T is N.
        bias: float32, as `visible`: added to the scores of all heads.
    """

    states: jax.Array
    visible: jax.Array
    bias: jax.Array


class Cache(NamedTuple):
    """Keys and values of what was written, [layers, B, N, T, H, d], and read, [layers, B, K, H, d].

    Attributes:
        base, upper: of the text so far, in the lower and the upper layers.
        across: of the evidence, in the upper layers.
    """

    base: KeysAndValues
    upper: KeysAndValues
    across: KeysAndValues

    def reordered(self, of_parent: Callable[[jax.Array], jax.Array]) -> "Cache":
        """See `decoding.Cache`: the same of every layer."""
        base, upper = jax.tree.map(jax.vmap(of_parent), (self.base, self.upper))
        return Cache(base, upper, self.across)


class DecoderLayer(nnx.Module):
    """One layer of the module's formulas; `crosses` says of which kind."""

    def __init__(self, config: layers.BlockConfig, crosses: bool, *, rngs: nnx.Rngs) -> None:
        self.attention = layers.Attention(config, rngs=rngs)
        self.attention_norm = config.norm(rngs)
        self.cross = layers.Attention(config, rngs=rngs) if crosses else None
        self.cross_norm = config.norm(rngs) if crosses else None
        self.mlp = layers.FeedForward(config, rngs=rngs)
        self.mlp_norm = config.norm(rngs)
        self.dropout = layers.Dropout(config.dropout)

    def look_back(
        self, x: jax.Array, known: KeysAndValues, visible: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """LN(x + Self(x)): [B, T, D], to keys and values that are `visible` bool [B, T, T']."""
        inside, after = layers.split_key(key, 2)
        attended = self.attention.attend(x, known, visible, inside)
        return self.attention_norm(x + self.dropout(attended, after))

    def read(
        self, a: jax.Array, known: KeysAndValues, evidence: Evidence, key: jax.Array | None = None
    ) -> jax.Array:
        """LN(a + Cross(a, memory)): [B, T, D]; `known` are of `evidence.states`."""
        assert self.cross is not None and self.cross_norm is not None
        inside, after = layers.split_key(key, 2)
        attended = self.cross.attend(a, known, evidence.visible, inside, evidence.bias)
        return self.cross_norm(a + self.dropout(attended, after))

    def feed(self, c: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """LN(c + FFN(c)): [B, T, D]."""
        return self.mlp_norm(c + self.dropout(self.mlp(c), key))


class Decoder(nnx.Module):
    """Positions and the layers; words come from a table that the decoder shares with its encoder.

    Args:
        config: of the encoder: width, heads, dropout, compute dtype.
        decoder_config: depth and feed-forward widths.
        rngs: stream `params`.
    """

    def __init__(
        self, config: TokenEncoderConfig, decoder_config: DecoderConfig, *, rngs: nnx.Rngs
    ) -> None:
        if config.table_width != config.hidden:
            raise ValueError(
                "Decoder: expected tables as wide as the layers (embedding_size None), "
                f"found {config.table_width} and {config.hidden}"
            )
        self.config, self.decoder_config = config, decoder_config
        self.position = tables.table(
            decoder_config.max_positions,
            "position",
            config.hidden,
            config.initializer_range,
            rngs,
        )
        self.norm = layers.layer_norm(config.hidden, config.layer_norm_eps, config.dtype, rngs)
        self.dropout = layers.Dropout(config.dropout)
        self.base = _stack(config, decoder_config.base_layers, decoder_config.base_mlp, False, rngs)
        self.layers = _stack(config, decoder_config.layers, decoder_config.mlp, True, rngs)

    def __call__(
        self,
        words: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        evidence: Evidence,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """All tokens at once, each seeing those before it in its own segment.

        Args:
            words: [B, T, D], rows of the word table.
            positions, segment_ids: [B, T] int32, as in a token group.
            evidence: what is read.
            key: for dropout; None turns it off.

        Returns:
            [B, T, D] in the compute dtype.
        """
        first, below, above = layers.split_key(key, 3)
        order = jnp.arange(words.shape[1])
        visible = attention.visibility(segment_ids, segment_ids) & (order[:, None] >= order)

        def one(x: jax.Array, layer: DecoderLayer, read: Evidence, key: jax.Array) -> jax.Array:
            back, across, after = layers.split_key(key, 3)
            x = layer.look_back(x, layer.attention.keys_and_values(x), visible, back)
            if layer.cross is not None:
                x = layer.read(x, layer.cross.keys_and_values(read.states), read, across)
            return layer.feed(x, after)

        hidden = self.dropout(self._embed(words, positions), first)
        if self.base is not None:
            hidden = self._run(one, self.base, self.decoder_config.base_layers, hidden, evidence,
                               below)  # fmt: skip
        return self._run(one, self.layers, self.decoder_config.layers, hidden, evidence, above)

    def _embed(self, words: jax.Array, positions: jax.Array) -> jax.Array:
        return self.norm(words + tables.rows_of(self.position, positions))

    def _run(
        self,
        one: Any,
        stack: DecoderLayer,
        count: int,
        hidden: jax.Array,
        evidence: Evidence,
        key: jax.Array | None,
    ) -> jax.Array:
        keys = None if key is None else jax.random.split(key, count)
        scan = nnx.scan(
            stacks.with_remat(one, self.config.remat),
            in_axes=(nnx.Carry, 0, None, 0),
            out_axes=nnx.Carry,
            length=count,
            unroll=min(self.config.unroll, count),
        )
        return scan(hidden, stack, evidence, keys)

    def begin(self, states: jax.Array, hypotheses: int, length: int) -> Cache:
        """A cache for texts of `length` tokens, `hypotheses` a row, of which nothing is written.

        Args:
            states: [B, K, D], what will be read.
        """
        config = self.config
        head = (config.heads, config.hidden // config.heads)

        def empty(count: int) -> KeysAndValues:
            shape = (count, states.shape[0], hypotheses, length, *head)
            return jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype)

        @nnx.scan(in_axes=(None, 0), out_axes=0, length=self.decoder_config.layers)
        def project(states: jax.Array, layer: DecoderLayer) -> KeysAndValues:
            assert layer.cross is not None
            return layer.cross.keys_and_values(states)

        return Cache(
            empty(self.decoder_config.base_layers),
            empty(self.decoder_config.layers),
            project(states, self.layers),
        )

    def step(
        self, words: jax.Array, at: jax.Array, cache: Cache, evidence: Evidence
    ) -> tuple[jax.Array, Cache]:
        """One more token of every hypothesis.

        Args:
            words: [B, N, D], rows of the word table: token number `at` of each.
            at: [] int32, from 0.
            cache: of the tokens before it.
            evidence: `states` are not looked at: the cache has them.

        Returns:
            ([B, N, D], from which the next token is predicted; the cache with this one in it)
        """
        hidden = self._embed(words, jnp.broadcast_to(at, words.shape[:2]))

        def one(
            x: jax.Array, layer: DecoderLayer, past: KeysAndValues, across: KeysAndValues | None
        ) -> tuple[jax.Array, KeysAndValues]:
            rows = x.reshape(-1, 1, x.shape[-1])  # [B * N, 1, D]
            past = _written(past, layer.attention.keys_and_values(rows), at)
            known = past[0].reshape(-1, *past[0].shape[2:]), past[1].reshape(-1, *past[1].shape[2:])
            visible = (jnp.arange(known[0].shape[1]) <= at)[None, None]
            x = layer.look_back(rows, known, visible).reshape(x.shape)
            if across is not None:
                x = layer.read(x, across, evidence)
            return layer.feed(x), past

        def run(stack: DecoderLayer, count: int, hidden: jax.Array, past: Any, across: Any) -> Any:
            axes = (nnx.Carry, 0, 0, None if across is None else 0)
            scan = nnx.scan(one, in_axes=axes, out_axes=(nnx.Carry, 0), length=count)
            return scan(hidden, stack, past, across)

        base = cache.base
        if self.base is not None:
            hidden, base = run(self.base, self.decoder_config.base_layers, hidden, base, None)
        hidden, upper = run(
            self.layers, self.decoder_config.layers, hidden, cache.upper, cache.across
        )
        return hidden, Cache(base, upper, cache.across)


def _stack(
    config: TokenEncoderConfig, count: int, mlp: int, crosses: bool, rngs: nnx.Rngs
) -> DecoderLayer | None:
    """`count` layers as one module whose parameters have a leading axis; None of no layers."""
    if count == 0:
        return None
    block = dataclasses.replace(config.block, mlp=mlp)
    return stacks.stack(lambda rngs: DecoderLayer(block, crosses, rngs=rngs), count, rngs)


def _written(past: KeysAndValues, new: KeysAndValues, at: jax.Array) -> KeysAndValues:
    """Keys and values [B, N, T, H, d], with those [B * N, 1, H, d] of token `at`."""

    def put(old: jax.Array, one: jax.Array) -> jax.Array:
        one = one.reshape(*old.shape[:2], 1, *old.shape[3:])
        return jax.lax.dynamic_update_slice_in_dim(old, one, at, axis=2)

    return put(past[0], new[0]), put(past[1], new[1])
