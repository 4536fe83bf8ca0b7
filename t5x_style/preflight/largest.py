"""The largest arrays of a compiled program: to inspect when it does not fit."""

import dataclasses

from t5x_style.preflight import hlo, traffic

COUNT = 8


@dataclasses.dataclass(frozen=True)
class Made:
    """Arrays of one type on one device.

    Attributes:
      type: as the compiler writes it, 'f32[1024,768]'.
      bytes: of one of them.
      label: the operation of the traced step that the first one belongs to.
    """

    type: str
    bytes: int
    label: str


def largest(module: hlo.Module, count: int = COUNT) -> list[Made]:
    """The types with the most bytes in HBM, the largest first.

    What stays inside a fusion is never an array; arguments and what is sent are not made here. A
    new state that takes the place of the old one is among them.
    """
    found: dict[str, Made] = {}
    for visit in hlo.walk(module):
        item = visit.instruction
        if item.op in traffic.FREE or item.op == "send" or item.op.endswith("-done"):
            continue
        for array in hlo.arrays(item.type):
            if array.in_hbm and array.type not in found:
                found[array.type] = Made(array.type, array.size, item.label())
    return sorted(found.values(), key=lambda one: -one.bytes)[:count]
