"""coCondenser: Condenser, and a contrastive loss between two spans of each document.

Gao and Callan 2021, arXiv:2108.05540, with the facts of the official code. A batch holds two spans
of each of n documents. With h the last [CLS] states of the 2n masked spans, and span j the partner
of span i,

    loss = Condenser's loss + mean over i of -log( exp(h_i . h_j) / sum_{k != i} exp(h_i . h_k) )

over the spans of the global batch. One pass of the encoder serves both parts. Facts are in
docs/condenser.md.

Letters: B rows, L row length, S segments a row, N segments of all rows, D hidden width.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive
from models.losses.negative_masks import NOBODY
from models.networks import layers, pooling, text_embedding
from models.objectives.condensed_text import CondensedText
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, Group, GroupShape, ModelFunction
from t5x_style.interfaces.representation import PASSAGE, QUERY

SIDES = (QUERY, PASSAGE)  # groups of a batch: the first and the second span of each document
_OWN_SIDE = ("query_passage", "query_query")  # each span is compared with all spans of both sides


class Spans(NamedTuple):
    """Metadata of the spans of some rows.

    Attributes:
        vectors: [B, S, D] float32, last [CLS] states.
        sums: name -> [B, 2] float32: totals and weights of mean losses, an equal share a row, so
            that rows may be read a chunk at a time.
    """

    vectors: jax.Array
    sums: dict[str, jax.Array]


class CoCondenser(CondensedText):
    """See the module's docstring. Spans of a document are matched by `example_id`.

    Args:
        config, vocabulary, mask_rate, chunk, skip_from, head_layers, late_mlm: see `CondensedText`.
        embedding_config: pooling is `cls`, similarity `dot` without normalisation; the temperature
            is 1 in the paper.
        query, passage: sizes of the two token groups of a global batch, which hold one span of each
            document each. `passage` carries `document_id` [B, S] int32: no spans of one document
            are negatives of each other; and `relevance` [B, S] int32, 1 throughout.
        contrastive_config: how devices share the loss, see `ContrastiveConfig`.
        contrastive_weight: of the contrastive loss; 1 in the paper.
        encode_chunks: pieces in which a batch is read, one after another, to save memory
            (GradCache, the paper's section 3.3).
        rngs: stream `params`.

    Raises:
        ValueError: settings that do not fit each other.
    """

    requires_full_batch = True

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        passage: GroupShape,
        mask_rate: float,
        chunk: int,
        skip_from: int,
        contrastive_config: contrastive.ContrastiveConfig,
        head_layers: int = 2,
        late_mlm: bool = True,
        contrastive_weight: float = 1.0,
        encode_chunks: int = 1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        _require_settings(embedding_config, contrastive_config, contrastive_weight, encode_chunks)
        contrastive.require_both_on_one_device(contrastive_config, query, passage)
        super().__init__(
            config, embedding_config, vocabulary, passage, mask_rate, chunk, skip_from,
            head_layers, late_mlm, rngs=rngs,
        )  # fmt: skip
        self.query, self.passage = query, passage
        self.contrastive_config = dataclasses.replace(contrastive_config, blocks=_OWN_SIDE)
        self.contrastive_weight = contrastive_weight
        self.encode_chunks = encode_chunks

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """One bucket: the groups `query` and `passage`."""
        return [contrastive.batch_spec(self.query, self.passage, 0, False)]

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Masks both groups, each with its own draws, as `CondensedText.corrupt`."""
        keys = jax.random.split(key, len(SIDES))
        masked = {
            side: super(CoCondenser, self).corrupt({"text": batch[side]}, one)["text"]
            for side, one in zip(SIDES, keys, strict=True)
        }
        return {**batch, **masked}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See the module's docstring: nats per masked token, and nats per span.

        Metrics: Condenser's; `contrastive`, before its weight; and `accuracy` and `mrr` of a span's
        partner among all other spans.
        """
        read = {
            side: text_embedding.in_chunks(
                CoCondenser.read_spans, self, batch[side], self.encode_chunks, one
            )
            for side, one in zip(SIDES, layers.split_key(key, len(SIDES)), strict=True)
        }
        metrics = {}
        for name, first in read[QUERY].sums.items():
            total, weight = jnp.sum(first, axis=0) + jnp.sum(read[PASSAGE].sums[name], axis=0)
            metrics[name] = MetricSum(total[None], weight[None])
        loss = metrics["head_loss"]
        if self.late_mlm:
            loss = loss + metrics["late_loss"]
        flat = [read[side].vectors.reshape(-1, self.config.hidden) for side in SIDES]
        between, found = between_spans(
            contrastive.Queries.of(flat[0], batch[QUERY]),
            contrastive.Passages.of(flat[1], batch[PASSAGE]),
            self.embedding_config.temperature,
            self.contrastive_config,
        )
        return loss + self.contrastive_weight * between, metrics | found | {"contrastive": between}

    def read_spans(self, group: Group, key: jax.Array | None = None) -> Spans:
        """Vectors and MLM losses of a corrupted group.

        Args:
            group: from `corrupt`.
            key: for dropout; None turns it off.
        """
        text = dict(group)
        encoder_key, head_key = layers.split_key(key, 2)
        early, late = self.early_and_late(text, encoder_key)
        _, condensed = self.condense(text, early, late, head_key)
        rows, length = text["tokens"].shape
        budget = self.mask.row_budget(length, text["example_id"].shape[1])
        states = {"head": condensed} | ({"late": late} if self.late_mlm else {})
        sums = {}
        for name, hidden in states.items():
            means = self.predict(hidden, text["labels"], budget)
            for kind, mean in zip(("loss", "accuracy"), means, strict=True):
                both = jnp.concatenate([mean.total, mean.weight])
                sums[f"{name}_{kind}"] = jnp.broadcast_to(both / rows, (rows, 2))
        vectors = pooling.pool_cls(late, text["cls_at"]).astype(jnp.float32)
        return Spans(jnp.where(text["segment_valid"][:, :, None], vectors, 0.0), sums)

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`: of unmasked texts."""
        return text_embedding.functions(
            self.encoder, self.embedding_config, self.query, self.passage
        )


def between_spans(
    first: contrastive.Queries,
    second: contrastive.Passages,
    temperature: float,
    config: contrastive.ContrastiveConfig,
) -> tuple[MetricSum, dict[str, MetricSum]]:
    """NT-Xent: the mean over the spans of both sides, with the spans of both sides as negatives.

    Args:
        first, second: one span of each document each, of the global batch.
        temperature: what inner products are divided by.
        config: with the blocks `query_passage` and `query_query`.

    Returns:
        The loss in nats per span, and metrics `accuracy` and `mrr`; spans without a partner in the
        batch count nothing.
    """
    partner = contrastive.own_passages(first, second, 1)[:, 0]
    document = jnp.take(second.document, partner, mode="fill", fill_value=NOBODY)
    nothing_known = jnp.zeros((second.owner.shape[0], 0), jnp.int32)
    seconds = contrastive.Queries(second.vectors, second.owner, second.valid, nothing_known)
    firsts = contrastive.Passages(
        first.vectors, first.id, document, jnp.ones_like(first.valid), first.valid
    )
    one, metrics = contrastive.info_nce(first, second, temperature, config)
    other, more = contrastive.info_nce(seconds, firsts, temperature, config)
    return one.merge(other), {name: mean.merge(more[name]) for name, mean in metrics.items()}


def _require_settings(
    embedding: text_embedding.EmbeddingConfig,
    config: contrastive.ContrastiveConfig,
    weight: float,
    encode_chunks: int,
) -> None:
    if embedding.similarity != "dot" or embedding.normalise:
        raise ValueError(
            "CoCondenser compares [CLS] states: expected EmbeddingConfig.similarity 'dot' and "
            f"normalise False, found {embedding.similarity!r} and {embedding.normalise}"
        )
    plain = contrastive.ContrastiveConfig(exchange=config.exchange, chunk=config.chunk)
    if config != plain:
        raise ValueError(
            "CoCondenser.contrastive_config: its loss fixes all but exchange and chunk: expected "
            f"{plain}, found {config}"
        )
    if weight < 0 or encode_chunks < 1:
        raise ValueError(
            "CoCondenser: expected contrastive_weight of 0 or more and encode_chunks of 1 or more, "
            f"found {weight} and {encode_chunks}"
        )
