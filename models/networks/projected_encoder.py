"""An encoder whose [CLS] is brought down to a short vector: the embedder of ICT, ORQA and REALM.

    vector = LN(W . tanh(P . h[CLS] + b) + c)

A text of two parts, "[CLS] title [SEP] body [SEP]", has token type 1 from its second part on, which
follows from the places of its [SEP].
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.networks import heads, layers, text_embedding
from t5x_style.interfaces.contract import TITLE_AND_BODY
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.objective import GroupShape, ModelFunction, dense_functions


@dataclasses.dataclass(frozen=True)
class ProjectionConfig:
    """The projection after the encoder.

    Attributes:
        size: of the vectors; 128 in the papers.
        layer_norm_eps: 1e-12 in the released checkpoints; today's official code has
            TensorFlow's default, 1e-3.
        dropout: of the vectors, in training; 0.1 in the official code.
    """

    size: int
    layer_norm_eps: float = 1e-12
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.dropout < 1:
            raise ValueError(
                "ProjectionConfig: expected size of at least 1 and dropout from 0 to below 1, "
                f"found {self.size} and {self.dropout}"
            )


class ProjectedEncoder(nnx.Module):
    """See the module's docstring.

    Args:
        config: the encoder.
        projection: what follows it.
        sep: id of [SEP].
        rngs: stream `params`.
    """

    def __init__(
        self, config: TokenEncoderConfig, projection: ProjectionConfig, sep: int, *, rngs: nnx.Rngs
    ) -> None:
        self.sep = sep
        self.type_vocab = config.type_vocab
        self.encoder = config.build(rngs)
        self.pooler = heads.Pooler(config, rngs=rngs)
        self.project = heads.projection(config, projection.size, rngs)
        self.norm = layers.layer_norm(projection.size, projection.layer_norm_eps, "float32", rngs)
        self.dropout = layers.Dropout(projection.dropout)

    def __call__(self, group: Mapping[str, jax.Array], key: jax.Array | None = None) -> jax.Array:
        """One vector per segment.

        Args:
            group: a token group of B rows with S segments each.
            key: for dropout; None turns it off.

        Returns:
            [B, S, size] float32; zeros where `segment_valid` is False.
        """
        encoder_key, own_key = layers.split_key(key, 2)
        hidden = self.encoder.states_at(
            group["cls_at"],
            group["tokens"],
            group["positions"],
            group["segment_ids"],
            token_types(group, self.sep, self.type_vocab),
            encoder_key,
        )
        vectors = self.norm(self.project(self.pooler(hidden)).astype(jnp.float32))
        return jnp.where(group["segment_valid"][:, :, None], self.dropout(vectors, own_key), 0.0)

    def functions(self, query: GroupShape, passage: GroupShape) -> dict[str, ModelFunction]:
        """Dense vectors of queries and passages, both by this network, without dropout."""
        return dense_functions(self, query, passage)


def require_plain(config: text_embedding.EmbeddingConfig, objective: str) -> None:
    """Raises ValueError unless vectors are compared as these objectives compare them.

    Inner products of unnormalised [CLS] vectors, of sentences without a prefix and blocks with the
    title before a [SEP].
    """
    text_embedding.require_cls(config, objective)
    trained = {
        "normalise": False,
        "similarity": "dot",
        "temperature": 1.0,
        "query_prefix": "",
        "passage_layout": TITLE_AND_BODY,
    }
    found = {name: getattr(config, name) for name in trained}
    if found != trained:
        raise ValueError(
            f"{objective}: expected EmbeddingConfig with {trained}, which is what it trains; found "
            f"{found}"
        )


def require_blocks(
    length: int, config: text_embedding.EmbeddingConfig, encoder: TokenEncoderConfig, objective: str
) -> None:
    """Raises ValueError unless blocks of up to `length` tokens are what the contract says."""
    max_length = min(config.passage_length, encoder.max_positions)
    if not 3 <= length <= max_length:
        raise ValueError(
            f"{objective}: expected blocks of 3 to {max_length} tokens "
            f"(EmbeddingConfig.passage_length {config.passage_length}, the embedder's "
            f"max_positions {encoder.max_positions}), found up to {length}. Prepare shorter "
            "blocks, or raise both."
        )


def token_types(group: Mapping[str, jax.Array], sep: int, type_vocab: int = 2) -> jax.Array | None:
    """[B, L] int32: 1 after the first [SEP] of a segment, 0 up to it and at padding.

    Args:
        group: a token group of B rows with S segments each.
        sep: id of [SEP]; tokenizing never makes one of a text.
        type_vocab: of the encoder; None is returned where it has one type only (RoBERTa).
    """
    if type_vocab == 1:
        return None
    # No cumulative sum: TensorFlow, which runs exported models, has none of rows of any length.
    segment_ids, positions = group["segment_ids"], group["positions"]
    ids = jnp.arange(1, group["cls_at"].shape[1] + 1, dtype=jnp.int32)[None, :, None]
    is_sep = (segment_ids[:, None] == ids) & (group["tokens"] == sep)[:, None]  # [B, S, L]
    nowhere = jnp.iinfo(jnp.int32).max
    first = jnp.min(jnp.where(is_sep, positions[:, None], nowhere), axis=2)  # [B, S]
    first = jnp.take_along_axis(first, jnp.maximum(segment_ids - 1, 0), axis=1)
    return ((positions > first) & (segment_ids > 0)).astype(jnp.int32)
