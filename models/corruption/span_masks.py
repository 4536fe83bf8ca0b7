"""Spans that REALM masks: salient spans or, for comparison, others (section 3.4).

Each mask is drawn from (key, example), as in `models.corruption.masking`. Letters: B rows of one
segment, L row length, A spans that a row may list.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp

from models.corruption import masking

Group = Mapping[str, jax.Array]

_CHOICE = 16  # what a random number is for; beyond those of `corruption`


class SpanMask(Protocol):
    """Attributes:
    max_tokens: the most that are selected of a row.
    """

    max_tokens: int

    def select(self, group: Group, outside: tuple[int, ...], key: jax.Array) -> jax.Array:
        """[B, L] bool, the tokens to hide.

        Args:
          group: a clean token group of one segment a row.
          outside: ids that are never hidden.
          key: of the step.
        """
        ...


@dataclasses.dataclass(frozen=True)
class SalientSpan:
    """One of the spans that the group lists, each as likely as any other.

    The group has `span_start` and `span_end` [B, A] int32, tokens of the row; start = end where
    there are fewer. A span of more than `max_tokens` counts as absent: half a name is no name.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        _require_tokens(self.max_tokens)

    def select(self, group: Group, outside: tuple[int, ...], key: jax.Array) -> jax.Array:
        """See `SpanMask`; nothing of a row without a span."""
        start, end = group["span_start"], group["span_end"]
        there = (end > start) & (end - start <= self.max_tokens)  # [B, A]
        number = _uniform(group, key, start.shape[1])
        chosen = jnp.argmax(jnp.where(there, number, -1.0), axis=1)[:, None]  # [B, 1]
        start, end = (jnp.take_along_axis(x, chosen, axis=1) for x in (start, end))
        column = jnp.arange(group["tokens"].shape[1])[None]
        found = (column >= start) & (column < end) & jnp.any(there, axis=1, keepdims=True)
        return found & (group["segment_ids"] > 0) & ~masking.is_any(group["tokens"], outside)


@dataclasses.dataclass(frozen=True)
class UniformWords:
    """Whole words anywhere, a share of the tokens: the masks of BERT."""

    max_tokens: int
    rate: float = 0.15

    def __post_init__(self) -> None:
        _require_tokens(self.max_tokens)

    def select(self, group: Group, outside: tuple[int, ...], key: jax.Array) -> jax.Array:
        """See `SpanMask`."""
        mask = masking.WholeWordMask(self.rate, outside, self.max_tokens)
        return masking.whole_word_mask(group, mask, key)


@dataclasses.dataclass(frozen=True)
class RandomSpan:
    """One run of words from anywhere, its length geometric, as in SpanBERT (arXiv:1907.10529).

    Words that no longer fit `max_tokens` are left; of a first word that does not fit, its beginning
    is taken.
    """

    max_tokens: int
    success: float = 0.2
    max_words: int = 10

    def __post_init__(self) -> None:
        _require_tokens(self.max_tokens)
        if not 0 < self.success < 1 or self.max_words < 1:
            raise ValueError(
                "RandomSpan: expected success between 0 and 1 and max_words of at least 1, found "
                f"{self.success} and {self.max_words}"
            )

    def select(self, group: Group, outside: tuple[int, ...], key: jax.Array) -> jax.Array:
        """See `SpanMask`."""
        words = masking.units(group, outside)
        opens = words.eligible & (words.start == group["positions"])
        word = jnp.cumsum(opens, axis=1) - 1  # [B, L], the word of each token
        count = jnp.sum(opens, axis=1, keepdims=True)
        number = _uniform(group, key, 2)
        first = jnp.minimum((number[:, :1] * count).astype(jnp.int32), count - 1)
        # The geometric distribution by inversion, 1 + floor(log(u) / log(1 - p)), with u so large
        # that no more than `max_words` come out.
        beyond = (1 - self.success) ** self.max_words
        drawn = jnp.log(1.0 - number[:, 1:] * (1.0 - beyond)) / math.log(1 - self.success)
        length = jnp.minimum(1 + drawn.astype(jnp.int32), self.max_words)
        run = words.eligible & (word >= first) & (word < first + length)
        until = jnp.cumsum(run, axis=1)  # tokens of the run up to each one, itself included
        end = until + words.size - 1 - (group["positions"] - words.start)  # and of its whole word
        return run & (until <= self.max_tokens) & ((end <= self.max_tokens) | (word == first))


def _require_tokens(max_tokens: int) -> None:
    if max_tokens < 1:
        raise ValueError(f"max_tokens: expected at least 1, found {max_tokens}")


def _uniform(group: Group, key: jax.Array, count: int) -> jax.Array:
    """[B, count] float32 in [0, 1), from the key and each row's example."""

    def row(example: jax.Array) -> jax.Array:
        row_key = jax.random.fold_in(jax.random.fold_in(key, example), _CHOICE)
        return jax.random.uniform(row_key, (count,))

    return jax.vmap(row)(group["example_id"][:, 0])
