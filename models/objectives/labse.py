"""LaBSE: sentences of all languages in one space, by distinguishing translations from all others.

Feng et al. 2020, arXiv:2007.01852, with the facts of the official code (`official/projects/labse`).
One encoder embeds both sides at unit length. The paper pools [CLS]; other poolings and a bag of
embeddings (`models/networks/bag.py`) are possible. The loss is a softmax over the targets of the
whole batch for each source, and over the sources for each target (Yang et al. 2019,
arXiv:1902.08564):

    loss = sum over both directions of the mean of -log softmax( (cos - margin of the pair) x scale)

`scale` is one over the contract's temperature. Facts and pitfalls are in docs/labse.md.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive
from models.networks import layers, text_embedding
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import Encoder, EncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective


class LaBSE(Objective):
    """See the module's docstring. Pairs are matched by `example_id`; rows may be packed.

    Args:
        config: the encoder, BERT's or a bag of embeddings.
        embedding_config: lengths, temperature, pooling (the paper's is `pooler`); similarity
            `cosine`.
        vocabulary: of the tokenizer.
        source, target: sizes of the two token groups of a global batch. `target` carries
            `relevance` [B, S] int32, 1 for a translation and 0 for a hard negative of the source
            that it came with, and `document_id` [B, S] int32, what it says: two targets of equal
            number are no negatives of each other's sources.
        contrastive_config: margin, and how devices share the loss.
        encode_chunks: pieces in which a batch is encoded, see `BiEncoder`.
        rngs: stream `params`.
    """

    requires_full_batch = True

    def __init__(
        self,
        config: EncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        source: GroupShape,
        target: GroupShape,
        contrastive_config: contrastive.ContrastiveConfig,
        encode_chunks: int = 1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        _require_labse(embedding_config, encode_chunks)
        contrastive.require_both_on_one_device(contrastive_config, source, target)
        self.config = config
        self.embedding_config = embedding_config
        self.vocabulary = vocabulary
        self.source, self.target = source, target
        self.contrastive_config = contrastive_config
        self.encode_chunks = encode_chunks
        network = text_embedding.build(config, embedding_config.pooling, rngs)
        # Without a pooler the parameters have the names of `BiEncoder`, to be initialised and
        # exported alike.
        if embedding_config.pooling == "pooler":
            self.embedder = network
        else:
            self.encoder = network

    @property
    def network(self) -> Encoder:
        """What turns text into vectors."""
        return self.embedder if self.embedding_config.pooling == "pooler" else self.encoder

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        per_segment = jax.ShapeDtypeStruct((self.target.rows, self.target.segments), jnp.int32)
        extra = {"relevance": per_segment, "document_id": per_segment}
        return [{"source": self.source.spec(), "target": {**self.target.spec(), **extra}}]

    def contract(self) -> Contract:
        """See `Objective`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See the module's docstring, in nats; metrics `accuracy` and `mrr` of the targets."""
        source, target = batch["source"], batch["target"]
        source_key, target_key = layers.split_key(key, 2)
        sources = contrastive.Queries.of(self.embed(source, source_key), source)
        targets = contrastive.Passages.of(self.embed(target, target_key), target)
        temperature = self.embedding_config.temperature
        return contrastive.info_nce(sources, targets, temperature, self.contrastive_config)

    def embed(self, group: Mapping[str, jax.Array], key: jax.Array | None = None) -> jax.Array:
        """[B * S, D] float32 of length 1, of a token group."""
        config = self.embedding_config
        vectors = text_embedding.embed_in_chunks(
            self.network, group, config, self.encode_chunks, key
        )
        return text_embedding.unit(vectors.reshape(-1, vectors.shape[-1]))

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`."""
        return text_embedding.functions(
            self.network, self.embedding_config, self.source, self.target
        )


def encoder_paths(pooling: str) -> dict[str, str]:
    """Where LaBSE has the encoder of a masked language model, as `warm_start.Initialise.paths`.

    Args:
        pooling: that of LaBSE. `pooler` is a layer of its embedder; no other has parameters.
    """
    return {"encoder": "embedder/encoder" if pooling == "pooler" else "encoder"}


def _require_labse(config: text_embedding.EmbeddingConfig, encode_chunks: int) -> None:
    if config.similarity != "cosine" or encode_chunks < 1:
        raise ValueError(
            "LaBSE: expected similarity 'cosine' and encode_chunks of 1 or more, found "
            f"{config.similarity!r} and {encode_chunks}"
        )
