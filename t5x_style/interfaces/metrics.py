"""Averages that stay exact when they are computed in pieces."""

import dataclasses
from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class MetricLimit:
    """Limit of a training's metric, above which the model would be of no use.

    Attributes:
      metric: as `Objective.loss` names it.
      warn_above, stop_above: above the first a training warns, above the second it stops.
      meaning: what the metric is, as the subject of a sentence.
      advice: what to do.
    """

    metric: str
    warn_above: float
    stop_above: float
    meaning: str
    advice: str


@flax.struct.dataclass
class MetricSum:
    """A sum of ratios, kept as (total, weight) pairs so that pieces can be merged before dividing.

    Most means are one ratio, with scalars `total` and `weight`. A loss such as RetroMAE's, one
    average over masked tokens plus another over decoded tokens, is two ratios: `a + b` stacks them,
    and `value()` is total[0]/weight[0] + total[1]/weight[1]. Keeping the terms apart makes
    micro-batches exact: each term is divided by the weight of the whole batch.

    Attributes:
      total: [T] float32, one numerator a term.
      weight: [T] float32, one denominator a term. It may depend on the batch, not on parameters.
    """

    total: jax.Array
    weight: jax.Array

    @classmethod
    def of(cls, values: jax.Array, mask: jax.Array | None = None) -> "MetricSum":
        """The mean of `values`, of any shape, where `mask` (bool or weights) says so."""
        mask = jnp.ones(values.shape) if mask is None else mask.astype(jnp.float32)
        # `where`, not a product: a masked-out Inf or NaN must not reach the sum.
        kept = jnp.where(mask > 0, values.astype(jnp.float32), 0.0) * mask
        return cls(kept.sum()[None], mask.sum()[None])

    def __add__(self, other: "MetricSum") -> "MetricSum":
        """The value of the result is the sum of the two values."""
        return MetricSum(
            jnp.concatenate([self.total, other.total]), jnp.concatenate([self.weight, other.weight])
        )

    def __mul__(self, factor: float | jax.Array) -> "MetricSum":
        return MetricSum(self.total * factor, self.weight)

    __rmul__ = __mul__

    def merge(self, other: "MetricSum") -> "MetricSum":
        """The same mean over the data of both."""
        return MetricSum(self.total + other.total, self.weight + other.weight)

    def over(self, weight: jax.Array) -> jax.Array:
        """[] float32: the sum of total / `weight` [T]; a term with no weight counts 0."""
        return jnp.sum(jnp.where(weight > 0, self.total / jnp.where(weight > 0, weight, 1.0), 0.0))

    def value(self) -> jax.Array:
        """[] float32."""
        return self.over(self.weight)


def values(metrics: Mapping[str, MetricSum]) -> dict[str, float]:
    """Brings metrics to the host; one transfer."""
    fetched = jax.device_get({name: mean.value() for name, mean in metrics.items()})
    return {name: float(value) for name, value in fetched.items()}
