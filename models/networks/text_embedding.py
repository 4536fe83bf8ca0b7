"""Turn hidden states into vectors for search, under one contract for all objectives.

Letters: B rows, L row length, S segments per row, D hidden width.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import pooled_encoder
from t5x_style.distributed import collectives
from t5x_style.interfaces.contract import TEXT, TITLE_AND_BODY, Contract, Vocabulary
from t5x_style.interfaces.encoder import (
    Encoder,
    EncoderConfig,
    gives_token_vectors,
    has_token_states,
)
from t5x_style.interfaces.objective import Group, GroupShape, ModelFunction, dense_functions
from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, Representations

POOLINGS = ("cls", "mean", "pooler", "weighted_mean", "mcls")
SIMILARITIES = ("dot", "cosine")
LAYOUTS = (TEXT, TITLE_AND_BODY)

M = TypeVar("M")  # a module
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
    """Settings of text embedding: the fields of `Contract` that a user chooses.

    Attributes:
        pooling: `cls`; `mean` over all tokens of the segment, specials included; `pooler`, [CLS]
            after BERT's pooler; `weighted_mean`, which a bag of embeddings learns; or `mcls`, the
            mean over the [CLS] of a long text that was given several, see docs/m3.md.
        normalise: whether vectors are brought to unit length.
        similarity: `dot` or `cosine`.
        temperature: what scores are divided by in a contrastive loss.
        query_length, passage_length: tokens per text, specials included.
        query_prefix, passage_prefix: text that the pipeline puts before each.
        passage_layout: `text` or `title_and_body`, as the passages' store is prepared.
    """

    pooling: str
    normalise: bool
    similarity: str
    temperature: float
    query_length: int
    passage_length: int
    query_prefix: str
    passage_prefix: str
    passage_layout: str = TEXT

    def __post_init__(self) -> None:
        named = {"pooling": POOLINGS, "similarity": SIMILARITIES, "passage_layout": LAYOUTS}
        for name, allowed in named.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"EmbeddingConfig.{name} must be one of {allowed}, "
                    f"found {getattr(self, name)!r}."
                )
        if not self.temperature > 0:
            raise ValueError(
                f"EmbeddingConfig.temperature must be above 0, found {self.temperature}."
            )

    def contract(self, dimension: int, vocabulary: Vocabulary) -> Contract:
        """The contract that is saved with the weights."""
        return Contract(
            **dataclasses.asdict(self),
            dimension=dimension,
            vocabulary_size=vocabulary.size,
            tokenizer_fingerprint=vocabulary.fingerprint,
        )


def require_fit(config: EncoderConfig, embedding: EmbeddingConfig, vocabulary: Vocabulary) -> None:
    """Raises ValueError unless the encoder was sized for this tokenizer and these lengths."""
    if config.vocab_size != vocabulary.size:
        raise ValueError(
            f"{type(config).__name__}.vocab_size must be the tokenizer's size, expected "
            f"{vocabulary.size}, found {config.vocab_size}: bind both to the same macro."
        )
    for name in ("query_length", "passage_length"):
        if config.max_positions is not None and getattr(embedding, name) > config.max_positions:
            raise ValueError(
                f"EmbeddingConfig.{name} must be at most {type(config).__name__}.max_positions, "
                f"{config.max_positions}, found {getattr(embedding, name)}."
            )


def require_token_states(config: EncoderConfig, objective: str) -> None:
    """Raises ValueError unless an encoder has a state for each token, as `objective` needs."""
    if not has_token_states(config):
        raise ValueError(
            f"{objective}: expected an encoder with a state for each token, such as BertConfig, "
            f"found {type(config).__name__}. Choose another file of gin_configs/models"
        )


def require_cls(config: EmbeddingConfig, objective: str) -> None:
    """Raises ValueError unless vectors are [CLS] states, which `objective` trains."""
    if config.pooling != "cls":
        raise ValueError(
            f"{objective} trains the [CLS] vector: expected EmbeddingConfig.pooling 'cls', "
            f"found {config.pooling!r}."
        )


def unit(vectors: jax.Array) -> jax.Array:
    """`vectors` [..., D] at unit length; a zero vector stays zero, with zero gradient."""
    square = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    direction = vectors * jax.lax.rsqrt(jnp.maximum(square, 1e-24))
    return jnp.where(square > 1e-24, direction, 0.0)


def shorter(vectors: jax.Array, length: int, of_unit_length: bool) -> jax.Array:
    """The first `length` dimensions [..., length] of vectors [..., D], perhaps at unit length.

    What Matryoshka learning (arXiv:2205.13147, formula 1) trains as vectors, too.
    """
    short = vectors[..., :length]
    return unit(short) if of_unit_length else short


def shorter_lengths(lengths: Sequence[int], size: int, where: str) -> tuple[int, ...]:
    """Numbers of first dimensions of vectors of `size` that are trained as vectors.

    Raises:
        ValueError: they are not distinct, or not from 1 to `size` - 1; `where` is in the message.
    """
    if len(set(lengths)) < len(lengths) or not all(0 < length < size for length in lengths):
        raise ValueError(
            f"{where}: expected distinct lengths from 1 to {size - 1}, below the "
            f"{size} dimensions of a vector, found {list(lengths)}"
        )
    return tuple(lengths)


def build(config: EncoderConfig, pooling: str, rngs: nnx.Rngs) -> Encoder:
    """An encoder that gives this pooling, with fresh parameters from stream `params`.

    Raises:
        ValueError: there is none of this configuration.
    """
    if pooling == "pooler" and has_token_states(config):
        return pooled_encoder.PooledEncoder(config, rngs=rngs)
    encoder = config.build(rngs)
    require_pooling(encoder, pooling)
    return encoder


def require_pooling(encoder: Encoder, pooling: str) -> None:
    """Raises ValueError unless an encoder gives this pooling."""
    if pooling not in encoder.poolings:
        raise ValueError(
            f"EmbeddingConfig.pooling: {type(encoder).__name__} does not give {pooling!r}, but "
            f"{', '.join(encoder.poolings)}"
        )


def embed(
    encoder: Encoder,
    group: Mapping[str, jax.Array],
    config: EmbeddingConfig,
    key: jax.Array | None = None,
) -> jax.Array:
    """One vector per segment.

    Args:
        encoder: the network.
        group: a token group of B rows.
        config: pooling and normalisation.
        key: for dropout; None turns it off.

    Returns:
        [B, S, D] float32; zeros where `segment_valid` is False.

    Raises:
        ValueError: an encoder that does not give this pooling.
    """
    require_pooling(encoder, config.pooling)
    return finished(encoder.pool(group, config.pooling, key), group, config)


def finished(
    pooled: jax.Array, group: Mapping[str, jax.Array], config: EmbeddingConfig
) -> jax.Array:
    """Vectors for search from pooled states [B, S, D]; zeros where `segment_valid` is False."""
    vectors = jnp.where(group["segment_valid"][:, :, None], pooled, 0.0)
    return unit(vectors) if config.normalise else vectors


def embed_in_chunks(
    encoder: Encoder,
    group: Mapping[str, jax.Array],
    config: EmbeddingConfig,
    chunks: int,
    key: jax.Array | None = None,
) -> jax.Array:
    """`embed`, with the activations of one chunk of rows at a time: see `in_chunks`.

    Args:
        encoder, group, config, key: see `embed`.
        chunks: see `in_chunks`.

    Returns:
        [B, S, D] float32, as `embed`.

    Raises:
        ValueError: rows that do not divide.
    """

    def one(encoder: Encoder, part: Mapping[str, jax.Array], key: jax.Array | None) -> jax.Array:
        return embed(encoder, part, config, key)

    return in_chunks(one, encoder, group, chunks, key)


def in_chunks(
    represent: Callable[[M, Mapping[str, jax.Array], jax.Array | None], T],
    module: M,
    group: Mapping[str, jax.Array],
    chunks: int,
    key: jax.Array | None = None,
) -> T:
    """Apply `represent` to a group, a chunk of rows at a time; GradCache (arXiv:2101.06983).

    Only its results are kept. A loss may then compare all of them; going back, each chunk is
    encoded again, with the same dropout, and gets the gradient of its results. Without dropout the
    numbers are those of one chunk; with it, each chunk draws from a separate key.

    Args:
        represent: (module, rows of the group, key) -> pytree of arrays [rows, ...].
        module: with the parameters.
        group: a token group of B rows.
        chunks: number of them; rows have to divide by chunks times devices.
        key: for dropout; None turns it off.

    Raises:
        ValueError: rows that do not divide.
    """
    if chunks == 1:
        return represent(module, group, key)
    graph, state = nnx.split(module)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop shares nothing with its outside
    def one(state: nnx.State, part: Any, key: jax.Array | None) -> T:
        return represent(nnx.merge(graph, state), part, key)

    parts = {name: collectives.strided(array, chunks) for name, array in group.items()}
    keys = None if key is None else jax.random.split(key, chunks)
    found = jax.lax.map(lambda part: one(state, *part), (parts, keys))
    return jax.tree.map(collectives.joined, found)


def functions(
    encoder: Encoder, config: EmbeddingConfig, query: GroupShape, passage: GroupShape
) -> dict[str, ModelFunction]:
    """Representations of queries and passages by a shared encoder, without dropout.

    A vector, and vectors of tokens where the encoder gives them.
    """
    dense = dense_functions(lambda group: embed(encoder, group, config), query, passage)
    if not gives_token_vectors(encoder):
        return dense

    def several(function: ModelFunction) -> ModelFunction:
        def call(group: Group, kinds: tuple[str, ...]) -> Representations:
            made = dict(function(group, kinds=(DENSE,))) if DENSE in kinds else {}
            if MULTI_VECTOR in kinds:
                made[MULTI_VECTOR] = encoder.token_vectors(group, str(function.side))
            return made

        return dataclasses.replace(
            function,
            call=call,
            outputs="representations of the kinds that are asked for",
            representations=(DENSE, MULTI_VECTOR),
        )

    return {name: several(function) for name, function in dense.items()}
