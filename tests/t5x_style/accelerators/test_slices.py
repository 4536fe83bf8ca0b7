"""Names of slices: each spelling of a legal one is read, and an illegal one gets the nearest."""

import math

import pytest

from t5x_style.accelerators import slices
from t5x_style.accelerators.generations import GENERATIONS, PROVISIONING

EVERY = [(one, topology) for one in GENERATIONS.values() for topology in one.topologies]


@pytest.mark.parametrize(
    "name,found,chips,hosts,type_",
    [
        ("v5e:4x4", "v5e:4x4", 16, 4, "v5litepod-16"),
        ("v5litepod-8", "v5e:2x4", 8, 1, "v5litepod-8"),
        ("tpu-v5-lite-podslice:2x2", "v5e:2x2", 4, 1, "v5litepod-4"),
        ("Trillium-256", "v6e:16x16", 256, 64, "v6e-256"),
        ("v4-8", "v4:2x2x1", 4, 1, "v4-8"),  # cores, two a chip
        ("v5p-512", "v5p:4x8x8", 256, 64, "v5p-512"),
        ("v4:4x4x16", "v4:4x4x16", 256, 64, "v4-512"),
        ("tpu7x:2x2x2", "tpu7x:2x2x2", 8, 2, ""),
        ("2x v6e:4X4", "2x v6e:4x4", 16, 4, "v6e-16"),
        ("2xv6e-16", "2x v6e:4x4", 16, 4, "v6e-16"),
        ("1x v6e-16", "v6e:4x4", 16, 4, "v6e-16"),
    ],
)
def test_spellings(name, found, chips, hosts, type_):
    one = slices.parse(name)
    assert str(one) == found and slices.parse(str(one)) == slices.parse(found)
    assert (one.chips, one.hosts, one.accelerator_type) == (chips, hosts, type_)


@pytest.mark.parametrize("generation,topology", EVERY, ids=lambda x: getattr(x, "name", x))
def test_every_slice_of_the_table(generation, topology):
    one = slices.parse(f"{generation.name}:{topology}")
    assert one.chips_per_host * one.hosts == one.chips
    for spelled in (generation.name, *generation.spellings):
        assert slices.parse(f"{spelled}:{topology}") == slices.Slices(
            generation, topology, 1, spelled
        )
    if generation.accelerator:
        usual = slices.parse(one.accelerator_type)
        assert usual.chips == one.chips and usual.is_usual
        assert (usual.topology == topology) == one.is_usual


def test_rows_are_complete():
    spelled = [name for one in GENERATIONS.values() for name in (one.name, *one.spellings)]
    assert len(spelled) == len(set(spelled))
    for one in GENERATIONS.values():
        assert set(one.one_host) <= set(one.topologies)
        assert set(one.provisioning) <= set(PROVISIONING)
        assert bool(one.accelerator) == bool(one.runtime_version) == bool(one.provisioning)
        sizes = [math.prod(slices.sides(topology)) for topology in one.topologies]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    "name,near",
    [
        ("v5litepod:8x9", "nearest: v5litepod:8x8, "),  # in the user's spelling
        ("v5litepod-12", "nearest: v5litepod-16, v5litepod-8, "),
        ("v99-8", "nearest: v4-8, v6e-8, "),
        ("v6e:4x4x4", "nearest: v6e:8x8, "),  # 64 chips, as asked
        ("v5p-5", "nearest: v5p-8, "),
        ("2x trillium-7", "nearest: trillium-8, "),
        ("", "generations: v4, "),
        ("0x v5e:2x2", "expected one slice or more, found 0"),
        ("a100", "generations: v4, "),
    ],
)
def test_what_is_not_there_gets_the_nearest(name, near):
    with pytest.raises(slices.SliceError) as caught:
        slices.parse(name)
    assert near in str(caught.value) and repr(name) in str(caught.value)
