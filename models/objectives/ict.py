"""The inverse cloze task: find the block of text that a sentence was taken from.

Lee et al. 2019, arXiv:1906.00300, with the facts of the official code (`language/orqa`): one
encoder for sentences and blocks, vectors of 128, inner products, a softmax over all blocks of the
batch, one direction, no temperature. With `removal_rate` the sentence is taken out of its block; in
the rest it stays, so that matching words is learned, too. REALM's retriever begins here.

Facts and pitfalls are in docs/realm.md. Letters: B examples, L block length, D vector size.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import evidence_layout
from models.losses import contrastive
from models.networks import projected_encoder, text_embedding
from models.networks.projected_encoder import ProjectedEncoder, ProjectionConfig
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective

_REMOVE = 0  # what the random number of an example is for
_NULL = 1 << 20  # and the null document's dropout


class ICT(Objective):
    """See the module's docstring. Rows are not packed: one sentence, and one block, a row.

    Args:
        config: the encoder.
        projection: what follows it.
        embedding_config: lengths; see `projected_encoder.require_plain`.
        vocabulary: of the tokenizer.
        query, passage: sizes of the two token groups of a global batch: as many sentences as
            blocks, one a row. A passage carries `sentence_start` and `sentence_end` [B, 1]: where
            in its row the query sentence is.
        removal_rate: how often the sentence is taken out; 0.9 in the paper.
        contrastive_config: how devices share the loss.
        null_negative: whether the null document, a block of nothing, is a negative of every
            sentence; not in the papers. REALM adds it to the retrieved blocks, and an embedder
            that never saw it may prefer it to everything.
        rngs: stream `params`.
    """

    requires_full_batch = True

    def __init__(
        self,
        config: TokenEncoderConfig,
        projection: ProjectionConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        passage: GroupShape,
        removal_rate: float,
        contrastive_config: contrastive.ContrastiveConfig,
        null_negative: bool = False,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        contrastive.require_all_devices(contrastive_config)
        projected_encoder.require_plain(embedding_config, "ICT")
        if not 0 <= removal_rate <= 1:
            raise ValueError(f"ICT.removal_rate: expected 0 to 1, found {removal_rate}")
        other_loss = contrastive_config.both_directions or contrastive_config.margin != 0
        if null_negative and other_loss:
            raise ValueError(
                "ICT.null_negative: expected a loss of one direction without a margin, found "
                f"{contrastive_config}"
            )
        for name, shape in (("query", query), ("passage", passage)):
            if shape.segments != 1:
                raise ValueError(f"ICT.{name}: expected 1 segment a row, found {shape.segments}")
        self.config = config
        self.embedding_config = embedding_config
        self.projection = projection
        self.vocabulary = vocabulary
        self.query, self.passage = query, passage
        self.removal_rate = removal_rate
        self.contrastive_config = contrastive_config
        self.null_negative = null_negative
        self.embedder = ProjectedEncoder(config, projection, vocabulary.sep, rngs=rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        one = jax.ShapeDtypeStruct((self.passage.rows, 1), jnp.int32)
        extra = {"document_id": one, "sentence_start": one, "sentence_end": one}
        return [{"query": self.query.spec(), "passage": {**self.passage.spec(), **extra}}]

    def contract(self) -> Contract:
        """See `Objective`; vectors have the projection's size."""
        return self.embedding_config.contract(self.projection.size, self.vocabulary)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Takes the sentence out of a block, with `removal_rate`; adds `removed` [B, 1] bool.

        An example whose block is nothing but the sentence counts for nothing where it is taken out.
        """
        passage = batch["passage"]
        uniform = jax.vmap(lambda one: jax.random.uniform(_example_key(key, one)))
        removed = uniform(passage["example_id"][:, 0])[:, None] < self.removal_rate  # [B, 1]
        shorter = without_span(passage, passage["sentence_start"], passage["sentence_end"])
        kept = {name: jnp.where(removed, shorter[name], passage[name]) for name in shorter}
        nothing_left = removed & ~_has_body(kept, self.vocabulary)
        valid = passage["segment_valid"] & ~nothing_left
        passage = {**passage, **kept, "removed": removed, "segment_valid": valid}
        query = {**batch["query"], "segment_valid": batch["query"]["segment_valid"] & valid}
        return {"query": query, "passage": passage}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """-log softmax of a query's block among all blocks of the batch, in nats a sentence.

        Blocks that are the same document as its own are no negatives. Metrics: the share of
        sentences whose block comes first, of all, of those taken out of it and of those left in;
        with `null_negative` the share of those before whose block the null document comes.
        """
        query, passage = batch["query"], batch["passage"]
        query_key, passage_key = jax.random.split(key)
        queries = self._vectors(query, query_key)
        blocks = self._vectors(passage, passage_key)
        each = contrastive.by_query(
            contrastive.Queries.of(queries, query),
            contrastive.Passages.of(blocks, passage),
            1.0,
            self.contrastive_config,
        )
        losses, first, metrics = each.losses, each.above == 0, {}
        if self.null_negative:
            block_scores = jnp.sum(queries * blocks, axis=1)
            null = self._null_vector(jax.random.fold_in(passage_key, _NULL))
            behind = jnp.einsum("bd,d->b", queries, null, precision="highest") - block_scores
            # log(sum of all + null) - block_scores, from log(sum of all) - block_scores
            losses, first = jnp.logaddexp(losses, behind), first & (behind < 0)
            metrics = {"null_above": MetricSum.of(behind >= 0, each.counts)}
        removed = passage["removed"][:, 0]
        return MetricSum.of(losses, each.counts), {
            "accuracy": MetricSum.of(first, each.counts),
            "accuracy_removed": MetricSum.of(first, each.counts & removed),
            "accuracy_left_in": MetricSum.of(first, each.counts & ~removed),
            **metrics,
        }

    def _null_vector(self, key: jax.Array) -> jax.Array:
        """[D] float32, of the null document."""
        tokens = evidence_layout.null_row(self.passage.length, self.vocabulary)[None]
        group = evidence_layout.row_group(tokens, jnp.array([3]), jnp.zeros(1, jnp.int32))
        return self._vectors(group, key)[0]

    def _vectors(self, group: Mapping[str, jax.Array], key: jax.Array | None) -> jax.Array:
        """[B, D] float32."""
        return self.embedder(group, key)[:, 0]

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`."""
        return self.embedder.functions(self.query, self.passage)


def without_span(
    group: Mapping[str, jax.Array], start: jax.Array, end: jax.Array
) -> dict[str, jax.Array]:
    """Rows of one segment without tokens start to end - 1; what follows moves up.

    Args:
        group: `tokens`, `word_starts` and `segment_ids` [B, L] count; padding is at the end.
        start, end: [B, 1] int32.

    Returns:
        tokens, word_starts and segment_ids, [B, L].
    """
    column = jnp.arange(group["tokens"].shape[1], dtype=jnp.int32)[None]
    source = column + jnp.where(column >= start, end - start, 0)  # [B, L]
    inside = source < column.shape[1]
    source = jnp.minimum(source, column.shape[1] - 1)
    names = ("tokens", "word_starts", "segment_ids")
    moved = {name: jnp.take_along_axis(group[name], source, axis=1) for name in names}
    moved["segment_ids"] = jnp.where(inside, moved["segment_ids"], 0)
    return moved


def _has_body(group: Mapping[str, jax.Array], vocabulary: Vocabulary) -> jax.Array:
    """[B, 1]: whether a token is between the last two [SEP] of "... [SEP] body [SEP]"."""
    real = group["segment_ids"] > 0
    is_sep = (group["tokens"] == vocabulary.sep) & real
    after_first = (jnp.cumsum(is_sep, axis=1) == 1) & ~is_sep & real
    return jnp.any(after_first, axis=1, keepdims=True)


def _example_key(key: jax.Array, example: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, example), _REMOVE)
