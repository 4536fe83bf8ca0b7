"""Our parameter paths next to Hugging Face's tensor names, and the layouts between them.

A family's table (`layout_*.py`) is read in both directions: import goes from names to paths, export
and the parity tests from paths to names.  A torch Linear stores [out, in]; our kernels are
[in, out], with heads split, and stacked on a leading layer axis.
"""

import dataclasses
import math

import numpy as np

Shape = tuple[int, ...]

# Layouts: how one tensor of ours relates to theirs, the layer axis aside.
AS_IS = "as_is"  # tables; vectors, whose heads are split
VOCAB = "vocab"  # rows are tokens: ours are padded
LINEAR_IN = "linear_in"  # kernel whose first axis is the input: [D, ...] <-> [prod(...), D]
LINEAR_OUT = "linear_out"  # kernel whose last axis is the output: [..., D] <-> [D, prod(...)]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter.

    Attributes:
        path: ours, joined by '/', as in the objectives' state.
        name: theirs; `{layer}` is the layer number where ours has a layer axis.
        layout: one of the four above.
        piece, pieces: their tensor holds `pieces` of ours, concatenated on its first axis;
            this is number `piece`.
        first_layer: number of the first layer that ours holds.
    """

    path: str
    name: str
    layout: str
    piece: int = 0
    pieces: int = 1
    first_layer: int = 0

    @property
    def part(self) -> str:
        """Group that a file holds completely or not at all: `encoder`, `head`, `decoder`, ..."""
        return self.path.split("/")[0]

    @property
    def stacked(self) -> bool:
        """Whether our array holds all layers."""
        return "{layer}" in self.name

    def names(self, count: int) -> list[str]:
        """The tensors that make up our array, in order; `count` layers if stacked."""
        numbers = range(self.first_layer, self.first_layer + count)
        return [self.name.format(layer=i) for i in numbers] if self.stacked else [self.name]

    def their_shape(self, ours: Shape, vocab_size: int) -> Shape:
        """Shape of one of their tensors for one of ours (without the layer axis)."""
        if self.layout == VOCAB:
            return (vocab_size, *ours[1:])
        if self.layout == LINEAR_IN:
            return (self.pieces * math.prod(ours[1:]), ours[0])
        if self.layout == LINEAR_OUT:
            return (ours[-1], math.prod(ours[:-1]))
        return ours if self.path.endswith("embedding") else (math.prod(ours),)

    def from_theirs(self, array: np.ndarray, ours: Shape) -> np.ndarray:
        """One of their tensors in our layout, float32; `ours` is its shape without the layer axis.

        The number of vocabulary rows does not change.
        """
        array = np.split(np.asarray(array, np.float32), self.pieces)[self.piece]
        if self.layout == VOCAB:
            return array
        if self.layout in (LINEAR_IN, LINEAR_OUT):
            array = array.T
        return np.ascontiguousarray(array.reshape(ours))

    def to_theirs(self, array: np.ndarray, vocab_size: int) -> np.ndarray:
        """The inverse of `from_theirs`: one piece; padded vocabulary rows are cut off."""
        if self.layout == VOCAB:
            return array[:vocab_size]
        if self.layout == LINEAR_IN:
            return array.reshape(array.shape[0], -1).T
        if self.layout == LINEAR_OUT:
            return array.reshape(-1, array.shape[-1]).T
        return array if self.path.endswith("embedding") else array.reshape(-1)


def norm(path: str, name: str) -> list[Entry]:
    """Scale and bias of a norm."""
    return [
        Entry(f"{path}/scale", f"{name}.weight", AS_IS),
        Entry(f"{path}/bias", f"{name}.bias", AS_IS),
    ]


def linear(path: str, name: str, layout: str) -> list[Entry]:
    """Kernel and bias of a projection."""
    return [
        Entry(f"{path}/kernel", f"{name}.weight", layout),
        Entry(f"{path}/bias", f"{name}.bias", AS_IS),
    ]
