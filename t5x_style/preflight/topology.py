"""TPU chips, the slices made of them, and their devices as libtpu describes them on any machine."""

import dataclasses
import difflib
import importlib.util
import math
import os

import jax
from jax.experimental import topologies

from t5x_style.distributed import startup

GIB = 2**30

# Smaller slices than a host of four chips need to be told so; libtpu assumes 2x2x1 a host.
_ONE_CHIP = {"chips_per_host_bounds": (1, 1, 1)}
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBIC = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
    *("4x4x16", "8x8x12", "8x8x16", "8x16x16", "12x12x12", "16x16x16"),
)


class TopologyError(ValueError):
    """No such slice, or nothing that could compile for it."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one chip can do; every figure is a peak.

    Attributes:
      hbm: bytes that a program may use, as libtpu's compiler states them (the rest is reserved).
      flops: bfloat16 products, FLOP/s.
      hbm_bandwidth: bytes/s.
      ici_bandwidth: bytes/s that leave the chip over all of its links together.
      shapes: of the slices that Google Cloud offers.
    """

    hbm: float
    flops: float
    hbm_bandwidth: float
    ici_bandwidth: float
    shapes: tuple[str, ...]


# FLOP/s and bandwidths: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, read 2026-11. The pages
# give ICI in both directions (v5e 400, v5p 1200, v6e 800 GB/s a chip); half of it is outgoing. v4:
# 2400 Gbit/s. HBM: as libtpu 0.0.42 refuses; the chips have 32, 16, 95 and 32 GiB in all.
CHIPS = {
    "v4": Chip(30.75 * GIB, 275e12, 1.2e12, 300e9, _CUBIC),
    "v5e": Chip(15.75 * GIB, 197e12, 819e9, 200e9, _FLAT),
    "v5p": Chip(95.74 * GIB, 459e12, 2765e9, 600e9, _CUBIC),
    "v6e": Chip(31.25 * GIB, 918e12, 1640e9, 400e9, _FLAT),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice: `name` as in 'v5e:8x8'."""

    name: str
    chip: Chip
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Chips, each of which is one device."""
        return math.prod(self.shape)


def parse(name: str) -> Topology:
    """Reads 'v5e:8x8'.

    Raises:
      TopologyError: no such slice; names the nearest ones.
    """
    kind, _, shape = name.partition(":")
    if kind in CHIPS and shape in CHIPS[kind].shapes:
        return Topology(name, CHIPS[kind], tuple(int(side) for side in shape.split("x")))
    known = [f"{chip}:{one}" for chip, facts in CHIPS.items() for one in facts.shapes]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if kind in CHIPS:
        near += [full for full in known if full.startswith(f"{kind}:") and full not in near]
    hint = f"nearest: {', '.join(near)}" if near else f"chips: {', '.join(CHIPS)}, as in v5e:8x8"
    raise TopologyError(f"--topology: no slice {name!r}; {hint}")


def devices(name: str) -> list[jax.Device]:
    """The devices of a slice; programs can be compiled for them, and nothing can be run.

    Raises:
      TopologyError: no such slice, or libtpu is not installed.
    """
    topology = parse(name)
    if importlib.util.find_spec("libtpu") is None:
        raise TopologyError(
            "libtpu is not installed; it compiles for TPUs on any x86 Linux machine: "
            "pip install libtpu (or the extra `test` or `tpu` of this package)."
        )
    startup.describe_absent_tpu()
    # No chip is taken, so that several compilations may go on at the same time.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    startup.widen_compiler_stack()
    options: dict[str, object] = dict(_ONE_CHIP) if topology.size == 1 else {}
    if name.startswith("v4"):
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    return list(topologies.get_topology_desc(name, platform="tpu", **options).devices)
