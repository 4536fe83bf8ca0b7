"""Open-domain question answering: finds blocks for a question, and the answer in them.

ORQA (Lee et al. 2019, arXiv:1906.00300) as REALM is fine-tuned with (arXiv:2002.08909, official
code `language/orqa`). The index is static: blocks keep the vectors that a trained retriever gave
them, and of the two embedders only the question's is trained. A wide beam of blocks teaches it
which of them hold an answer; the best few are read, and every short span of them gets a score.

Facts and pitfalls are in docs/open_qa.md. Letters: B questions, S blocks of the wide beam, K of
them that are read, Q and L tokens of a question and of a block, W widths of spans, A answers of a
question, T tokens of an answer.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import evidence_layout
from models.losses import span_scores
from models.networks import layers, projected_encoder, text_embedding
from models.networks.span_head import SpanConfig, SpanHead
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, GroupShape, ModelFunction, Objective, TableSource
from t5x_style.retrieval.device_index import (
    Corpus,
    DeviceIndex,
    DeviceIndexConfig,
    require_rows,
)

Group = Mapping[str, jax.Array]


class OpenQA(Objective):
    """See the module's docstring. Rows are not packed: one question a row.

    Args:
        config: the embedders' encoder.
        reader_config: the reader; its length fits a question and a block.
        projection: what follows the embedders' encoder.
        spans: which spans are answers, and how they are scored.
        embedding_config: lengths; see `projected_encoder.require_plain`.
        vocabulary: of the tokenizer.
        query: size of the token group of a global batch, one question a row. It carries `answers`
            [B, A, T] int32, `span_scores.NO_TOKEN` after each end.
        answers: A and T.
        corpus: what is searched; None, to use a trained model: nothing is retrieved then.
        index_config: how it is kept; never refreshed, and of the projection's size.
        beam: S; 5,000 in the papers.
        read: K; 5 in the papers.
        rngs: stream `params`.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        reader_config: TokenEncoderConfig,
        projection: projected_encoder.ProjectionConfig,
        spans: SpanConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        query: GroupShape,
        answers: tuple[int, int],
        corpus: Corpus | None,
        index_config: DeviceIndexConfig,
        beam: int,
        read: int,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        text_embedding.require_fit(config, embedding_config, vocabulary)
        projected_encoder.require_plain(embedding_config, "OpenQA")
        _require_sizes(query, answers, index_config, projection, beam, read)
        _require_reader(config, reader_config, query.length, corpus, embedding_config, vocabulary)
        if corpus is not None:
            require_rows(corpus, beam - 1, f"OpenQA.beam = {beam}")
        self.config = config
        self.embedding_config = embedding_config
        self.projection = projection
        self.vocabulary = vocabulary
        self.query, self.answers = query, answers
        self.beam, self.read = beam, read
        sep = vocabulary.sep
        self.embedder = projected_encoder.ProjectedEncoder(config, projection, sep, rngs=rngs)
        self.block_embedder = projected_encoder.ProjectedEncoder(config, projection, sep, rngs=rngs)
        self.reader = reader_config.build(rngs)
        self.head = SpanHead(reader_config, spans, rngs=rngs)
        self.index = None if corpus is None else DeviceIndex(corpus, index_config)

    @property
    def frozen_paths(self) -> tuple[str, ...]:
        """See `Objective`: what embedded the index."""
        return ("^block_embedder/",)

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """See `Objective`."""
        answers = jax.ShapeDtypeStruct((self.query.rows, *self.answers), jnp.int32)
        return [{"query": {**self.query.spec(), "answers": answers}}]

    def contract(self) -> Contract:
        """See `Objective`; vectors have the projection's size."""
        return self.embedding_config.contract(self.projection.size, self.vocabulary)

    def table_sources(self) -> dict[str, TableSource]:
        """See `Objective`: the corpus."""
        sources = {} if self.index is None else self.index.table_sources()
        return {f"index/{name}": source for name, source in sources.items()}

    def on_train_start(self, key: jax.Array) -> None:
        """Embeds the whole corpus, once and for all."""
        if self.index is not None:
            self.index.fill(
                lambda group: self.block_embedder(group)[:, 0],
                lambda tokens, lengths: evidence_layout.row_group(
                    tokens, lengths, jnp.zeros_like(lengths)
                ),
            )

    # --- one step ---------------------------------------------------------------------------------

    def retrieve(self, batch: Batch, key: jax.Array) -> Batch:
        """Adds the groups `beam` and `joint`.

        `beam`: `vectors` [B, S, D] float32, as the index has them; `found` and `holds` [B, S] bool,
        whether there is a block, and whether it holds an answer. `joint`: the best K, see
        `evidence_layout.joint_group`, with `spans` and `correct` [B * K, Q + L, W] bool, which
        spans may be an answer and which are one.
        """
        if self.index is None:
            raise ValueError("OpenQA was built without a corpus: bind OpenQA.corpus to train it")
        query = batch["query"]
        nowhere = jnp.full(query["tokens"].shape[0], NO_ROW, jnp.int32)
        _, rows = self.index.search(self.embedder(query)[:, 0], self.beam, nowhere)
        holds = self.index.judge(rows, query["answers"], self._holds)
        tokens, lengths = self.index.tokens_at(rows[:, : self.read])
        joint = evidence_layout.joint_group(tokens, lengths, query, self.vocabulary)
        beam = {
            "vectors": self.index.vectors_at(rows),
            "found": rows != NO_ROW,
            "holds": holds,
        }
        return {**batch, "beam": beam, "joint": self._judged(joint, query["answers"])}

    def _holds(self, tokens: jax.Array, lengths: jax.Array, answers: jax.Array) -> jax.Array:
        """[B, S] bool of blocks [B, S, L] and answers [B, A, T]; a title holds none."""
        body = evidence_layout.in_body(tokens, lengths, self.vocabulary.sep)
        return span_scores.holds_answer(tokens, body, answers)

    def _judged(self, joint: Group, answers: jax.Array) -> dict[str, jax.Array]:
        """`joint` with `spans` and `correct`."""
        shape = (answers.shape[0], self.read, -1)
        tokens = joint["tokens"].reshape(shape)
        body = self._readable(joint).reshape(shape)
        widths = self.head.widths
        correct = span_scores.answer_spans(tokens, body, answers, widths)
        return {
            **joint,
            "spans": span_scores.readable_spans(body, widths).reshape(-1, *correct.shape[2:]),
            "correct": correct.reshape(-1, *correct.shape[2:]),
        }

    def _readable(self, joint: Group) -> jax.Array:
        """[R, Q + L] bool: the tokens of the block's body, without [SEP]."""
        length = jnp.sum(joint["segment_ids"] > 0, axis=1)
        return evidence_layout.in_body(joint["tokens"], length, self.vocabulary.sep)

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """Reader's and retriever's loss in nats, see `span_scores.span_losses`."""
        query_key, reader_key = layers.split_key(key, 2)
        beam, joint = batch["beam"], batch["joint"]
        asked = self.embedder(batch["query"], query_key)[:, 0]
        relevance = jnp.einsum("bd,bsd->bs", asked, beam["vectors"], precision="highest")
        relevance = jnp.where(beam["found"], relevance, -jnp.inf)
        scores = self._span_scores(joint, reader_key)
        shape = (asked.shape[0], self.read, *scores.shape[1:])
        return span_scores.span_losses(
            relevance,
            beam["holds"],
            scores.reshape(shape),
            joint["spans"].reshape(shape),
            joint["correct"].reshape(shape),
        )

    def _span_scores(self, joint: Group, key: jax.Array | None) -> jax.Array:
        """[R, Q + L, W] float32, of R rows."""
        types = projected_encoder.token_types(
            joint, self.vocabulary.sep, self.reader.config.type_vocab
        )
        text = (joint["tokens"], joint["positions"], joint["segment_ids"], types, key)
        return self.head(self.reader(*text))

    # --- what it offers ---------------------------------------------------------------------------

    def answer(self, joint: Group) -> dict[str, jax.Array]:
        """The best span of each text "[CLS] question [SEP] body [SEP]".

        Args:
            joint: a token group of R rows of one segment.

        Returns:
            `start` and `end` [R, 1] int32, the span's first and last token in its row; `score`
            [R, 1] float32, without the block's relevance; `log_probability` [R, 1] float32, of the
            span among all of its text, log p(y|z,x). A text without a body has score -inf.
        """
        scores = self._span_scores(joint, None)
        spans = span_scores.readable_spans(self._readable(joint), self.head.widths)
        scores = jnp.where(spans, scores, -jnp.inf).reshape(scores.shape[0], -1)
        best = jnp.argmax(scores, axis=1)[:, None].astype(jnp.int32)
        score = jnp.take_along_axis(scores, best, axis=1)
        start, width = best // self.head.widths, best % self.head.widths
        everything = jax.nn.logsumexp(scores, axis=1, keepdims=True)
        return {
            "start": start,
            "end": start + width,
            "score": score,
            "log_probability": jnp.where(jnp.isfinite(score), score - everything, -jnp.inf),
        }

    def functions(self) -> dict[str, ModelFunction]:
        """`embed_query`, `embed_passage` (what the index was made with) and `answer`."""
        length = self.embedding_config.passage_length
        passage = GroupShape(self.query.rows, length, 1)
        joint = GroupShape(self.query.rows, self.query.length + length, 1)
        blocks = self.block_embedder.functions(self.query, passage)
        outputs = "start, end [R, 1] int32; score, log_probability [R, 1] float32"
        return {
            "embed_query": self.embedder.functions(self.query, passage)["embed_query"],
            "embed_passage": blocks["embed_passage"],
            "answer": ModelFunction(self.answer, joint.spec(), outputs, "answer"),
        }


def _require_sizes(
    query: GroupShape,
    answers: tuple[int, int],
    index_config: DeviceIndexConfig,
    projection: projected_encoder.ProjectionConfig,
    beam: int,
    read: int,
) -> None:
    if query.segments != 1:
        raise ValueError(f"OpenQA.query: expected 1 segment a row, found {query.segments}")
    if min(answers) < 1:
        raise ValueError(f"OpenQA.answers: expected two sizes of at least 1, found {answers}")
    if not 1 <= read <= beam:
        raise ValueError(
            f"OpenQA: expected read from 1 to beam, which it is a part of, found {read} and {beam}"
        )
    if index_config.dimension != projection.size:
        raise ValueError(
            f"OpenQA.index_config: expected dimension {projection.size}, the size of the "
            f"projection, found {index_config.dimension}"
        )
    if index_config.max_staleness_steps is not None:
        raise ValueError(
            "OpenQA.index_config: expected max_staleness_steps None: blocks keep their vectors; "
            f"found {index_config.max_staleness_steps}"
        )


def _require_reader(
    encoder: TokenEncoderConfig,
    config: TokenEncoderConfig,
    query_length: int,
    corpus: Corpus | None,
    embedding_config: text_embedding.EmbeddingConfig,
    vocabulary: Vocabulary,
) -> None:
    length = embedding_config.passage_length if corpus is None else corpus.length
    if corpus is not None:
        projected_encoder.require_blocks(length, embedding_config, encoder, "OpenQA")
    if query_length + length > config.max_positions:
        raise ValueError(
            f"OpenQA.reader_config: expected max_positions of at least {query_length} + {length}, "
            f"a question and a block, found {config.max_positions}"
        )
    sizes = {"the reader": config.vocab_size, "the tokenizer": vocabulary.size}
    if corpus is not None:
        sizes["the corpus"] = corpus.vocabulary_size
    if len(set(sizes.values())) > 1:
        raise ValueError(f"OpenQA: expected one vocabulary, found entries: {sizes}")
