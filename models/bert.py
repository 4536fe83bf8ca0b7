"""The BERT encoder: embeddings and a scanned stack of post-LN layers.

The formulas of the original release: e = LN(word[id] + position[p] + type[t]), then for each
layer h = LN(x + O(attention(x))), y = LN(h + W2 . act(W1 . h)).  Rows may hold several segments:
attention stays inside a segment, and positions restart in each, so that a packed passage gets the
same numbers as one in a row of its own.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models import layers


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and constants of a BERT encoder.

    Attributes:
        vocab_size: true number of tokens; the table is padded, see `padded_vocab`.
        hidden, layers, heads, mlp: width, depth, attention heads, feed-forward width.
        max_positions: rows of the position table, the longest segment.
        type_vocab: rows of the token-type table.
        activation: `gelu` (exact), `gelu_new` (tanh) or `relu`.
        dropout, attention_dropout: rates in training.
        initializer_range: standard deviation of fresh kernels and tables.
        dtype: compute dtype; parameters are float32 always.
        remat: one of `layers.REMAT_POLICIES`.
        unroll: layers in one iteration of the loop over layers; more compile longer and, on CPUs,
            run faster.
        vocab_multiple: the word table has a multiple of this many rows (128 x the mesh axis that
            shards it).
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    mlp: int
    max_positions: int
    type_vocab: int = 2
    activation: str = "gelu"
    layer_norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    dtype: str = "float32"
    remat: str = "none"
    unroll: int = 1
    vocab_multiple: int = 128

    def __post_init__(self) -> None:
        positive = ("vocab_size", "hidden", "layers", "heads", "mlp", "max_positions")
        for name in (*positive, "type_vocab", "vocab_multiple", "unroll"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"BertConfig.{name} must be at least 1, found {getattr(self, name)}."
                )
        if self.dtype not in layers.DTYPES:
            raise ValueError(
                f"BertConfig.dtype must be one of {layers.DTYPES}, found {self.dtype!r}."
            )
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"BertConfig.{name} must be at least 0 and below 1, "
                    f"found {getattr(self, name)}."
                )
        if self.remat not in layers.REMAT_POLICIES:
            raise ValueError(
                f"BertConfig.remat must be one of {layers.REMAT_POLICIES}, found {self.remat!r}."
            )

    @property
    def padded_vocab(self) -> int:
        """Rows of the word table: `vocab_size` rounded up to `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def block(self) -> layers.BlockConfig:
        """The part that one layer needs."""
        return layers.BlockConfig(
            hidden=self.hidden,
            heads=self.heads,
            mlp=self.mlp,
            activation=self.activation,
            layer_norm_eps=self.layer_norm_eps,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            initializer_range=self.initializer_range,
            dtype=self.dtype,
        )


def _table(rows: int, name: str, config: BertConfig, rngs: nnx.Rngs) -> nnx.Embed:
    normal = nnx.initializers.normal(config.initializer_range)
    return nnx.Embed(
        rows,
        config.hidden,
        param_dtype=jnp.float32,
        embedding_init=nnx.with_partitioning(normal, (name, "embed")),
        rngs=rngs,
    )


class Embeddings(nnx.Module):
    """LN(word + position + type); tables and norm are attributes for those who need parts."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.word = _table(config.padded_vocab, "vocab", config, rngs)
        self.position = _table(config.max_positions, "position", config, rngs)
        self.type = _table(config.type_vocab, "type", config, rngs)
        self.norm = layers.layer_norm(config.hidden, config.layer_norm_eps, config.dtype, rngs)
        self.dropout = layers.Dropout(config.dropout)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D] from int32 `tokens`, `positions`, `token_types` (None: all 0), each [B, L]."""
        if token_types is None:
            token_types = jnp.zeros_like(tokens)
        summed = self.word(tokens) + self.position(positions) + self.type(token_types)
        return self.dropout(self.norm(summed), key)


class Encoder(nnx.Module):
    """Embeddings and `config.layers` layers, run by one scan."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.layers = layers.stack(config.block, config.layers, rngs)

    @property
    def word_table(self) -> jax.Array:
        """[padded_vocab, D] float32, to which output layers are tied."""
        return self.embeddings.word.embedding[...]

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Encodes rows of segments.

        Args:
            tokens: [B, L] int32.
            positions: [B, L] int32, restarting at 0 in each segment.
            segment_ids: [B, L] int32, 0 = padding.
            token_types: [B, L] int32; None means all 0.
            key: for dropout; None turns it off.

        Returns:
            [B, L, D] in the compute dtype.  Values at padding are finite and meaningless.
        """
        first, rest = layers.split_key(key, 2)
        hidden = self.embeddings(tokens, positions, token_types, first)
        return self.run_layers(hidden, layers.visibility(segment_ids, segment_ids), rest)

    def run_layers(
        self, hidden: jax.Array, visible: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """The layers alone: [B, L, D] from `hidden` [B, L, D] and `visible` [B, L, L] bool."""
        config = self.config
        return layers.run_stack(
            self.layers,
            config.layers,
            hidden,
            visible,
            key=key,
            remat=config.remat,
            unroll=config.unroll,
        )
