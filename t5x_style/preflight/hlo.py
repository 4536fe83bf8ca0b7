"""Reads the text of a compiled program: computations, instructions, and how often each runs."""

import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"(calls|to_apply|condition|body|branch_computations|async_computation)=")
_KNOWN_TRIPS = re.compile(r'known_trip_count"?:?=?\{"?n"?[:=]"?(\d+)')
_BITS = {"pred": 8, "bf16": 16, "s4": 4, "u4": 4, "token": 0}


class Array(NamedTuple):
    """One array of an instruction's type; `in_hbm` is False for on-chip memory and semaphores."""

    size: int  # bytes, without the padding of tiles
    in_hbm: bool
    type: str  # without its layout


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`name = type op(inside), attributes`."""

    name: str
    type: str
    op: str
    inside: str
    attributes: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results it reads."""
        return re.findall(r"%([\w.-]+)", self.inside)

    def called(self, *roles: str) -> list[str]:
        """Computations that it calls as one of `roles` ('calls', 'body', ...); all by default."""
        found: list[str] = []
        for match in _CALLED.finditer(self.attributes):
            if roles and match[1] not in roles:
                continue
            rest = self.attributes[match.end() :]
            names = rest[1 : rest.index("}")] if rest.startswith("{") else rest.split(",")[0]
            found += [name.strip().lstrip("%") for name in names.split(",")]
        return found

    def label(self) -> str:
        """Origin in the traced function."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
    """All computations by name, and the name of the first to run."""

    computations: dict[str, Computation]
    entry: str


def origin(computation: Computation, item: Instruction) -> str:
    """The label of an instruction, or of the nearest one that its first operand comes from.

    What the compiler makes of a collective that crosses slices has no label.
    """
    while not (label := item.label()) and item.operands:
        item = computation[item.operands[0]]
    return label


def parse(text: str) -> Module:
    """Reads what `compiled.as_text()` returns."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            instruction = _instruction(match[2], match[3], bool(match[1]))
            current[instruction.name] = instruction
    return Module(computations, entry)


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].lstrip()
    op, _, _ = rest.partition("(")
    close = _closing(rest, len(op))
    return Instruction(name, kind, op, rest[len(op) + 1 : close], rest[close + 1 :], is_root)


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return len(text)


def arrays(kind: str) -> list[Array]:
    """The arrays of a type, tuples flattened.

    >>> arrays("(f32[2,3]{1,0:T(8,128)}, bf16[4]{0:T(512)S(1)})")
    [Array(size=24, in_hbm=True, type='f32[2,3]'), Array(size=8, in_hbm=False, type='bf16[4]')]
    """
    found = []
    for name, shape, layout in _ARRAY.findall(kind):
        size = 1
        for side in filter(None, shape.split(",")):
            size *= int(side)
        bits = _BITS.get(name) if name in _BITS else int(re.sub(r"\D*(\d+).*", r"\1", name))
        kept = Array(size * (bits or 0) // 8, "S(" not in layout, f"{name}[{shape}]")
        found.append(kept)
    return found


def bytes_of(kind: str) -> int:
    """All bytes of a type, wherever they lie."""
    return sum(array.size for array in arrays(kind))


def trips(module: Module, loop: Instruction) -> int | None:
    """Number of iterations of a `while`; None if it depends on data.

    The TPU compiler drops the count it knew; a counted loop is then one whose condition compares
    an element of the loop's state, which JAX lets run from 0 by 1, with a constant.
    """
    if known := _KNOWN_TRIPS.search(loop.attributes):
        return int(known[1])
    condition = module.computations[loop.called("condition")[0]]
    root = next(item for item in condition.values() if item.is_root)
    if root.op != "compare" or "direction=LT" not in root.attributes:
        return None
    last = condition.get(root.operands[1])
    if last is None or last.op != "constant":
        return None
    return int(last.inside) if last.inside.isdigit() else None


class Visit(NamedTuple):
    """An instruction that runs `times` times; `unknown`: inside a loop that data ends."""

    computation: Computation
    instruction: Instruction
    times: int
    unknown: bool


def walk(module: Module, into_fusions: bool = False) -> Iterator[Visit]:
    """Every instruction that runs, with its number of runs."""
    yield from _walk(module, module.entry, 1, False, into_fusions)


def _walk(
    module: Module, name: str, times: int, unknown: bool, into_fusions: bool
) -> Iterator[Visit]:
    for instruction in module.computations[name].values():
        yield Visit(module.computations[name], instruction, times, unknown)
        runs, open_ended = times, unknown
        roles: tuple[str, ...] = ("calls", "branch_computations", "async_computation")
        if instruction.op == "while":
            count = trips(module, instruction)
            runs, open_ended = times * (count or 1), unknown or count is None
            roles = ("condition", "body")
        elif instruction.op == "call":
            roles = ("to_apply",)
        elif instruction.op == "fusion" and not into_fusions:
            continue
        for called in instruction.called(*roles):
            yield from _walk(module, called, runs, open_ended, into_fusions)
