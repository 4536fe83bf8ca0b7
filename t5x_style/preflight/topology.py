"""Devices of TPU slices as libtpu describes them on any machine."""

import importlib.util
import os

import jax
from jax.experimental import topologies

from t5x_style.accelerators import slices
from t5x_style.accelerators.slices import Slices
from t5x_style.distributed import startup

# Slices smaller than a host of four chips need these bounds; libtpu assumes 2x2x1 a host.
_ONE_CHIP = {"chips_per_host_bounds": (1, 1, 1)}


class TopologyError(ValueError):
    """No such slice, or nothing that could compile for it."""


def parse(name: str) -> Slices:
    """Reads 'v5e:8x8' or '2x v5e:8x8', see `slices.parse`.

    Raises:
      TopologyError: no such slice; names the nearest ones.
    """
    try:
        return slices.parse(name)
    except slices.SliceError as error:
        raise TopologyError(f"--topology: {error}") from None


def devices(name: str) -> list[jax.Device]:
    """The devices of slices; programs can be compiled for them, and nothing can be run.

    Raises:
      TopologyError: no such slice, or libtpu is not installed.
    """
    there = parse(name)
    if importlib.util.find_spec("libtpu") is None:
        raise TopologyError(
            "libtpu is not installed; it compiles for TPUs on any x86 Linux machine: "
            "pip install libtpu (or the extra `test` or `tpu` of this package)."
        )
    startup.describe_absent_tpu()
    # No chip is taken, so that several compilations may run at the same time.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    startup.widen_compiler_stack()
    options: dict[str, object] = dict(_ONE_CHIP) if there.chips == 1 else {}
    if there.generation.name == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    if there.count > 1:
        options["num_slices"] = there.count
    one = f"{there.generation.name}:{there.topology}"
    return list(topologies.get_topology_desc(one, platform="tpu", **options).devices)
