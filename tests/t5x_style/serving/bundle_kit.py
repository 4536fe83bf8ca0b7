"""A bundle of a tiny M3, whose parameters are random, and of a few passages."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from input_pipelines.sources import beir
from input_pipelines.tokenizers import question_tokens, tokenization
from models.losses.joint_losses import JointLossConfig
from models.networks import bert, text_embedding
from models.objectives import m3
from t5x_style.checkpoints.restored_model import Restored, Trained
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import Combination, Contract, Vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.interfaces.representation import KINDS, Representation, function_name
from t5x_style.retrieval import hybrid
from t5x_style.retrieval.beir_collection import Passage
from t5x_style.retrieval.exact_index import ExactIndex
from t5x_style.retrieval.lexical.bm25_fusion import Fusion
from t5x_style.retrieval.text_collector import TextCollector
from t5x_style.serving import bundle, programs, saved_model
from t5x_style.serving.training_curves import Curves

QUERY_LENGTH, PASSAGE_LENGTH = 12, 24
WEIGHTS = {"dense": 0.5, "sparse": 0.25, "multi_vector": 0.25}
PASSAGES = [
    Passage("a", "Rivers", "The river runs to the sea, and the sea is wide.", "water/rivers"),
    Passage("b", "Rain", "Rain falls on the hills and the river grows.", "water/rain"),
    Passage("c", "Bread", "Bread is made of flour, water and salt.", "food/bread"),
    Passage("d", "", "Salt comes from the sea.", "food/salt"),
    Passage("e", "Music", "A song of the hills, long and low " * 6, ""),
]
ORIGIN = "of the search of a run"
QUESTION = "where does the river go"


def model(tokenizer: str, seed: int = 0) -> Trained:
    """A tiny M3 of random parameters, as a training leaves it."""
    vocabulary = Vocabulary.load(tokenizer)
    config = bert.BertConfig(
        vocabulary.size, 16, 2, 2, 32, 32, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3,
    )  # fmt: skip
    embedding = text_embedding.EmbeddingConfig(
        "cls", True, "cosine", 0.02, QUERY_LENGTH, PASSAGE_LENGTH, "ask: ", ""
    )
    shapes = (GroupShape(2, QUERY_LENGTH, 1), GroupShape(2, PASSAGE_LENGTH, 1))
    weights = dict.fromkeys(KINDS, 1.0)
    made = m3.M3(
        config, embedding, vocabulary, *shapes, JointLossConfig(weights, weights),
        group_size=1, vector_size=6, rngs=nnx.Rngs(seed),
    )  # fmt: skip
    kernel = np.random.default_rng(0).normal(size=(16, 1))  # it begins with zeros
    made.sparse.dense.kernel[...] = jnp.asarray(kernel, jnp.float32)
    graphdef, params, variables = nnx.split(made, nnx.Param, ...)
    restored = Restored(graphdef, params, variables, made.functions(), made.contract())
    where = Partitioner(MeshShape(1, 1, 1), devices=jax.devices()[:1])
    return Trained(made.functions(), made.contract(), where, "checkpoint", restored)


def folders(root: Path, seed: int = 0) -> tuple[Path, Trained, Contract]:
    """Tokenizer folder, model, and its contract with weights of the kinds."""
    root.mkdir(parents=True)
    rows = [{"_id": one.id, "title": one.title, "text": one.text} for one in PASSAGES]
    (root / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = beir.BeirCorpus(str(root), 1000)
    tokenization.train_tokenizer(str(root), source, 120, 64, 1, True, True, 0, 0, 0)
    tokenizer = root / "tokenizer"
    trained = model(str(tokenizer), seed)
    combination = Combination(tuple(WEIGHTS), WEIGHTS, 3)
    return tokenizer, trained, dataclasses.replace(trained.contract, combination=combination)


def represented(
    trained: Trained, tokenizer: Path, texts: Sequence[str], side: str
) -> Mapping[str, Representation]:
    """What the model makes of texts, tokenized as in training, without a bundle."""
    contract = trained.contract
    length, prefix = getattr(contract, f"{side}_length"), getattr(contract, f"{side}_prefix")
    group = question_tokens.QuestionEncoder(str(tokenizer), length, prefix)(texts)
    collected = TextCollector([str(n) for n in range(len(texts))])
    collected.add(group, trained.functions[function_name(side)](group, kinds=KINDS))
    return collected.finish()


def combined(trained: Trained, tokenizer: Path, passages: Sequence[Passage]) -> hybrid.Combined:
    """An index of passages by all kinds."""
    texts = [tokenization.join_title(one.title, one.text) for one in passages]
    held = dict(represented(trained, tokenizer, texts, "passage"))
    ids, contract = [one.id for one in passages], trained.contract
    indexes = [
        ExactIndex(held[kind], ids, contract, "checkpoint", kind) for kind in ("dense", "sparse")
    ]
    searched = hybrid.Hybrid(indexes, held, ids, contract, "checkpoint", 3)
    return hybrid.Combined(searched, WEIGHTS)


def publish(
    root: Path,
    passages: Sequence[Passage] = PASSAGES,
    listed: Sequence[Passage] | None = None,
    seed: int = 0,
    curves: Curves | None = None,
    fusion: Fusion | None = None,
    kinds: Sequence[str] = KINDS,
    **settings: Any,
) -> Path:
    """A bundle in root/bundle; its folder. `listed` are in the file in place of `passages`."""
    tokenizer, trained, contract = folders(root / "parts", seed)
    made = root / "programs"
    made.mkdir()
    assert trained.restored is not None
    programs.write(made, saved_model.portable(trained.restored))
    held = combined(trained, tokenizer, passages).searched.passages
    content = bundle.Content(
        "run", contract, made, tokenizer, listed or passages, {kind: held[kind] for kind in kinds},
        "checkpoint", ORIGIN, curves, fusion=fusion,
    )  # fmt: skip
    bundle.publish(root / "bundle", content, **settings)
    return root / "bundle"
