"""Texts written token by token: greedy, beam search, sampling. Knows a network as a function only.

Letters: B texts, N hypotheses of each, T tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp


class Cache(Protocol):
    """Decoding state of a network: what it remembers of the written tokens."""

    def reordered(self, of_parent: Callable[[jax.Array], jax.Array]) -> Self:
        """`of_parent` of every array [B, N, ...] that belongs to hypotheses."""


# (tokens [B, N], number of the token [], cache) -> (logits [B, N, V] float32, cache)
Step = Callable[[jax.Array, jax.Array, Any], tuple[jax.Array, Any]]

_PART = 128  # scores in a part; tables of vocabularies are padded to it, so that none is cut
_NEVER = -1e30  # a logarithm of a probability; finite, so that sums of it are


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """Settings of decoding.

    Attributes:
        length: tokens at most, the first (given) and the last included; at least 2.
        beams: hypotheses; 1 takes the best token each time.
        length_penalty: beams are compared by log p / tokens^this; 0 does not mind the length.
        temperature: None: the best tokens; else they are drawn from softmax(logits / temperature),
            each of the N hypotheses by itself.
        top_k: draws among so many best; 0: among all.
        top_p: draws among the best that have this share of the probability together.
    """

    length: int
    beams: int = 1
    length_penalty: float = 1.0
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name, min_value in (("length", 2), ("beams", 1), ("top_k", 0)):
            if getattr(self, name) < min_value:
                raise ValueError(
                    f"GenerationConfig.{name}: expected at least {min_value}, found "
                    f"{getattr(self, name)}"
                )
        if not 0 < self.top_p <= 1:
            raise ValueError(
                f"GenerationConfig.top_p: expected above 0 and at most 1, found {self.top_p}"
            )
        if self.temperature is not None and not self.temperature > 0:
            raise ValueError(
                "GenerationConfig.temperature: expected above 0, or None for the best tokens, "
                f"found {self.temperature}"
            )
        if self.temperature is None and (self.top_k or self.top_p < 1):
            raise ValueError(
                "GenerationConfig: top_k and top_p are of drawing: expected a temperature, found "
                "None"
            )


class Written(NamedTuple):
    """Texts, the likeliest hypothesis first.

    Attributes:
        tokens: [B, N, T] int32, the given first token included; padding after the end.
        scores: [B, N] float32, log p of the tokens after the first, in nats, over the number of
            them to the power of the length penalty.
    """

    tokens: jax.Array
    scores: jax.Array


class _Texts(NamedTuple):
    at: jax.Array  # [] int32, number of the last token
    tokens: jax.Array  # [B, N, T]
    log_p: jax.Array  # [B, N]
    lengths: jax.Array  # [B, N] tokens after the first
    ended: jax.Array  # [B, N] bool
    cache: Any


def write(
    step: Step,
    cache: Any,
    first: jax.Array,
    config: GenerationConfig,
    *,
    end: int,
    pad: int,
    key: jax.Array | None = None,
) -> Written:
    """Writes texts until all have ended, or are as long as they may be.

    Args:
        step: the network.
        cache: what it begins with; a `Cache` where there are several beams.
        first: [B] int32, the token that each text begins with.
        config: how.
        end: id of the token that ends a text.
        pad: id of padding.
        key: for drawing.

    Raises:
        ValueError: drawing without a key.
    """
    if config.temperature is not None and key is None:
        raise ValueError("write: expected a key where tokens are drawn, found None")
    rows, beams = first.shape[0], config.beams
    tokens = jnp.full((rows, beams, config.length), pad, jnp.int32)
    alone = (jnp.arange(beams) > 0) & (config.temperature is None)  # all begin alike: one counts
    begun = _Texts(
        at=jnp.zeros((), jnp.int32),
        tokens=tokens.at[:, :, 0].set(first[:, None]),
        log_p=jnp.broadcast_to(jnp.where(alone, _NEVER, 0.0), (rows, beams)),
        lengths=jnp.zeros((rows, beams), jnp.int32),
        ended=jnp.zeros((rows, beams), bool),
        cache=cache,
    )

    def goes_on(texts: _Texts) -> jax.Array:
        return (texts.at < config.length - 1) & ~jnp.all(texts.ended)

    def more(texts: _Texts) -> _Texts:
        last = jax.lax.dynamic_index_in_dim(texts.tokens, texts.at, axis=2, keepdims=False)
        logits, cache = step(last, texts.at, texts.cache)
        texts = texts._replace(cache=cache)
        log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
        if config.temperature is not None:
            assert key is not None
            return _drawn(texts, log_p, config, jax.random.fold_in(key, texts.at), end, pad)
        return _best(texts, log_p, config, end, pad)

    texts = jax.lax.while_loop(goes_on, more, begun)
    scores = _scores(texts.log_p, texts.lengths, config)
    order = jnp.argsort(-scores, axis=1, stable=True)
    tokens = jnp.take_along_axis(texts.tokens, order[:, :, None], axis=1)
    return Written(tokens, jnp.take_along_axis(scores, order, axis=1))


def _scores(log_p: jax.Array, lengths: jax.Array, config: GenerationConfig) -> jax.Array:
    return log_p / jnp.maximum(lengths, 1).astype(jnp.float32) ** config.length_penalty


def _best(texts: _Texts, log_p: jax.Array, config: GenerationConfig, end: int, pad: int) -> _Texts:
    """The N best of all hypotheses with one more token; ended ones stay unchanged."""
    rows, beams, vocabulary = log_p.shape
    only_pad = jnp.where(jnp.arange(vocabulary) == pad, 0.0, _NEVER)
    gained = jnp.where(texts.ended[:, :, None], only_pad, log_p)
    total = texts.log_p[:, :, None] + gained  # [B, N, V]
    lengths = texts.lengths + ~texts.ended
    scores = _scores(total, lengths[:, :, None], config)
    chosen = largest(scores.reshape(rows, -1), beams)  # [B, N]
    parent, token = chosen // vocabulary, (chosen % vocabulary).astype(jnp.int32)

    def of_parent(array: jax.Array) -> jax.Array:
        return jnp.take_along_axis(array, parent.reshape(*parent.shape, *[1] * (array.ndim - 2)), 1)

    return _with_token(
        texts._replace(
            tokens=of_parent(texts.tokens),
            ended=of_parent(texts.ended),
            cache=texts.cache if beams == 1 else texts.cache.reordered(of_parent),
        ),
        token,
        jnp.take_along_axis(total.reshape(rows, -1), chosen, axis=1),
        of_parent(lengths),
        end,
    )


def largest(scores: jax.Array, count: int) -> jax.Array:
    """Where the largest scores are, as `jax.lax.top_k` says: of equal ones the first comes first.

    That operation is not used because TensorFlow, for which models are exported, does not have it.
    There are two passes: the `count` parts whose largest scores are the largest hold all that is
    looked for; then the places in these.

    Args:
        scores: [B, S] float32, none of them NaN.
        count: N, from 1 to S.

    Returns:
        [B, N] int32, the largest first.
    """
    rows, size = scores.shape
    if size <= count * _PART:
        return _one_by_one(scores, count)
    padded = jnp.pad(scores, ((0, 0), (0, -size % _PART)), constant_values=-jnp.inf)
    parts = padded.reshape(rows, -1, _PART)
    chosen = jnp.sort(_one_by_one(jnp.max(parts, axis=2), count), axis=1)  # for equal scores
    found = jnp.take_along_axis(parts, chosen[:, :, None], axis=1).reshape(rows, -1)
    places = _one_by_one(found, count)
    return jnp.take_along_axis(chosen, places // _PART, axis=1) * _PART + places % _PART


def _one_by_one(scores: jax.Array, count: int) -> jax.Array:
    """As `largest`, by a pass over all of [B, S] for each; no place twice, whatever the scores."""
    places = jnp.arange(scores.shape[1], dtype=jnp.int32)

    def one(taken: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        best = jnp.max(scores, axis=1, keepdims=True, where=~taken, initial=-jnp.inf)
        possible = ~taken & (scores == best)
        place = jnp.min(jnp.where(possible, places, len(places) - 1), axis=1)
        return taken | (places == place[:, None]), place

    return jax.lax.scan(one, jnp.zeros(scores.shape, bool), length=count)[1].T


def _drawn(
    texts: _Texts,
    log_p: jax.Array,
    config: GenerationConfig,
    key: jax.Array,
    end: int,
    pad: int,
) -> _Texts:
    """A token more for each hypothesis, drawn."""
    allowed = _allowed(log_p / config.temperature, config)
    token = jax.random.categorical(key, allowed, axis=-1).astype(jnp.int32)
    token = jnp.where(texts.ended, pad, token)
    gained = jnp.take_along_axis(log_p, token[:, :, None], axis=2)[:, :, 0]
    total = texts.log_p + jnp.where(texts.ended, 0.0, gained)
    return _with_token(texts, token, total, texts.lengths + ~texts.ended, end)


def _allowed(logits: jax.Array, config: GenerationConfig) -> jax.Array:
    """[B, N, V] logits, without those that top_k and top_p exclude."""
    if config.top_k:
        threshold = jax.lax.top_k(logits, config.top_k)[0][..., -1:]
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    if config.top_p < 1:
        descending = -jnp.sort(-logits, axis=-1)
        share = jax.nn.softmax(descending, axis=-1)
        before = jnp.cumsum(share, axis=-1) - share  # of those that are likelier
        threshold = jnp.min(
            jnp.where(before < config.top_p, descending, jnp.inf), -1, keepdims=True
        )
        logits = jnp.where(logits < threshold, -jnp.inf, logits)
    return logits


def _with_token(
    texts: _Texts, token: jax.Array, log_p: jax.Array, lengths: jax.Array, end: int
) -> _Texts:
    at = texts.at + 1
    tokens = jax.lax.dynamic_update_index_in_dim(texts.tokens, token, at, axis=2)
    ended = texts.ended | (token == end)
    return texts._replace(at=at, tokens=tokens, log_p=log_p, lengths=lengths, ended=ended)
