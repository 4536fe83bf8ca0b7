"""softmax(QK^T / sqrt(d)) V: written out, or by a kernel that never holds [B, H, L, L] scores.

Which kernel runs is decided by the platform that is compiled for: on TPUs splash attention, which
knows segments; on NVIDIA GPUs cuDNN's flash attention; on CPUs `blocked_attention`; elsewhere the
plain form.  A mask that is no kernel's is applied to a few queries at a time, where there are many.
`local` is for a causal view of a few tokens.  Letters: B batch, L length, Q query length, K key
length, H heads, d head dimension.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from models.networks import blocked_attention
from t5x_style.distributed.partitioning import BATCH_AXES

KINDS = ("auto", "plain", "fused")

# From here on the kernel saves memory: half the temporaries of a whole BERT-base layer compiled for
# v5e, 5 % at 512 (docs/attention.md). Chosen by memory; which is faster was not measured.
AUTO_LENGTH = 1024
_BLOCKS = (512, 384, 256, 128)  # of queries and keys in the TPU's kernel; one of them must divide L
_HEADS_AXIS = "tensor"

# With so many queries a mask is applied to a block of them at a time: RetroMAE's decoder with 8,192
# tokens and 16 heads would have 4 GiB of scores a row.
MANY_QUERIES = 4096
QUERY_BLOCK = 512


class AttentionError(ValueError):
    """The fused kernels cannot compute what was asked for."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """Segments that self-attention may see, in the form that a kernel takes.

    Attributes:
        ids: [B, L] int32, 0 = padding.
        on_accelerators: whether accelerators, too, run a kernel; else CPUs alone.
    """

    ids: jax.Array
    on_accelerators: bool = dataclasses.field(default=True, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Local:
    """Causal self-attention with a short view: the nearest tokens, and the segment's first.

        span 2, position   0   1   2   3   4
        4 sees             x           x   x      (no token twice: 1 sees 0 and itself)

    Attributes:
        positions: [B, L] int32, restarting at 0 in each segment.
        span: how many of the nearest tokens, itself included; at least 1.
    """

    positions: jax.Array
    span: int = dataclasses.field(metadata={"static": True})


Drop = Callable[[jax.Array], jax.Array]
Visible = jax.Array | Segments | Local  # an array: bool [B, Q, K] or [B, 1 or H, Q, K]


class Choice(NamedTuple):
    """Decision whether to use a fused kernel, with its reason in words."""

    fused: bool
    why: str


def choose(kind: str, length: int, drops: bool) -> Choice:
    """Decides between the forms for rows of `length` tokens.

    Args:
        kind: one of `KINDS`. `auto` takes the kernels from `AUTO_LENGTH` tokens on, where they can.
        length: L; a symbolic dimension (export) cannot be compared and counts as unknown.
        drops: whether attention weights are dropped, which no kernel does.

    Raises:
        AttentionError: `kind` is 'fused', which these sizes forbid.
    """
    if kind == "plain":
        return Choice(False, "attention is 'plain'")
    obstacle = ""
    if drops:
        obstacle = "attention_dropout is above 0 in training, which no fused kernel applies: set 0"
    elif not isinstance(length, int):
        obstacle = f"the length {length} is symbolic: export with attention 'plain'"
    elif length % _BLOCKS[-1]:
        obstacle = f"the length {length} is no multiple of {_BLOCKS[-1]}: choose one that is"
    if kind == "fused":
        if obstacle:
            raise AttentionError(f"attention='fused': {obstacle}, or bind attention='auto'.")
        return Choice(True, "attention is 'fused'")
    if isinstance(length, int) and length < AUTO_LENGTH:
        return Choice(False, f"rows of {length} tokens are shorter than {AUTO_LENGTH}")
    return Choice(not obstacle, obstacle or f"rows of {length} tokens")


def visibility(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Mask of the keys that each query may see: same segment, never padding (segment 0).

    Args:
        query_segments: [B, Q] int32.
        key_segments: [B, K] int32.

    Returns:
        [B, Q, K] bool.  Rows of padding queries are all False; attention makes them uniform.
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return same & (key_segments[:, None, :] > 0)


def keep_all(weights: jax.Array) -> jax.Array:
    """The dropout of weights that drops none."""
    return weights


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, visible: Visible, kind: str, drop: Drop
) -> jax.Array:
    """In the form that `visible` asks for; arguments as for `plain` and `fused`.

    A mask is applied `in_blocks` where there are many queries and no weight is dropped.
    """
    if isinstance(visible, Segments):
        return fused(query, key, value, visible, kind)
    if isinstance(visible, Local):
        return local(query, key, value, visible, drop)
    length = query.shape[1]
    many = isinstance(length, int) and length >= MANY_QUERIES and length % QUERY_BLOCK == 0
    if many and drop is keep_all:
        return in_blocks(query, key, value, visible)
    return plain(query, key, value, visible, drop)


def plain(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visible: jax.Array,
    drop: Drop = keep_all,
    bias: jax.Array | None = None,
) -> jax.Array:
    """The formula, with softmax in float32.

    Args:
        query: [B, Q, H, d].
        key, value: [B, K, H, d].
        visible: bool [B, Q, K] or [B, 1 or H, Q, K].
        drop: applied to the weights [B, H, Q, K].
        bias: float32 [B, Q, K], added to the scores of all heads.

    Returns:
        [B, Q, H, d] in the dtype of `value`.
    """
    if visible.ndim == 3:
        visible = visible[:, None]
    # Transposed on CPUs alone: the second product is five times as fast there (docs/attention.md),
    # but XLA for TPUs did not end in half an hour where scores exceed the HBM.
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = jax.lax.platform_dependent(
        *(query, key),
        cpu=lambda q, k: product("bhqd,bhkd->bhqk", _heads_first(q), _heads_first(k)),
        default=functools.partial(product, "bqhd,bkhd->bhqk"),
    ) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias[:, None]
    # The most negative finite number: minus infinity would make an empty row NaN.
    scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    weights = drop(jax.nn.softmax(scores, axis=-1).astype(value.dtype))  # [B, H, Q, K]
    return jax.lax.platform_dependent(
        *(weights, value),
        cpu=lambda w, v: _heads_first(jnp.einsum("bhqk,bhkd->bhqd", w, _heads_first(v))),
        default=functools.partial(jnp.einsum, "bhqk,bkhd->bqhd"),
    )


def _heads_first(x: jax.Array) -> jax.Array:
    """[B, H, L, d] of [B, L, H, d], and back."""
    return x.swapaxes(1, 2)


def in_blocks(query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """`plain` for `QUERY_BLOCK` queries at a time, whose scores the backward pass computes again.

    Args:
        query: [B, Q, H, d], Q a multiple of `QUERY_BLOCK`.
        key, value, visible: as in `plain`.

    Returns:
        [B, Q, H, d] in the dtype of `value`.
    """
    rows, length, heads, dimension = query.shape
    blocks = length // QUERY_BLOCK
    queries = query.reshape(rows, blocks, QUERY_BLOCK, heads, dimension).swapaxes(0, 1)
    if visible.ndim == 3:
        visible = visible[:, None]
    seen = visible.reshape(rows, visible.shape[1], blocks, QUERY_BLOCK, visible.shape[3])
    # Gradients of keys and values are sums over blocks: float32, or each sum would be rounded.
    wide = key.astype(jnp.float32), value.astype(jnp.float32)

    @jax.checkpoint
    def block(arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        one, mask = arrays
        return plain(one, wide[0].astype(key.dtype), wide[1].astype(value.dtype), mask)

    found = jax.lax.map(block, (queries, jnp.moveaxis(seen, 2, 0)))
    return found.swapaxes(0, 1).reshape(query.shape)


def local(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    visible: Local,
    drop: Drop = keep_all,
) -> jax.Array:
    """`plain` with the mask of `visible`, in time and memory of L x span.

    Keys and values are shifted, not multiplied as matrices, and shifted again in the backward pass:
    kept, span + 1 copies of both would take more memory than the scores that are avoided.

    Args:
        query, key, value: [B, L, H, d].
        drop: applied to the weights [B, L, H, span + 1].

    Returns:
        [B, L, H, d] in the dtype of `value`.
    """
    seen = visible.positions[:, :, None] > jnp.arange(min(visible.span, query.shape[1]))
    seen = jnp.pad(seen, ((0, 0), (0, 0), (1, 0)), constant_values=True)[:, :, None]  # the first

    @jax.checkpoint
    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        wide = query.astype(jnp.float32) / math.sqrt(query.shape[-1])
        # Products are summed here, not by dot_general: then shifting, too, is part of one fusion.
        scores = jnp.stack([jnp.sum(wide * one, axis=-1) for one in _in_view(key, visible)], -1)
        scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
        weights = drop(jax.nn.softmax(scores, axis=-1))  # [B, L, H, span + 1]
        parts = [weights[..., n, None] * one for n, one in enumerate(_in_view(value, visible))]
        return sum(parts[1:], parts[0]).astype(value.dtype)

    return attend(query, key, value)


def _in_view(x: jax.Array, visible: Local) -> list[jax.Array]:
    """For each token [B, L, H, d] of its segment's first, itself, the one before it, and so on.

    Where there is none, or it is the segment's first once more, the value is meaningless.
    """
    length = x.shape[1]
    first = jnp.maximum(jnp.arange(length) - visible.positions, 0)  # [B, L]
    shifts = range(min(visible.span, length))
    shifted = (jnp.pad(x, ((0, 0), (n, 0), (0, 0), (0, 0)))[:, :length] for n in shifts)
    return [jnp.take_along_axis(x, first[:, :, None, None], axis=1), *shifted]


def fused(
    query: jax.Array, key: jax.Array, value: jax.Array, segments: Segments, kind: str
) -> jax.Array:
    """Self-attention inside segments by the kernel of the platform that is compiled for.

    On a mesh with more than one device, the one in context (`jax.sharding.use_abstract_mesh`), each
    device runs the kernel on its rows and heads: kernels are opaque to the partitioner.

    Args:
        query, key, value: [B, L, H, d], L as `choose` accepts where accelerators have a kernel.
        segments: values at padding are finite and meaningless, as in `plain`, but other ones.
        kind: 'auto' or 'fused'; the latter refuses a dtype that the GPU at hand cannot fuse.

    Returns:
        [B, L, H, d].
    """
    kernels = {"cpu": on_cpu}
    if segments.on_accelerators:
        kernels["tpu"] = on_tpu
        if _gpu_at_hand() and _gpu_can(query, kind):
            kernels["cuda"] = on_gpu
    by_platform = {name: _on_mesh(kernel, query.shape) for name, kernel in kernels.items()}
    return jax.lax.platform_dependent(
        query, key, value, segments.ids, default=_on_others, **by_platform
    )


def _on_mesh(kernel: Callable[..., jax.Array], shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    """`kernel` for heads of `shape` [B, L, H, d], each device of the mesh with its part of them."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return kernel
    rows = _dividing(mesh, BATCH_AXES, shape[0])
    heads = _dividing(mesh, (_HEADS_AXIS,), shape[2])
    split = PartitionSpec(rows, None, heads, None)
    return jax.shard_map(
        kernel,
        mesh=mesh,
        in_specs=(split, split, split, PartitionSpec(rows, None)),
        out_specs=split,
        check_vma=False,  # a kernel does not say over which axes its output varies
    )


def _dividing(
    mesh: jax.sharding.AbstractMesh, axes: tuple[str, ...], size: int
) -> tuple[str, ...] | None:
    """The axes to split `size` over; None, every device computes all, where it does not divide."""
    return None if size % math.prod(mesh.shape[axis] for axis in axes) else axes


def on_cpu(query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array) -> jax.Array:
    """Heads in groups, where all scores at once would not fit into the cache; as `on_tpu`."""
    rows, length, heads, _ = query.shape
    if rows * heads * length**2 < blocked_attention.WORTH_IT:
        return _on_others(query, key, value, ids)
    return blocked_attention.attend(query, key, value, ids)


def on_tpu(
    query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array, interpret: bool = False
) -> jax.Array:
    """Splash attention on one device.

    Args:
        query, key, value: as `fused`.
        ids: [B, L] int32.
        interpret: runs the kernel step by step on any platform, for tests.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # for TPUs alone

    length, heads, dimension = query.shape[1:]
    block = next(size for size in _BLOCKS if length % size == 0)
    kernel = splash.make_splash_mha(
        mask=splash.MultiHeadMask([splash.FullMask((length, length))] * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_kv_compute=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        interpret=interpret,
    )

    def one_row(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        return kernel(q, k, v, segment_ids=splash.SegmentIds(ids, ids))  # [H, L, d]

    by_head = (_heads_first(x) for x in (query / math.sqrt(dimension), key, value))  # scaled here
    return _heads_first(jax.vmap(one_row)(*by_head, ids))


def on_gpu(query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array) -> jax.Array:
    """cuDNN's flash attention on one device; arguments as `on_tpu`.

    JAX offers it segments only as a mask: [B, 1, L, L] in the compute dtype, shared by the heads.
    """
    mask = visibility(ids, ids)[:, None]
    return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")


def _on_others(query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array) -> jax.Array:
    return plain(query, key, value, visibility(ids, ids))


def _gpu_at_hand() -> bool:
    """Whether cuDNN's call can be made at all: JAX asks an attached GPU what it supports."""
    try:
        return bool(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return False


def _gpu_can(query: jax.Array, kind: str) -> bool:
    """Whether cuDNN takes this dtype and head dimension; AttentionError under 'fused' if not."""
    dtype, dimension = query.dtype, query.shape[-1]
    if dtype in (jnp.bfloat16, jnp.float16) and dimension % 8 == 0 and dimension <= 128:
        return True
    if kind == "fused":
        raise AttentionError(
            "attention='fused' on a GPU needs bfloat16 and a head dimension (hidden / heads) that "
            f"is a multiple of 8, at most 128; found {dtype} and {dimension}. Change the model's "
            "dtype or heads, or bind attention='auto'."
        )
    return False
