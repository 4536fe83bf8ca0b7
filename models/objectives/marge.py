"""MARGE: texts written from the evidence that was retrieved for them, and nothing else.

Lewis et al. 2020, arXiv:2006.15020; no official code or weights were published. A sub-batch holds
targets x and evidence z, documents that resemble each other. Each target is written token by token
by a decoder that looks at all tokens of all evidence of its sub-batch together:

    attention = softmax over the tokens of z_1 .. z_M of ( Q . K / sqrt(d) + beta f(x, z_j) )
    f(x, z)   = cos( g(x), g(z) )
    loss      = - mean over the tokens of all targets of log p(token | tokens before it, evidence)

g is the first token's state after the first layers of the encoder that reads the evidence. What
teaches g to retrieve is beta f alone. Facts are in docs/marge.md.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.losses import cross_entropy
from models.networks import decoding, layers, seq2seq, text_embedding, token_encoder
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import (
    Batch,
    GroupShape,
    ModelFunction,
    Objective,
    dense_functions,
)

Group = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class RelevanceConfig:
    """How evidence is weighed.

    Attributes:
        layers: of the encoder, after which g is read (the paper: 4).
        beta: what the trained factor of f begins with.
    """

    layers: int
    beta: float = 1.0


class Marge(Objective):
    """See the module's docstring.

    Rows of `target` and `evidence` belong together, row by row, and may hold several sub-batches.

    Args:
        config: the encoder.
        decoder_config: the decoder.
        relevance_config: f.
        embedding_config: lengths; pooling `cls`, similarity `cosine`.
        vocabulary: of the tokenizer.
        target, evidence: sizes of the two token groups, as many rows of each. Both carry
            `sub_batch` [B, S] int32: a target sees the evidence of an equal number in its row.
            `target` carries `language` [B, S] int32, in the decoder in place of [CLS].
        chunk: positions whose logits exist at a time on a device.
        generation_config: how `generate` writes.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        decoder_config: seq2seq.DecoderConfig,
        relevance_config: RelevanceConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        target: GroupShape,
        evidence: GroupShape,
        chunk: int,
        generation_config: decoding.GenerationConfig,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        text_embedding.require_cls(embedding_config, "Marge")
        _require_marge(config, relevance_config, target, evidence)
        lengths = {
            "GenerationConfig.length": generation_config.length,
            "EmbeddingConfig.query_length": embedding_config.query_length,
        }
        for name, length in lengths.items():
            if length > decoder_config.max_positions:
                raise ValueError(
                    f"{name}: expected at most {decoder_config.max_positions}, the decoder's "
                    f"max_positions, found {length}"
                )
        self.config = config
        self.relevance_config = relevance_config
        self.embedding_config = embedding_config
        self.vocabulary = vocabulary
        self.target, self.evidence = target, evidence
        self.chunk = chunk
        self.generation_config = generation_config
        self.encoder = config.build(rngs)
        self.decoder = seq2seq.Decoder(config, decoder_config, rngs=rngs)
        zeros = nnx.with_partitioning(nnx.initializers.zeros_init(), ("vocab",))
        self.bias = nnx.Param(zeros(rngs.params(), (config.padded_vocab,), jnp.float32))
        self.beta = nnx.Param(jnp.asarray(relevance_config.beta, jnp.float32))

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""

        def spec(shape: GroupShape, *extra: str) -> dict[str, jax.ShapeDtypeStruct]:
            per_segment = jax.ShapeDtypeStruct((shape.rows, shape.segments), jnp.int32)
            return {**shape.spec(), **dict.fromkeys(extra, per_segment)}

        return [
            {
                "target": spec(self.target, "sub_batch", "language"),
                "evidence": spec(self.evidence, "sub_batch"),
            }
        ]

    def contract(self) -> Contract:
        """See `Objective`: of g."""
        return self.embedding_config.contract(self.config.hidden, self.vocabulary)

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See the module's docstring, in nats a token; metrics `accuracy`, `beta`, `relevance`.

        `relevance` is the mean of f over the targets and the evidence that each sees.
        """
        for_target, for_evidence, for_decoder = layers.split_key(key, 3)
        states, embedded = self.encode(batch["evidence"], for_evidence)
        relevance = cosines(self.embed(batch["target"], for_target), embedded)
        loss, metrics = self.reconstruct(batch, states, relevance, for_decoder)
        together = seen(batch["target"], batch["evidence"])
        return loss, metrics | {
            "relevance": MetricSum.of(jax.lax.stop_gradient(relevance), together),
            "beta": MetricSum.of(jax.lax.stop_gradient(self.beta[...])),
        }

    def encode(self, evidence: Group, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """What the decoder reads, [B, K, D], and g of each segment, [B, S, D]; the latter float32.

        One pass gives both: g is read on the way.
        """
        early, states = self.encoder.early_and_late(
            evidence["tokens"],
            evidence["positions"],
            evidence["segment_ids"],
            self.relevance_config.layers,
            key=key,
        )
        at = evidence["cls_at"][:, :, None]
        return states, jnp.take_along_axis(early, at, axis=1).astype(jnp.float32)

    def embed(self, group: Group, key: jax.Array | None = None) -> jax.Array:
        """g of each segment: [B, S, D] float32."""
        first = token_encoder.FirstLayers(self.encoder, self.relevance_config.layers)
        return text_embedding.embed(first, group, self.embedding_config, key)

    def reconstruct(
        self, batch: Batch, states: jax.Array, relevance: jax.Array, key: jax.Array | None = None
    ) -> tuple[MetricSum, dict[str, MetricSum]]:
        """The loss of targets, given how relevant each evidence is to each.

        Args:
            batch: `target` and `evidence`.
            states: [B, K, D], of the evidence.
            relevance: f, [B, S_target, S_evidence] float32.
            key: for dropout; None turns it off.
        """
        target, evidence = batch["target"], batch["evidence"]
        read = seq2seq.Evidence(
            states,
            per_token(seen(target, evidence), target, evidence),
            self.beta[...] * per_token(relevance, target, evidence),
        )
        words = self.encoder.words(decoder_tokens(target))
        hidden = self.decoder(words, target["positions"], target["segment_ids"], read, key)
        loss, accuracy = cross_entropy.cross_entropy_mean(
            hidden,
            self.encoder.word_table,
            self.bias[...],
            next_tokens(target),
            vocab_size=self.config.vocab_size,
            chunk=self.chunk,
        )
        return loss, {"accuracy": accuracy}

    def generate(
        self,
        evidence: Group,
        language: jax.Array,
        config: decoding.GenerationConfig,
        key: jax.Array | None = None,
    ) -> decoding.Written:
        """Writes one text for each row of evidence, all of which it reads, all equally relevant.

        Args:
            evidence: token group of B rows.
            language: [B] int32, the token that each text begins with.
            config: how.
            key: for drawing.
        """
        states, _ = self.encode(evidence)
        graph, state = nnx.split(self.decoder)
        table = self.encoder.word_table
        shape = (language.shape[0], config.beams, states.shape[1])
        read = seq2seq.Evidence(
            states,
            jnp.broadcast_to(evidence["segment_ids"][:, None] > 0, shape),
            jnp.zeros(shape, jnp.float32),
        )
        column = jnp.arange(table.shape[0])
        possible = (column < self.config.vocab_size) & (column != self.vocabulary.pad)

        def step(
            tokens: jax.Array, at: jax.Array, cache: seq2seq.Cache
        ) -> tuple[jax.Array, seq2seq.Cache]:
            words = self.encoder.words(tokens)
            decoder = nnx.merge(graph, state, copy=True)  # of this trace, as scans want it
            hidden, cache = decoder.step(words, at, cache, read)
            logits = jnp.einsum(
                "bnd,vd->bnv", hidden, table.astype(hidden.dtype),
                preferred_element_type=jnp.float32,
            )  # fmt: skip
            return jnp.where(possible, logits + self.bias[...], -jnp.inf), cache

        cache = self.decoder.begin(states, config.beams, config.length)
        end, pad = self.vocabulary.sep, self.vocabulary.pad
        return decoding.write(step, cache, language, config, end=end, pad=pad, key=key)

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`: g of queries and passages, and `generate`.

        The latter takes a key, too, which is among its inputs where tokens are drawn, and decides
        nothing elsewhere.
        """
        language = jax.ShapeDtypeStruct((self.evidence.rows,), jnp.int32)

        def write(
            evidence: Group, language: jax.Array, key: jax.Array | None = None
        ) -> decoding.Written:
            return self.generate(evidence, language, self.generation_config, key)

        inputs = {"evidence": self.evidence.spec(), "language": language}
        if self.generation_config.temperature is not None:
            inputs["key"] = jax.eval_shape(lambda: jax.random.key(0))
        return {
            **dense_functions(self.embed, self.target, self.evidence),
            "generate": ModelFunction(
                write, inputs, "tokens [B, N, T] int32, scores [B, N]", "generate"
            ),
        }


def cosines(target: jax.Array, evidence: jax.Array) -> jax.Array:
    """f: [B, S_target, S_evidence] float32, from vectors [B, S, D]; 0 where a vector is zero."""
    return jnp.einsum("bsd,bed->bse", text_embedding.unit(target), text_embedding.unit(evidence))


def seen(target: Group, evidence: Group) -> jax.Array:
    """Which evidence each target reads: bool [B, S_target, S_evidence]."""
    same = target["sub_batch"][:, :, None] == evidence["sub_batch"][:, None, :]
    return same & target["segment_valid"][:, :, None] & evidence["segment_valid"][:, None, :]


def per_token(of_segments: jax.Array, target: Group, evidence: Group) -> jax.Array:
    """[B, T, K] of each token's segment, from [B, S_target, S_evidence]; False or 0 at padding."""
    rows, columns = target["segment_ids"], evidence["segment_ids"]
    padded = jnp.pad(of_segments, ((0, 0), (1, 0), (1, 0)))  # segment 0 is padding
    taken = jnp.take_along_axis(padded, rows[:, :, None], axis=1)  # [B, T, 1 + S_evidence]
    return jnp.take_along_axis(taken, columns[:, None, :], axis=2)


def decoder_tokens(target: Group) -> jax.Array:
    """[B, T] int32: the tokens, each segment's first in its language's place."""
    segment = jnp.maximum(target["segment_ids"] - 1, 0)
    language = jnp.take_along_axis(target["language"], segment, axis=1)
    return jnp.where(target["positions"] == 0, language, target["tokens"])


def next_tokens(target: Group) -> jax.Array:
    """[B, T] int32: next-token labels; -100 at each segment's end and padding."""
    ids = target["segment_ids"]

    def following(array: jax.Array) -> jax.Array:
        return jnp.pad(array[:, 1:], ((0, 0), (0, 1)))

    goes_on = (ids > 0) & (following(ids) == ids)
    return jnp.where(goes_on, following(target["tokens"]), cross_entropy.IGNORED)


def _require_marge(
    config: TokenEncoderConfig,
    relevance: RelevanceConfig,
    target: GroupShape,
    evidence: GroupShape,
) -> None:
    if not 1 <= relevance.layers <= config.layers:
        raise ValueError(
            f"RelevanceConfig.layers: expected 1 to {config.layers}, the encoder's, found "
            f"{relevance.layers}"
        )
    if target.rows != evidence.rows:
        raise ValueError(
            "Marge: expected as many rows of target as of evidence, which belong together row by "
            f"row, found {target.rows} and {evidence.rows}"
        )
