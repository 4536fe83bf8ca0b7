"""A whole retrieval-augmented objective in a few lines, to test interfaces: nothing in the engine
knows of it. It retrieves from a corpus it holds, keeps a non-parameter table, and refreshes it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import GroupShape, Objective, dense_functions


class Corpus(nnx.Variable):
    """A table that is part of the state and not a parameter."""


class Toy(Objective):
    """Reconstructs a text's bag of words from its own mean and that of a retrieved passage."""

    def __init__(
        self, text: GroupShape, vocabulary_size: int, dim: int, refresh: int, *, rngs: nnx.Rngs
    ):
        self.text, self.dim, self.refresh, self.vocabulary_size = (
            text,
            dim,
            refresh,
            vocabulary_size,
        )
        normal = nnx.initializers.normal(0.5)
        self.table = nnx.Param(
            normal(rngs.params(), (vocabulary_size, dim)), out_sharding=("vocab", "embed")
        )
        self.scale = nnx.Param(jnp.ones(dim), out_sharding=("embed",))
        self.dropout = nnx.Dropout(0.1)
        tokens = np.random.RandomState(0).randint(0, vocabulary_size, (64, 6)).astype(np.uint16)
        self.corpus = Corpus(jnp.asarray(tokens), out_sharding=("corpus", None))
        self.index = Corpus(jnp.zeros((64, dim)), out_sharding=("corpus", None))
        self.row_step = Corpus(jnp.full((64,), -1, jnp.int32), out_sharding=("corpus",))

    def embed(self, tokens: jax.Array) -> jax.Array:
        return self.table[...][tokens].mean(-2) * self.scale[...]  # [..., D]

    def batch_specs(self):
        return [{"text": self.text.spec()}]

    def contract(self):
        length = self.text.length
        return Contract(
            "mean", False, "dot", 1.0, self.dim, length, length, "", "", "text",
            self.vocabulary_size, "toy",
        )  # fmt: skip

    def corrupt(self, batch, key):
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(batch["text"]["example_id"][:, 0])
        drop = jax.vmap(lambda k: jax.random.bernoulli(k, 0.2, (self.text.length,)))(keys)
        tokens = batch["text"]["tokens"]
        return {"text": batch["text"] | {"tokens": jnp.where(drop, 0, tokens), "target": tokens}}

    def retrieve(self, batch, key):
        best = jnp.argmax(self.embed(batch["text"]["tokens"]) @ self.index[...].T, -1)
        return batch | {"evidence": {"tokens": self.corpus[...][best].astype(jnp.int32)}}

    def loss(self, batch, key):
        query = self.embed(batch["text"]["tokens"]) + self.embed(batch["evidence"]["tokens"])
        log_p = jax.nn.log_softmax(self.dropout(query, rngs=key) @ self.table[...].T)  # [B, V]
        nll = -jnp.take_along_axis(log_p, batch["text"]["target"], -1)
        mean = MetricSum.of(nll, batch["text"]["segment_ids"] > 0)
        return mean + MetricSum.of(query**2) * 0.01, {
            "nll": mean,
            "age": MetricSum.of(self.row_step[...]),
        }

    def after_update(self, step, key):
        rows = (step * self.refresh + jnp.arange(self.refresh)) % 64
        self.index[...] = self.index[...].at[rows].set(self.embed(self.corpus[...][rows]))
        self.row_step[...] = self.row_step[...].at[rows].set(step)

    def functions(self):
        return dense_functions(lambda g: self.embed(g["tokens"])[:, None], self.text, self.text)


@dataclasses.dataclass(frozen=True)
class ToyPipeline:
    """Batches that are a pure function of (seed, step); the engine's structural interface."""

    text: GroupShape
    vocabulary_size: int
    seed: int = 0
    poison_step: int = -1
    fingerprint: str = "toy"

    def specs(self):
        return {"text": {k: (v.shape, np.dtype(v.dtype)) for k, v in self.text.spec().items()}}

    def batch(self, step, rows=None):
        rows = np.arange(self.text.rows) if rows is None else rows
        random = np.random.RandomState([self.seed, step])
        shape = (self.text.rows, self.text.length)
        tokens = random.randint(0, self.vocabulary_size, shape).astype(np.int32)
        if step == self.poison_step:
            tokens[3] = self.vocabulary_size - 1  # the test makes this row of the table Inf
        ones = np.ones(shape, np.int32)
        whole = {
            "tokens": tokens,
            "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
            "segment_ids": ones,
            "word_starts": ones.astype(bool),
            "cls_at": np.zeros((shape[0], 1), np.int32),
            "segment_valid": np.ones((shape[0], 1), bool),
            "example_id": (step * shape[0] + np.arange(shape[0], dtype=np.int32))[:, None],
        }
        return {"text": {name: array[rows] for name, array in whole.items()}}

    def batches(self, start_step, rows):
        step = start_step
        while True:
            yield self.batch(step, rows)
            step += 1
