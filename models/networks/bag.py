"""A bag of embeddings: a text is the weighted mean of its token embeddings, without any layer.

    v(text) = sum over distinct tokens t of  n(t)^a . softplus(weight[t]) . table[t]

with n(t) how often t occurs in the text. Both the table and the weight of each token are learned;
`embedding` then brings v to unit length. Word order does not count. It is what an encoder has to
beat: on a small corpus it learns in seconds what layers need hours for. Its table is a start for
an encoder's word table (gin_configs/runs/initialise/bag.gin).

The same table and weights also compare texts token by token (late interaction, as ColBERT does with
states, arXiv:2004.12832), without further training:

    score(query, passage) = sum over tokens q of the query of  share[q] . max over t of cos(q, t)

with share[q] the part of n(q)^a . softplus(weight[q]) . |table[q]| in the sum over the query.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.networks import token_representations
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Group
from t5x_style.interfaces.representation import QUERY, SEGMENTS

# softplus(_ONE) = 1: every token counts alike before the first step.
_ONE = math.log(math.e - 1)


@dataclasses.dataclass(frozen=True)
class BagConfig:
    """Sizes of a bag of embeddings.

    Attributes:
        vocab_size: true number of tokens; the table is padded, see `padded_vocab`.
        hidden: D, width of the table and of the vectors.
        special_ids: tokens that count nothing, such as [CLS]; see `contract.special_ids`.
        repetition_exponent: a, between 0 (a repeated token counts once) and 1 (each time alike).
            Below 1 repetitions count less and less, as in BM25.
        table_stddev: standard deviation of the fresh table; None: D^-1/2, rows of about unit
            length.
        vocab_multiple: the table has a multiple of this many rows (128 x the mesh axis that shards
            it).
        token_vectors: whether it also gives a vector for each token; training needs none.
    """

    vocab_size: int
    hidden: int
    special_ids: tuple[int, ...]
    repetition_exponent: float = 1.0
    table_stddev: float | None = None
    vocab_multiple: int = 128
    token_vectors: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden", "vocab_multiple"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"BagConfig.{name}: expected at least 1, found {getattr(self, name)}"
                )
        if self.table_stddev is not None and not self.table_stddev > 0:
            raise ValueError(
                f"BagConfig.table_stddev: expected a number above 0, found {self.table_stddev}"
            )
        if not 0 <= self.repetition_exponent <= 1:
            raise ValueError(
                "BagConfig.repetition_exponent: expected a number from 0 to 1, found "
                f"{self.repetition_exponent}"
            )
        outside = [i for i in self.special_ids if not 0 <= i < self.vocab_size]
        if outside:
            raise ValueError(
                f"BagConfig.special_ids: expected ids from 0 to {self.vocab_size - 1}, found "
                f"{outside}"
            )

    @property
    def padded_vocab(self) -> int:
        """Rows of the table: `vocab_size` rounded up to `vocab_multiple`."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def max_positions(self) -> None:
        """No text is too long for a bag."""

    def build(self, rngs: nnx.Rngs) -> "BagEncoder":
        """The network, with fresh parameters from stream `params`."""
        return BagEncoder(self, rngs=rngs)


class BagEncoder(nnx.Module):
    """See the module's docstring.

    Attributes:
        word: [padded_vocab, D] float32, the table.
        token_weight: [padded_vocab] float32, weights before the softplus.
    """

    def __init__(self, config: BagConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        stddev = config.table_stddev or config.hidden**-0.5
        self.word = nnx.Embed(
            config.padded_vocab,
            config.hidden,
            param_dtype=jnp.float32,
            embedding_init=nnx.with_partitioning(
                nnx.initializers.normal(stddev), ("vocab", "embed")
            ),
            rngs=rngs,
        )
        ones = nnx.with_partitioning(nnx.initializers.constant(_ONE), ("vocab",))
        self.token_weight = nnx.Param(ones(rngs.params(), (config.padded_vocab,), jnp.float32))

    @property
    def poolings(self) -> tuple[str, ...]:
        """See `Encoder`."""
        return ("weighted_mean",)

    def pool(self, group: Group, pooling: str, key: jax.Array | None = None) -> jax.Array:
        """See `Encoder`; a bag has no dropout."""
        return self(group["tokens"], group["segment_ids"], group["cls_at"].shape[1])

    def __call__(self, tokens: jax.Array, segment_ids: jax.Array, segments: int) -> jax.Array:
        """The weighted sum of each segment's token embeddings.

        Args:
            tokens: [B, L] int32.
            segment_ids: [B, L] int32, 0 = padding, s + 1 = segment s.
            segments: S, the most segments of a row.

        Returns:
            [B, S, D] float32; zeros for a segment without tokens that count.
        """
        table = partitioning.gathered(self.word.embedding[...], (None, "embed"))
        states = jnp.take(table, tokens, axis=0)  # [B, L, D]
        ids = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
        member = segment_ids[:, None, :] == ids[None, :, None]  # [B, S, L]
        each = self.weights(tokens)
        if self.config.repetition_exponent != 1:
            each *= occurrences(tokens, segment_ids) ** (self.config.repetition_exponent - 1)
        weights = jnp.where(member, each[:, None, :], 0.0)
        return jnp.einsum("bsl,bld->bsd", weights, states)

    def token_vectors(self, group: Group, side: str) -> dict[str, jax.Array]:
        """See `TokenVectorEncoder`: segments [B, L] int32, vectors [B, L, D] float32.

        Each distinct token of a text that counts has one vector. Those of a passage have unit
        length; those of a query have their share as length, so that a MaxSim is at most 1.
        """
        tokens, segments = group["tokens"], group["segment_ids"]
        power = self.config.repetition_exponent
        each = self.weights(tokens) * occurrences(tokens, segments) ** power
        once = token_representations.largest_of_each(
            tokens, segments, each, self.config.special_ids
        )
        table = partitioning.gathered(self.word.embedding[...], (None, "embed"))
        vectors = jnp.take(table, once["tokens"], axis=0)  # [B, L, D]
        lengths = jnp.maximum(jnp.linalg.norm(vectors, axis=-1), 1e-12)
        scale = jnp.where(once[SEGMENTS] > 0, 1.0 / lengths, 0.0)
        if side == QUERY:
            sizes = once["weights"] * lengths
            sums = token_representations.sums_of_texts(
                once[SEGMENTS], sizes, group["cls_at"].shape[1]
            )
            scale *= sizes / jnp.maximum(sums, 1e-12)
        return {SEGMENTS: once[SEGMENTS], "vectors": vectors * scale[..., None]}

    def weights(self, tokens: jax.Array) -> jax.Array:
        """Weight of each of `tokens` [...] int32: [...] float32, 0 for special tokens."""
        weight = partitioning.gathered(self.token_weight[...], (None,))
        special = np.array(self.config.special_ids, np.int32)
        counts = ~jnp.isin(tokens, special)
        return jnp.where(counts, jax.nn.softplus(jnp.take(weight, tokens, axis=0)), 0.0)


def occurrences(tokens: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Count of each token in its segment.

    Args:
        tokens: [B, L] int32.
        segment_ids: [B, L] int32, 0 = padding.

    Returns:
        [B, L] float32, 1 or more.
    """
    same = tokens[:, :, None] == tokens[:, None, :]  # never stored: the sum reads it on the fly
    same &= segment_ids[:, :, None] == segment_ids[:, None, :]
    return jnp.sum(same, axis=-1, dtype=jnp.float32)
