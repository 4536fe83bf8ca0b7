"""The output layer of a language model, cut over a mesh: one device's part, and the sums over all.

Letters: N positions (n in a chunk), V rows of the vocabulary, D features; of one device.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from t5x_style.distributed.partitioning import BATCH_AXES

_VOCABULARY_AXIS, _FEATURE_AXIS = "tensor", "fsdp"

Arrays = tuple[jax.Array, ...]


class Split(NamedTuple):
    """The mesh and the axes that cut positions, vocabulary and features; none on one device.

    Features are whole inside the loop; only the reduced gradient of the table is cut along them.
    """

    mesh: jax.sharding.AbstractMesh | None
    positions: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Among how many the positions are divided."""
        return math.prod(self.mesh.shape[axis] for axis in self.positions) if self.mesh else 1

    def run(self, local: Callable[..., Any], arguments: Arrays, outputs: tuple[str, ...]) -> Any:
        """`local` on each device's share; hidden, table, bias and rows of numbers are `arguments`.

        Args:
          local: called with the shares.
          arguments: hidden [N, D], table [V, D], bias [V], then any number of [N].
          outputs: a name of `specs` for each result.
        """
        if self.mesh is None:
            return local(*arguments)
        specs = {
            "position": P(self.positions),
            "table": P(self.vocabulary, self.features),
            "bias": P(self.vocabulary),
            "scalar": P(),
        }
        rows = (specs["position"],) * (len(arguments) - 3)
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(specs["position"], P(self.vocabulary, None), specs["bias"], *rows),
            out_specs=tuple(specs[name] for name in outputs),
            check_vma=False,  # the sums below make replicated what the specs call replicated
        )(*arguments)

    def first_row(self, rows: int) -> jax.Array | int:
        """The id of the first of this device's `rows` rows of the table."""
        return jax.lax.axis_index(self.vocabulary) * rows if self.vocabulary else 0

    def reduce_table(self, gradient: jax.Array) -> jax.Array:
        """The sum of [V, D] over all devices' positions, cut along the features."""
        rest = tuple(axis for axis in self.positions if axis not in self.features)
        if self.features:
            gradient = jax.lax.psum_scatter(
                gradient, self.features, scatter_dimension=1, tiled=True
            )
        return jax.lax.psum(gradient, rest)


def split_of(table: tuple[int, ...]) -> Split:
    """Split of a problem with a table of this shape by the mesh in context."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return Split(None)

    def dividing(axis: str, size: int) -> tuple[str, ...]:
        ways = mesh.shape[axis]
        return () if ways == 1 or size % ways else (axis,)

    positions = tuple(axis for axis in BATCH_AXES if mesh.shape[axis] > 1)
    vocabulary, features = (
        dividing(axis, size)
        for axis, size in zip((_VOCABULARY_AXIS, _FEATURE_AXIS), table, strict=True)
    )
    return Split(mesh, positions, vocabulary, features)


class Head(NamedTuple):
    """One device's part of the output layer."""

    split: Split
    table: jax.Array  # [V, D] computation dtype
    bias: jax.Array  # [V] float32, -inf on padded rows

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[n, D] -> [n, V] float32."""
        product = jnp.einsum("nd,vd->nv", hidden, self.table, preferred_element_type=jnp.float32)
        return product + self.bias

    def local_labels(self, labels: jax.Array) -> jax.Array:
        """[n]: rows of this part of the table; outside of it for labels that are elsewhere."""
        return labels - self.split.first_row(self.table.shape[0])

    def softmax(self, logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
        """Over the whole vocabulary.

        Returns:
          highest logit, sum of exp(logit - highest), the label's logit: [n]; exp [n, V].
        """
        axes, local = self.split.vocabulary, self.local_labels(labels)
        top = jax.lax.pmax(jnp.max(logits, axis=1), axes)
        exp = jnp.exp(logits - top[:, None])
        here = (local >= 0) & (local < logits.shape[1])
        at = jnp.take_along_axis(logits, jnp.where(here, local, 0)[:, None], axis=1)[:, 0]
        total, gold = jax.lax.psum((jnp.sum(exp, axis=1), jnp.where(here, at, 0.0)), axes)
        return top, total, gold, exp

    def error(self, probability: jax.Array, labels: jax.Array, weight: jax.Array) -> jax.Array:
        """The gradient of the logits, weight * (softmax - one-hot): [n, V]."""
        column = jax.lax.broadcasted_iota(labels.dtype, probability.shape, 1)
        return weight[:, None] * (probability - (column == self.local_labels(labels)[:, None]))

    def products(self, error: jax.Array, hidden: jax.Array) -> Arrays:
        """Gradients: of hidden [n, D] in its dtype; of table [V, D] and bias [V] in float32.

        That of hidden is this part's share.
        """
        small = error.astype(hidden.dtype)
        to_hidden = jnp.einsum("nv,vd->nd", small, self.table, preferred_element_type=jnp.float32)
        to_table = jnp.einsum("nv,nd->vd", small, hidden, preferred_element_type=jnp.float32)
        # A product, not jnp.sum: XLA's CPU backend is a fifth slower where a sum is next to the
        # product above, as it runs both at once on two thread pools.
        ones = jnp.ones_like(small[:, 0])
        to_bias = jnp.einsum("n,nv->v", ones, small, preferred_element_type=jnp.float32)
        return to_hidden.astype(hidden.dtype), to_table, to_bias

    def zeros(self) -> Arrays:
        """Zero accumulators for the gradients of table and bias."""
        return jnp.zeros(self.table.shape, jnp.float32), jnp.zeros_like(self.bias)

    def reduced(self, to_hidden: jax.Array, to_table: jax.Array, to_bias: jax.Array) -> Arrays:
        """The gradients of all devices together: once, after all chunks."""
        return (
            jax.lax.psum(to_hidden, self.split.vocabulary),
            self.split.reduce_table(to_table),
            jax.lax.psum(to_bias, self.split.positions),
        )
