"""A tiny re-ranker of random parameters over a few passages, and a bundle of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from input_pipelines.batches import query_passage_concat
from input_pipelines.store.token_store import Passages as Texts
from input_pipelines.tokenizers import tokenization
from models.networks import bert
from models.objectives import cross_encoder
from t5x_style.checkpoints.restored_model import Restored, Trained
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.lexical.bm25_fusion import SUMMED, Fusion
from t5x_style.serving import bundling
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.service import Hit
from tests.t5x_style.serving import bundle_kit

QUERY_LENGTH, PASSAGE_LENGTH = 8, 24
FUSION = Fusion(0.6, 2, reranked=SUMMED)


def trained(tokenizer: str) -> Trained:
    """The re-ranker, as a training leaves it; its scores depend much on token types."""
    vocabulary = Vocabulary.load(tokenizer)
    config = bert.BertConfig(
        vocabulary.size, 16, 2, 2, 32, 32, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.5,
    )  # fmt: skip
    made = cross_encoder.CrossEncoder(
        config, vocabulary, GroupShape(2, 32, 1), QUERY_LENGTH, PASSAGE_LENGTH, 1, 2, 2,
        query_prefix="ask: ", rngs=nnx.Rngs(0),
    )  # fmt: skip
    graphdef, params, variables = nnx.split(made, nnx.Param, ...)
    restored = Restored(graphdef, params, variables, made.functions(), made.contract())
    where = Partitioner(MeshShape(1, 1, 1), devices=jax.devices()[:1])
    return Trained(made.functions(), made.contract(), where, "checkpoint", restored)


def parts(root: Path) -> tuple[str, Trained, Passages]:
    """Tokenizer folder, model and passages, in root."""
    tokenizer, _, _ = bundle_kit.folders(root)
    rows = [
        {"_id": one.id, "title": one.title, "text": one.text, "source": one.source}
        for one in bundle_kit.PASSAGES
    ]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tokenizer), trained(str(tokenizer)), Passages(root)


def publish(root: Path, fusion: Fusion = FUSION) -> tuple[Path, Trained]:
    """A bundle in root/bundle: its folder, and the model."""
    tokenizer, model, passages = parts(root / "parts")
    bundling.publish(root / "bundle", "reranker", model, None, tokenizer, passages, fusion=fusion)
    return root / "bundle", model


def logits(model: Trained, tokenizer: str, question: str, texts: Sequence[str]) -> np.ndarray:
    """Scores of a question with passages, tokenized and joined as in training."""
    backend = tokenization.Tokenizer(tokenizer)
    asked = backend.encode_batch([model.contract.query_prefix + question], QUERY_LENGTH)
    found = backend.encode_batch(list(texts), PASSAGE_LENGTH)
    queries, passages = (
        Texts(
            np.concatenate([one.tokens for one in some]),
            np.concatenate([one.word_starts for one in some]),
            np.array([len(one.tokens) for one in some]),
        )
        for some in (asked * len(texts), found)
    )
    slots = np.arange(len(texts))[:, None]
    group = query_passage_concat.build_group(queries, passages, slots, 32)
    return np.asarray(model.functions["score"](group))[:, 0]


def reranked(service: BundleService, question: str, k: int, source: str | None = None) -> list[Hit]:
    """A search in mode RERANKED, as the server makes it."""
    reranker = service.reranker
    candidates = reranker.candidates(question, source)
    logits = [one.result() for one in map(reranker.score, candidates.pairs)]
    return reranker.ordered(candidates, logits, k)
