"""Heads of M3 and ColBERT: weights of words, and a vector of each token.

Chen et al. 2024, arXiv:2402.03216, section 3.2; Khattab and Zaharia 2020, arXiv:2004.12832,
sections 3.2 and 3.3. Letters: B rows, L row length, D hidden width, E
entries of a row, d size of the vectors.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads, layers, text_embedding
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.representation import SEGMENTS

Group = Mapping[str, jax.Array]


class WordWeights(nnx.Module):
    """A weight for each token of a text: relu(w . state + b), the largest where a token repeats.

    Args:
        config: of the encoder.
        vocabulary: of the tokenizer; [CLS], [SEP], [PAD] and [UNK] have no weight.
        start: every token's weight before the first step, above 0. With a random projection in
            place of zeros, all tokens may begin below 0, where no gradient brings them back.
        rngs: stream `params`.
    """

    def __init__(
        self, config: TokenEncoderConfig, vocabulary: Vocabulary, start: float, *, rngs: nnx.Rngs
    ) -> None:
        self.dense = layers.Dense(
            {"embed": config.hidden}, {"score": 1}, stddev=0.0, dtype="float32", rngs=rngs
        )
        self.dense.bias[...] += start
        self.without = (vocabulary.cls, vocabulary.sep, vocabulary.pad, vocabulary.unk)

    def __call__(self, hidden: jax.Array, group: Group) -> dict[str, jax.Array]:
        """The sparse representation, see `interfaces.representation`; E = L.

        No array over the vocabulary is made. Entries are sorted by text and token; those that
        repeat an entry, have no weight, or are without one by their id belong to no text.

        Args:
            hidden: [B, L, D].
            group: `tokens` and `segment_ids` [B, L] count.
        """
        weights = jax.nn.relu(self.dense(hidden)[..., 0].astype(jnp.float32))
        return largest_of_each(group["tokens"], group["segment_ids"], weights, self.without)


def largest_of_each(
    tokens: jax.Array, segment_ids: jax.Array, weights: jax.Array, without: tuple[int, ...]
) -> dict[str, jax.Array]:
    """A sparse representation: each token of a text once, with the largest of its weights.

    The gradient reaches that one alone. All arrays are [B, L]; `without` are ids that have none.
    """
    excluded = jnp.isin(tokens, jnp.asarray(without, tokens.dtype))
    segments = jnp.where(excluded, 0, segment_ids)
    places = jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 1)
    # The largest of a run of equal (segment, token) is its last.
    fixed = jax.lax.stop_gradient(weights)
    segments, tokens, _, order = jax.lax.sort(
        (segments, tokens, fixed, places), dimension=1, num_keys=3
    )
    weights = jnp.take_along_axis(weights, order, axis=1)
    follows = jnp.concatenate(
        [
            (segments[:, 1:] == segments[:, :-1]) & (tokens[:, 1:] == tokens[:, :-1]),
            jnp.zeros_like(tokens[:, :1], dtype=bool),
        ],
        axis=1,
    )
    kept = ~follows & (segments > 0) & (weights > 0)
    return {
        SEGMENTS: jnp.where(kept, segments, 0),
        "tokens": tokens,
        "weights": jnp.where(kept, weights, 0.0),
    }


class TokenVectors(nnx.Module):
    """A vector of unit length for each token of a text: a projection of its state.

    Args:
        config: of the encoder.
        size: d; D in M3's official code, 128 in ColBERT.
        bias: whether the projection has one; ColBERT's has none.
        kept: how many first dimensions a vector has, see `kept_size`; None: all d.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        size: int,
        bias: bool = True,
        kept: int | None = None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        if size < 1:
            raise ValueError(f"TokenVectors.size: expected at least 1, found {size}")
        self.dense = heads.projection(config, size, rngs, bias)
        self.kept = kept

    def __call__(self, hidden: jax.Array, group: Group) -> dict[str, jax.Array]:
        """M3's multi_vector representation, of all tokens but the first, [CLS]; E = L.

        Args:
            hidden: [B, L, D].
            group: `positions` and `segment_ids` [B, L] count.
        """
        return self.of(hidden, jnp.where(group["positions"] == 0, 0, group["segment_ids"]))

    def of(self, hidden: jax.Array, segments: jax.Array) -> dict[str, jax.Array]:
        """The multi_vector representation, see `interfaces.representation`; E = L.

        Args:
            hidden: [B, L, D].
            segments: [B, L] int32, as `segment_ids`; a token that is given 0 has no vector.
        """
        projected = self.dense(hidden).astype(jnp.float32)[..., : self.kept]
        vectors = text_embedding.unit(projected)
        return {SEGMENTS: segments, "vectors": jnp.where(segments[..., None] > 0, vectors, 0.0)}


def kept_size(size: int | None, whole: int, where: str) -> int | None:
    """Number of first dimensions to keep of vectors of `whole`, at unit length; None: all.

    Raises:
        ValueError: fewer than 1 or more than there are; `where` is in the message.
    """
    if size is not None and not 0 < size <= whole:
        raise ValueError(
            f"{where}: expected 1 to {whole} dimensions, those of a vector, or None for all of "
            f"them, found {size}"
        )
    return None if size == whole else size


def shorter(vectors: Mapping[str, jax.Array], length: int) -> dict[str, jax.Array]:
    """A multi_vector representation of the first dimensions of each vector, at unit length."""
    return {**vectors, "vectors": text_embedding.shorter(vectors["vectors"], length, True)}


def per_query_mean(vectors: Mapping[str, jax.Array], texts: int) -> dict[str, jax.Array]:
    """A multi_vector representation of queries whose MaxSim is a mean over its vectors, not a sum.

    Args:
        vectors: of B rows.
        texts: S, of a row.
    """
    numbers = vectors[SEGMENTS]
    counts = sums_of_texts(numbers, jnp.ones(numbers.shape, jnp.float32), texts)
    return {**vectors, "vectors": vectors["vectors"] / jnp.maximum(counts, 1.0)[..., None]}


def sums_of_texts(numbers: jax.Array, sizes: jax.Array, texts: int) -> jax.Array:
    """[B, E] float32: for each entry the sum of the sizes of its text.

    Args:
        numbers: [B, E] int32, the text of each entry, 0 of none.
        sizes: [B, E] float32.
        texts: S, of a row.
    """
    of_text = (numbers[:, :, None] == jnp.arange(texts + 1)).astype(jnp.float32)  # [B, E, S + 1]
    return jnp.einsum("bes,bs->be", of_text, jnp.einsum("bes,be->bs", of_text, sizes))
