"""M3: a vector, weights of words and a vector for each token, all from one pass of one encoder.

Chen et al. 2024, arXiv:2402.03216, with the facts of the official code. Each kind of representation
learns to score a query's positive above the other passages of the global batch, and so does the
weighted sum of their scores; from some step on, each kind learns from that sum, too. Facts and
pitfalls are in docs/m3.md.

Pairs are matched by `example_id`, so that rows may be packed and in any order.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive, joint_batch, joint_losses
from models.losses.joint_losses import JointLossConfig
from models.networks import layers, pooling, text_embedding, token_representations
from t5x_style.distributed import collectives
from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricLimit, MetricSum
from t5x_style.interfaces.objective import EMBED, Batch, Group, GroupShape, ModelFunction, Objective
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    PASSAGE,
    QUERY,
    SEGMENTS,
    SPARSE,
    Representations,
)

ALL = "all"  # the weighted sum of the scores of all kinds


class Updates(nnx.Variable):
    """Count of parameter updates."""


class M3(Objective):
    """See the module's docstring.

    Args:
        config: the encoder.
        embedding_config: pooling of the vector, temperature, lengths.
        vocabulary: of the tokenizer.
        query, passage: sizes of the two token groups of a global batch.
        loss_config: which kinds there are, and what they learn.
        group_size: G, the most passages that come with a query.
        known_positives: K, how many documents known to answer it a query names, see `BiEncoder`.
        vector_size: d, of the vectors of tokens; None: the encoder's width.
        distil_after: steps without self-distillation; None: there is none, and of one kind alone
            there never is. The official code begins at once, the paper after some 6,000 steps.
        exchange: 'gather' or 'ring', how devices see the passages of all; see docs/contrastive.md.
        cells: numbers of a tile of scores on a device, at most; see `joint_scores`.
        encode_chunks: pieces in which a batch is encoded, see `BiEncoder`.
        matryoshka: numbers of first dimensions of the vectors of tokens that are trained as
            vectors, too (arXiv:2205.13147; of tokens arXiv:2408.16672): for each, the contrastive
            loss of their MaxSim, with the kind's weight, is added. Metrics are of whole vectors.
        token_vector_size: how many first dimensions the vectors of tokens of a trained model are
            cut to, see `Contract`; one of its `matryoshka`. None: all.
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
        loss_config: JointLossConfig,
        group_size: int,
        known_positives: int = 0,
        vector_size: int | None = None,
        distil_after: int | None = None,
        exchange: str = "gather",
        cells: int = 1 << 24,
        encode_chunks: int = 1,
        matryoshka: Sequence[int] = (),
        token_vector_size: int | None = None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, "M3")
        text_embedding.require_fit(config, embedding_config, vocabulary)
        kinds = tuple(loss_config.weights)
        representation.require_kinds(kinds, representation.KINDS, "M3: JointLossConfig.weights")
        if min(group_size, cells, encode_chunks) < 1 or (distil_after or 0) < 0:
            raise ValueError(
                "M3: expected group_size, cells and encode_chunks of at least 1, and distil_after "
                f"of at least 0 or None, found {group_size}, {cells}, {encode_chunks} and "
                f"{distil_after}"
            )
        if exchange not in collectives.EXCHANGES:
            raise ValueError(
                f"M3.exchange: expected one of {collectives.EXCHANGES}, found {exchange!r}"
            )
        if embedding_config.similarity == "cosine" and not embedding_config.normalise:
            raise ValueError(
                "M3: similarity 'cosine' compares vectors of unit length: expected "
                "EmbeddingConfig.normalise True, found False"
            )
        self.config, self.embedding_config = config, embedding_config
        self.vocabulary = vocabulary
        self.query, self.passage = query, passage
        self.loss_config = loss_config
        self.kinds = kinds
        self.group_size = group_size
        self.known_positives = known_positives
        self.distil_after = distil_after if len(kinds) > 1 else None  # no sum to learn from
        self.exchange, self.cells = exchange, cells
        self.encode_chunks = encode_chunks
        size = config.hidden if vector_size is None else vector_size
        self.matryoshka = _shorter_lengths(matryoshka, loss_config, size)
        self.token_vector_size = _kept_size(token_vector_size, kinds, size)
        self.encoder = config.build(rngs)
        if SPARSE in kinds:
            # A shared word scores 1 after the temperature.
            start = math.sqrt(embedding_config.temperature)
            self.sparse = token_representations.WordWeights(config, vocabulary, start, rngs=rngs)
        if MULTI_VECTOR in kinds:
            self.multi_vector = token_representations.TokenVectors(
                config, size, kept=self.token_vector_size, rngs=rngs
            )
        if self.distil_after is not None:
            self.updates = Updates(jnp.zeros((), jnp.int32))

    @property
    def limits(self) -> tuple[MetricLimit, ...]:
        """Texts without any sparse weight find nothing, and are not found."""
        if SPARSE not in self.kinds:
            return ()
        advice = (
            "Tokens whose weight is 0 get no gradient. Lower the learning rate, raise the weight "
            "of sparse in KIND_WEIGHTS, begin self-distillation later (DISTIL_AFTER), or leave "
            "sparse out of KIND_WEIGHTS."
        )
        return tuple(
            MetricLimit(
                f"empty_{side}", 0.05, 0.5, f"the share of {what} without any sparse weight", advice
            )
            for side, what in ((QUERY, "queries"), (PASSAGE, "passages"))
        )

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        taught = self.loss_config.teacher is not None
        spec = contrastive.batch_spec(self.query, self.passage, self.known_positives, taught)
        return [spec]

    def contract(self) -> Contract:
        """See `Objective`; but for two fields it speaks of the vector."""
        return dataclasses.replace(
            self.embedding_config.contract(self.config.hidden, self.vocabulary),
            token_vector_size=self.token_vector_size,
            trained_token_vector_sizes=self.matryoshka,
        )

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Mean over queries whose positive is in the batch, see `joint_losses.combined`.

        Metrics: `loss_<kind>` of each kind and of their sum, 'all'; `distilled_<kind>`; of sparse
        `empty_<side>`, the share of texts without any weight, and `terms_<side>`, the mean number
        of weights of a text.
        """
        made = self.represent_batch(batch, key)
        scores, has = self._compared(batch, made, self.loss_config)
        losses = joint_losses.by_kind(scores, self.loss_config)
        each = joint_losses.combined(losses, self._weights(), self._distilling())
        names = [*self.kinds, ALL][: losses.contrastive.shape[1]]
        metrics = {}
        for n, name in enumerate(names):
            metrics[f"loss_{name}"] = MetricSum.of(losses.contrastive[:, n], has)
        if self.distil_after is not None:
            for n, kind in enumerate(self.kinds):
                metrics[f"distilled_{kind}"] = MetricSum.of(losses.distilled[:, n], has)
        loss = MetricSum.of(each, has)
        for length in self.matryoshka:
            loss += self._loss_of_shorter(batch, made, length)
        return loss, metrics | self._density(batch, made)

    def _loss_of_shorter(
        self, batch: Batch, made: Mapping[str, Representations], length: int
    ) -> MetricSum:
        """The contrastive loss of the first dimensions of the vectors of tokens."""
        alone = {MULTI_VECTOR: 1.0}
        config = dataclasses.replace(self.loss_config, weights=alone, in_sum=alone)
        short = {}
        for side in (QUERY, PASSAGE):
            vectors = token_representations.shorter(made[side][MULTI_VECTOR], length)
            short[side] = {MULTI_VECTOR: self._scored(side, vectors, batch[side])}
        scores, has = self._compared(batch, short, config)
        each = joint_losses.by_kind(scores, config).contrastive[:, 0]
        return self.loss_config.weights[MULTI_VECTOR] * MetricSum.of(each, has)

    def represent_batch(
        self, batch: Batch, key: jax.Array | None = None
    ) -> dict[str, Representations]:
        """Side -> its representations, of all kinds."""

        def one(side: str, key: jax.Array | None) -> Representations:
            def run(module: M3, part: Group, key: jax.Array | None) -> Representations:
                return module.represent(side, part, module.kinds, key)

            return text_embedding.in_chunks(run, self, batch[side], self.encode_chunks, key)

        keys = layers.split_key(key, 2)
        return {side: one(side, key) for side, key in zip((QUERY, PASSAGE), keys, strict=True)}

    def represent(
        self, side: str, group: Group, kinds: Sequence[str], key: jax.Array | None = None
    ) -> Representations:
        """Of one pass of the encoder, see `interfaces.representation`.

        A query's vectors of tokens are divided by their number, so that their score is a mean.
        """
        if tuple(kinds) == (DENSE,):
            return {DENSE: text_embedding.embed(self.encoder, group, self.embedding_config, key)}
        hidden = self.encoder(
            group["tokens"], group["positions"], group["segment_ids"], group.get("token_types"), key
        )
        return self.of_states(side, hidden, group, kinds)

    def of_states(
        self, side: str, hidden: jax.Array, group: Group, kinds: Sequence[str]
    ) -> Representations:
        """As `represent`, from the states [B, L, D]."""
        made: dict[str, Any] = {}
        if DENSE in kinds:
            made[DENSE] = self._dense(hidden, group)
        if SPARSE in kinds:
            made[SPARSE] = self.sparse(hidden, group)
        if MULTI_VECTOR in kinds:
            made[MULTI_VECTOR] = self._scored(side, self.multi_vector(hidden, group), group)
        return made

    def _scored(
        self, side: str, vectors: Mapping[str, jax.Array], group: Group
    ) -> Mapping[str, jax.Array]:
        """Vectors of unit length, those of a query such that their score is a mean."""
        if side == PASSAGE:
            return vectors
        return token_representations.per_query_mean(vectors, group["cls_at"].shape[1])

    def _dense(self, hidden: jax.Array, group: Group) -> jax.Array:
        config = self.embedding_config
        vectors = pooling.of_states(hidden, group, config.pooling)
        return text_embedding.finished(vectors, group, config)

    def _compared(
        self, batch: Batch, made: Mapping[str, Representations], config: JointLossConfig
    ) -> tuple[joint_losses.Scores, jax.Array]:
        return joint_batch.compared(
            batch, made, config,
            temperature=self.embedding_config.temperature,
            group_size=self.group_size,
            known_positives=self.known_positives > 0,
            exchange=self.exchange,
            cells=self.cells,
        )  # fmt: skip

    def _weights(self) -> jax.Array:
        return jnp.asarray([self.loss_config.weights[kind] for kind in self.kinds])

    def _distilling(self) -> jax.Array | bool:
        return False if self.distil_after is None else self.updates[...] >= self.distil_after

    def _density(self, batch: Batch, made: Mapping[str, Representations]) -> dict[str, MetricSum]:
        if SPARSE not in self.kinds:
            return {}
        metrics = {}
        for side in (QUERY, PASSAGE):
            numbers, valid = made[side][SPARSE][SEGMENTS], batch[side]["segment_valid"]
            texts = jnp.arange(1, valid.shape[1] + 1)
            terms = jnp.sum(numbers[:, :, None] == texts, axis=1)  # [B, S]
            metrics[f"empty_{side}"] = MetricSum.of(terms == 0, valid)
            metrics[f"terms_{side}"] = MetricSum.of(terms, valid)
        return metrics

    def after_update(self, step: jax.Array, key: jax.Array) -> None:
        """Counts the steps before self-distillation begins."""
        if self.distil_after is not None:
            self.updates[...] = jnp.asarray(step, jnp.int32)

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`."""
        return {
            representation.function_name(side): ModelFunction(
                lambda group, kinds, side=side: self.represent(side, group, kinds),
                shape.spec(),
                "representations of the kinds that are asked for",
                EMBED,
                side=side,
                representations=self.kinds,
            )
            for side, shape in ((QUERY, self.query), (PASSAGE, self.passage))
        }


def _shorter_lengths(lengths: Sequence[int], config: JointLossConfig, size: int) -> tuple[int, ...]:
    """Raises ValueError unless the loss has vectors of tokens, which are longer."""
    if lengths and not config.weights.get(MULTI_VECTOR):
        raise ValueError(
            "M3.matryoshka: expected a weight above 0 of 'multi_vector' in JointLossConfig.weights "
            f"(KIND_WEIGHTS), found {dict(config.weights)}"
        )
    return text_embedding.shorter_lengths(lengths, size, "M3.matryoshka")


def _kept_size(size: int | None, kinds: Sequence[str], whole: int) -> int | None:
    """Raises ValueError unless there are vectors of tokens, of this size at least."""
    if size is not None and MULTI_VECTOR not in kinds:
        raise ValueError(
            "M3.token_vector_size: expected 'multi_vector' in JointLossConfig.weights "
            f"(KIND_WEIGHTS), found {list(kinds)}"
        )
    return token_representations.kept_size(size, whole, "M3.token_vector_size")
