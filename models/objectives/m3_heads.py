"""Initialise the heads of M3 in closed form: fits of an encoder's token states to BM25.

A head that starts fresh has to learn in some hundred steps what a count over the passages gives:
that a rare word says more than a frequent one. Both heads are linear in the states, so that a start
follows from sums of products of the states with themselves and with the wanted weights.

The weights of words are those whose products are BM25's terms (Robertson and Zaragoza 2009, section
3), as far as the states show them (ridge regression); the projection to vectors of tokens is the
one of its size that keeps the most of the states' inner products (their principal components, not
centred). Figures are in docs/results/m3.md.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.networks import text_embedding, token_representations
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoder
from t5x_style.interfaces.objective import Group
from t5x_style.interfaces.representation import MULTI_VECTOR, SPARSE
from t5x_style.interfaces.texts import EncodeSource


class TwoHeads(Protocol):
    """The interface of `m3.M3` used here; a head exists only where `kinds` has it."""

    encoder: TokenEncoder
    embedding_config: text_embedding.EmbeddingConfig
    vocabulary: Vocabulary
    kinds: tuple[str, ...]
    sparse: token_representations.WordWeights
    multi_vector: token_representations.TokenVectors


@dataclasses.dataclass(frozen=True)
class FromStates:
    """A fit for `initialise_model` of an M3; heads that a source of weights has keep theirs.

    Attributes:
      source: passages, a sample of some thousand.
      k1, b: of BM25.
      ridge: added to the diagonal of the regression, next to a sum over all tokens.
    """

    source: EncodeSource
    k1: float = 0.9
    b: float = 0.4
    ridge: float = 1.0

    def __call__(self, model: TwoHeads, fresh: Collection[str], partitioner: Partitioner) -> None:
        """See `initialise_model.Fit`.

        Raises:
          ValueError: the passages have no token but special ones.
          PartitioningError: the rows of a batch do not divide by the mesh.
        """
        heads = [kind for kind in (SPARSE, MULTI_VECTOR) if _is_fresh(model, kind, fresh)]
        if not heads:
            _say("no head starts fresh, so that none is computed")
            return
        counts = Counts.of(self.source.batches(), _special(model), self.k1, self.b)
        products, wanted, squares = self._sums(model, counts, partitioner)
        if SPARSE in heads:
            weights, explained = ridge(products, wanted, squares, self.ridge)
            scaled = math.sqrt(model.embedding_config.temperature) * weights
            _set(model.sparse.dense.kernel, scaled[:-1, None])
            _set(model.sparse.dense.bias, scaled[-1:])
            _say(
                f"weights of words: the states of {counts.texts:,} passages show {explained:.0%} "
                "of the variance of BM25's"
            )
        if MULTI_VECTOR in heads:
            size = model.multi_vector.dense.kernel.shape[1]
            kernel, kept = components(products[:-1, :-1], size)
            _set(model.multi_vector.dense.kernel, kernel)
            _say(f"vectors of tokens: {size} numbers keep {kept:.0%} of the states' squares")

    def _sums(
        self, model: TwoHeads, counts: "Counts", partitioner: Partitioner
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Sums over tokens, x a state with a 1 after it, w the wanted weight.

        Returns:
          of x x^T [D + 1, D + 1], of x w [D + 1], both float64, and of (w - mean of w)^2.
        """
        graphdef, state = nnx.split(model)

        @jax.jit
        def one(state: nnx.State, group: Group) -> jax.Array:
            module = nnx.merge(graphdef, state, copy=True)
            module.eval()
            with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
                hidden = module.encoder(
                    group["tokens"], group["positions"], group["segment_ids"], None
                )
            wanted = group["wanted"][..., None]
            x = jnp.concatenate([hidden.astype(jnp.float32), jnp.ones_like(wanted)], -1)
            # Chosen, not multiplied: the states of a row without texts may be NaN.
            both = jnp.concatenate([jnp.where(wanted > 0, x, 0.0), wanted], -1)
            return jnp.einsum("bld,ble->de", both, both, precision="highest")

        found = np.zeros((), np.float64)
        for group in self.source.batches():
            rows = len(group["tokens"])
            partitioner.check_rows(rows, "m3_heads.FromStates.source")
            local = partitioner.local_rows(rows)
            used = {name: group[name] for name in ("tokens", "positions", "segment_ids")}
            used["wanted"] = counts.wanted(group)
            mine = {name: np.asarray(array)[local] for name, array in used.items()}
            placed = partitioner.place_batch({"text": mine}, {"text": rows})["text"]
            found = found + np.asarray(one(state, placed), np.float64)
        tokens, total = found[-2, -2], found[-2, -1]
        return found[:-1, :-1], found[:-1, -1], float(found[-1, -1] - total**2 / tokens)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Over a sample of passages.

    Attributes:
      texts: N.
      length: mean of their tokens that are not special.
      containing: [V] int64, in how many each token is; V is one more than the largest token seen.
      special: tokens that have no weight.
      k1, b: of BM25.
    """

    texts: int
    length: float
    containing: np.ndarray
    special: tuple[int, ...]
    k1: float
    b: float

    @classmethod
    def of(cls, groups: Iterable[Group], special: tuple[int, ...], k1: float, b: float) -> "Counts":
        """Counts the texts of all groups; ValueError where there is nothing to count."""
        containing, texts, tokens = np.zeros(0, np.int64), 0, 0
        for group in groups:
            terms = _Terms.of(group, special)
            texts += int(np.asarray(group["segment_valid"]).sum())
            tokens += len(terms.token)
            here = np.bincount(terms.distinct, minlength=len(containing))
            here[: len(containing)] += containing
            containing = here
        if not tokens:
            raise ValueError(
                "m3_heads.FromStates.source: expected passages with tokens that are not special, "
                f"found none in {texts} passages"
            )
        return cls(texts, tokens / texts, containing, special, k1, b)

    def wanted(self, group: Group) -> np.ndarray:
        """[B, L] float32: sqrt(idf) times BM25's term of the count and the length; 0 of no word."""
        terms = _Terms.of(group, self.special)
        inside = self.containing[terms.token]
        idf = np.log1p((self.texts - inside + 0.5) / (inside + 0.5))
        longer = 1 - self.b + self.b * terms.length / self.length
        count = terms.count * (self.k1 + 1) / (terms.count + self.k1 * longer)
        result = np.zeros(np.shape(group["tokens"]), np.float32)
        result[terms.place] = np.sqrt(idf) * count
        return result


@dataclasses.dataclass(frozen=True)
class _Terms:
    """The n tokens of a group that are of a text and not special.

    Attributes:
      place: their row and column in [B, L].
      token, count, length: [n]; id, how often its text has it, and how many such its text has.
      distinct: each token of each text once.
    """

    place: tuple[np.ndarray, ...]
    token: np.ndarray
    count: np.ndarray
    length: np.ndarray
    distinct: np.ndarray

    @classmethod
    def of(cls, group: Group, special: tuple[int, ...]) -> "_Terms":
        tokens, numbers = np.asarray(group["tokens"]), np.asarray(group["segment_ids"])
        place = np.nonzero((numbers > 0) & ~np.isin(tokens, special))
        token = tokens[place].astype(np.int64)
        text = place[0] * (numbers.max() + 1) + numbers[place]
        pairs, where, counts = np.unique(
            np.stack([text, token]), axis=1, return_inverse=True, return_counts=True
        )
        length = np.bincount(text, minlength=1)[text]
        return cls(place, token, counts[where.ravel()], length, pairs[1])


def _special(model: TwoHeads) -> tuple[int, ...]:
    known = model.vocabulary
    return (known.cls, known.sep, known.pad, known.unk)


def _is_fresh(model: TwoHeads, kind: str, fresh: Collection[str]) -> bool:
    return kind in model.kinds and any(path.startswith(f"{kind}/") for path in fresh)


def ridge(
    products: np.ndarray, wanted: np.ndarray, squares: float, ridge: float
) -> tuple[np.ndarray, float]:
    """Weights of the states and the bias, [D + 1], and the share of the variance they explain."""
    penalty = np.full(len(wanted), ridge)
    penalty[-1] = 0.0  # of the bias
    weights = np.linalg.solve(products + np.diag(penalty), wanted)
    # w - x . weights, squared and summed, from the sums alone
    left = squares + wanted[-1] ** 2 / products[-1, -1]
    left += weights @ products @ weights - 2 * weights @ wanted
    return weights, 1.0 - float(left) / max(squares, np.finfo(np.float64).tiny)


def components(products: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """The first principal components as columns, [D, size], and their share of the squares.

    Columns past D are 0. The sign of a column is such that its largest number is positive, so that
    no library chooses it.
    """
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1][:size], vectors[:, ::-1][:, :size]
    largest = np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0)
    kernel = np.zeros((len(products), size))
    kernel[:, : vectors.shape[1]] = vectors * np.sign(largest)
    return kernel, float(values.sum() / np.trace(products))


def _set(parameter: nnx.Param, values: np.ndarray) -> None:
    """In the parameter's dtype and sharding."""
    old = parameter.get_value()
    values = values.astype(old.dtype)
    parameter.set_value(
        jax.make_array_from_callback(old.shape, old.sharding, lambda index: values[index])
    )


def _say(what: str) -> None:
    if jax.process_index() == 0:
        print(f"m3_heads: {what}", flush=True)
