"""M3: kinds from one pass, packed rows, chunks, meshes, subsets of kinds, and what it refuses."""

import dataclasses
import functools
import math
import re
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses.joint_losses import JointLossConfig
from models.networks import token_representations
from models.objectives import m3
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.objective import Batch, GroupShape
from t5x_style.interfaces.representation import KINDS, RepresentationError
from t5x_style.step import optimizers, train_state, train_step
from t5x_style.training.hooks import StepContext
from t5x_style.training.limits import LimitError, WatchLimits
from tests.kits import tiny_models
from tests.models.losses.contrastive_batches import (
    GROUP,
    PACKED,
    PLAIN,
    largest_error,
    shapes_of,
    value_and_gradients,
)

SHORT = dataclasses.replace(tiny_models.CONFIG, layers=1)
EMBEDDING = dataclasses.replace(tiny_models.EMBEDDING, normalise=True, temperature=0.1)
WEIGHTS = {"dense": 1.0, "sparse": 0.1, "multi_vector": 1.0}
IN_SUM = {"dense": 1.0, "sparse": 0.3, "multi_vector": 1.0}
MESHES = [((8, 1, 1), "ring"), ((2, 4, 1), "gather"), ((2, 2, 2), "ring")]


def losses(*kinds: str, **settings: Any) -> JointLossConfig:
    chosen = kinds or tuple(WEIGHTS)
    return JointLossConfig(
        {kind: WEIGHTS[kind] for kind in chosen},
        {kind: IN_SUM[kind] for kind in chosen},
        **settings,
    )


def objective(batch: Batch, config: JointLossConfig | None = None, **settings: Any) -> m3.M3:
    settings = {"group_size": GROUP, "vector_size": 8, **settings}
    return m3.M3(
        settings.pop("encoder", SHORT), EMBEDDING, tiny_models.VOCABULARY, *shapes_of(batch),
        config or losses(), rngs=nnx.Rngs(0), **settings,
    )  # fmt: skip


@pytest.mark.parametrize("kinds", [("dense",), ("dense", "sparse")])
def test_a_weight_that_is_left_out_leaves_its_kind_out(kinds: tuple[str, ...]) -> None:
    """By one setting: the sum is of the kinds that there are, and of one alone there is none."""
    batch = without_teacher(PLAIN)
    weights = {kind: WEIGHTS[kind] for kind in kinds}
    model = objective(batch, JointLossConfig(weights, IN_SUM), distil_after=0)
    expected = objective(batch, losses(*kinds), distil_after=None if len(kinds) == 1 else 0)
    assert model.functions()["embed_query"].representations == kinds
    made, wanted = (one.loss(batch, jax.random.key(0)) for one in (model, expected))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, made, wanted))


def without_teacher(batch: Batch) -> Batch:
    passage = {name: x for name, x in batch["passage"].items() if name != "teacher_score"}
    return {"query": batch["query"], "passage": passage}


@pytest.fixture(scope="module")
def oracle() -> Any:
    """One device, a text a row, one tile."""
    model = objective(PLAIN, losses(teacher="m3_kd"), distil_after=0)
    found = value_and_gradients(model, PLAIN)
    assert found[0] > 0.5 and all(gradient.any() for gradient in found[1])
    return found


@pytest.mark.parametrize(
    ("mesh", "exchange"),
    [pytest.param(*one, marks=[pytest.mark.slow] if n else []) for n, one in enumerate(MESHES)],
)
def test_packed_in_chunks_and_tiles_on_a_mesh_equals_one_device(
    oracle: Any, mesh: Any, exchange: str
) -> None:
    model = objective(
        PACKED, losses(teacher="m3_kd"), distil_after=0, exchange=exchange, cells=20_000,
        encode_chunks=2,
    )  # fmt: skip
    found = value_and_gradients(model, PACKED, mesh)
    assert largest_error(found, oracle) <= 2e-5


@pytest.mark.parametrize("kinds", [(kind,) for kind in KINDS] + [("dense", "sparse")])
def test_any_kinds_alone(kinds: tuple[str, ...]) -> None:
    batch = without_teacher(PLAIN)
    model = objective(batch, losses(*kinds))
    loss, metrics = nnx.jit(lambda model, batch: model.loss(batch, None))(model, batch)
    assert np.isfinite(loss.value())
    names = {f"loss_{kind}" for kind in kinds} | ({"loss_all"} if len(kinds) > 1 else set())
    assert {name for name in metrics if name.startswith("loss")} == names
    offered = {one.representations for one in model.functions().values()}
    assert offered == {kinds}
    assert hasattr(model, "sparse") == ("sparse" in kinds)


def test_documents_known_to_answer_a_query_are_no_negatives() -> None:
    """They are left out of the batch in the same way as passages that are not there."""
    batch = without_teacher(PLAIN)
    documents = batch["passage"]["document_id"][:, 0]
    other = int(documents[GROUP * 5])
    known = jnp.full((*batch["query"]["example_id"].shape, 2), -1, jnp.int32)
    names = {**batch["query"], "known": known.at[:, 0, 1].set(other)}
    gone = {
        **batch["passage"],
        "segment_valid": batch["passage"]["segment_valid"] & (documents != other)[:, None],
    }
    of_first = {**batch, "query": _only_first(names)}
    expected = {"query": _only_first(batch["query"]), "passage": gone}
    values = [
        float(objective(batch, known_positives=count).loss(given, None)[0].value())
        for count, given in ((2, of_first), (0, expected))
    ]
    without = float(
        objective(batch).loss({**expected, "passage": batch["passage"]}, None)[0].value()
    )
    assert values[0] == pytest.approx(values[1], rel=1e-5) != pytest.approx(without, rel=1e-4)


def _only_first(query: Any) -> Any:
    """Query 0 alone asks; the passages of others stay."""
    valid = query["segment_valid"] & (jnp.arange(len(query["tokens"])) == 0)[:, None]
    return {**query, "segment_valid": valid}


def test_self_distillation_begins_when_it_is_asked_to() -> None:
    batch = without_teacher(PLAIN)
    model = objective(batch, distil_after=2)
    run = nnx.jit(lambda model, batch: model.loss(batch, None)[0].value())
    found = []
    for step in range(1, 4):
        found.append(float(run(model, batch)))
        model.after_update(jnp.asarray(step), jax.random.key(0))
    assert found[0] == found[1] != pytest.approx(float(run(model, batch)), rel=1e-4)
    plain = objective(batch)
    assert found[0] == pytest.approx(float(run(plain, batch)), rel=1e-6)


def test_one_pass_gives_what_each_kind_alone_gives() -> None:
    model = objective(PACKED)
    call = model.functions()["embed_passage"]
    together = call(PACKED["passage"], kinds=KINDS)
    for kind in KINDS:
        alone = call(PACKED["passage"], kinds=(kind,))
        assert alone.keys() == {kind}
        for one, other in zip(
            jax.tree.leaves(alone[kind]), jax.tree.leaves(together[kind]), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_text_of_special_tokens_only_has_no_weight_and_is_counted() -> None:
    batch = without_teacher(PLAIN)
    only_special = jnp.where(batch["query"]["tokens"] > 4, 3, batch["query"]["tokens"])
    query = {**batch["query"], "tokens": batch["query"]["tokens"].at[0].set(only_special[0])}
    model = objective(batch)
    loss, metrics = model.loss({**batch, "query": query}, None)
    assert np.isfinite(loss.value())
    empty = model.represent("query", query, ("sparse",))["sparse"]
    assert not empty["segments"][0].any() and empty["segments"][1:].any()
    fewest = 1 / len(query["tokens"])
    assert float(metrics["empty_query"].value()) >= fewest * (1 - 1e-6)


def test_every_word_begins_with_the_same_weight() -> None:
    model = objective(PLAIN)
    made = model.represent("passage", PLAIN["passage"], ("sparse",))["sparse"]
    weights = np.asarray(made["weights"])[np.asarray(made["segments"]) > 0]
    np.testing.assert_allclose(weights, EMBEDDING.temperature**0.5, rtol=1e-6)


def test_the_heads_alone_are_trained_where_the_encoder_is_frozen() -> None:
    batch = without_teacher(PLAIN)
    optimizer = optimizers.AdamW(0.05, 0, 10, no_decay=(), frozen=("^encoder/",))
    partitioner = Partitioner(MeshShape(1, 1, 1), devices=jax.devices()[:1])
    definition, before, _ = train_state.create(
        lambda rngs: objective(batch), optimizer, partitioner, 0
    )
    state, losses_of_steps = before, []
    step = jax.jit(functools.partial(train_step.train_step, definition, partitioner.mesh))
    for _ in range(3):
        state, metrics = step(state, batch)
        losses_of_steps.append(float(metrics["loss"].value()))
    assert losses_of_steps[2] < losses_of_steps[0]
    assert {path.split("/")[0] for path in optimizers.paths_of(state.params)} == {
        "sparse",
        "multi_vector",
    }
    kept, changed = (
        jax.tree.map(lambda a, b: bool((a == b).all()), getattr(before, part), getattr(state, part))
        for part in ("variables", "params")
    )
    assert all(jax.tree.leaves(kept["encoder"])) and not any(jax.tree.leaves(changed))


def test_a_collapse_of_the_sparse_weights_stops_the_training() -> None:
    """One update that is too large sets all weights to 0, where no gradient brings them back."""
    batch = without_teacher(PLAIN)
    model = objective(batch, losses("sparse"))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def step(params: Any, rate: float) -> Any:
        def total(params: Any) -> Any:
            loss, metrics = nnx.merge(graph, params, rest).loss(batch, None)
            return loss.value(), metrics

        gradient, metrics = jax.grad(total, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), gradient, metrics

    watch, no_state = WatchLimits(1, model.limits, pytest.fail), cast(Any, None)
    for number, rate in enumerate((0.001, 100.0), 1):
        params, _, metrics = step(params, rate)
        watch(StepContext(number, no_state, metrics, 0.0, last=False))
    for _ in range(3):
        params, gradient, metrics = step(params, 0.001)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    with pytest.raises(LimitError, match=r"queries without any sparse weight is 100\.0%.*DISTIL"):
        watch(StepContext(3, no_state, metrics, 0.0, last=False))


@pytest.mark.parametrize("seed", range(5))
def test_each_token_of_a_text_once_with_its_largest_weight(seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 9, (4, 30)).astype(np.int32)
    segments = np.sort(random.integers(0, 4, (4, 30)), axis=1).astype(np.int32)
    weights = np.maximum(random.normal(size=(4, 30)), 0).astype(np.float32)
    found = token_representations.largest_of_each(
        jnp.asarray(tokens), jnp.asarray(segments), jnp.asarray(weights), (0, 1)
    )
    found = {name: np.asarray(array) for name, array in found.items()}
    for row in range(4):
        expected: dict[tuple[int, int], float] = {}
        for token, text, weight in zip(tokens[row], segments[row], weights[row], strict=True):
            if text and token > 1 and weight:
                at = (int(text), int(token))
                expected[at] = max(expected.get(at, 0.0), float(weight))
        kept = found["segments"][row] > 0
        columns = [found[name][row][kept].tolist() for name in ("segments", "tokens", "weights")]
        entries = list(zip(*columns, strict=True))
        assert len(entries) == len(expected)
        assert {(text, token): weight for text, token, weight in entries} == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 0}, "group_size"),
        ({"distil_after": -1}, "distil_after"),
        ({"cells": 0}, "cells"),
        ({"exchange": "star"}, "M3.exchange: expected one of .*'star'"),
        ({"config": JointLossConfig({"thick": 1.0}, {"thick": 1.0})}, "thick"),
        ({"vector_size": 0}, "TokenVectors.size"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Any, message: str) -> None:
    with pytest.raises((ValueError, RepresentationError), match=message):
        objective(PLAIN, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, {}), "at least one"),
        (({"dense": 1.0}, {"sparse": 1.0}), "each of them in in_sum"),
        (({"dense": -1.0}, {"dense": 1.0}), "at least 0"),
        (({"dense": 0.0}, {"dense": 1.0}), "one above it"),
        (({"dense": 1.0}, {"dense": 1.0}, True, "kd"), "teacher"),
    ],
)
def test_losses_that_do_not_fit_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JointLossConfig(*arguments)


class OfStates(m3.M3):
    """Given states instead of an encoder's: its attention is not what is looked at."""

    def represent(self, side: str, group: Any, kinds: Any, key: Any = None) -> Any:
        return self.of_states(side, group["states"], group, kinds)


def test_the_sparse_step_makes_no_array_over_the_vocabulary() -> None:
    """At 8,192 tokens and 250,000 words."""
    rows, length, size = 2, 8192, 250_000
    config = dataclasses.replace(SHORT, vocab_size=size, max_positions=length)
    model = OfStates(
        config, EMBEDDING, dataclasses.replace(tiny_models.VOCABULARY, size=size),
        GroupShape(rows, 512, 1), GroupShape(rows, length, 1), losses("sparse"),
        group_size=1, rngs=nnx.Rngs(0),
    )  # fmt: skip
    (specs,) = model.batch_specs()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def total(params: Any, states: Any, batch: Any) -> jax.Array:
        given = {side: {**batch[side], "states": states[side]} for side in batch}
        return nnx.merge(graph, params, rest).loss(given, None)[0].value()

    states = {
        side: jax.ShapeDtypeStruct((*spec["tokens"].shape, config.hidden), jnp.float32)
        for side, spec in specs.items()
    }
    step = jax.jit(jax.grad(total, argnums=(0, 1))).lower(params, states, specs).compile()
    assert 1e5 < largest_array(step.as_text()) < rows * length * size // 64


def largest_array(hlo: str) -> int:
    """Elements of the largest array in the text of a compiled program."""
    shapes = re.findall(r"\b(?:f32|s32|pred|bf16|u32|u8)\[([\d,]+)\]", hlo)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)
