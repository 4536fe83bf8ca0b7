"""The parts of preflight that need no compiler: products counted, programs read, slices named."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from t5x_style.accelerators.generations import GIB
from t5x_style.distributed import partitioning
from t5x_style.preflight import collectives, flops, hlo, largest, program, topology, traffic

ONE = 2 * 8 * 16 * 32  # of [8, 16] @ [16, 32]


def count(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return flops.count(jax.make_jaxpr(function)(*arguments))


def test_products_are_counted_as_often_as_they_run():
    def product(a, b):
        return a @ b

    shapes = (8, 16), (16, 32)
    assert count(product, *shapes).flops == ONE
    assert count(jax.jit(product), *shapes).flops == ONE
    assert count(lambda a, b: (product(a, b), jnp.sum(a))[1], *shapes).flops == 0  # unused
    assert (
        count(jax.grad(lambda a, b: product(a, b).sum(), argnums=(0, 1)), *shapes).flops == 2 * ONE
    )

    def looped(a, b):
        return jax.lax.fori_loop(0, 5, lambda _, c: c + product(a, b), jnp.zeros((8, 32)))

    assert count(looped, *shapes).flops == 5 * ONE

    def chosen(a, b):
        return jax.lax.cond(a[0, 0] > 0, product, lambda a, b: jnp.zeros((8, 32)), a, b)

    assert count(chosen, *shapes).flops == ONE


def test_products_of_shards_are_those_of_all_devices():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    for axes in ({"a"}, {"a", "b"}):
        split = P(tuple(sorted(axes)))
        local = jax.shard_map(
            jnp.matmul, mesh=mesh, in_specs=(split, P()), out_specs=split, axis_names=axes
        )
        assert count(local, (8, 16), (16, 32)).flops == ONE


def test_recomputed_products_count_again():
    def loss(a, b, c):
        return jnp.sum((jnp.tanh(a @ b) @ c) ** 2)

    shapes = (8, 16), (16, 32), (32, 8)
    plain = count(jax.value_and_grad(loss, argnums=(0, 1, 2)), *shapes).flops
    again = count(jax.value_and_grad(jax.checkpoint(loss), argnums=(0, 1, 2)), *shapes).flops
    assert plain == 3 * count(loss, *shapes).flops
    assert plain < again <= plain + count(loss, *shapes).flops


def test_a_loop_that_data_end_is_said():
    def loop(a, b):
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: c + a @ b, jnp.zeros((8, 32)))

    found = count(loop, (8, 16), (16, 32))
    assert (found.flops, found.unknown_loops) == (ONE, 1)


PROGRAM = """HloModule jit_step, is_scheduled=true

%sliced (p.0: f32[12,64], p.1: s32[]) -> f32[1,64] {
  %p.0 = f32[12,64]{1,0:T(8,128)} parameter(0)
  %p.1 = s32[]{:T(128)} parameter(1)
  ROOT %slice = f32[1,64]{1,0:T(8,128)} dynamic-slice(%p.0, %p.1), dynamic_slice_sizes={1,64}
}

%body (s: (s32[], f32[12,64])) -> (s32[], f32[12,64]) {
  %s = (s32[]{:T(128)}, f32[12,64]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  %table = f32[12,64]{1,0:T(8,128)} get-tuple-element(%s), index=1
  %one = f32[1,64]{1,0:T(8,128)S(1)} fusion(%table, %i), kind=kLoop, calls=%sliced
  %sum = f32[1,64]{1,0:T(8,128)S(1)} all-reduce(%one), replica_groups=[2,4]<=[8], LABEL
  ROOT %next = (s32[]{:T(128)}, f32[12,64]{1,0:T(8,128)}) tuple(%i, %table)
}

%condition (s: (s32[], f32[12,64])) -> pred[] {
  %s = (s32[]{:T(128)}, f32[12,64]{1,0:T(8,128)}) parameter(0)
  %last = s32[]{:T(128)} constant(12)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %last), direction=LT
}

ENTRY %main (a: f32[12,64], b: bf16[8]) -> bf16[64] {
  %a = f32[12,64]{1,0:T(8,128)} parameter(0)
  %b = bf16[8]{0:T(256)(128)(2,1)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[12,64]{1,0:T(8,128)}) tuple(%zero, %a)
  %loop = (s32[], f32[12,64]{1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  ROOT %all = bf16[64]{0:T(512)} all-gather(%b), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
}
""".replace("LABEL", 'to_apply=%add, metadata={op_name="jit(step)/while/body/psum"}')


def test_collectives_in_loops_count_as_often_as_they_run():
    found = collectives.collect(hlo.parse(PROGRAM), 8)
    reduce, gather = found
    assert (reduce.kind, reduce.count, reduce.bytes) == ("all-reduce", 12, 12 * 256)
    assert reduce.sent_bytes == 12 * 2 * 256 * 3 // 4
    assert reduce.label == "jit(step)/while/body/psum"
    assert (gather.kind, gather.count, gather.bytes, gather.sent_bytes) == (
        "all-gather",
        1,
        128,
        112,
    )
    assert [one["kind"] for one in collectives.by_kind(found)] == ["all-reduce", "all-gather"]


def test_traffic_counts_slices_and_leaves_on_chip_memory_out():
    # 12 times a row of 256 bytes into on-chip memory, its index of 4, and a comparison of 9; then
    # 16 in and 128 out
    assert traffic.hbm_bytes(hlo.parse(PROGRAM)) == 12 * (256 + 4 + 9) + 16 + 128


def test_the_largest_arrays_are_those_that_are_made_in_hbm():
    found = largest.largest(hlo.parse(PROGRAM))
    assert [(one.type, one.bytes) for one in found] == [("bf16[64]", 128), ("pred[]", 1)]
    assert [one.type for one in largest.largest(hlo.parse(PROGRAM), 1)] == ["bf16[64]"]


def test_loops_without_a_constant_end_are_marked():
    text = PROGRAM.replace("constant(12)", "get-tuple-element(%s), index=0")
    reduce = collectives.collect(hlo.parse(text), 8)[0]
    assert reduce.at_least
    assert 1 in {one.count for one in collectives.collect(hlo.parse(text), 8)}


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups=[16,4]<=[64]", 4),
        ("replica_groups={{0,2},{1,3}}", 2),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=4] {'axis_0','axis_1'}", 32),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)4}", 4),
        ("channel_id=1", 64),
    ],
)
def test_sizes_of_groups(groups, size):
    assert collectives.group_size(groups, 64) == size


def test_a_misspelt_topology_gets_the_nearest_names():
    for name, near in (
        ("v5e:8x9", "v5e:8x8"),
        ("v5:8x8", "v5e:8x8"),
        ("v4:4x4", "v4:2x2x4"),
        ("V6E:8x9", "v6e:8x8"),
        ("v5e-65", "v5e-64"),
        ("", "generations: v4, v5e"),
    ):
        with pytest.raises(topology.TopologyError, match=near):
            topology.parse(name)


@pytest.mark.parametrize("name", ["v4:4x4x4", "v5e:8x8", "v5p:4x4x4", "v6e:8x8"])
def test_known_slices(name):
    found = topology.parse(name)
    assert found.all_devices == 64
    assert found.generation.chip.hbm > 15 * GIB


@pytest.mark.parametrize("shape", [(16, 1, 1), (4, 4, 1), (2, 8, 1), (2, 4, 2)])
def test_meshes_may_cut_physical_axes(shape):
    devices = topology.devices("v5e:4x4")
    mesh = partitioning.Partitioner(partitioning.MeshShape(*shape), devices=devices).mesh
    assert mesh.devices.shape == shape
    assert len({device.id for device in mesh.devices.flat}) == 16


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (320.48G) exceeds available HBM (15.75G).",
            320.48,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 17.03G of 15.75G hbm. "
            "Exceeded hbm capacity by 1.28G.",
            17.03,
        ),
    ],
)
def test_refusals_say_how_much_was_needed(message, needed):
    memory = program._refused(message, 2**30, 15.75 * 2**30)
    assert memory.total == pytest.approx(needed * 2**30, rel=1e-3)
    assert memory.arguments == 2**30


def test_other_errors_are_no_refusals():
    assert program._refused("INTERNAL: something else", 0, 1.0) is None
