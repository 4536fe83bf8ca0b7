"""Slices by the names that people use, and the names that Google Cloud uses.

v5e:4x4            a topology
v5litepod-16       an accelerator type of TPU VMs; v5e-16 as well
2x v6e:16x16       two slices with that topology; 2x v6e-256 as well
"""

import difflib
import math
import re
from dataclasses import dataclass

from t5x_style.accelerators.generations import GENERATIONS, Generation

NEAREST = 3  # slices that an error names
_NAME = re.compile(
    r"(?:(?P<count>\d+)\s*x\s*(?=[a-z]))?(?P<generation>[a-z0-9-]*?)"
    r"(?::(?P<topology>\d+(?:x\d+){1,2})|-(?P<size>\d+))"
)


class SliceError(ValueError):
    """No such slice."""


@dataclass(frozen=True)
class Slices:
    """One slice, or several equal ones that train together.

    Attributes:
      generation: its row of the table.
      topology: as in '4x4'.
      count: how many.
      spelled: what the user called the generation, for messages.
    """

    generation: Generation
    topology: str
    count: int = 1
    spelled: str = ""

    def __str__(self) -> str:
        return name_of(self.generation.name, self.topology, self.count)

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each side."""
        return sides(self.topology)

    @property
    def chips(self) -> int:
        """Of each slice."""
        return math.prod(self.shape)

    @property
    def all_chips(self) -> int:
        """Of all slices."""
        return self.count * self.chips

    @property
    def all_devices(self) -> int:
        """Of all slices, as JAX counts them."""
        return self.all_chips * self.generation.devices_per_chip

    @property
    def chips_per_host(self) -> int:
        """Of each slice."""
        facts = self.generation
        return facts.one_host.get(self.topology, facts.chips_per_host)

    @property
    def hosts(self) -> int:
        """Of each slice."""
        return self.chips // self.chips_per_host

    @property
    def accelerator_type(self) -> str:
        """Name such as v5litepod-16; "" if there is none: TPU VMs do not have the generation.

        Several topologies may have the same; TPU VMs get the first of the table.
        """
        return accelerator_type(self.generation, self.topology)

    @property
    def is_usual(self) -> bool:
        """Whether this is the default topology of its accelerator type."""
        return self.topology == _usual(self.generation, self.chips)


def sides(topology: str) -> tuple[int, ...]:
    """'4x8' -> (4, 8)."""
    return tuple(int(side) for side in topology.split("x"))


def name_of(generation: str, topology: str, count: int = 1) -> str:
    """'2x v5e:4x8'."""
    return f"{count}x {generation}:{topology}" if count > 1 else f"{generation}:{topology}"


def accelerator_type(generation: Generation, topology: str) -> str:
    """Name of a slice in the Cloud TPU API; "" where it does not serve the generation."""
    if not generation.accelerator:
        return ""
    number = math.prod(sides(topology)) * (2 if generation.counts_cores else 1)
    return f"{generation.accelerator}-{number}"


def _usual(generation: Generation, chips: int) -> str | None:
    """The most cubic topology of `chips` chips: the default of an accelerator type."""
    found = [one for one in generation.topologies if math.prod(sides(one)) == chips]
    return min(found, key=lambda one: max(sides(one)), default=None)


def parse(name: str) -> Slices:
    """Reads the name of a slice, or of several.

    Raises:
      SliceError: no such slice; names the nearest ones, in the words of `name`.
    """
    text = name.strip().lower()
    match = _NAME.fullmatch(text)
    generation = _generation(match["generation"]) if match else None
    if match is None or generation is None:
        raise SliceError(f"no slice {name!r}; {_hint(text)}")
    count, spelled = int(match["count"] or 1), match["generation"]
    if count < 1:
        raise SliceError(f"no slice {name!r}: expected one slice or more, found {count}")
    topology = match["topology"] or _of_type(generation, int(match["size"]))
    if topology not in generation.topologies:
        raise SliceError(f"no slice {name!r}; {_hint(text)}")
    return Slices(generation, topology, count, spelled)


def _generation(spelled: str) -> Generation | None:
    for one in GENERATIONS.values():
        if spelled in (one.name, *one.spellings):
            return one
    return None


def _of_type(generation: Generation, number: int) -> str | None:
    """The topology of an accelerator type's number."""
    chips, rest = divmod(number, 2 if generation.counts_cores else 1)
    return None if rest else _usual(generation, chips)


def _hint(text: str) -> str:
    """The nearest slices, or the generations where none is near."""
    name = re.sub(r"^\d+\s*x\s*(?=[a-z])", "", text)
    spelled = re.match(r"[a-z0-9-]*?(?=:|-\d+$|$)", name)
    typed = ":" not in name and re.search(r"-\d+$", name) is not None
    generation = _generation(spelled[0]) if spelled else None
    if generation is not None and spelled is not None:
        names = _names(generation, spelled[0], typed)
        near = difflib.get_close_matches(name, names, n=NEAREST, cutoff=0.0)
        return f"nearest: {', '.join(_by_size(name, names, near))}"
    names = [one for row in GENERATIONS.values() for one in _names(row, row.name, typed)]
    near = difflib.get_close_matches(name, names, n=NEAREST, cutoff=0.5)
    if near:
        return f"nearest: {', '.join(near)}"
    return f"generations: {', '.join(GENERATIONS)}, as in v5e:8x8 or v5litepod-64"


def _names(generation: Generation, spelled: str, typed: bool) -> list[str]:
    """All slices of a generation, as accelerator types or topologies."""
    if not typed or not generation.accelerator:
        return [f"{spelled}:{topology}" for topology in generation.topologies]
    scale = 2 if generation.counts_cores else 1
    sizes = sorted({math.prod(sides(one)) * scale for one in generation.topologies})
    return [f"{spelled}-{size}" for size in sizes]


def _by_size(name: str, names: list[str], near: list[str]) -> list[str]:
    """Those of the nearest size where the name has one; else those that are spelled alike."""
    numbers = [int(one) for one in re.findall(r"\d+", name.rpartition(":")[2].rpartition("-")[2])]
    if not numbers:
        return near
    wanted = math.prod(numbers)

    def distance(one: str) -> tuple[float, float]:
        size = math.prod(int(x) for x in re.findall(r"\d+", re.split(r"[:-](?=\d)", one)[-1]))
        alike = difflib.SequenceMatcher(None, name, one).ratio()
        return abs(math.log(max(size, 1) / max(wanted, 1))), -alike

    return sorted(names, key=distance)[:NEAREST]
