"""The BERT encoder: embeddings and a scanned stack of post-LN layers.

The formulas of the original release: e = LN(word[id] + position[p] + type[t]), then for each
layer h = LN(x + O(attention(x))), y = LN(h + W2 . act(W1 . h)).  Rows may hold several segments:
attention stays inside a segment, and positions restart in each, so that a packed passage gets the
same numbers as one alone in a row.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import attention, layers, stacks, tables, token_encoder
from models.networks.layers import BertLayer, BlockConfig
from t5x_style.interfaces.encoder import PairHead

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
        pair_activation: after the projection in the head of a re-ranker: `tanh`, as in BERT's
            pooler and RoBERTa's head, or `gelu` as in ELECTRA's; None: `gelu` where
            `embedding_size` is set, else `tanh`.
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
        remat: one of `stacks.REMAT_POLICIES`.
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
    pair_activation: str | None = None

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
        if self.pair_activation not in (None, "tanh", "gelu"):
            raise ValueError(
                "BertConfig.pair_activation: expected 'tanh', 'gelu' or None, found "
                f"{self.pair_activation!r}."
            )
        if self.remat not in stacks.REMAT_POLICIES:
            raise ValueError(
                f"BertConfig.remat must be one of {stacks.REMAT_POLICIES}, found {self.remat!r}."
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

    @property
    def head_biases(self) -> bool:
        """The MLM head has biases."""
        return True

    @property
    def pair_head(self) -> PairHead:
        """BERT's pooler; RoBERTa's and ELECTRA's heads drop out the state before it, too."""
        of_family = "tanh" if self.embedding_size is None else "gelu"
        activation = self.pair_activation or of_family
        twice = self.position_offset > 0 or activation == "gelu"
        return PairHead("cls", activation, norm=False, bias=True, dropout=twice)

    def build(self, rngs: nnx.Rngs) -> "Encoder":
        """The network, with fresh parameters from stream `params`."""
        return Encoder(self, rngs=rngs)

    def layer(self, rngs: nnx.Rngs) -> "BertLayer":
        """A fresh layer."""
        return layers.BertLayer(self.block, rngs=rngs)

    def stack(self, count: int, rngs: nnx.Rngs) -> "BertLayer":
        """`count` fresh layers, stacked."""
        return stacks.stack(self.layer, count, rngs)

    @property
    def block(self) -> "BlockConfig":
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


def _projection(config: BertConfig, rngs: nnx.Rngs) -> layers.Dense:
    """[..., table_width] -> [..., D]; a mesh axis may be used once, hence `mlp` for the width D."""
    return layers.Dense(
        {"embed": config.table_width},
        {"mlp": config.hidden},
        stddev=config.kernels,
        dtype=config.dtype,
        rngs=rngs,
    )


class Embeddings(nnx.Module):
    """LN(word + position + type), projected where the tables are narrower than the layers.

    Tables and norm are attributes for those who need parts.
    """

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        width, fallback = config.table_width, config.initializer_range
        of_words = fallback if config.table_stddev is None else config.table_stddev
        of_places = fallback if config.position_stddev is None else config.position_stddev
        rows = config.max_positions + config.position_offset
        self.word = tables.table(config.padded_vocab, "vocab", width, of_words, rngs)
        self.position = tables.table(rows, "position", width, of_places, rngs)
        self.type = tables.table(config.type_vocab, "type", width, of_places, rngs)
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
        return self._projected(
            self._sum(tables.rows_of(self.word, tokens), positions, token_types, key)
        )

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
        at = tables.rows_of(self.position, positions + self.position_offset)
        return self.dropout(self.norm(first + at + tables.rows_of(self.type, types)), key)

    def position_rows(self, positions: jax.Array) -> jax.Array:
        """[B, L, D]: the rows of the position table, without LayerNorm, type or dropout."""
        return self._projected(tables.rows_of(self.position, positions + self.position_offset))

    def _projected(self, embedded: jax.Array) -> jax.Array:
        """[..., table_width] -> [..., D]."""
        return embedded if self.project is None else self.project(embedded)


class Encoder(token_encoder.TokenEncoder):
    """Embeddings and `config.layers` layers, run by one scan."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.layers = config.stack(config.layers, rngs)

    def embed(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D]: the embedding block."""
        return self.embeddings(tokens, positions, token_types, key)

    def embed_vectors(
        self, vectors: jax.Array, positions: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, L, D]: see `Embeddings.around`."""
        return self.embeddings.around(vectors, positions, key)

    def position_rows(self, positions: jax.Array) -> jax.Array:
        """[B, L, D]: see `Embeddings.position_rows`."""
        return self.embeddings.position_rows(positions)

    def view(
        self, positions: jax.Array, segment_ids: jax.Array, key: jax.Array | None
    ) -> layers.Visible:
        """Segments, or their mask; positions are in the embeddings."""
        return self.layers.segment_mask(segment_ids, key)

    def run(
        self,
        hidden: jax.Array,
        view: layers.Visible,
        start: int,
        end: int,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D]: layers `start` to `end` - 1, by one scan."""
        config, all_layers = self.config, (start, end) == (0, self.config.layers)
        return stacks.run_stack(
            self.layers if all_layers else stacks.part_of(self.layers, start, end),
            end - start,
            hidden,
            view,
            key=key,
            remat=config.remat,
            unroll=config.unroll,
        )

    def run_at(
        self,
        hidden: jax.Array,
        at: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        number: int,
        key: jax.Array | None,
    ) -> jax.Array:
        """[B, S, D]: one layer, with queries of the tokens `at` [B, S] alone."""
        seen = attention.visibility(jnp.take_along_axis(segment_ids, at, axis=1), segment_ids)
        query = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
        return stacks.run_layer(self.layers, number, query, hidden, seen, key, self.config.remat)
