"""Devices in the order of a mesh: slices outermost, and inside each slice as its links run."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils

Shape = tuple[int, int, int]  # data, fsdp, tensor

NEAREST = 3  # meshes that an error names


class UnequalSlicesError(ValueError):
    """Slices with different numbers of devices."""


def slice_of(device: jax.Device) -> int:
    """The number of a TPU's slice; all other devices are in one.

    GPUs have the attribute, too, where it counts hosts.
    """
    return getattr(device, "slice_index", 0) if device.platform == "tpu" else 0


def by_slice(devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """The devices of each slice, in the order of `slice_of`.

    Raises:
      UnequalSlicesError: a slice has more devices than another.
    """
    found: dict[int, list[jax.Device]] = {}
    for device in devices:
        found.setdefault(slice_of(device), []).append(device)
    sizes = {number: len(found[number]) for number in sorted(found)}
    if len(set(sizes.values())) > 1:
        raise UnequalSlicesError(
            f"expected slices with the same number of devices, found slice: devices = {sizes}. "
            "Use slices of one topology."
        )
    return [found[number] for number in sizes]


def arrange(shape: Shape, slices: Sequence[Sequence[jax.Device]]) -> np.ndarray:
    """Devices as an array of `shape`: the first rows are the first slice's, and so on.

    Args:
      shape: its first size divides by the number of slices.
      slices: of `by_slice`.
    """
    inside = (shape[0] // len(slices), *shape[1:])
    # Axes that do not match a slice's physical ones are cut across them; others are unaffected.
    return np.concatenate(
        [
            mesh_utils.create_device_mesh(inside, devices, allow_split_physical_axes=True)
            for devices in slices
        ]
    )


def nearest(fsdp: int, tensor: int, devices: int, slices: int) -> list[Shape]:
    """Meshes of all devices whose fsdp and tensor axes lie within a slice, the most similar first.

    Args:
      fsdp, tensor: sizes of at least 1 that were asked for.
      devices: of all slices together.
    """
    inside = devices // slices
    divisors = [size for size in range(1, inside + 1) if inside % size == 0]
    found = [(one, two) for one in divisors for two in divisors if inside % (one * two) == 0]

    def distance(sizes: tuple[int, int]) -> float:
        return abs(math.log(sizes[0] / fsdp)) + abs(math.log(sizes[1] / tensor))

    chosen = sorted(found, key=distance)[:NEAREST]
    return [(devices // (one * two), one, two) for one, two in chosen]
