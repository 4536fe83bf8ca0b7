"""Bi-encoder fine-tuning: one encoder for queries and passages, InfoNCE over the global batch.

Each query sees its positive, its own hard negatives, and every passage that the other queries of
the batch brought; and it may learn from a teacher's scores of its own passages.  Pairs are matched
by `example_id`, so that rows may be packed and in any order.  With Matryoshka learning
(arXiv:2205.13147, formula 1) the first dimensions of a vector are trained as a vector, too.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive, distillation
from models.networks import layers, text_embedding
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import EncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective


class BiEncoder(Objective):
    """See the module's docstring.

    Args:
        config: the encoder, BERT's or a bag of embeddings.
        embedding_config: pooling, similarity, temperature, lengths.
        vocabulary: of the tokenizer.
        query, passage: sizes of the two token groups of a global batch.
        contrastive_config: blocks of the loss, and how devices share it.
        encode_chunks: pieces in which a batch is encoded, one after another, to save memory; the
            rows of both groups have to divide by it times the devices.
        known_positives: K, how many documents known to answer it a query names in `known`
            [B, S, K]; they are none of its negatives.
        distillation_config: how it learns from a teacher, whose scores passages then carry in
            `teacher_score` [B, S], -inf where there is none; None: from the batch alone.
        matryoshka: numbers of first dimensions that are trained as a vector, too; the loss is the
            sum of those of all lengths, each with weight 1. The metrics are of whole vectors.
        rngs: stream `params`.

    Raises:
        ValueError: sizes that do not fit each other.
    """

    requires_full_batch = True

    def __init__(
        self,
        config: EncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        passage: GroupShape,
        contrastive_config: contrastive.ContrastiveConfig,
        encode_chunks: int = 1,
        known_positives: int = 0,
        distillation_config: distillation.DistillationConfig | None = None,
        matryoshka: Sequence[int] = (),
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        contrastive.require_all_devices(contrastive_config)
        self.config = config
        self.embedding_config = embedding_config
        self.query = query
        self.passage = passage
        self.contrastive_config = contrastive_config
        self.known_positives = known_positives
        self.distillation_config = distillation_config
        self.encode_chunks = _at_least_one(encode_chunks)
        self.matryoshka = text_embedding.shorter_lengths(
            matryoshka, config.hidden, "BiEncoder.matryoshka"
        )
        self.vocabulary = vocabulary
        self.encoder = config.build(rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        taught = self.distillation_config is not None
        spec = contrastive.batch_spec(self.query, self.passage, self.known_positives, taught)
        return [spec]

    def contract(self) -> Contract:
        """See `Objective`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See `contrastive.info_nce`; with a teacher, and metric `distillation`, see there."""
        queries, passages = self.embed(batch, key)
        loss, metrics = self._loss_of(queries, passages, batch)
        for length in self.matryoshka:
            short = [self._cut(side.vectors, length) for side in (queries, passages)]
            loss += self._loss_of(
                queries._replace(vectors=short[0]), passages._replace(vectors=short[1]), batch
            )[0]
        return loss, metrics

    def _loss_of(
        self, queries: contrastive.Queries, passages: contrastive.Passages, batch: Batch
    ) -> tuple[MetricSum, dict[str, MetricSum]]:
        """As `loss`, of vectors of one length."""
        temperature = self.embedding_config.temperature
        loss, metrics = contrastive.info_nce(
            queries, passages, temperature, self.contrastive_config
        )
        config = self.distillation_config
        if config is None:
            return loss, metrics
        student, rows = contrastive.own_scores(
            queries,
            passages,
            config.group_size,
            temperature,
            self.contrastive_config.exchange,
        )
        taught = batch["passage"]["teacher_score"].reshape(-1)
        teacher = jnp.take(taught, rows, mode="fill", fill_value=-jnp.inf)
        scored = jnp.isfinite(teacher)
        divergence = distillation.kl_divergence(jnp.where(scored, teacher, 0.0), student, scored)
        metrics |= {"distillation": divergence, "contrastive": loss}
        return divergence + config.contrastive_weight * loss, metrics

    def _cut(self, vectors: jax.Array, length: int) -> jax.Array:
        """The first dimensions; of unit length where whole vectors are."""
        config = self.embedding_config
        unit = config.normalise or config.similarity == "cosine"
        return text_embedding.shorter(vectors, length, unit)

    def embed(
        self, batch: Batch, key: jax.Array | None = None
    ) -> tuple[contrastive.Queries, contrastive.Passages]:
        """Vectors that the loss compares; of unit length where similarity is `cosine`."""
        query, passage = batch["query"], batch["passage"]
        query_key, passage_key = layers.split_key(key, 2)
        known = query["known"] if self.known_positives else None
        queries = contrastive.Queries.of(self._vectors(query, query_key), query, known)
        return queries, contrastive.Passages.of(self._vectors(passage, passage_key), passage)

    def _vectors(self, group: Mapping[str, jax.Array], key: jax.Array | None) -> jax.Array:
        """[B*S, D] float32."""
        config = self.embedding_config
        vectors = text_embedding.embed_in_chunks(
            self.encoder, group, config, self.encode_chunks, key
        )
        vectors = vectors.reshape(-1, vectors.shape[-1])
        return text_embedding.unit(vectors) if config.similarity == "cosine" else vectors

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`."""
        return text_embedding.functions(
            self.encoder, self.embedding_config, self.query, self.passage
        )


def _at_least_one(encode_chunks: int) -> int:
    if encode_chunks < 1:
        raise ValueError(f"BiEncoder.encode_chunks: expected 1 or more, found {encode_chunks}")
    return encode_chunks
