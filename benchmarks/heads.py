"""Memory and time of M3's sparse score and MaxSim next to FlagEmbedding's forms, with gradients.

    python -m benchmarks.heads
    python -m benchmarks.heads --compile_for=v5e:1x1    # what a TPU would allocate; not timed

The loss is the cross-entropy of a query's passage among all passages of the batch, one text a
row, by one kind of score. Inputs are the weights of tokens, or their vectors: heads and encoder are
the same in all forms. The forms of FlagEmbedding (arXiv:2402.03216), written out in JAX:

    scatter [B, L, V]   sparse: each token's weight at its place of a zero array, the largest over L
    scatter [B, V]      sparse: the newer code's, the largest per token by the scatter itself
    einsum              MaxSim: all products of tokens [B, Lq, B, Lp] at once
"""

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks import code_hash
from models.losses import joint_scores
from models.networks import token_representations
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.representation import MULTI_VECTOR, SEGMENTS, SPARSE
from t5x_style.preflight import topology

_TOPOLOGY = flags.DEFINE_string(
    "compile_for", "", "A slice, see docs/tpu.md; '' times on this CPU."
)
_LENGTHS = flags.DEFINE_list("passage_lengths", ["512", "8192"], "Tokens of a passage.")
_QUERY_LENGTH = flags.DEFINE_integer("query_length", 64, "Tokens of a query.", lower_bound=2)
_VOCABULARY = flags.DEFINE_integer("vocabulary", 250_002, "XLM-R's.", lower_bound=8)
_DIMENSION = flags.DEFINE_integer("vector_size", 1024, "Of a token's vector.", lower_bound=1)
_TEXTS = flags.DEFINE_list("texts", ["1", "4", "16", "64"], "Pairs of a batch.")
_LIMIT = flags.DEFINE_float("limit", 6.0, "GiB that a program may take to be timed.")
_TIMED = flags.DEFINE_integer("timed", 4, "Pairs of a timed batch, at most.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds in turns; the median counts.", lower_bound=1)

TEMPERATURE = 0.02
SPECIAL = 5  # ids below it have no weight
CELLS = 1 << 24  # m3.M3's

Side = Mapping[str, jax.Array]  # tokens [B, L]; weights [B, L] or vectors [B, L, d]
Loss = Callable[[Side, Side], jax.Array]


def cross_entropy(scores: jax.Array) -> jax.Array:
    """Mean over queries, whose passages are on the diagonal of the scores [Q, P]."""
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores))


def _product(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(spec, a, b, precision="highest") / TEMPERATURE


def scattered_by_place(side: Side, vocabulary: int) -> jax.Array:
    """[B, V] through [B, L, V]."""
    tokens, weights = side["tokens"], side["weights"]
    rows, places = jnp.indices(tokens.shape)
    every = jnp.zeros((*tokens.shape, vocabulary)).at[rows, places, tokens].set(weights)
    return jnp.max(every, axis=1).at[:, :SPECIAL].set(0.0)


def scattered(side: Side, vocabulary: int) -> jax.Array:
    """[B, V] by a scatter that keeps the largest."""
    rows = jnp.indices(side["tokens"].shape)[0]
    found = jnp.zeros((len(rows), vocabulary)).at[rows, side["tokens"]].max(side["weights"])
    return found.at[:, :SPECIAL].set(0.0)


def sparse_loss(
    scatter: Callable[[Side, int], jax.Array], vocabulary: int, queries: Side, passages: Side
) -> jax.Array:
    """Of arrays over the vocabulary."""
    return cross_entropy(
        _product("qv,pv->qp", scatter(queries, vocabulary), scatter(passages, vocabulary))
    )


def einsum_loss(queries: Side, passages: Side) -> jax.Array:
    """MaxSim of all tokens at once; the mean over a query's."""
    products = _product("qid,pjd->qipj", queries["vectors"], passages["vectors"])
    return cross_entropy(jnp.mean(jnp.max(products, axis=-1), axis=1))


def our_loss(kind: str, queries: Side, passages: Side) -> jax.Array:
    """As `m3.M3` computes it, of one kind."""

    def represented(side: Side, is_query: bool) -> dict[str, Any]:
        ids = jnp.ones(side["tokens"].shape, jnp.int32)
        if kind == SPARSE:
            without = tuple(range(SPECIAL))
            return token_representations.largest_of_each(
                side["tokens"], ids, side["weights"], without
            )
        vectors = {SEGMENTS: ids, "vectors": side["vectors"]}
        return token_representations.per_query_mean(vectors, 1) if is_query else vectors

    numbers = jnp.arange(len(queries["tokens"]), dtype=jnp.int32)[:, None]
    valid = jnp.ones(numbers.shape, bool)
    columns = joint_scores.Columns(
        {kind: represented(passages, False)}, numbers, numbers, numbers, valid
    )
    rows = joint_scores.Rows(
        {kind: represented(queries, True)}, numbers, numbers[..., None], numbers[..., None], valid
    )
    found = joint_scores.sums(
        rows, columns, {kind: 1.0}, scale=1 / TEMPERATURE, exchange="ring", cells=CELLS
    )
    own = found.own[..., 0, 0]
    return jnp.mean(jnp.logaddexp(found.others[..., 0], own) - own)


def forms(vocabulary: int) -> dict[str, dict[str, Loss]]:
    """Kind -> name -> loss; ours is the first."""

    def ours(kind: str) -> Loss:
        return functools.partial(our_loss, kind)

    def theirs(scatter: Callable[[Side, int], jax.Array]) -> Loss:
        return functools.partial(sparse_loss, scatter, vocabulary)

    return {
        SPARSE: {
            "ours": ours(SPARSE),
            "scatter [B, V]": theirs(scattered),
            "scatter [B, L, V]": theirs(scattered_by_place),
        },
        MULTI_VECTOR: {"ours": ours(MULTI_VECTOR), "einsum": einsum_loss},
    }


class Sizes(NamedTuple):
    """Of texts, words and vectors."""

    query_length: int
    length: int  # of a passage
    vocabulary: int
    dimension: int


def batch(kind: str, texts: int, sizes: Sizes, seed: int = 0) -> tuple[Side, Side]:
    """Queries, whose tokens are some of their passages', and passages."""
    rng = np.random.default_rng(seed)
    # Zipf's law, so that tokens repeat.
    ranks = rng.zipf(1.2, (texts, sizes.length)) % (sizes.vocabulary - SPECIAL)
    tokens = (SPECIAL + ranks).astype(np.int32)
    places = rng.permuted(np.tile(np.arange(sizes.length), (texts, 1)), axis=1)
    asked = np.take_along_axis(tokens, places[:, : sizes.query_length], axis=1)

    def side(tokens: np.ndarray) -> dict[str, np.ndarray]:
        if kind == SPARSE:
            return {"tokens": tokens, "weights": rng.uniform(0.0, 0.3, tokens.shape)}
        made = rng.normal(size=(*tokens.shape, sizes.dimension))
        return {"tokens": tokens, "vectors": made / np.linalg.norm(made, axis=-1, keepdims=True)}

    return jax.tree.map(jnp.asarray, (side(asked), side(tokens)))


def shapes(kind: str, texts: int, sizes: Sizes, sharding: Any) -> tuple[Side, Side]:
    """Of `batch`, without arrays."""
    name, inner = ("weights", ()) if kind == SPARSE else ("vectors", (sizes.dimension,))

    def side(tokens: int) -> Side:
        made = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
        shape = (texts, tokens)
        return {"tokens": made(shape, jnp.int32), name: made((*shape, *inner), jnp.float32)}

    return side(sizes.query_length), side(sizes.length)


class Program(NamedTuple):
    """Value and gradient of one form for one size; `bytes` without its arguments."""

    call: Callable[..., Any]
    bytes: int


def program(loss: Loss, sides: tuple[Side, Side]) -> Program | None:
    """Compiled for where `sides` are; None where the compiler finds it too large."""

    def total(floats: tuple[Side, Side], tokens: tuple[Side, Side]) -> jax.Array:
        return loss(*({**a, **b} for a, b in zip(floats, tokens, strict=True)))

    split = [tuple({k: v for k, v in side.items() if (k == "tokens") == only} for side in sides)
             for only in (False, True)]  # fmt: skip
    try:
        compiled = jax.jit(jax.value_and_grad(total)).lower(*split).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None
    found = compiled.memory_analysis()
    size = found.temp_size_in_bytes + found.output_size_in_bytes
    return Program(functools.partial(compiled, *split), size)


def seconds(call: Callable[..., Any]) -> float:
    """Of one call."""
    started = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - started


def require_same(found: Mapping[str, Any]) -> None:
    """Ends the benchmark unless all forms have the same value and gradients."""
    value, gradients = found["ours"]
    for name, (other, others) in found.items():
        np.testing.assert_allclose(other, value, rtol=1e-4, err_msg=name)
        for a, b in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=name)


def allocated(
    kind: str, losses: Mapping[str, Loss], counts: list[int], sizes: Sizes, sharding: Any
) -> dict[str, list[int | None]]:
    """Name -> bytes for each number of texts; None where the compiler finds it too large."""
    found: dict[str, list[int | None]] = {name: [] for name in losses}
    for texts in counts:
        for name, loss in losses.items():
            made = program(loss, shapes(kind, texts, sizes, sharding))
            found[name].append(None if made is None else made.bytes)
    return found


def times(kind: str, losses: Mapping[str, Loss], texts: int, sizes: Sizes) -> dict[str, float]:
    """Name -> median seconds in turns, of one batch for all; values and gradients agree."""
    sides = batch(kind, texts, sizes)
    programs = {name: program(loss, sides) for name, loss in losses.items()}
    calls = {name: one.call for name, one in programs.items() if one is not None}
    require_same({name: call() for name, call in calls.items()})
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS.value):
        for name, call in calls.items():
            taken[name].append(seconds(call))
    return {name: statistics.median(one) for name, one in taken.items()}


def main(_: list[str]) -> None:
    """Prints a line for each form and length."""
    sharding = None
    if _TOPOLOGY.value:
        jax.config.update("jax_enable_compilation_cache", False)
        sharding = Partitioner(devices=topology.devices(_TOPOLOGY.value)).batch_sharding
    counts = [int(texts) for texts in _TEXTS.value]
    limit = _LIMIT.value * 2**30
    print(
        f"value and gradients of queries of {_QUERY_LENGTH.value} tokens, {_VOCABULARY.value:,} "
        f"words, vectors of {_DIMENSION.value}, float32; MiB by pairs of a batch\n"
        f"{'kind':<14}{'length':>7}  {'form':<18}" + "".join(f"{one:>11}" for one in counts)
        + f"{'pairs':>8}{'ms':>9}"
    )  # fmt: skip
    for kind, losses in forms(_VOCABULARY.value).items():
        for length in map(int, _LENGTHS.value):
            sizes = Sizes(_QUERY_LENGTH.value, length, _VOCABULARY.value, _DIMENSION.value)
            found = allocated(kind, losses, counts, sizes, sharding)
            fitting = {
                name: [n for n, size in zip(counts, one, strict=True) if size and size <= limit]
                for name, one in found.items()
            }
            able = {name: losses[name] for name, one in fitting.items() if one}
            texts = min([_TIMED.value, *(max(fitting[name]) for name in able)])
            taken = times(kind, able, texts, sizes) if able and sharding is None else {}
            for name, one in found.items():
                shown = ("too large" if size is None else f"{size / 2**20:,.0f}" for size in one)
                line = f"{kind:<14}{length:>7}  {name:<18}" + "".join(f"{s:>11}" for s in shown)
                if name in taken:
                    line += f"{texts:>8}{1e3 * taken[name]:>9,.0f}"
                print(line, flush=True)


if __name__ == "__main__":
    code_hash.announce("heads")
    app.run(main)
