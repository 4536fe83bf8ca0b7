"""Bytes that a compiled program moves between a chip and its HBM.

Each instruction reads its operands and writes its results once; whoever takes a slice of an operand
reads that slice, and whoever updates a slice in place writes that slice. What the compiler keeps in
on-chip memory costs nothing. Loops count as often as they run.
"""

import functools

from t5x_style.preflight import hlo

# Names for arrays that are there already, and ends of what a `-start` began.
FREE = {
    *(
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "partition-id",
    ),
    *("while", "call", "conditional", "replica-id", "opt-barrier", "async-start"),
}
_SLICES = {"dynamic-slice", "slice", "gather", "slice-start"}
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # operand that holds the new values
_SAME = {"bitcast", "reshape", "get-tuple-element"}


def hbm_bytes(module: hlo.Module) -> int:
    """Per device and step; loops that data end count as one trip."""
    reader = _Reader(module)
    return sum(visit.times * reader.bytes_of(visit) for visit in hlo.walk(module))


class _Reader:
    def __init__(self, module: hlo.Module):
        self.module = module
        self._share = functools.cache(self._share_of_parameter)

    def bytes_of(self, visit: hlo.Visit) -> int:
        """Bytes that one run of an instruction moves."""
        item, computation = visit.instruction, visit.computation
        if item.op in FREE or item.op.endswith("-done"):
            return 0
        if item.op in ("copy-start", "slice-start"):
            parts = hlo.arrays(item.type)
            moved = min(part.size for part in parts[:2])
            return moved * sum(part.in_hbm for part in parts[:2])
        if item.op in ("send", "recv"):  # of the array, which comes first, and two marks
            array = hlo.arrays(item.type)[0]
            return array.size * array.in_hbm
        operands = [computation[name] for name in item.operands]
        read = sum(
            min(_in_hbm(operand.type), self._read(item, at)) for at, operand in enumerate(operands)
        )
        return read + min(_in_hbm(item.type), self._written(item, computation))

    def _read(self, item: hlo.Instruction, at: int) -> int:
        """Bytes that an instruction reads of its operand number `at`, at most."""
        if item.op == "fusion":
            return self._share(item.called("calls")[0], at)
        if item.op in _SLICES and at == 0:
            return hlo.bytes_of(item.type)
        if item.op in _UPDATES and at == 0:
            return 0
        return 1 << 62

    def _share_of_parameter(self, name: str, at: int) -> int:
        """Bytes that a fused computation reads of its parameter number `at`, at most."""
        computation = self.module.computations[name]
        parameter = next(
            item
            for item in computation.values()
            if item.op == "parameter" and item.inside == str(at)
        )
        return self._used(computation, parameter.name)

    def _used(self, computation: hlo.Computation, name: str) -> int:
        total = 0
        for user in computation.values():
            for at, operand in enumerate(user.operands):
                if operand != name:
                    continue
                same = user.op in _SAME and not user.is_root
                total += self._used(computation, user.name) if same else self._read(user, at)
        return total

    def _written(self, item: hlo.Instruction, computation: hlo.Computation) -> int:
        """Bytes of an instruction's results that are new."""
        if item.op == "fusion":
            inside = self.module.computations[item.called("calls")[0]]
            root = next(one for one in inside.values() if one.is_root)
            return self._written(root, inside)
        if item.op == "tuple":
            return sum(self._written(computation[name], computation) for name in item.operands)
        if item.op == "bitcast":
            return self._written(computation[item.operands[0]], computation)
        if item.op in _UPDATES:
            return hlo.bytes_of(computation[item.operands[_UPDATES[item.op]]].type)
        return hlo.bytes_of(item.type)


def _in_hbm(kind: str) -> int:
    return sum(array.size for array in hlo.arrays(kind) if array.in_hbm)
