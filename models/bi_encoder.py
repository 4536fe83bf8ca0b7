"""Bi-encoder fine-tuning: one encoder for queries and passages, InfoNCE over the global batch.

Each query sees its positive, its own hard negatives, and every passage that the other queries of
the batch brought.  Pairs are matched by `example_id`, so that rows may be packed and in any order.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models import bert, embedding, layers
from models.losses import contrastive
from t5x_style.contract import Contract, Vocabulary
from t5x_style.metrics import Mean
from t5x_style.objective import Batch, Fn, GroupShape, Objective


class BiEncoder(Objective):
    """See the module's docstring.

    Args:
        config: the encoder.
        embedding_config: pooling, similarity, temperature, lengths.
        vocabulary: of the tokenizer.
        query, passage: sizes of the two token groups of a global batch.
        rngs: stream `params`.
    """

    couples_examples = True

    def __init__(
        self,
        config: bert.BertConfig,
        embedding_config: embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        passage: GroupShape,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        embedding.require_fit(config, embedding_config, vocabulary)
        self.config = config
        self.embedding_config = embedding_config
        self.query = query
        self.passage = passage
        self.vocabulary = vocabulary
        self.encoder = bert.Encoder(config, rngs=rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        per_segment = (self.passage.rows, self.passage.segments)
        extra = {
            name: jax.ShapeDtypeStruct(per_segment, jnp.int32)
            for name in ("relevance", "document_id")
        }
        return [{"query": self.query.spec(), "passage": {**self.passage.spec(), **extra}}]

    def contract(self) -> Contract:
        """See `Objective`."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def loss(self, batch: Batch, key: jax.Array) -> tuple[Mean, dict[str, Mean]]:
        """InfoNCE, see `contrastive.info_nce`; metrics `accuracy` and `mrr` within the batch."""
        query, passage = batch["query"], batch["passage"]
        logits = self._scores(query, passage, key)
        candidates = contrastive.match(
            query["example_id"].reshape(-1),
            passage["example_id"].reshape(-1),
            passage["relevance"].reshape(-1),
            passage["document_id"].reshape(-1),
            query["segment_valid"].reshape(-1),
            passage["segment_valid"].reshape(-1),
        )
        metrics = contrastive.ranking_metrics(jax.lax.stop_gradient(logits), candidates)
        return contrastive.info_nce(logits, candidates), metrics

    def _scores(
        self, query: dict[str, jax.Array], passage: dict[str, jax.Array], key: jax.Array | None
    ) -> jax.Array:
        """[Bq*Sq, Bp*Sp] float32, divided by the temperature."""
        config = self.embedding_config
        query_key, passage_key = layers.split_key(key, 2)
        q = embedding.embed(self.encoder, query, config, query_key)
        p = embedding.embed(self.encoder, passage, config, passage_key)
        if config.similarity == "cosine":
            q, p = embedding.unit(q), embedding.unit(p)
        dimension = q.shape[-1]
        flat_q, flat_p = q.reshape(-1, dimension), p.reshape(-1, dimension)
        return contrastive.scores(flat_q, flat_p, config.temperature)

    def functions(self) -> dict[str, Fn]:
        """See `Objective`."""
        return embedding.functions(self.encoder, self.embedding_config, self.query, self.passage)
