"""ColBERT: a vector for each token, and late interaction by MaxSim.

Khattab and Zaharia 2020, arXiv:2004.12832. The state of each token is projected, without bias, and
brought to unit length. The score of a passage is the sum over the query's vectors of the largest
inner product with one of the passage's. Queries are brought to one length with [MASK], whose
vectors count, too; passages have no vectors of punctuation. A query learns to score its positive
above the passages that came with it, and above those of all other queries of the global batch.

Pairs are matched by `example_id`, so that rows may be packed and in any order. Facts are in
docs/colbert.md. Letters: B rows, S segments a row, L row length, N length of a query, d size of the
vectors.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import contrastive, joint_batch, joint_losses
from models.losses.joint_losses import JointLossConfig
from models.networks import layers, query_augmentation, text_embedding, token_representations
from t5x_style.distributed import collectives
from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import EMBED, Batch, Group, GroupShape, ModelFunction, Objective
from t5x_style.interfaces.representation import (
    MULTI_VECTOR,
    PASSAGE,
    QUERY,
    SEGMENTS,
    Representations,
)


class ColBERT(Objective):
    """See the module's docstring.

    Args:
        config: the encoder.
        embedding_config: temperature, 1 in the paper, and lengths; N is its query_length. Vectors
            have unit length.
        vocabulary: of the tokenizer.
        query, passage: sizes of the two token groups of a global batch.
        loss_config: of the kind 'multi_vector' alone; perhaps with a teacher.
        group_size: the most passages that come with a query.
        punctuation: ids of tokens that passages have no vectors of.
        known_positives: K, how many documents known to answer it a query names, see `BiEncoder`.
        vector_size: d.
        exchange: 'gather' or 'ring', how devices see the passages of all; see docs/contrastive.md.
        cells: numbers of a tile of scores on a device, at most; see `joint_scores`.
        encode_chunks: pieces in which a batch is encoded, see `BiEncoder`.
        matryoshka: numbers of first dimensions that are trained as vectors, too (arXiv:2205.13147;
            of tokens arXiv:2408.16672): for each, the loss of their MaxSim is added. The metric is
            of whole vectors.
        token_vector_size: how many first dimensions the vectors of a trained model are cut to, see
            `Contract`; one of its `matryoshka`. None: all.
        rngs: stream `params`.

    Raises:
        ValueError: sizes or settings that do not fit each other.
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
        punctuation: Sequence[int],
        known_positives: int = 0,
        vector_size: int = 128,
        exchange: str = "gather",
        cells: int = 1 << 24,
        encode_chunks: int = 1,
        matryoshka: Sequence[int] = (),
        token_vector_size: int | None = None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_token_states(config, "ColBERT")
        text_embedding.require_fit(config, embedding_config, vocabulary)
        _require_unit_length(embedding_config)
        kinds = tuple(loss_config.weights)
        representation.require_kinds(kinds, (MULTI_VECTOR,), "ColBERT: JointLossConfig.weights")
        if min(group_size, vector_size, cells, encode_chunks) < 1:
            raise ValueError(
                "ColBERT: expected group_size, vector_size, cells and encode_chunks of at least 1, "
                f"found {group_size}, {vector_size}, {cells} and {encode_chunks}"
            )
        if exchange not in collectives.EXCHANGES:
            raise ValueError(
                f"ColBERT.exchange: expected one of {collectives.EXCHANGES}, found {exchange!r}"
            )
        self.matryoshka = text_embedding.shorter_lengths(
            matryoshka, vector_size, "ColBERT.matryoshka"
        )
        self.token_vector_size = token_representations.kept_size(
            token_vector_size, vector_size, "ColBERT.token_vector_size"
        )
        _require_words(punctuation, vocabulary)
        self.config, self.embedding_config = config, embedding_config
        self.vocabulary = vocabulary
        self.query, self.passage = query, passage
        self.loss_config = loss_config
        self.group_size = group_size
        self.punctuation = tuple(punctuation)
        self.known_positives = known_positives
        self.vector_size = vector_size
        self.exchange, self.cells = exchange, cells
        self.encode_chunks = encode_chunks
        self.encoder = config.build(rngs)
        self.multi_vector = token_representations.TokenVectors(
            config, vector_size, bias=False, kept=self.token_vector_size, rngs=rngs
        )

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        taught = self.loss_config.teacher is not None
        return [contrastive.batch_spec(self.query, self.passage, self.known_positives, taught)]

    def contract(self) -> Contract:
        """See `Objective`; the pooling is 'colbert', the dimension d."""
        return dataclasses.replace(
            self.embedding_config.contract(self.vector_size, self.vocabulary),
            pooling="colbert",
            token_vector_size=self.token_vector_size,
            trained_token_vector_sizes=self.matryoshka,
        )

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Mean over queries whose positive is in the batch, see `joint_losses.by_kind`.

        Metric `positive_similarity`: the mean cosine of a query's vectors with those of the
        positive that they are most like.
        """
        keys = dict(zip((QUERY, PASSAGE), layers.split_key(key, 2), strict=True))

        def represented(side: str) -> Representations:
            def run(module: ColBERT, part: Group, key: jax.Array | None) -> Representations:
                return module.represent(side, part, key)

            return text_embedding.in_chunks(run, self, batch[side], self.encode_chunks, keys[side])

        made = {side: represented(side) for side in (QUERY, PASSAGE)}
        loss, scores, has = self._loss_of(batch, made)
        temperature = self.embedding_config.temperature
        similarity = scores.own[:, 0, 0] * temperature / self.embedding_config.query_length
        metrics = {"positive_similarity": MetricSum.of(similarity, has)}
        for length in self.matryoshka:
            short = {
                side: {MULTI_VECTOR: token_representations.shorter(one[MULTI_VECTOR], length)}
                for side, one in made.items()
            }
            loss += self._loss_of(batch, short)[0]
        return loss, metrics

    def _loss_of(
        self, batch: Batch, made: Mapping[str, Representations]
    ) -> tuple[MetricSum, joint_losses.Scores, jax.Array]:
        """The loss of vectors of one size; scores of Q queries, [Q] whether a positive is there."""
        scores, has = joint_batch.compared(
            batch, made, self.loss_config,
            temperature=self.embedding_config.temperature,
            group_size=self.group_size,
            known_positives=self.known_positives > 0,
            exchange=self.exchange,
            cells=self.cells,
        )  # fmt: skip
        each = joint_losses.by_kind(scores, self.loss_config).contrastive[:, 0]
        return MetricSum.of(each, has), scores, has

    def represent(self, side: str, group: Group, key: jax.Array | None = None) -> Representations:
        """The multi_vector representation, see `interfaces.representation`.

        A query has N vectors, E = S x N. A passage has one for each token but punctuation, E = L.
        """
        if side == PASSAGE:
            without = jnp.asarray(self.punctuation, group["tokens"].dtype)
            excluded = jnp.isin(group["tokens"], without)
            segments = jnp.where(excluded, 0, group["segment_ids"])
            return {MULTI_VECTOR: self.multi_vector.of(self._states(group, key), segments)}
        length = self.embedding_config.query_length
        alone = query_augmentation.augmented(group, self.vocabulary.mask, length)
        found = self.multi_vector.of(self._states(alone, key), alone["segment_ids"])
        rows, texts = group["cls_at"].shape
        numbers = jnp.arange(1, texts + 1, dtype=jnp.int32)[:, None]
        segments = found[SEGMENTS].reshape(rows, texts, length) * numbers
        vectors = found["vectors"].reshape(rows, texts * length, -1)
        return {MULTI_VECTOR: {SEGMENTS: segments.reshape(rows, -1), "vectors": vectors}}

    def _states(self, group: Group, key: jax.Array | None) -> jax.Array:
        """[B, L, D]"""
        return self.encoder(
            group["tokens"], group["positions"], group["segment_ids"], group.get("token_types"), key
        )

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`."""
        return {
            representation.function_name(side): ModelFunction(
                lambda group, kinds, side=side: self.represent(side, group),
                shape.spec(),
                "a vector for each token",
                EMBED,
                side=side,
                representations=(MULTI_VECTOR,),
            )
            for side, shape in ((QUERY, self.query), (PASSAGE, self.passage))
        }


def _require_unit_length(config: text_embedding.EmbeddingConfig) -> None:
    """Raises ValueError unless vectors are compared by cosine."""
    if config.similarity != "cosine" or not config.normalise:
        raise ValueError(
            "ColBERT compares vectors of unit length: expected EmbeddingConfig.similarity 'cosine' "
            f"and normalise True, found {config.similarity!r} and {config.normalise}"
        )


def _require_words(punctuation: Sequence[int], vocabulary: Vocabulary) -> None:
    """Raises ValueError unless ids are of the vocabulary, and not of special tokens."""
    wrong = [
        token
        for token in punctuation
        if not 0 <= token < vocabulary.size or token in vocabulary.special_ids
    ]
    if wrong:
        raise ValueError(
            f"ColBERT.punctuation: expected ids below {vocabulary.size} that are of no special "
            f"token, found {wrong}. Take them from the model's tokenizer (punctuation.token_ids)."
        )
