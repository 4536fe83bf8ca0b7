"""Configurations and token groups of a few tokens, for tests of networks and objectives."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from models.networks import bert, text_embedding
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import Objective

VOCABULARY = Vocabulary(
    size=50, pad=0, unk=1, cls=2, sep=3, mask=4, special_ids=(0, 1, 2, 3, 4), fingerprint="tiny"
)
CONFIG = bert.BertConfig(
    vocab_size=50,
    hidden=16,
    layers=2,
    heads=2,
    mlp=32,
    max_positions=24,
    dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.2,
    vocab_multiple=32,
)
EMBEDDING = text_embedding.EmbeddingConfig(
    pooling="cls",
    normalise=False,
    similarity="dot",
    temperature=1.0,
    query_length=24,
    passage_length=24,
    query_prefix="",
    passage_prefix="",
    passage_layout="text",
)
TITLED = dataclasses.replace(EMBEDDING, passage_layout="title_and_body")

Segment = tuple[int, list[int]]  # example id, tokens


def segments(count: int, seed: int = 0, longest: int = 9) -> list[Segment]:
    """`count` segments `[CLS] ... [SEP]` of 4 to `longest` tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, longest + 1, count)
    bodies = [rng.integers(5, 50, n - 2).tolist() for n in lengths]
    return [(100 + i, [2, *body, 3]) for i, body in enumerate(bodies)]


def group(rows: Sequence[Sequence[Segment]], length: int, most: int) -> dict[str, jax.Array]:
    """A token group with these segments in these rows; `most` segments a row.

    A token id that divides by 3 continues the word before it.
    """
    shape, per_segment = (len(rows), length), (len(rows), most)
    out = {
        "tokens": np.zeros(shape, np.int32),
        "positions": np.zeros(shape, np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "word_starts": np.zeros(shape, bool),
        "cls_at": np.zeros(per_segment, np.int32),
        "segment_valid": np.zeros(per_segment, bool),
        "example_id": np.full(per_segment, -1, np.int32),
    }
    for r, row in enumerate(rows):
        at = 0
        for s, (example, tokens) in enumerate(row):
            where = slice(at, at + len(tokens))
            out["tokens"][r, where] = tokens
            out["positions"][r, where] = np.arange(len(tokens))
            out["segment_ids"][r, where] = s + 1
            out["word_starts"][r, where] = [t < 5 or t % 3 != 0 for t in tokens]
            out["cls_at"][r, s], out["segment_valid"][r, s] = at, True
            out["example_id"][r, s] = example
            at += len(tokens)
    return {name: jnp.asarray(array) for name, array in out.items()}


def specs_of(objective: Objective) -> dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]]:
    """What a pipeline has to give an objective: group -> feature -> global shape and dtype."""
    (spec,) = objective.batch_specs()
    return {
        group: {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in features.items()}
        for group, features in spec.items()
    }
