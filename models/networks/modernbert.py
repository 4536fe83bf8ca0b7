"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): a pre-norm encoder for long texts.

    x = LN(word[id]),    x = x + O(attention(LN(x))),    x = x + Wo . (gelu(Wi . y) * (Wg . y))

with y = LN(x), rotary positions, and no biases. Every third layer, from the first on, sees its
whole segment; the others see a window of it, and turn by angles of another base. The first layer
has no norm before its attention, and the last is followed by one.

Letters: B rows, L length, S tokens that are asked for, D hidden width, d head dimension.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import (
    attention,
    layers,
    rotary,
    stacks,
    tables,
    token_encoder,
    window_attention,
)
from models.networks.gated_layer import ModernBertLayer
from models.networks.layers import BlockConfig
from t5x_style.interfaces.encoder import PairHead


@dataclasses.dataclass(frozen=True)
class ModernBertConfig:
    """Sizes and constants of a ModernBERT encoder.

    Attributes:
        vocab_size: true number of tokens; the table is padded, see `padded_vocab`.
        hidden, layers, heads, mlp: width, depth, attention heads, feed-forward width (that of the
            product, half of what is computed for it).
        max_positions: the longest segment; no parameter depends on it.
        whole_every: one layer in so many, from the first on, sees its whole segment.
        window: tokens that the other layers see: half of it on each side, besides themselves.
        whole_theta, window_theta: bases of the rotary angles of either kind of layer.
        activation: of the gate, and of the MLM head.
        dropout: rate of embeddings and feed-forward states, in training.
        attention_dropout: rate of attention's weights and of its output.
        initializer_range: standard deviation of fresh kernels; those that add to the residual
            stream have 1 / sqrt(2 layers) of it.
        table_stddev: of the fresh word table; None: `initializer_range`.
        dtype: compute dtype; parameters are float32 always.
        remat: one of `stacks.REMAT_POLICIES`.
        unroll: layers in one iteration of the loop over layers.
        attention: `plain`, `fused` or `auto`, see `BertConfig`; rows that take the kernel have
            their windows computed in blocks.
        vocab_multiple: the word table has a multiple of this many rows.
        pair_pooling: state that the head of a re-ranker reads: `cls`, or `mean` over the pair.
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    mlp: int
    max_positions: int
    whole_every: int = 3
    window: int = 128
    whole_theta: float = 160_000.0
    window_theta: float = 10_000.0
    activation: str = "gelu"
    layer_norm_eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    table_stddev: float | None = None
    dtype: str = "float32"
    remat: str = "none"
    unroll: int = 1
    attention: str = "auto"
    vocab_multiple: int = 128
    pair_pooling: str = "cls"

    def __post_init__(self) -> None:
        whole = ("vocab_size", "hidden", "layers", "heads", "mlp", "max_positions", "whole_every")
        for name in (*whole, "window", "vocab_multiple", "unroll"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"ModernBertConfig.{name}: expected at least 1, found {getattr(self, name)}"
                )
        if self.window > 2 * window_attention.BLOCK:
            raise ValueError(
                f"ModernBertConfig.window: expected at most {2 * window_attention.BLOCK} tokens, "
                f"found {self.window}"
            )
        if self.hidden % (2 * self.heads):
            raise ValueError(
                "ModernBertConfig: expected hidden to be a multiple of 2 heads, since rotary "
                f"positions turn pairs, found hidden={self.hidden} and heads={self.heads}"
            )
        self._require_constants()

    def _require_constants(self) -> None:
        """Rates, names and real numbers, as `__post_init__` requires sizes."""
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"ModernBertConfig.{name}: expected a rate from 0 to below 1, found "
                    f"{getattr(self, name)}"
                )
        for name, allowed in (
            ("activation", tuple(layers.ACTIVATIONS)),
            ("pair_pooling", ("cls", "mean")),
            ("attention", attention.KINDS),
            ("dtype", layers.DTYPES),
            ("remat", stacks.REMAT_POLICIES),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"ModernBertConfig.{name}: expected one of {allowed}, found "
                    f"{getattr(self, name)!r}"
                )
        for name in ("whole_theta", "window_theta"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"ModernBertConfig.{name}: expected a number above 0, found "
                    f"{getattr(self, name)}"
                )
        if min(self.initializer_range, self.table_stddev or 0) < 0:
            raise ValueError(
                "ModernBertConfig: expected standard deviations of 0 or more, found "
                f"initializer_range={self.initializer_range}, table_stddev={self.table_stddev}"
            )

    @property
    def padded_vocab(self) -> int:
        """Rows of the word table: `vocab_size` rounded up to `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def table_width(self) -> int:
        """Width of the word table."""
        return self.hidden

    @property
    def type_vocab(self) -> int:
        """It reads no token types."""
        return 1

    @property
    def kernels(self) -> float:
        """Standard deviation of fresh kernels."""
        return self.initializer_range

    @property
    def head_biases(self) -> bool:
        """The MLM head's projection and norm have none."""
        return False

    @property
    def pair_head(self) -> PairHead:
        """The projection and the norm of the MLM head."""
        return PairHead(self.pair_pooling, self.activation, norm=True, bias=False, dropout=False)

    @property
    def reach(self) -> int:
        """Reach of a window to each side."""
        return self.window // 2

    @property
    def head_dimension(self) -> int:
        """d"""
        return self.hidden // self.heads

    @property
    def block(self) -> BlockConfig:
        """The part that one layer needs."""
        added = self.initializer_range / (2 * self.layers) ** 0.5
        return BlockConfig(
            hidden=self.hidden,
            heads=self.heads,
            mlp=self.mlp,
            activation=self.activation,
            layer_norm_eps=self.layer_norm_eps,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            initializer_range=self.initializer_range,
            attention_stddev=added,
            mlp_stddev=added,
            dtype=self.dtype,
            attention=self.attention,
            bias=False,
        )

    def sees_whole(self, number: int) -> bool:
        """Whether layer `number`, from 0, sees its whole segment."""
        return number % self.whole_every == 0

    def build(self, rngs: nnx.Rngs) -> "Encoder":
        """The network, with fresh parameters from stream `params`."""
        return Encoder(self, rngs=rngs)

    def layer(self, rngs: nnx.Rngs, first: bool = False) -> ModernBertLayer:
        """A fresh layer; used by itself, it sees its whole segment."""
        return ModernBertLayer(self.block, self.whole_theta, first, rngs=rngs)

    def stack(self, count: int, rngs: nnx.Rngs) -> ModernBertLayer:
        """`count` fresh layers, stacked."""
        return stacks.stack(self.layer, count, rngs)


class Embeddings(nnx.Module):
    """LN(word), with dropout."""

    def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs) -> None:
        fallback, width = config.initializer_range, config.hidden
        stddev = fallback if config.table_stddev is None else config.table_stddev
        self.word = tables.table(config.padded_vocab, "vocab", width, stddev, rngs)
        self.norm = config.block.norm(rngs)
        self.dropout = layers.Dropout(config.dropout)

    def __call__(self, words: jax.Array, key: jax.Array | None) -> jax.Array:
        """[B, L, D] from rows of the table, or what takes their place, [B, L, D]."""
        return self.dropout(self.norm(words), key)


class Encoder(token_encoder.TokenEncoder):
    """Embeddings, a first layer, `config.layers` - 1 more in one scan, and a norm."""

    def __init__(self, config: ModernBertConfig, *, rngs: nnx.Rngs) -> None:
        self.config: ModernBertConfig = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.first = config.layer(rngs, first=True)
        self.layers = config.stack(config.layers - 1, rngs) if config.layers > 1 else None
        self.final_norm = config.block.norm(rngs)

    def embed(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D]; positions and types are not in it."""
        return self.embeddings(self.words(tokens), key)

    def embed_vectors(
        self, vectors: jax.Array, positions: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, L, D]: LN(vectors)."""
        return self.embeddings(vectors, key)

    def position_rows(self, positions: jax.Array) -> jax.Array:
        """[B, L, D] of zeros: the layers know positions."""
        return jnp.zeros((*positions.shape, self.config.hidden), self.config.dtype)

    def view(
        self, positions: jax.Array, segment_ids: jax.Array, key: jax.Array | None
    ) -> tuple[rotary.View, rotary.View]:
        """View of a layer of either kind: its whole segment, or a window."""
        config = self.config
        whole = self.first.segment_mask(segment_ids, key)
        turned = rotary.angles(positions, config.head_dimension, config.window_theta)
        if not isinstance(whole, attention.Segments) or not whole.on_accelerators:
            # A mask: blocks of a window want long rows, as accelerators' kernels do.
            whole = attention.visibility(segment_ids, segment_ids)
            visible = whole & window_attention.near(positions, positions, config.reach)
            return self.first.view(whole, positions), rotary.View(visible, turned, turned)
        of_whole = self.first.view(whole, positions)
        window = window_attention.Window(segment_ids, config.reach)
        return of_whole, rotary.View(window, turned, turned)

    def run(
        self,
        hidden: jax.Array,
        view: tuple[rotary.View, rotary.View],
        start: int,
        end: int,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D]: layers `start` to `end` - 1; all but the first by one scan."""
        config, at_first = self.config, start == 0
        if at_first:
            key, first_key = layers.split_key(key, 2)
            first = stacks.with_remat(
                lambda x: self.first(x, x, view[0], first_key), config.remat, in_loop=False
            )
            hidden, start = first(hidden), 1
        if end == start:
            return hidden
        part = stacks.part_of(self.layers, start - 1, end - 1)
        whole = jnp.array([config.sees_whole(number) for number in range(start, end)])
        return _run(part, whole, hidden, view, key, config)

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
        config, whole = self.config, self.config.sees_whole(number)
        theta = config.whole_theta if whole else config.window_theta
        asked = jnp.take_along_axis(positions, at, axis=1)
        seen = attention.visibility(jnp.take_along_axis(segment_ids, at, axis=1), segment_ids)
        if not whole:
            seen &= window_attention.near(asked, positions, config.reach)
        angles = functools.partial(rotary.angles, dimension=config.head_dimension, theta=theta)
        view = rotary.View(seen, angles(asked), angles(positions))
        query = jnp.take_along_axis(hidden, at[:, :, None], axis=1)
        if number == 0:
            return self.first(query, hidden, view, key)
        return stacks.run_layer(self.layers, number - 1, query, hidden, view, key, config.remat)

    def finish(self, hidden: jax.Array) -> jax.Array:
        """LN(x)"""
        return self.final_norm(hidden)


def _run(
    stack: ModernBertLayer,
    whole: jax.Array,
    hidden: jax.Array,
    views: tuple[rotary.View, rotary.View],
    key: jax.Array | None,
    config: ModernBertConfig,
) -> jax.Array:
    """[B, L, D]: stacked layers, of which `whole` [N] bool see their whole segment."""

    def one(
        x: jax.Array, layer: ModernBertLayer, whole: jax.Array, views: object, key: jax.Array | None
    ) -> jax.Array:
        return layer(x, x, _chosen(whole, *views), key)

    count = whole.shape[0]
    keys = None if key is None else jax.random.split(key, count)
    scan = nnx.scan(
        stacks.with_remat(one, config.remat),
        in_axes=(nnx.Carry, 0, 0, None, 0),
        out_axes=nnx.Carry,
        length=count,
        unroll=min(config.unroll, count),
    )
    return scan(hidden, stack, whole, views, keys)


def _chosen(whole: jax.Array, of_whole: rotary.View, of_window: rotary.View) -> rotary.View:
    """The view of a layer, by whether it sees its whole segment."""
    angles = jax.tree.map(lambda a, b: jnp.where(whole, a, b), of_whole.query, of_window.query)
    segments, window = of_whole.visible, of_window.visible
    if isinstance(segments, attention.Segments):
        visible = rotary.Either(whole, segments, window)
    else:
        visible = jnp.where(whole, segments, window)
    return rotary.View(visible, angles, angles)
