"""SPLADE: a text as weights of all words of the vocabulary, those it does not contain included.

Formal, Piwowarski and Clinchant 2021, arXiv:2107.05720, with the maximum of arXiv:2109.10086: with
z the logits of the encoder's MLM head,

    w_v = max over the text's tokens of log(1 + relu(z_v))

The score is the inner product of two such vectors. The loss is the cross-entropy of a query's
positive among all passages of the global batch; the FLOPS regulariser (Paria et al. 2020,
arXiv:2004.05665), the sum over words of the squared mean weight, keeps most of them at 0. Facts
are in docs/splade.md.

Letters: B rows, S segments a row, V padded vocabulary, N texts of the batch, T kept words.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import bag_of_words, contrastive
from models.networks import heads, layers, text_embedding
from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricLimit, MetricSum
from t5x_style.interfaces.objective import EMBED, Batch, Group, GroupShape, ModelFunction, Objective
from t5x_style.interfaces.representation import PASSAGE, QUERY, SEGMENTS, SPARSE, Representations


class Updates(nnx.Variable):
    """Count of parameter updates."""


class SPLADE(Objective):
    """See the module's docstring.

    Args:
        config: the encoder.
        embedding_config: temperature, 1 in the papers, and lengths; vectors are compared by 'dot'.
        vocabulary: of the tokenizer.
        query, passage: sizes of the two token groups of a global batch.
        contrastive_config: blocks of the loss, and how devices share it.
        query_flops, passage_flops: weights of the regulariser.
        ramp: steps over which these weights grow, as the square of the step; 0: whole at once.
        chunk: positions whose logits exist at a time on a device.
        terms: T, words that are kept of a text that is embedded, those of the largest weights.
        known_positives: K, how many documents known to answer it a query names, see `BiEncoder`.
        encode_chunks: pieces in which a batch is encoded, see `BiEncoder`.
        rngs: stream `params`.

    Raises:
        ValueError: sizes that do not fit each other.
    """

    requires_full_batch = True

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        passage: GroupShape,
        contrastive_config: contrastive.ContrastiveConfig,
        query_flops: float,
        passage_flops: float,
        ramp: int,
        chunk: int,
        terms: int = 512,
        known_positives: int = 0,
        encode_chunks: int = 1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, "SPLADE")
        text_embedding.require_fit(config, embedding_config, vocabulary)
        contrastive.require_all_devices(contrastive_config)
        if embedding_config.similarity != "dot" or embedding_config.normalise:
            raise ValueError(
                "SPLADE compares weights: expected EmbeddingConfig.similarity 'dot' and "
                f"normalise False, found {embedding_config.similarity!r} and "
                f"{embedding_config.normalise}"
            )
        if min(query_flops, passage_flops, ramp) < 0 or min(chunk, terms, encode_chunks) < 1:
            raise ValueError(
                "SPLADE: expected query_flops, passage_flops and ramp of at least 0, chunk, "
                f"terms and encode_chunks of at least 1, found {query_flops}, {passage_flops}, "
                f"{ramp}, {chunk}, {terms} and {encode_chunks}"
            )
        self.config, self.embedding_config = config, embedding_config
        self.vocabulary = vocabulary
        self.query, self.passage = query, passage
        self.contrastive_config = contrastive_config
        self.flops = {QUERY: query_flops, PASSAGE: passage_flops}
        self.ramp, self.chunk = ramp, chunk
        self.terms = min(terms, config.vocab_size)
        self.known_positives = known_positives
        self.encode_chunks = encode_chunks
        self.encoder = config.build(rngs)
        self.head = heads.MlmHead(config, rngs=rngs)
        if ramp:
            self.updates = Updates(jnp.zeros((), jnp.int32))

    @property
    def limits(self) -> tuple[MetricLimit, ...]:
        """Texts without any weight find nothing, and are not found."""
        advice = (
            "Tokens whose logits are all below 0 get no gradient. Lower QUERY_FLOPS and "
            "PASSAGE_FLOPS, raise RAMP, or begin with the MLM head of a pre-training."
        )
        return tuple(
            MetricLimit(f"empty_{side}", 0.05, 0.5, f"the share of {what} without weight", advice)
            for side, what in ((QUERY, "queries"), (PASSAGE, "passages"))
        )

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        return [contrastive.batch_spec(self.query, self.passage, self.known_positives, False)]

    def contract(self) -> Contract:
        """See `Objective`; the pooling is 'splade', the dimension the vocabulary's size."""
        found = self.embedding_config.contract(self.config.vocab_size, self.vocabulary)
        return dataclasses.replace(found, pooling="splade")

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See `contrastive.info_nce`, plus the weighted regularisers.

        Metrics: those, `contrastive`, and of each side `flops_<side>`, before its weight,
        `terms_<side>`, the mean number of weights of a text, and `empty_<side>`, the share of texts
        without any.
        """
        query, passage = batch[QUERY], batch[PASSAGE]
        keys = dict(zip((QUERY, PASSAGE), layers.split_key(key, 2), strict=True))
        weights = {
            side: text_embedding.in_chunks(
                SPLADE.weights, self, batch[side], self.encode_chunks, keys[side]
            )
            for side in (QUERY, PASSAGE)
        }
        flat = {side: one.reshape(-1, one.shape[-1]) for side, one in weights.items()}
        known = query["known"] if self.known_positives else None
        total, metrics = contrastive.info_nce(
            contrastive.Queries.of(flat[QUERY], query, known),
            contrastive.Passages.of(flat[PASSAGE], passage),
            self.embedding_config.temperature,
            self.contrastive_config,
        )
        metrics["contrastive"] = total
        for side, one in flat.items():
            valid = batch[side]["segment_valid"].reshape(-1)
            flops = MetricSum.of(regulariser(one, valid))
            total = total + self.flops[side] * self._ramped() * flops
            terms = jnp.sum(one > 0, axis=1)
            metrics[f"flops_{side}"] = flops
            metrics[f"terms_{side}"] = MetricSum.of(terms, valid)
            metrics[f"empty_{side}"] = MetricSum.of(terms == 0, valid)
        return total, metrics

    def weights(self, group: Group, key: jax.Array | None = None) -> jax.Array:
        """[B, S, V] float32, at least 0; zeros where `segment_valid` is False.

        No array of B x L x V is made: log(1 + relu(z)) rises with z, so the largest logit decides.
        """
        hidden = self.encoder(
            group["tokens"], group["positions"], group["segment_ids"], group.get("token_types"), key
        )
        largest = bag_of_words.largest_logits(
            self.head.transform(hidden),
            self.encoder.word_table,
            self.head.bias[...],
            group["segment_ids"],
            segments=group["cls_at"].shape[1],
            vocab_size=self.config.vocab_size,
            chunk=self.chunk,
        )
        return jnp.where(group["segment_valid"][:, :, None], jnp.log1p(jax.nn.relu(largest)), 0.0)

    def represent(self, group: Group) -> Representations:
        """The sparse representation, with the `terms` largest weights of each text; E = S x T."""
        weights = self.weights(group)
        kept, tokens = jax.lax.top_k(weights, self.terms)  # [B, S, T]
        numbers = jnp.arange(1, weights.shape[1] + 1)[None, :, None]
        entries = {
            SEGMENTS: jnp.where(kept > 0, numbers, 0).astype(jnp.int32),
            "tokens": tokens,
            "weights": kept,
        }
        return {SPARSE: {name: one.reshape(one.shape[0], -1) for name, one in entries.items()}}

    def _ramped(self) -> jax.Array | float:
        if not self.ramp:
            return 1.0
        return jnp.minimum((self.updates[...] + 1) / self.ramp, 1.0) ** 2

    def after_update(self, step: jax.Array, key: jax.Array) -> None:
        """Counts the steps of the ramp."""
        if self.ramp:
            self.updates[...] = jnp.asarray(step, jnp.int32)

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`."""
        return {
            representation.function_name(side): ModelFunction(
                lambda group, kinds: self.represent(group),
                shape.spec(),
                "weights of words",
                EMBED,
                side=side,
                representations=(SPARSE,),
            )
            for side, shape in ((QUERY, self.query), (PASSAGE, self.passage))
        }


def regulariser(weights: jax.Array, valid: jax.Array) -> jax.Array:
    """The FLOPS regulariser, a number: the sum over words of the squared mean weight.

    Args:
        weights: [N, V], zeros where `valid` [N] is False.
        valid: which texts there are.
    """
    mean = jnp.sum(weights, axis=0) / jnp.maximum(jnp.sum(valid), 1)
    return jnp.sum(jnp.square(mean))
