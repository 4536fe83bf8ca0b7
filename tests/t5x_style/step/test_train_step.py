"""One update: exact over meshes and micro-batches, guarded against NaN, each table placed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state, train_step
from tests.kits.toys.toy_objective import Toy, ToyPipeline

TEXT = GroupShape(rows=16, length=12, segments=1)
OPTIMIZER = optimizers.AdamW(0.05, 2, 10, no_decay=("scale",))
TOY = functools.partial(Toy, TEXT, 32, 8, 16)


def run(mesh=(1, 1, 1), steps=5, micro_batches=1, optimizer=OPTIMIZER, make=TOY, pipeline=None):
    """Trains for some steps; returns the definition, state, shardings and the metrics' values."""
    pipeline = pipeline or ToyPipeline(TEXT, 32)
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    definition, state, shardings = train_state.create(
        make, optimizer, partitioner, 0, micro_batches
    )
    step = jax.jit(
        functools.partial(train_step.train_step, definition, partitioner.mesh), donate_argnums=0,
        out_shardings=(shardings, None),
    )  # fmt: skip
    metrics = []
    for number in range(steps):
        batch = partitioner.place_batch(pipeline.batch(number), {"text": TEXT.rows})
        state, values = step(state, batch)
        metrics.append({name: float(mean.value()) for name, mean in values.items()})
    return definition, state, shardings, metrics


@functools.cache
def one_device():
    return run()


def arrays(state):
    parts = (state.params, state.opt_state, state.variables)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(parts)]


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 4, 1), (2, 2, 2)])
def test_meshes_equal_one_device(mesh):
    _, expected, _, expected_metrics = one_device()
    _, state, _, metrics = run(mesh)
    for found, want in zip(arrays(state), arrays(expected), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    for found, want in zip(metrics, expected_metrics, strict=True):
        assert found == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_loss_falls_and_table_is_refreshed():
    _, state, _, metrics = one_device()
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert sorted(set(np.asarray(state.variables["row_step"][...]).tolist())) == [2, 3, 4, 5]


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 1)])
def test_micro_batches_change_nothing(mesh):
    def no_dropout(*, rngs):
        toy = TOY(rngs=rngs)
        toy.dropout.rate = 0.0
        return toy

    _, expected, _, expected_metrics = run(steps=3, make=no_dropout)
    _, state, _, metrics = run(mesh, steps=3, micro_batches=4, make=no_dropout)
    for found, want in zip(arrays(state), arrays(expected), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert metrics[-1]["loss"] == pytest.approx(expected_metrics[-1]["loss"], rel=1e-5)


def test_every_loss_is_traced_with_the_mesh_and_in_training():
    seen = []

    class Watching(Toy):
        def loss(self, batch, key):
            mesh = jax.sharding.get_abstract_mesh()
            seen.append((mesh.axis_names, self.dropout.deterministic))
            return super().loss(batch, key)

    run((2, 2, 1), steps=1, micro_batches=4, make=functools.partial(Watching, TEXT, 32, 8, 16))
    assert len(seen) >= 2 and set(seen) == {(partitioning.AXES, False)}


def test_every_moment_has_its_parameters_sharding():
    _, state, _, _ = run((2, 2, 2), steps=1)
    params = {optimizers.path_string(p): v for p, v in nnx.to_flat_state(state.params)}
    adam = next(part for part in state.opt_state if hasattr(part, "mu"))
    for moments in (adam.mu, adam.nu):
        for path, moment in nnx.to_flat_state(moments):
            parameter = params[optimizers.path_string(path)]
            assert moment[...].sharding == parameter[...].sharding, path
    assert params["table"][...].sharding.spec == jax.sharding.PartitionSpec("tensor", "fsdp")
    assert state.variables["index"][...].sharding.spec[0] == ("data", "fsdp", "tensor")


def test_non_finite_loss_leaves_the_state_and_latches():
    def poisoned(*, rngs):
        toy = TOY(rngs=rngs)
        toy.table[...] = toy.table[...].at[31].set(jnp.inf)
        return toy

    _, before, _, _ = run(steps=0, make=poisoned)
    _, state, _, metrics = run(steps=2, make=poisoned)
    assert int(state.step) == 0 and not bool(state.healthy)
    assert [m["healthy"] for m in metrics] == [0.0, 0.0]
    for found, want in zip(
        jax.tree.leaves((state.params, state.opt_state, state.variables)),
        jax.tree.leaves((before.params, before.opt_state, before.variables)),
        strict=True,
    ):
        np.testing.assert_array_equal(found, want)


def test_frozen_parameters_do_not_move_and_carry_no_moments():
    optimizer = optimizers.AdamW(0.05, 2, 10, no_decay=("scale",), frozen=("table",))
    _, state, _, _ = run(steps=2, optimizer=optimizer)
    _, before, _, _ = run(steps=0, optimizer=optimizer)
    np.testing.assert_array_equal(state.variables["table"][...], before.variables["table"][...])
    assert optimizers.paths_of(state.params) == ["scale"]
    assert len(jax.tree.leaves(state.opt_state)) == 4  # mu, nu and two counts


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_a_part_may_learn_more_slowly(mesh):
    slower = optimizers.AdamW(0.05, 2, 10, no_decay=("scale",), rates={"^tab": 0.25, "table": 9.0})
    moved = []
    for optimizer in (OPTIMIZER, slower):
        before, after = (run(mesh, steps, optimizer=optimizer)[1].params for steps in (0, 1))
        moved.append({name: after[name][...] - before[name][...] for name in ("table", "scale")})
    np.testing.assert_allclose(moved[1]["table"], 0.25 * moved[0]["table"], rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(moved[1]["scale"], moved[0]["scale"])
    assert np.abs(moved[0]["table"]).max() > 0.01


@pytest.mark.parametrize(
    "patterns",
    [
        {"no_decay": (), "frozen": ("tabel",)},
        {"no_decay": (), "rates": {"tabel": 0.5}},
        {"no_decay": ("tabel",)},
    ],
)
def test_a_pattern_that_matches_nothing_is_an_error(patterns):
    with pytest.raises(optimizers.PatternError, match="'tabel' matches no parameter"):
        run(steps=0, optimizer=optimizers.AdamW(0.05, 2, 10, **patterns))


def test_what_has_no_decay_by_default_may_be_absent():
    """A network may have no biases; the toy has none."""
    _, state, _, _ = run(steps=0, optimizer=optimizers.AdamW(0.05, 2, 10))
    paths = optimizers.paths_of(state.params)
    assert paths and not any(path.endswith("bias") for path in paths)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"b1": 1.0}, {"b2": -0.1}, {"epsilon": 0.0}, {"weight_decay": -0.1}, {"clip_norm": 0.0}),
        {"rates": {"table": 0.0}},
    ],
)
def test_settings_of_the_optimizer_out_of_range(wrong):
    with pytest.raises(ValueError, match=f"AdamW.{next(iter(wrong))}: expected"):
        optimizers.AdamW(1e-3, 1, 2, **wrong)


STABLE = {"decay": "warmup_stable_decay", "decay_steps": 4}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        # Updates 0 and 1 warm up, 2 to 5 are constant, 6 is the first of the decay, 10 is no more.
        (STABLE, {0: 4, 1: 8, 2: 8, 5: 8, 6: 8, 7: 6, 8: 4, 9: 2, 10: 0, 11: 0}),
        (STABLE | {"decay_steps": 1}, {0: 4, 2: 8, 8: 8, 9: 8, 10: 0}),
        (STABLE | {"decay_steps": 8}, {0: 4, 1: 8, 2: 8, 3: 7, 9: 1, 10: 0}),
        (STABLE | {"warmup_steps": 0, "decay_steps": 8}, {0: 8, 1: 8, 2: 8, 3: 7, 10: 0}),
        ({"decay": "constant"}, {0: 4, 1: 8, 2: 8, 9: 8, 10: 8, 100: 8}),
        ({"decay": "linear"}, {0: 4, 1: 8, 2: 8, 6: 4, 9: 1, 10: 0}),
        ({"decay": "cosine"}, {0: 4, 1: 8, 2: 8, 6: 4, 10: 0}),
    ],
)
def test_rates_by_hand(settings, rates, jit):
    """8 at the peak, of 10 steps of which 2 warm up."""
    optimizer = optimizers.AdamW(8.0, **({"warmup_steps": 2, "total_steps": 10} | settings))
    schedule = jax.jit(optimizer.schedule) if jit else optimizer.schedule
    found = {step: schedule(jnp.asarray(step)) for step in rates}
    assert all(rate.dtype == jnp.float32 and rate.shape == () for rate in found.values())
    assert {step: float(rate) for step, rate in found.items()} == pytest.approx(rates, abs=1e-6)


def test_up_to_the_branch_step_rates_do_not_depend_on_the_length():
    """To the last bit: what continues from there may not differ."""
    short = optimizers.AdamW(1e-3, 2, 10, decay="warmup_stable_decay", decay_steps=4)
    long = optimizers.AdamW(1e-3, 2, 17, decay="warmup_stable_decay", decay_steps=5)
    constant = optimizers.AdamW(1e-3, 2, 10, decay="constant")
    assert (short.branch_step(), long.branch_step(), constant.branch_step()) == (6, 12, 10)
    steps = jnp.arange(6)
    rates = [
        [np.asarray(rate) for rate in jax.vmap(jax.jit(one.schedule))(steps)]
        for one in (short, long, constant)
    ]
    assert rates[0] == rates[1] == rates[2]
    for decay in ("linear", "cosine"):
        assert optimizers.AdamW(1e-3, 2, 10, decay=decay).branch_step() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (STABLE | {"decay_steps": 0}, "decay_steps: expected at least 1 .*found 0"),
        (STABLE | {"decay_steps": -1}, "decay_steps: expected at least 1 .*found -1"),
        (STABLE | {"decay_steps": 9}, r"warmup_steps \(2\), at most total_steps \(10\).*found 9"),
        ({"decay": "linear", "decay_steps": 1}, "expected 0 for decay = 'linear', found 1"),
        ({"decay": "constant", "decay_steps": 1}, "expected 0 for decay = 'constant', found 1"),
        ({"decay": "stepwise"}, "AdamW.decay: expected one of .*'cosine'.* found 'stepwise'"),
        ({"warmup_steps": 11}, r"between 0 and total_steps \(10\), found 11"),
    ],
)
def test_schedules_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        optimizers.AdamW(1e-3, **({"warmup_steps": 2, "total_steps": 10} | settings))


def test_after_update_may_not_touch_parameters():
    class Meddler(Toy):
        def after_update(self, step, key):
            self.scale[...] = self.scale[...] * 2

    with pytest.raises(TypeError, match="Meddler.after_update changed a parameter"):
        run(steps=1, make=functools.partial(Meddler, TEXT, 32, 8, 16))
