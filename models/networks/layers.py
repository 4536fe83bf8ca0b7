"""Blocks of which networks are built: projections, attention, feed-forward, one post-LN layer.

Every parameter is float32 and carries logical axis names; matrix products run in the block's
compute dtype, softmax and LayerNorm in float32.  Letters in shapes and einsums: B batch, L length,
Q query length, K key length, D hidden, H heads, d head dimension, M feed-forward width.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import attention

# Imported for an effect too: parameters carry logical names and are placed by the engine's rules;
# flax's own eager placement would refuse to create them outside a mesh.
from t5x_style.distributed import partitioning


def gelu(x: jax.Array) -> jax.Array:
    """x/2 (1 + erf(x / sqrt 2)), Hendrycks & Gimpel 2016; in float32, returned in x's dtype.

    `jax.nn.gelu` has erfc instead, so that bfloat16 keeps its tail. Float32 does as well, and
    spares the TPU compiler a third of its work on a BERT-base step.
    """
    if not all(isinstance(size, int) for size in x.shape):  # exported: TensorFlow 2.20 cannot read
        return jax.nn.gelu(x, approximate=False)  # erf of sizes that are unknown, but erfc
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}

DTYPES = ("float32", "bfloat16")


def mlp_width(hidden: int, times: float) -> int:
    """Feed-forward width M of layers of any width, so that gin sets one size instead of two.

    Args:
        hidden: width D of the layers.
        times: M / D; 4 in BERT, 1.5 in ModernBERT.

    Returns:
        `times` x `hidden`, rounded to a whole number.

    Raises:
        ValueError: the result is below 1.
    """
    width = round(times * hidden)
    if width < 1:
        raise ValueError(
            f"mlp_width: expected hidden x times to be 1 or more, found {hidden} x {times}. Set "
            "WIDTH and MLP_TIMES to numbers above 0"
        )
    return width


KeysAndValues = tuple[jax.Array, jax.Array]
Visible = attention.Visible


@dataclasses.dataclass(frozen=True)
class BlockConfig:
    """Settings of one transformer layer.

    Attributes:
        hidden: width D of the residual stream.
        heads: number of attention heads; divides `hidden`.
        mlp: width M of the feed-forward part.
        activation: a key of `ACTIVATIONS`.
        layer_norm_eps: added to the variance.
        dropout: rate after the attention output and after the feed-forward part.
        attention_dropout: rate on the attention weights.
        initializer_range: standard deviation of the normal that kernels are drawn from.
        attention_stddev: the same of the kernel of attention's output; None: `initializer_range`.
        mlp_stddev: the same of the second feed-forward kernel; None: `initializer_range`.
        dtype: name of the compute dtype.
        attention: one of `attention.KINDS`: which form self-attention inside segments takes.
        bias: whether kernels and norms have biases.
    """

    hidden: int
    heads: int
    mlp: int
    activation: str
    layer_norm_eps: float
    dropout: float
    attention_dropout: float
    initializer_range: float
    dtype: str
    attention: str
    attention_stddev: float | None = None
    mlp_stddev: float | None = None
    bias: bool = True

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads, found hidden={self.hidden} and "
                f"heads={self.heads}: change one of them in the model's gin file."
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {sorted(ACTIVATIONS)}, found {self.activation!r}."
            )
        if self.attention not in attention.KINDS:
            raise ValueError(
                f"attention must be one of {attention.KINDS}, found {self.attention!r}."
            )

    @property
    def projections(self) -> dict[str, Any]:
        """Arguments of every `Dense` of the layer."""
        return {"stddev": self.initializer_range, "dtype": self.dtype, "bias": self.bias}

    def norm(self, rngs: nnx.Rngs) -> nnx.LayerNorm:
        """A fresh norm of the residual stream."""
        return layer_norm(self.hidden, self.layer_norm_eps, self.dtype, rngs, self.bias)

    def stddev(self, special: float | None) -> float:
        """`special` where it is set, that of other kernels where it is None."""
        return self.initializer_range if special is None else special


class Dense(nnx.Module):
    """y = x . kernel + bias over one or several trailing axes.

    Args:
        inputs: trailing axes of x that are contracted, name -> size.
        outputs: axes that take their place, name -> size.
        stddev: of the normal that the kernel is drawn from.
        dtype: compute dtype, one of `DTYPES`.
        rngs: stream `params`.
        bias: whether there is one.
    """

    def __init__(
        self,
        inputs: dict[str, int],
        outputs: dict[str, int],
        *,
        stddev: float,
        dtype: str,
        rngs: nnx.Rngs,
        bias: bool = True,
    ) -> None:
        init = nnx.with_partitioning(nnx.initializers.normal(stddev), (*inputs, *outputs))
        zeros = nnx.with_partitioning(nnx.initializers.zeros_init(), tuple(outputs))
        shape = (*inputs.values(), *outputs.values())
        self.kernel = nnx.Param(init(rngs.params(), shape, jnp.float32))
        zero = zeros(rngs.params(), tuple(outputs.values()), jnp.float32) if bias else None
        self.bias = None if zero is None else nnx.Param(zero)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., *inputs] -> [..., *outputs] in the compute dtype."""
        kernel = self.kernel[...].astype(self.dtype)
        kernel = partitioning.gathered(kernel, (*self.inputs, *self.outputs))
        y = jnp.tensordot(x.astype(self.dtype), kernel, axes=len(self.inputs))
        if self.bias is None:
            return y
        return y + partitioning.gathered(self.bias[...].astype(self.dtype), self.outputs)


def layer_norm(
    size: int, eps: float, dtype: str, rngs: nnx.Rngs, bias: bool = True
) -> nnx.LayerNorm:
    """(x - mean) / sqrt(biased variance + eps) . scale + bias, in float32, returned in `dtype`.

    The fast variance E[x^2] - E[x]^2 loses too many bits for parity with the published numbers.
    """
    return nnx.LayerNorm(
        size,
        epsilon=eps,
        dtype=jnp.float32 if dtype == "float32" else jnp.dtype(dtype),
        param_dtype=jnp.float32,
        use_bias=bias,
        use_fast_variance=False,
        scale_init=nnx.with_partitioning(nnx.initializers.ones_init(), ("norm",)),
        bias_init=nnx.with_partitioning(nnx.initializers.zeros_init(), ("norm",)),
        rngs=rngs,
    )


class Dropout(nnx.Dropout):
    """Dropout without a stored generator: the key is passed in, and None means off."""

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:  # type: ignore[override]
        """`x` with entries dropped, unless `key` is None or the module is in evaluation mode."""
        if key is None or self.deterministic or self.rate == 0.0:
            return x
        kept = 1.0 - self.rate
        # The barrier keeps the generator apart from what uses its bits. Without it the TPU compiler
        # spreads the generator's round keys over arrays of x's size: 40 of 51 GB that a BERT-base
        # step moved on a v5e chip with 4 rows of 512 tokens.
        mask = jax.lax.optimization_barrier(jax.random.bernoulli(key, kept, x.shape))
        return jnp.where(mask, x / kept, jnp.zeros_like(x))


def split_key(key: jax.Array | None, count: int) -> list[jax.Array | None]:
    """`count` independent keys, or that many Nones (dropout off)."""
    return [None] * count if key is None else list(jax.random.split(key, count))


class Attention(nnx.Module):
    """Multi-head attention: projections around the forms of `models.networks.attention`."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs) -> None:
        heads = {"heads": config.heads, "kv": config.hidden // config.heads}
        embed = {"embed": config.hidden}
        options = config.projections | {"rngs": rngs}
        self.query = Dense(embed, heads, **options)
        self.key = Dense(embed, heads, **options)
        self.value = Dense(embed, heads, **options)
        self.out = Dense(
            heads, embed, **options | {"stddev": config.stddev(config.attention_stddev)}
        )
        self.dropout = Dropout(config.attention_dropout)
        self.kind = config.attention

    def __call__(
        self, query: jax.Array, memory: jax.Array, visible: Visible, key: jax.Array | None = None
    ) -> jax.Array:
        """Attends from `query` [B, Q, D] to `memory` [B, K, D].

        Args:
            visible: bool [B, Q, K] or [B, 1 or H, Q, K], or, from `segment_mask`, segments, or
                `attention.Local`. A query that sees nothing gets the uniform average of all keys:
                meaningless but finite, and so is its gradient.
            key: for attention dropout; None turns it off.

        Returns:
            [B, Q, D] in the compute dtype.
        """
        k, v = self.keys_and_values(memory)
        attended = attention.attend(self.query(query), k, v, visible, self.kind, self.drop(key))
        return self.out(attended)

    def keys_and_values(self, memory: jax.Array) -> KeysAndValues:
        """Keys and values of `memory` [B, K, D]: [B, K, H, d] twice, in the compute dtype."""
        return self.key(memory), self.value(memory)

    def attend(
        self,
        query: jax.Array,
        known: KeysAndValues,
        visible: jax.Array,
        key: jax.Array | None = None,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """Attention as in `__call__`, to given keys and values.

        Args:
            query: [B, Q, D].
            known: from `keys_and_values`.
            visible: bool [B, Q, K].
            key: for attention dropout; None turns it off.
            bias: float32 [B, Q, K], added to the scores of all heads.
        """
        k, v = known
        return self.out(attention.plain(self.query(query), k, v, visible, self.drop(key), bias))

    def drop(self, key: jax.Array | None) -> attention.Drop:
        """Dropout of attention's weights, for the forms of `models.networks.attention`."""
        if not self.drops(key):
            return attention.keep_all
        return lambda weights: self.dropout(weights, key)

    def drops(self, key: jax.Array | None) -> bool:
        """Whether a call with `key` drops weights of attention."""
        return key is not None and self.dropout.rate > 0 and not self.dropout.deterministic

    def segment_mask(self, segment_ids: jax.Array, key: jax.Array | None) -> Visible:
        """Argument of self-attention inside segments: a mask, or segments for a kernel.

        Args:
            segment_ids: [B, L] int32, 0 = padding.
            key: as it will be called with.

        Raises:
            attention.AttentionError: the configuration says 'fused', which is impossible here.
        """
        drops = self.drops(key)
        length = segment_ids.shape[1]
        choice = attention.choose(self.kind, length, drops)
        if choice.fused:
            return attention.Segments(segment_ids)
        if self.kind == "auto" and isinstance(length, int) and length >= attention.AUTO_LENGTH:
            where = "" if drops else " on accelerators"
            said = f"attention of {length} tokens is plain{where}: {choice.why}"
            warnings.warn(said, stacklevel=2)
        sizes_known = all(isinstance(size, int) for size in segment_ids.shape)
        if self.kind == "auto" and not drops and sizes_known:
            return attention.Segments(segment_ids, on_accelerators=False)
        return attention.visibility(segment_ids, segment_ids)


class FeedForward(nnx.Module):
    """W2 . activation(W1 . x)."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs) -> None:
        embed, mlp = {"embed": config.hidden}, {"mlp": config.mlp}
        options = config.projections | {"rngs": rngs}
        self.wi = Dense(embed, mlp, **options)
        self.wo = Dense(mlp, embed, **options | {"stddev": config.stddev(config.mlp_stddev)})
        self.activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        return self.wo(ACTIVATIONS[self.activation](self.wi(x)))


class BertLayer(nnx.Module):
    """One post-LN layer: a = LN(query + O(attention)), y = LN(a + FFN(a)).

    Queries and keys may differ (RetroMAE's decoder); the residual is always on the query.
    """

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs) -> None:
        self.attention = Attention(config, rngs=rngs)
        self.attention_norm = config.norm(rngs)
        self.mlp = FeedForward(config, rngs=rngs)
        self.mlp_norm = config.norm(rngs)
        self.dropout = Dropout(config.dropout)

    def __call__(
        self, query: jax.Array, memory: jax.Array, view: Visible, key: jax.Array | None = None
    ) -> jax.Array:
        """Attends from `query` to `memory`, then feeds forward.

        Args:
            query: [B, Q, D].
            memory: [B, K, D], keys and values.
            view: `visible` of `Attention`.
            key: drives the three dropouts; None turns them off.

        Returns:
            [B, Q, D] in the compute dtype.
        """
        inside, after_attention, after_mlp = split_key(key, 3)
        attended = self.attention(query, memory, view, inside)
        a = self.attention_norm(query + self.dropout(attended, after_attention))
        return self.mlp_norm(a + self.dropout(self.mlp(a), after_mlp))

    def segment_mask(self, segment_ids: jax.Array, key: jax.Array | None) -> Visible:
        """See `Attention.segment_mask`."""
        return self.attention.segment_mask(segment_ids, key)

    def view(self, visible: Visible, positions: jax.Array) -> Visible:
        """`visible`: positions are in the states already."""
        return visible
