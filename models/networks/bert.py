"""The BERT encoder: embeddings and a scanned stack of post-LN layers.

The formulas of the original release: e = LN(word[id] + position[p] + type[t]), then for each
layer h = LN(x + O(attention(x))), y = LN(h + W2 . act(W1 . h)).  Rows may hold several segments:
attention stays inside a segment, and positions restart in each, so that a packed passage gets the
same numbers as one in a row of its own.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import attention, layers
from t5x_style.distributed import partitioning

STDDEVS = (
    "initializer_range", "table_stddev", "position_stddev", "kernel_stddev", "attention_stddev",
    "mlp_stddev",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and constants of a BERT encoder.

    Attributes:
        vocab_size: true number of tokens; the table is padded, see `padded_vocab`.
        hidden, layers, heads, mlp: width, depth, attention heads, feed-forward width.
        max_positions: the longest segment.
        position_offset: rows of the position table before the first that is used; RoBERTa's first
            position is its pad id + 1.
        type_vocab: rows of the token-type table.
        embedding_size: width of the tables, which are then projected to `hidden` (ELECTRA); None:
            they are as wide as the layers, and nothing is projected.
        activation: `gelu` (exact), `gelu_new` (tanh) or `relu`.
        dropout, attention_dropout: rates in training.
        initializer_range: standard deviation of fresh kernels and tables, unless the next five say
            otherwise.
        table_stddev: of the fresh word table; None: `initializer_range`.
        position_stddev: of the fresh tables of positions and types; None: `initializer_range`. Well
            below `table_stddev`, texts start as what their words say.
        kernel_stddev: of fresh kernels; None: `initializer_range`. A narrow encoder wants D^-1/2,
            which keeps the length of what they multiply.
        attention_stddev: of the kernel that adds attention's output to the residual stream; None:
            `kernel_stddev`. A large one lets [CLS] start as a mean of the text.
        mlp_stddev: of the kernel that adds the feed-forward part's output to it; None:
            `kernel_stddev`. With 0 that part starts as the identity, up to its LayerNorm.
        dtype: compute dtype; parameters are float32 always.
        remat: one of `layers.REMAT_POLICIES`.
        unroll: layers in one iteration of the loop over layers; more compile longer and, on CPUs,
            run faster.
        attention: `plain`, `fused` (a library's kernel on TPUs and NVIDIA GPUs), or `auto`, which
            takes the kernels for long rows, see `attention.choose`.
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
    attention: str = "auto"
    vocab_multiple: int = 128
    position_offset: int = 0
    embedding_size: int | None = None
    table_stddev: float | None = None
    position_stddev: float | None = None
    kernel_stddev: float | None = None
    attention_stddev: float | None = None
    mlp_stddev: float | None = None

    def __post_init__(self) -> None:
        positive = ("vocab_size", "hidden", "layers", "heads", "mlp", "max_positions")
        for name in (*positive, "type_vocab", "vocab_multiple", "unroll"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"BertConfig.{name} must be at least 1, found {getattr(self, name)}."
                )
        if self.position_offset < 0 or self.table_width < 1:
            raise ValueError(
                "BertConfig: expected position_offset of at least 0 and embedding_size of at least "
                f"1, found {self.position_offset} and {self.embedding_size}."
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
        for name in STDDEVS:
            if (getattr(self, name) or 0) < 0:
                raise ValueError(
                    f"BertConfig.{name}: expected a standard deviation of 0 or more, "
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
    def table_width(self) -> int:
        """Width of the embedding tables and of what the output layer takes."""
        return self.hidden if self.embedding_size is None else self.embedding_size

    @property
    def kernels(self) -> float:
        """Standard deviation of fresh kernels."""
        return self.initializer_range if self.kernel_stddev is None else self.kernel_stddev

    def build(self, rngs: nnx.Rngs) -> "Encoder":
        """The network, with fresh parameters from stream `params`."""
        return Encoder(self, rngs=rngs)

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
            initializer_range=self.kernels,
            attention_stddev=self.attention_stddev,
            mlp_stddev=self.mlp_stddev,
            dtype=self.dtype,
            attention=self.attention,
        )


def table(
    rows: int, name: str, config: BertConfig, rngs: nnx.Rngs, stddev: float | None = None
) -> nnx.Embed:
    """[rows, table_width] float32, whose rows have this logical name.

    Args:
        stddev: of the fresh rows; None: `initializer_range`.
    """
    normal = nnx.initializers.normal(config.initializer_range if stddev is None else stddev)
    return nnx.Embed(
        rows,
        config.table_width,
        param_dtype=jnp.float32,
        embedding_init=nnx.with_partitioning(normal, (name, "embed")),
        rngs=rngs,
    )


def _projection(config: BertConfig, rngs: nnx.Rngs) -> layers.Dense:
    """[..., table_width] -> [..., D]; a mesh axis may be used once, hence `mlp` for the width D."""
    return layers.Dense(
        {"embed": config.table_width},
        {"mlp": config.hidden},
        stddev=config.kernels,
        dtype=config.dtype,
        rngs=rngs,
    )


def rows_of(table: nnx.Embed, at: jax.Array) -> jax.Array:
    """[..., table_width] float32: the rows `at` [...]."""
    whole = partitioning.gathered(table.embedding[...], (None, "embed"))
    return jnp.take(whole, at, axis=0)


class Embeddings(nnx.Module):
    """LN(word + position + type), projected where the tables are narrower than the layers.

    Tables and norm are attributes for those who need parts.
    """

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.word = table(config.padded_vocab, "vocab", config, rngs, config.table_stddev)
        rows = config.max_positions + config.position_offset
        self.position = table(rows, "position", config, rngs, config.position_stddev)
        self.type = table(config.type_vocab, "type", config, rngs, config.position_stddev)
        self.norm = layers.layer_norm(config.table_width, config.layer_norm_eps, config.dtype, rngs)
        self.dropout = layers.Dropout(config.dropout)
        self.position_offset = config.position_offset
        self.project = _projection(config, rngs) if config.table_width != config.hidden else None

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
        return self._projected(self._sum(rows_of(self.word, tokens), positions, token_types, key))

    def around(
        self, vectors: jax.Array, positions: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, L, D]: the block with `vectors` [B, L, D] in place of words, and type 0.

        Raises:
            ValueError: the tables are narrower than the layers, so that nothing can be added.
        """
        if self.project is not None:
            raise ValueError(
                "Embeddings.around: expected tables as wide as the layers (BertConfig."
                f"embedding_size None), found {self.word.embedding.shape[-1]} for vectors of "
                f"{vectors.shape[-1]}"
            )
        return self._sum(vectors, positions, jnp.zeros_like(positions), key)

    def _sum(
        self, first: jax.Array, positions: jax.Array, types: jax.Array, key: jax.Array | None
    ) -> jax.Array:
        """LN(first + position + type), with dropout."""
        at = rows_of(self.position, positions + self.position_offset)
        return self.dropout(self.norm(first + at + rows_of(self.type, types)), key)

    def position_rows(self, positions: jax.Array) -> jax.Array:
        """[B, L, D]: the rows of the position table, without LayerNorm, type or dropout."""
        return self._projected(rows_of(self.position, positions + self.position_offset))

    def _projected(self, embedded: jax.Array) -> jax.Array:
        """[..., table_width] -> [..., D]."""
        return embedded if self.project is None else self.project(embedded)


class Encoder(nnx.Module):
    """Embeddings and `config.layers` layers, run by one scan."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.layers = layers.stack(config.block, config.layers, rngs)

    @property
    def word_table(self) -> jax.Array:
        """[padded_vocab, table_width] float32, to which output layers are tied."""
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
        return self.run_layers(hidden, self.layers.attention.segment_mask(segment_ids, rest), rest)

    def run_layers(
        self, hidden: jax.Array, visible: layers.Visible, key: jax.Array | None = None
    ) -> jax.Array:
        """The layers alone: [B, L, D] from `hidden` [B, L, D], see `layers.run_stack`."""
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

    def early_and_late(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        early: int,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """The states after `early` layers (0: the embeddings) and after all, both [B, L, D].

        Other arguments as when called; dropout draws other numbers.
        """
        first, before, after = layers.split_key(key, 3)
        hidden = self.embeddings(tokens, positions, token_types, first)
        visible = self.layers.attention.segment_mask(segment_ids, after)
        states = [hidden]
        for start, end, own in ((0, early, before), (early, self.config.layers, after)):
            if end > start:
                part = layers.part_of(self.layers, start, end)
                options = {
                    "remat": self.config.remat,
                    "unroll": min(self.config.unroll, end - start),
                }
                hidden = layers.run_stack(part, end - start, hidden, visible, key=own, **options)
            states.append(hidden)
        return states[1], states[2]

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
        """The states of a few tokens only, such as those that are pooled.

        Of the others, the last layer needs nothing but keys and values: a sixth of its products.

        Args:
            at: [B, S] int32, which tokens of each row.
            tokens, positions, segment_ids, token_types, key: as when called; dropout draws other
                numbers.
            depth: behind so many layers; None: behind all.

        Returns:
            [B, S, D] in the compute dtype.
        """
        config = self.config
        below = (depth or config.layers) - 1
        first, lower, last = layers.split_key(key, 3)
        hidden = self.embeddings(tokens, positions, token_types, first)
        if below:
            part = layers.part_of(self.layers, 0, below)
            visible = self.layers.attention.segment_mask(segment_ids, lower)
            options = {"remat": config.remat, "unroll": min(config.unroll, below)}
            hidden = layers.run_stack(part, below, hidden, visible, key=lower, **options)
        seen = attention.visibility(jnp.take_along_axis(segment_ids, at, axis=1), segment_ids)
        query = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
        return layers.run_layer(self.layers, below, query, hidden, seen, last, config.remat)


class FirstLayers(NamedTuple):
    """The lower part of an encoder, as an encoder of pooled tokens."""

    encoder: Encoder
    depth: int  # layers, at least 1

    def states_at(self, at: jax.Array, *text: Any) -> jax.Array:
        """[B, S, D]; arguments as of `Encoder.states_at`."""
        return self.encoder.states_at(at, *text, depth=self.depth)
