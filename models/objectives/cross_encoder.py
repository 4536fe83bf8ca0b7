"""A re-ranker: query and passage are read in one text, and a head says how well they go together.

The head is that of published re-rankers of the encoder's family (`heads.PairPooler`).

It learns to score a query's positive above its negatives by one softmax over them; as in SimLM
(arXiv:2207.02578, official code) it may score more negatives than it learns from, and keep the
hardest, and read each batch twice with different dropout (R-Drop, arXiv:2106.14448).
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import groups, listwise
from models.networks import heads, layers, projected_encoder, text_embedding
from t5x_style.interfaces.contract import TEXT, Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective

Group = Mapping[str, jax.Array]


class CrossEncoder(Objective):
    """See the module's docstring.

    Args:
        config: the encoder; one without token types (`type_vocab` 1) separates the query from the
            passage by [SEP] alone, of which there may be two.
        vocabulary: of the tokenizer.
        pair: size of the token group of a global batch.
        query_length, passage_length: tokens per text, specials included. A pair has the
            passage without its [CLS], or with a second [SEP] in its place.
        queries: Q, most queries of a global batch.
        group_size: G, passages that come with a query, 2 or more.
        keep: passages of a query that it learns from: its positive and the negatives that score
            highest; G keeps all. Fewer need rows of one pair each, a query's in sequence.
        separators: [SEP] between query and passage, 1 or 2, as the tokenizer joins a pair.
        r_drop: whether two passes with different dropout are drawn together; it takes dropout.
        query_prefix, passage_prefix: text that the pipeline puts before each.
        rngs: stream `params`.
    """

    requires_full_batch = True

    def __init__(
        self,
        config: TokenEncoderConfig,
        vocabulary: Vocabulary,
        pair: GroupShape,
        query_length: int,
        passage_length: int,
        queries: int,
        group_size: int,
        keep: int,
        r_drop: bool = False,
        separators: int = 1,
        query_prefix: str = "",
        passage_prefix: str = "",
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, "CrossEncoder")
        # Not a sum with `separators`: before a run nobody knows it, and any number may be assumed.
        second = int(separators == 2)
        _require_fit(config, vocabulary, query_length + passage_length - 1 + second)
        if query_length + passage_length - 1 + second > pair.length:
            raise ValueError(
                f"CrossEncoder: a query of {query_length} tokens and a passage of {passage_length} "
                f"make pairs of up to {query_length + passage_length - 1 + second}, found rows of "
                f"{pair.length} (PAIR_LENGTH): shorten the texts, or lengthen the rows"
            )
        _require_groups(pair, queries, group_size, keep)
        if r_drop and not (config.dropout or config.attention_dropout):
            raise ValueError(
                "CrossEncoder.r_drop: two passes without dropout are the same: expected a rate "
                f"above 0 in {type(config).__name__}, found none"
            )
        self.config = config
        self.vocabulary = vocabulary
        self.pair = pair
        self.query_length, self.passage_length = query_length, passage_length
        self.query_prefix, self.passage_prefix = query_prefix, passage_prefix
        self.queries, self.group_size, self.keep = queries, group_size, keep
        self.r_drop = r_drop
        self.encoder = config.build(rngs)
        self.pooler = heads.PairPooler(config, rngs=rngs)
        self.classifier = heads.score_head(config, rngs=rngs)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        per_segment = (self.pair.rows, self.pair.segments)
        extra = {
            name: jax.ShapeDtypeStruct(per_segment, jnp.int32)
            for name in ("relevance", "document_id")
        }
        return [{"pair": {**self._spec(), **extra}}]

    def _spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        per_token = (self.pair.rows, self.pair.length)
        return {**self.pair.spec(), "token_types": jax.ShapeDtypeStruct(per_token, jnp.int32)}

    def contract(self) -> Contract:
        """It has no vectors: 'score' is its similarity, and its dimension is 1."""
        return Contract(
            pooling=self.config.pair_head.pooling,
            normalise=False,
            similarity="score",
            temperature=1.0,
            dimension=1,
            query_length=self.query_length,
            passage_length=self.passage_length,
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
            passage_layout=TEXT,
            vocabulary_size=self.vocabulary.size,
            tokenizer_fingerprint=self.vocabulary.fingerprint,
        )

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Keeps each query's positive and hardest negatives, scored without dropout."""
        if self.keep == self.group_size:
            return batch
        pair, shape = batch["pair"], (self.queries, self.group_size)
        valid = pair["segment_valid"].reshape(shape)
        kept = listwise.hardest(self.score(pair).reshape(shape), valid, self.keep)

        def chosen(feature: jax.Array) -> jax.Array:
            grouped = feature.reshape(*shape, *feature.shape[1:])
            index = kept.reshape(*kept.shape, *(1,) * (feature.ndim - 1))
            return jnp.take_along_axis(grouped, index, axis=1).reshape(-1, *feature.shape[1:])

        return {**batch, "pair": {name: chosen(feature) for name, feature in pair.items()}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Mean over queries of -log softmax(scores of its passages)[positive], in nats.

        With `r_drop` see `listwise.r_drop`. Metrics: `accuracy` and `mrr` of the positive among
        the passages that are learned from, ties counting against it.
        """
        pair = batch["pair"]
        one_key, other_key = layers.split_key(key, 2)
        scores, valid = self._grouped(pair, self.score(pair, one_key))
        if self.r_drop:
            other, _ = self._grouped(pair, self.score(pair, other_key))
            loss = listwise.r_drop(scores, other, valid)
        else:
            loss = listwise.cross_entropy(scores, valid)
        above = jnp.sum((scores[:, 1:] >= scores[:, :1]) & valid[:, 1:], axis=1)
        counts = listwise.counts(valid)
        return loss, {
            "accuracy": MetricSum.of(above == 0, counts),
            "mrr": MetricSum.of(1 / (1 + above), counts),
        }

    def _grouped(self, pair: Group, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Scores [B, S] as [Q, keep], the positive first, and which of them are there."""
        owner, valid = pair["example_id"].reshape(-1), pair["segment_valid"].reshape(-1)
        relevant = valid & (pair["relevance"].reshape(-1) == 1)
        (first,) = jnp.nonzero(relevant, size=self.queries, fill_value=owner.size)
        ids = jnp.take(owner, first, mode="fill", fill_value=-1)
        rows = groups.own_rows(ids, first < owner.size, owner, relevant, valid, self.keep)
        grouped = jnp.take(scores.reshape(-1), rows, mode="fill", fill_value=0.0)
        return grouped, rows < owner.size

    def score(self, pair: Group, key: jax.Array | None = None) -> jax.Array:
        """[B, S] float32: how well each query and passage go together; 0 where there is none.

        Args:
            pair: a token group; of one without `token_types`, as a served program has it, the
                passage begins after the first [SEP] of a segment.
            key: for dropout; None turns it off.
        """
        if "token_types" not in pair and self.config.type_vocab > 1:
            types = projected_encoder.token_types(pair, self.vocabulary.sep, self.config.type_vocab)
            pair = {**pair, "token_types": types}
        pooled = self.pooler(self.encoder, pair, key)
        scores = self.classifier(pooled)[:, :, 0].astype(jnp.float32)
        return jnp.where(pair["segment_valid"], scores, 0.0)

    def functions(self) -> dict[str, ModelFunction]:
        """`score`: [B, S] of a token group of pairs, without dropout."""
        return {"score": ModelFunction(self.score, self._spec(), "[B, S] float32", "score")}


def _require_fit(config: TokenEncoderConfig, vocabulary: Vocabulary, length: int) -> None:
    if config.vocab_size != vocabulary.size or length > config.max_positions:
        raise ValueError(
            f"CrossEncoder: expected an encoder for the tokenizer's {vocabulary.size} tokens and "
            f"pairs of up to {length}, found "
            f"{type(config).__name__}.vocab_size {config.vocab_size} and "
            f"max_positions {config.max_positions}"
        )


def _require_groups(pair: GroupShape, queries: int, group_size: int, keep: int) -> None:
    if group_size < 2 or not 2 <= keep <= group_size:
        raise ValueError(
            "CrossEncoder: expected a group_size of 2 or more (of one passage alone the loss would "
            f"be 0), and keep from 2 to group_size; found {group_size} and {keep}"
        )
    if queries < 1 or queries * group_size > pair.rows * pair.segments:
        raise ValueError(
            f"CrossEncoder: {queries} queries with {group_size} passages each do not fit {pair}"
        )
    one_a_row = pair.segments == 1 and pair.rows == queries * group_size
    if keep < group_size and not one_a_row:
        raise ValueError(
            f"CrossEncoder.keep: to learn from {keep} of {group_size} passages, each pair needs a "
            f"separate row: expected {queries * group_size} rows of 1 segment, found {pair}"
        )
