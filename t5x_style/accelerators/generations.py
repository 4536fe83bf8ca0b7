"""The table of TPU generations: chips, hosts, topologies, names at each service.

Sources: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x} and
docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, read 2026-11. These pages give ICI
in both directions (v5e 400, v5p 1200, v6e 800, tpu7x 1200 GB/s a chip); half of it leaves the chip.
v4: 2400 Gbit/s. HBM is what libtpu 0.0.42 lets a program use; the chips have 32, 16, 95, 32 and
192 GiB in all. DCN, the network between slices, in each direction: v5p 50 and tpu7x 100 Gbit/s a
chip; v5e 6.4 and v6e 25.6 Tbit/s for 256 chips, that is 25 and 100 Gbit/s a chip. The page of v4
has no such figure; v5p's is assumed, whose hosts have as many chips.
"""

from dataclasses import astuple, dataclass
from typing import Literal

Provisioning = Literal["on_demand", "spot", "reserved", "flex_start"]
PROVISIONING: tuple[Provisioning, ...] = ("on_demand", "spot", "reserved", "flex_start")
GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """What one chip can do; every figure is a peak.

    Attributes:
      hbm: bytes that a program may use.
      flops: bfloat16 products, FLOP/s.
      hbm_bandwidth: bytes/s.
      ici_bandwidth: bytes/s that leave the chip over all of its links together.
      dcn_bandwidth: bytes/s that leave it for other slices.
    """

    hbm: float
    flops: float
    hbm_bandwidth: float
    ici_bandwidth: float
    dcn_bandwidth: float


@dataclass(frozen=True)
class Generation:
    """A row of the table.

    Attributes:
      name: ours, as in `v5e:8x8`.
      spellings: other names in use, in lower case.
      chip: see `Chip`.
      topologies: of the slices on offer, smallest first.
      chips_per_host: of slices with more than one host.
      one_host: topology -> chips, of those that one host holds.
      devices_per_chip: as JAX counts them.
      accelerator: prefix of accelerator types, as in `v5litepod-8`; "" where the Cloud TPU API does
        not serve the generation.
      counts_cores: whether the number in an accelerator type is one of cores, two a chip.
      runtime_version: of TPU VMs, "" like `accelerator`.
      gke_label: of `cloud.google.com/gke-tpu-accelerator`.
      gke_machine: of GKE nodes, with a place for the chips of a host.
      provisioning: what the Cloud TPU API offers it as; on GKE all of `PROVISIONING`.
      has_groups: whether instance groups of Compute Engine serve it.
    """

    name: str
    spellings: tuple[str, ...]
    chip: Chip
    topologies: tuple[str, ...]
    chips_per_host: int
    one_host: dict[str, int]
    devices_per_chip: int
    accelerator: str
    counts_cores: bool
    runtime_version: str
    gke_label: str
    gke_machine: str
    provisioning: tuple[Provisioning, ...]
    has_groups: bool

    @property
    def device(self) -> Chip:
        """The share of a chip that one device has, as JAX counts them."""
        return Chip(*(figure / self.devices_per_chip for figure in astuple(self.chip)))


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_FLAT_ONE_HOST = {"1x1": 1, "2x2": 4, "2x4": 8}
_SMALL_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_CUBES = (
    *_SMALL_CUBES,
    *("4x4x4", "4x4x8", "4x4x16", "4x8x8", "8x8x8", "8x8x12", "8x8x16", "12x12x12", "8x16x16"),
    "16x16x16",
)
_WITHOUT_FLEX: tuple[Provisioning, ...] = ("on_demand", "spot", "reserved")

GENERATIONS = {
    one.name: one
    for one in (
        Generation(
            name="v4",
            spellings=("tpu-v4", "tpu-v4-podslice", "v4-podslice", "ct4p"),
            chip=Chip(30.75 * GIB, 275e12, 1.2e12, 300e9, 6.25e9),
            topologies=_CUBES,
            chips_per_host=4,
            one_host={"2x2x1": 4},
            devices_per_chip=1,  # megacore
            accelerator="v4",
            counts_cores=True,
            runtime_version="tpu-ubuntu2204-base",
            gke_label="tpu-v4-podslice",
            gke_machine="ct4p-hightpu-{chips}t",
            provisioning=_WITHOUT_FLEX,
            has_groups=False,
        ),
        Generation(
            name="v5e",
            spellings=(
                *("v5litepod", "v5lite", "v5-lite", "v5-litepod", "tpu-v5e", "tpu-v5-lite"),
                *("tpu-v5-lite-podslice", "tpu-v5-lite-device", "ct5lp"),
            ),
            chip=Chip(15.75 * GIB, 197e12, 819e9, 200e9, 3.125e9),
            topologies=_FLAT,
            chips_per_host=4,
            one_host=_FLAT_ONE_HOST,
            devices_per_chip=1,
            accelerator="v5litepod",
            counts_cores=False,
            runtime_version="v2-alpha-tpuv5-lite",
            gke_label="tpu-v5-lite-podslice",
            gke_machine="ct5lp-hightpu-{chips}t",
            provisioning=PROVISIONING,
            has_groups=False,
        ),
        Generation(
            name="v5p",
            spellings=("tpu-v5p", "tpu-v5p-slice", "ct5p"),
            chip=Chip(95.74 * GIB, 459e12, 2765e9, 600e9, 6.25e9),
            topologies=(*_CUBES, "16x16x24"),
            chips_per_host=4,
            one_host={"2x2x1": 4},
            devices_per_chip=1,
            accelerator="v5p",
            counts_cores=True,
            runtime_version="v2-alpha-tpuv5",
            gke_label="tpu-v5p-slice",
            gke_machine="ct5p-hightpu-{chips}t",
            provisioning=_WITHOUT_FLEX,
            has_groups=True,
        ),
        Generation(
            name="v6e",
            spellings=("trillium", "tpu-v6e", "tpu-v6e-slice", "ct6e"),
            chip=Chip(31.25 * GIB, 918e12, 1640e9, 400e9, 12.5e9),
            topologies=_FLAT,
            chips_per_host=4,
            one_host=_FLAT_ONE_HOST,
            devices_per_chip=1,
            accelerator="v6e",
            counts_cores=False,
            runtime_version="v2-alpha-tpuv6e",
            gke_label="tpu-v6e-slice",
            gke_machine="ct6e-standard-{chips}t",
            provisioning=PROVISIONING,
            has_groups=True,
        ),
        Generation(
            name="tpu7x",
            spellings=("v7x", "ironwood", "tpu7"),
            chip=Chip(189.5 * GIB, 2307e12, 7380e9, 600e9, 12.5e9),
            topologies=(*_SMALL_CUBES, "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"),
            chips_per_host=4,
            one_host={"2x2x1": 4},
            devices_per_chip=2,
            accelerator="",
            counts_cores=False,
            runtime_version="",
            gke_label="tpu7x",
            gke_machine="tpu7x-standard-{chips}t",
            provisioning=(),
            has_groups=True,
        ),
    )
}
