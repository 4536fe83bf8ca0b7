"""Collectives of a compiled program: kinds, counts, bytes, least time."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from t5x_style.preflight import hlo, slice_transfers

Link = Literal["ici", "dcn"]  # between the chips of a slice, and between slices
LINKS: tuple[Link, ...] = ("ici", "dcn")
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of a kind with arrays of the same size.

    One that crosses slices is cut in two: what it sends inside each slice and between them.

    Attributes:
      kind: one of KINDS.
      link: what it goes over.
      count: runs in a step.
      bytes: per device and step: of the whole arrays, before they are cut up or after they are put
        together, times `count`.
      sent_bytes: per device and step: what each device must send at the least.
      label: the operation of the traced step that it belongs to.
      at_least: whether a loop runs it as often as data demand; `count` then takes one trip.
    """

    kind: str
    link: Link
    count: int
    bytes: int
    sent_bytes: int
    label: str
    at_least: bool


class _Run(NamedTuple):
    """One collective, of `members` devices or slices; `size` as in `Collective.bytes`."""

    kind: str
    link: Link
    size: int
    members: int


def collect(module: hlo.Module, devices: int) -> list[Collective]:
    """The collectives of a program, the most bytes first.

    Args:
      module: the program of one device.
      devices: that take part where the program does not say how many.
    """
    found: dict[tuple[Any, ...], Collective] = {}
    for visit in hlo.walk(module, into_fusions=True):
        run = _run(visit, devices)
        if run is None:
            continue
        label = hlo.origin(visit.computation, visit.instruction)
        key = (run.kind, run.link, run.size, label, visit.unknown)
        old = found.get(key, Collective(run.kind, run.link, 0, 0, 0, label, visit.unknown))
        found[key] = dataclasses.replace(
            old,
            count=old.count + visit.times,
            bytes=old.bytes + visit.times * run.size,
            sent_bytes=old.sent_bytes + visit.times * _sent(run.kind, run.size, run.members),
        )
    return sorted(found.values(), key=lambda one: -one.bytes)


def _run(visit: hlo.Visit, devices: int) -> _Run | None:
    """The collective that an instruction begins, if it does."""
    item = visit.instruction
    size = hlo.bytes_of("".join(visit.computation[name].type for name in item.operands))
    kind = item.op.removesuffix("-start")
    if kind in KINDS:
        size = max(size, hlo.bytes_of(_result(item)))
        return _Run(kind, "ici", size, group_size(item.attributes, devices))
    across = slice_transfers.kind(item.attributes) if item.op == "send" else None
    if across is None:
        return None
    slices = slice_transfers.slices(item.attributes)
    return _Run(across, "dcn", size * slices if across == "all-gather" else size, slices)


def sent_bytes(collectives: Sequence[Collective], link: Link) -> int:
    """Least bytes that a device must send over a kind of link in a step."""
    return sum(one.sent_bytes for one in collectives if one.link == link)


def by_kind(collectives: Sequence[Collective]) -> list[dict[str, Any]]:
    """One record for each kind and link."""
    records: list[dict[str, Any]] = []
    for link, kind in itertools.product(LINKS, KINDS):
        same = [one for one in collectives if (one.link, one.kind) == (link, kind)]
        if same:
            records.append(
                {
                    "kind": kind,
                    "link": link,
                    "count": sum(one.count for one in same),
                    "bytes": sum(one.bytes for one in same),
                    "sent_bytes": sum(one.sent_bytes for one in same),
                    "at_least": any(one.at_least for one in same),
                }
            )
    return records


def _result(item: hlo.Instruction) -> str:
    """The type of the result; a `-start` also returns its operand and semaphores."""
    if not item.op.endswith("-start"):
        return item.type
    parts = hlo.arrays(item.type)
    return f"u8[{max(part.size for part in parts)}]"


def _sent(kind: str, size: int, members: int) -> int:
    """Bytes that each of `members` devices, or slices, must send for an array of `size`."""
    if kind == "collective-permute":
        return size
    return (2 if kind == "all-reduce" else 1) * size * (members - 1) // members


def group_size(attributes: str, devices: int) -> int:
    """Number of devices that take part together.

    >>> group_size("replica_groups=[16,4]<=[64]", 64), group_size("replica_groups={{0,1},{2,3}}", 4)
    (4, 2)
    >>> group_size("replica_groups=mesh['axis_0'=8,'axis_1'=4] {'axis_1'}, x", 32)
    4
    """
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", match[2])  # a part of an axis: (before)size
        return math.prod(int(part or sizes[name]) for name, part in axes)
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes):
        return int(match[2])
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(match[1].split(","))
    return devices
