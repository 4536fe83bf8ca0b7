"""A toy objective that offers every kind of representation, and texts of several tokens for it."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.checkpoints import restored_model
from t5x_style.checkpoints.restored_model import Trained
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.objective import GroupShape, ModelFunction, Objective
from t5x_style.interfaces.representation import KINDS
from t5x_style.retrieval import embedding_shards
from tests.kits import retrieval_helpers as helpers

SPECIAL = 5  # ids below have no sparse weight and no vector
VOCABULARY = Vocabulary(100, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), "fingerprint")
LENGTH = 12  # of a row


class ThreeKinds(Objective):
    """A table of states: their mean, a weight of each token, and a vector of each token.

    Attributes:
      passes: how often the states were computed, while tracing.
    """

    passes = 0

    def __init__(self, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(1.0)
        self.table = nnx.Param(normal(rngs.params(), (100, 16)), out_sharding=("vocab", "embed"))
        self.weight = nnx.Param(normal(rngs.params(), (16,)), out_sharding=("embed",))
        self.project = nnx.Param(normal(rngs.params(), (16, 4)), out_sharding=("embed", None))

    def contract(self) -> Contract:
        return dataclasses.replace(helpers.CONTRACT, normalise=False, similarity="dot")

    def represent(self, group, kinds):
        type(self).passes += 1
        tokens, segments = group["tokens"], group["segment_ids"]
        states = jnp.tanh(self.table[...][tokens])  # [B, L, D]
        of = segments[:, None] == jnp.arange(group["cls_at"].shape[1])[None, :, None] + 1
        means = of @ states / jnp.maximum(of.sum(2, keepdims=True), 1)  # [B, S, D]
        counts = jnp.where(tokens < SPECIAL, 0, segments)
        same = (counts[:, :, None] == counts[:, None]) & (tokens[:, :, None] == tokens[:, None])
        first = jnp.argmax(same, axis=2) == jnp.arange(tokens.shape[1])
        return {
            "dense": means,
            "sparse": {
                "segments": jnp.where(first, counts, 0),
                "tokens": tokens,
                "weights": jax.nn.relu(states @ self.weight[...]),
            },
            "multi_vector": {"segments": counts, "vectors": states @ self.project[...]},
        }

    def functions(self) -> dict[str, ModelFunction]:
        spec = GroupShape(8, LENGTH, 2).spec()
        return {
            f"embed_{side}": ModelFunction(
                self.represent, spec, "all kinds", "embed", side, tuple(KINDS)
            )
            for side in ("query", "passage")
        }


def restored(seed: int = 0) -> restored_model.Restored:
    """As `restored_model.restore` gives it, with fresh parameters."""
    module = ThreeKinds(rngs=nnx.Rngs(seed))
    graphdef, params, variables = nnx.split(module, nnx.Param, ...)
    offers = module.functions(), module.contract()
    return restored_model.Restored(graphdef, params, variables, *offers)


def trained(partitioner: Partitioner, seed: int = 0) -> restored_model.Trained:
    """On a mesh."""
    return restored_model.untrained(ThreeKinds, partitioner, seed)


def texts(count: int) -> list[list[int]]:
    """One to six tokens each; some have none but special ones, some have one twice."""
    random = np.random.default_rng(3)
    made = [random.integers(SPECIAL, 100, 1 + n % 6).tolist() for n in range(count)]
    made[1], made[4] = [2, 3], [7, 8, 7]
    return made


class Texts:
    """An encoding source that packs two texts into a row."""

    segment_length, prefix, layout, tokenizer_fingerprint = 8, "", "text", "fingerprint"
    cls_every = None

    def __init__(self, given: Sequence[Sequence[int]], first: int = 0, rows: int = 8):
        self.ids = [f"p{first + n}" for n in range(len(given))]
        self.fingerprint = f"{given}"
        self._given, self._first, self._rows = given, first, rows

    def part(self, start: int, end: int) -> "Texts":
        return Texts(self._given[start:end], self._first + start, self._rows)

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        per_batch = 2 * self._rows
        for start in range(0, len(self._given), per_batch):
            chosen = range(start, min(start + per_batch, len(self._given)))
            yield group([chosen[n : n + 2] for n in range(0, len(chosen), 2)], self._given, 2, 8)


def encoded(model: Trained, given: Sequence[Sequence[int]], shard_size: int, folder: Path) -> str:
    """The folder, with embeddings of these texts of all kinds."""
    storage = embedding_shards.Storage(shard_size=shard_size, dtype="float32")
    encode_corpus(model, Texts(given), "embed_passage", storage, str(folder), KINDS)
    return str(folder)


def group(
    packed: Sequence[Sequence[int]], given: Sequence[Sequence[int]], segments: int, rows: int
) -> dict[str, np.ndarray]:
    """A token group of rows that hold these texts each."""
    tokens = np.zeros((rows, LENGTH), np.int32)
    found = {
        "tokens": tokens,
        "positions": np.zeros_like(tokens),
        "segment_ids": np.zeros_like(tokens),
        "word_starts": np.zeros(tokens.shape, bool),
        "cls_at": np.zeros((rows, segments), np.int32),
        "segment_valid": np.zeros((rows, segments), bool),
        "example_id": np.full((rows, segments), -1, np.int32),
    }
    for row, names in enumerate(packed):
        at = 0
        for segment, name in enumerate(names):
            here = slice(at, at + len(given[name]))
            found["tokens"][row, here] = given[name]
            found["positions"][row, here] = np.arange(len(given[name]))
            found["segment_ids"][row, here] = segment + 1
            found["cls_at"][row, segment] = at
            found["segment_valid"][row, segment] = True
            found["example_id"][row, segment] = name
            at = here.stop
    return found
