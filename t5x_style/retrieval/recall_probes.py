"""Probe queries of an index during training: churn and recall of their results."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval.device_index import IndexArray

Answers = tuple[jax.Array, jax.Array]  # rows [probes, hits] and recall [] float32


class Probes(nnx.Module):
    """Queries searched at the start, and again once every row has been embedded again.

    Args:
      probes: how many queries are asked.
      hits: how many rows each gets.

    Attributes:
      churn: [] float32, of the rows found, how many were not found the time before; 1 until the
        second time.
      recall: [] float32 of the search, see `DeviceIndex.recall`.
    """

    def __init__(self, probes: int, hits: int) -> None:
        self.rows = IndexArray(jnp.full((probes, hits), NO_ROW, jnp.int32))
        self.churn = IndexArray(jnp.ones((), jnp.float32))
        self.recall = IndexArray(jnp.zeros((), jnp.float32))

    def ask(self, answers: Callable[[], Answers]) -> None:
        """Remembers what the queries get."""
        self.rows[...], self.recall[...] = answers()

    def ask_if(self, due: jax.Array, answers: Callable[[], Answers]) -> None:
        """If `due` [] bool, asks and compares with the time before."""
        before = self.rows[...]

        def again() -> tuple[jax.Array, jax.Array, jax.Array]:
            found, recall = answers()
            same = jnp.any(found[:, :, None] == before[:, None, :], axis=2)
            return found, 1.0 - jnp.mean(same, dtype=jnp.float32), recall

        def not_now() -> tuple[jax.Array, jax.Array, jax.Array]:
            return before, self.churn[...], self.recall[...]

        self.rows[...], self.churn[...], self.recall[...] = jax.lax.cond(due, again, not_now)
