"""The order of devices: data across slices, everything else inside."""

import dataclasses

import numpy as np
import pytest

from t5x_style.distributed import device_grid
from t5x_style.distributed.partitioning import MeshShape, Partitioner, PartitioningError
from t5x_style.preflight import topology


@dataclasses.dataclass(frozen=True)
class Chip:
    id: int
    slice_index: int
    platform: str = "tpu"


def test_devices_are_grouped_by_slice_in_the_order_of_the_slices():
    chips = [Chip(number, slice_index) for number, slice_index in enumerate([1, 0, 1, 0])]
    assert [[chip.id for chip in one] for one in device_grid.by_slice(chips)] == [[1, 3], [0, 2]]


def test_hosts_of_gpus_are_no_slices():
    cards = [Chip(number, number // 2, "gpu") for number in range(4)]
    assert device_grid.by_slice(cards) == [cards]


def test_slices_of_different_sizes_are_refused():
    with pytest.raises(device_grid.UnequalSlicesError, match=r"\{0: 1, 1: 2\}"):
        device_grid.by_slice([Chip(0, 0), Chip(1, 1), Chip(2, 1)])


@pytest.mark.parametrize(
    "shape", [(32, 1, 1), (8, 4, 1), (4, 2, 4), (2, 16, 1), (2, 4, 4)], ids=str
)
def test_only_data_crosses_slices(for_tpus, shape):
    devices = topology.devices("2x v5e:4x4")
    mesh = Partitioner(MeshShape(*shape), devices=devices[::-1]).mesh
    assert mesh.devices.shape == shape
    assert len({device.id for device in mesh.devices.flat}) == 32
    slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    half = shape[0] // 2
    assert (slices[:half] == 0).all() and (slices[half:] == 1).all()


def test_inside_a_slice_the_order_is_that_of_one_slice(for_tpus):
    one = Partitioner(MeshShape(4, 2, 2), devices=topology.devices("v5e:4x4")).mesh
    two = Partitioner(MeshShape(8, 2, 2), devices=topology.devices("2x v5e:4x4")).mesh
    for part in (two.devices[:4], two.devices[4:]):
        assert [d.coords for d in part.flat] == [d.coords for d in one.devices.flat]


@pytest.mark.parametrize(
    ("mesh", "devices", "slices", "message"),
    [
        (
            MeshShape(fsdp=3),
            16,
            1,
            "mesh data=-1, fsdp=3, tensor=1: expected a product of 16, the number of devices. "
            "Nearest meshes: data=4, fsdp=4, tensor=1; data=8, fsdp=2, tensor=1; "
            "data=2, fsdp=4, tensor=2. Set partitioning.MeshShape in gin.",
        ),
        (
            MeshShape(data=3, fsdp=4),
            16,
            1,
            "mesh data=3, fsdp=4, tensor=1: expected a product of 16, the number of devices. "
            "Nearest meshes: data=4, fsdp=4, tensor=1;",
        ),
        (
            MeshShape(fsdp=4, tensor=4),
            16,
            2,
            "expected fsdp x tensor to divide 8, the devices of each of 2 slices, found 16; slices "
            "are joined along data only. Nearest meshes: data=2, fsdp=2, tensor=4; "
            "data=2, fsdp=4, tensor=2; ",
        ),
    ],
)
def test_a_mesh_that_does_not_divide_names_the_nearest(mesh, devices, slices, message):
    with pytest.raises(PartitioningError) as error:
        mesh.resolve(devices, slices)
    assert message in str(error.value)
