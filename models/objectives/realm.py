"""REALM: predicts a masked span of a sentence from blocks of text that it retrieves for it.

Guu et al. 2020, arXiv:2002.08909, with the facts of the official code (`language/realm`). An index
over the whole corpus proposes blocks for the masked sentence; the null document, of no text, is
added to them. Their relevance is scored again with the current parameters, p(z|x); a reader sees
the sentence with each block's body, p(y|z,x); and the likelihood of the masked tokens, summed over
blocks, trains reader and embedder alike: a block that helps becomes more likely to be retrieved.

Facts and pitfalls are in docs/realm.md. Letters: B sentences, K candidates with the null document
first, M masked tokens of a sentence, Q length of a sentence, L length of a block.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import evidence_layout
from models.corruption.span_masks import SpanMask
from models.losses import cross_entropy, marginal
from models.losses.cross_entropy import IGNORED
from models.networks import heads, layers, projected_encoder, text_embedding
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import (
    FILL,
    Batch,
    GroupShape,
    ModelFunction,
    Objective,
    TableSource,
)
from t5x_style.retrieval.device_index import (
    Corpus,
    DeviceIndex,
    DeviceIndexConfig,
    require_rows,
)
from t5x_style.retrieval.recall_probes import Answers, Probes

Group = Mapping[str, jax.Array]


class Scores(NamedTuple):
    """Attributes:
    relevance: [B, K] float32, f(x,z); -inf where there is no candidate.
    gold: [B, K, M] float32, log p(y_m|z,x).
    mask: [B, M] bool, which of the M are masked tokens.
    """

    relevance: jax.Array
    gold: jax.Array
    mask: jax.Array


class REALM(Objective):
    """See the module's docstring. Rows are not packed: one sentence a row.

    Args:
        config: the embedder's encoder.
        reader_config: the reader; its length fits a sentence and a block.
        projection: what follows the embedder's encoder.
        embedding_config: lengths; see `projected_encoder.require_plain`.
        vocabulary: of the tokenizer.
        query: size of the token group of a global batch, one sentence a row. It carries
            `source_row` [B, 1] int32, the row of the corpus that a sentence is from, and, for
            salient spans, `span_start` and `span_end` [B, spans].
        spans: how many spans a sentence may list; 0 if the mask needs none.
        masking: which tokens are hidden.
        evaluation_masking: which are hidden when the objective is evaluated, so that trainings with
            other masks can be compared.
        corpus: what is retrieved from; None, to use a trained embedder: nothing is retrieved.
        index_config: how it is kept; its dimension is the projection's size.
        candidates: K; 8 in the paper: seven blocks and the null document.
        marginalise: over what, 'token' or 'span', see `losses.marginal`.
        share_embedders: whether sentences and blocks have one embedder.
        evidence_length: tokens of a block, where batches bring the K - 1 blocks that the host
            retrieved for them (group `evidence`); then `corpus` is None.
        chunk: positions whose logits exist at a time on a device.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        reader_config: TokenEncoderConfig,
        projection: projected_encoder.ProjectionConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        spans: int,
        masking: SpanMask,
        evaluation_masking: SpanMask,
        corpus: Corpus | None,
        index_config: DeviceIndexConfig,
        chunk: int,
        candidates: int = 8,
        marginalise: str = "token",
        share_embedders: bool = True,
        evidence_length: int | None = None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        projected_encoder.require_plain(embedding_config, "REALM")
        marginal.require_marginal(marginalise, "REALM.marginalise")
        _require_sizes(projection, query, index_config, candidates)
        if corpus is not None and evidence_length is not None:
            raise ValueError(
                "REALM: expected a corpus to retrieve from in the step, or evidence_length for "
                "what the host retrieves, found both: bind REALM.corpus = None for the host"
            )
        if corpus is not None:
            _require_corpus(corpus, config, reader_config, candidates)
            evidence_length = corpus.length
        if evidence_length is not None:
            projected_encoder.require_blocks(evidence_length, embedding_config, config, "REALM")
            _require_room(evidence_length, reader_config, query)
        self.config = config
        self.embedding_config = embedding_config
        self.projection = projection
        self.vocabulary = vocabulary
        self.query = query
        self.spans = spans
        self.masking, self.evaluation_masking = masking, evaluation_masking
        self.deterministic = False  # `eval` and `train` set it, as dropout's
        self.candidates = candidates
        self.marginalise = marginalise
        self.chunk = chunk
        sep = vocabulary.sep
        self.embedder = projected_encoder.ProjectedEncoder(config, projection, sep, rngs=rngs)
        self.block_embedder = (
            None
            if share_embedders
            else projected_encoder.ProjectedEncoder(config, projection, sep, rngs=rngs)
        )
        self.reader = reader_config.build(rngs)
        self.head = heads.MlmHead(reader_config, rngs=rngs)
        self.index = None if corpus is None else DeviceIndex(corpus, index_config)
        self.evidence_length = evidence_length if corpus is None else None
        self.probes = None if corpus is None else Probes(query.rows, candidates - 1)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        rows = self.query.rows
        extra = {"source_row": jax.ShapeDtypeStruct((rows, 1), jnp.int32)}
        if self.spans:
            shape = jax.ShapeDtypeStruct((rows, self.spans), jnp.int32)
            extra |= {"span_start": shape, "span_end": shape}
        query = {**self.query.spec(), **extra}
        if self.evidence_length is None:
            return [{"query": query}]
        # What the host has hidden, and what it found for it.
        query["labels"] = jax.ShapeDtypeStruct((rows, self.query.length), jnp.int32)
        blocks = (rows, self.candidates - 1)
        per_block = jax.ShapeDtypeStruct(blocks, jnp.int32)
        tokens = jax.ShapeDtypeStruct((*blocks, self.evidence_length), jnp.int32)
        found = {"tokens": tokens, "lengths": per_block, "row": per_block, "age": per_block}
        return [{"query": query, "evidence": found}]

    def contract(self) -> Contract:
        """See `Objective`; vectors have the projection's size."""
        return self.embedding_config.contract(self.projection.size, self.vocabulary)

    def table_sources(self) -> dict[str, TableSource]:
        """See `Objective`: the corpus."""
        sources = {} if self.index is None else self.index.table_sources()
        return {f"index/{name}": source for name, source in sources.items()}

    # --- one step ---------------------------------------------------------------------------------

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Hides a span: `tokens` with [MASK], `labels` [B, Q] int32, original tokens, else -100."""
        query = batch["query"]
        masking = self.evaluation_masking if self.deterministic else self.masking
        hidden = masking.select(query, self.vocabulary.special_ids, key)
        tokens = jnp.where(hidden, self.vocabulary.mask, query["tokens"])
        labels = jnp.where(hidden, query["tokens"], IGNORED)
        return {"query": {**query, "tokens": tokens, "labels": labels}}

    def retrieve(self, batch: Batch, key: jax.Array) -> Batch:
        """Adds the groups `candidate` [B * K, L] and `joint` [B * K, Q + L], see `evidence`.

        `candidate` carries `age` [B * K, 1] int32, steps since the index saw a block.
        """
        query = batch["query"]
        tokens, lengths, age = self._found(batch)
        tokens, lengths = evidence_layout.with_null(tokens, lengths, self.vocabulary)
        candidate = evidence_layout.candidate_group(tokens, lengths, query)
        age = jnp.pad(age, ((0, 0), (1, 0)))
        return {
            **batch,
            "candidate": {**candidate, "age": age.reshape(-1, 1)},
            "joint": evidence_layout.joint_group(tokens, lengths, query, self.vocabulary),
        }

    def _found(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Tokens [B, K - 1, L] of the best blocks, their lengths and their ages [B, K - 1]."""
        if "evidence" in batch:
            found = batch["evidence"]
            return found["tokens"], found["lengths"], found["age"]
        if self.index is None:
            raise ValueError("REALM was built without a corpus: bind REALM.corpus to train it")
        query = batch["query"]
        vectors = self.embedder(query)[:, 0]
        _, rows = self.index.search(vectors, self.candidates - 1, query["source_row"][:, 0])
        return *self.index.tokens_at(rows), self.index.age_at(rows)

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """-log p(y|x) in nats, see `losses.marginal`; its metrics, and those of the index."""
        scores = self.score(batch, key)
        loss, metrics = marginal.marginal_likelihood(*scores, self.marginalise)
        metrics["masked_tokens"] = MetricSum.of(jnp.sum(scores.mask, axis=1))
        return loss, metrics | self._index_metrics(batch["candidate"])

    def _index_metrics(self, candidate: Group) -> dict[str, MetricSum]:
        valid = candidate["segment_valid"].reshape(-1, self.candidates)[:, 1:]
        age = candidate["age"].reshape(-1, self.candidates)[:, 1:]
        tokens = jnp.sum(candidate["segment_ids"], axis=1).reshape(-1, self.candidates)[:, 1:]
        found = {
            "candidate_age_steps": MetricSum.of(age, valid),
            "candidate_tokens": MetricSum.of(tokens, valid),
        }
        if self.index is None or self.probes is None:
            return found
        found |= {
            "index_age_steps": MetricSum.of(self.index.oldest()),
            "index_refused_rows": MetricSum.of(self.index.refused[...]),
            "index_recall": MetricSum.of(self.probes.recall[...]),
        }
        if self.index.config.max_staleness_steps is not None:
            found["index_churn"] = MetricSum.of(self.probes.churn[...])
        return found

    def score(self, batch: Batch, key: jax.Array | None) -> Scores:
        """Relevance and reading of every candidate, with the current parameters."""
        query_key, block_key, reader_key = layers.split_key(key, 3)
        query, candidate = batch["query"], batch["candidate"]
        asked = self.embedder(query, query_key)[:, 0]  # [B, D]
        blocks = self._blocks(candidate, block_key).reshape(len(asked), self.candidates, -1)
        relevance = jnp.einsum("bd,bkd->bk", asked, blocks, precision="highest")
        there = candidate["segment_valid"].reshape(relevance.shape)
        relevance = jnp.where(there, relevance, -jnp.inf)
        return Scores(relevance, *self._read(batch, reader_key))

    def _blocks(self, group: Group, key: jax.Array | None = None) -> jax.Array:
        """[R, D] of R rows."""
        embedder = self.embedder if self.block_embedder is None else self.block_embedder
        return embedder(group, key)[:, 0]

    def _read(self, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """log p(y_m|z,x) [B, K, M] and which are masked tokens [B, M]."""
        joint, labels = batch["joint"], batch["query"]["labels"]
        length = joint["tokens"].shape[1]
        labels = jnp.pad(labels, ((0, 0), (0, length - labels.shape[1])), constant_values=IGNORED)
        labels = jnp.repeat(labels, self.candidates, axis=0)  # positions are equal for all blocks
        hidden = self._states(joint, key)
        hidden, labels = cross_entropy.gather_predicted(hidden, labels, self._most_masked)
        gold = -cross_entropy.cross_entropy(
            self.head.transform(hidden),
            self.reader.word_table,
            self.head.bias[...],
            labels,
            vocab_size=self.reader.config.vocab_size,
            chunk=self.chunk,
        )
        shape = (-1, self.candidates, gold.shape[1])
        return gold.reshape(shape), labels.reshape(shape)[:, 0] != IGNORED

    def _states(self, joint: Group, key: jax.Array | None) -> jax.Array:
        """[R, Q + L, D] of the reader."""
        types = projected_encoder.token_types(
            joint, self.vocabulary.sep, self.reader.config.type_vocab
        )
        text = (joint["tokens"], joint["positions"], joint["segment_ids"], types, key)
        return self.reader(*text)

    @property
    def _most_masked(self) -> int:
        """M, of training and evaluation."""
        return max(self.masking.max_tokens, self.evaluation_masking.max_tokens)

    # --- the index --------------------------------------------------------------------------------

    def on_train_start(self, key: jax.Array) -> None:
        """Embeds the whole corpus."""
        if self.index is not None and self.probes is not None:
            self.index.fill(self._blocks, self._rows)
            self.probes.ask(functools.partial(self._probe, self.index))

    def after_update(self, step: jax.Array, key: jax.Array) -> None:
        """Embeds the rows whose turn it is; after the last of a round, asks the probes."""
        if self.index is not None and self.probes is not None:
            self.index.refresh(step, self._blocks, self._rows)
            probe = functools.partial(self._probe, self.index)
            self.probes.ask_if(self.index.round_ends(step), probe)

    def _probe(self, index: DeviceIndex) -> Answers:
        """Rows retrieved for the beginnings of B blocks, from all over: [B, K - 1]."""
        count = self.query.rows
        rows = jnp.arange(count, dtype=jnp.int32) * max(1, index.corpus.rows // count)
        rows %= index.corpus.rows
        tokens, lengths = index.tokens_at(rows[:, None])
        query = evidence_layout.beginning(
            tokens[:, 0], lengths[:, 0], self.query.length, self.vocabulary.sep
        )
        vectors = self.embedder(query)[:, 0]
        scores, found = index.search(vectors, self.candidates - 1, rows)
        return found, index.recall(vectors, rows, scores, found)

    def _rows(self, tokens: jax.Array, lengths: jax.Array) -> Group:
        return evidence_layout.row_group(tokens, lengths, jnp.zeros_like(lengths))

    # --- what it offers ---------------------------------------------------------------------------

    def fill(self, joint: Group) -> dict[str, jax.Array]:
        """Predict each [MASK] of "[CLS] sentence [SEP] body [SEP]" with the reader.

        Args:
            joint: a token group of R rows of one segment, with at most M [MASK]s each; rows with
                more give NaN.

        Returns:
            `log_probability` [R, M, V] float32, log p(y|z,x) of each entry of the vocabulary, of
            the first [MASK] and the others in order; values after the last one have no meaning.
        """
        count = self._most_masked
        hidden = jnp.pad(self._states(joint, None), ((0, 0), (0, count), (0, 0)))
        labels = jnp.where(joint["tokens"] == self.vocabulary.mask, 0, IGNORED)
        labels = jnp.pad(labels, ((0, 0), (0, count)), constant_values=IGNORED)  # M fit in any row
        hidden, _ = cross_entropy.gather_predicted(hidden, labels, count)
        size = self.reader.config.vocab_size
        table, bias = self.reader.word_table[:size], self.head.bias[...][:size]
        logits = jnp.einsum("rmd,vd->rmv", self.head.transform(hidden), table.astype(hidden.dtype))
        return {"log_probability": jax.nn.log_softmax(logits.astype(jnp.float32) + bias)}

    def functions(self) -> dict[str, ModelFunction]:
        """See `Objective`; `fill`, without dropout, of a token group of sentences with bodies."""
        passage = GroupShape(self.query.rows, self.embedding_config.passage_length, 1)
        functions = self.embedder.functions(self.query, passage)
        if self.block_embedder is not None:
            theirs = self.block_embedder.functions(self.query, passage)
            functions["embed_passage"] = theirs["embed_passage"]
        joint = GroupShape(self.query.rows, self.query.length + passage.length, 1)
        outputs = "log_probability [R, M, V] float32"
        return {**functions, "fill": ModelFunction(self.fill, joint.spec(), outputs, FILL)}


def _require_sizes(
    projection: projected_encoder.ProjectionConfig,
    query: GroupShape,
    index_config: DeviceIndexConfig,
    candidates: int,
) -> None:
    if candidates < 2:
        raise ValueError(
            f"REALM.candidates: expected 2 or more, the null document and a block, found "
            f"{candidates}"
        )
    if query.segments != 1:
        raise ValueError(f"REALM.query: expected 1 segment a row, found {query.segments}")
    if "row" not in index_config.exclude:
        raise ValueError(
            "REALM.index_config: expected 'row' in exclude: a sentence would get the block that it "
            f"is from, and what is hidden with it; found {index_config.exclude}"
        )
    if index_config.dimension != projection.size:
        raise ValueError(
            f"REALM.index_config: expected dimension {projection.size}, the size of the "
            f"projection, found {index_config.dimension}"
        )


def _require_room(length: int, reader_config: TokenEncoderConfig, query: GroupShape) -> None:
    if query.length + length > reader_config.max_positions:
        raise ValueError(
            f"REALM.reader_config: expected max_positions of at least {query.length} + {length}, a "
            f"sentence and a block, found {reader_config.max_positions}"
        )


def _require_corpus(
    corpus: Corpus, config: TokenEncoderConfig, reader_config: TokenEncoderConfig, candidates: int
) -> None:
    require_rows(corpus, candidates - 1, f"REALM.candidates = {candidates}")
    if {config.vocab_size, reader_config.vocab_size} != {corpus.vocabulary_size}:
        raise ValueError(
            f"REALM: expected one vocabulary, found {config.vocab_size} entries in the embedder, "
            f"{reader_config.vocab_size} in the reader, {corpus.vocabulary_size} in the corpus"
        )
