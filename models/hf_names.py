"""Our parameter paths beside Hugging Face's tensor names, and the layouts between them.

One table, read in both directions: import goes from names to paths, export and the parity tests
from paths to names.  Names are the canonical ones (`canonical`): prefix `bert.`, norms called
`LayerNorm.weight/bias`.  A torch Linear stores [out, in]; our kernels are [in, out], with heads
split, and stacked on a leading layer axis.
"""

import dataclasses
import math
import re

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
        name: theirs; `{layer}` stands for the layer number where ours has a layer axis.
        layout: one of the four above.
        optional: whether official files may lack it (RetroMAE publishes no decoder).
    """

    path: str
    name: str
    layout: str
    optional: bool = False

    @property
    def stacked(self) -> bool:
        """Whether our array holds all layers."""
        return "{layer}" in self.name

    def names(self, count: int) -> list[str]:
        """The tensors that make up our array, in order; `count` layers if stacked."""
        return [self.name.format(layer=i) for i in range(count)] if self.stacked else [self.name]

    def their_shape(self, ours: Shape, vocab_size: int) -> Shape:
        """Shape of one of their tensors for one of ours (without the layer axis)."""
        if self.layout == VOCAB:
            return (vocab_size, *ours[1:])
        if self.layout == LINEAR_IN:
            return (math.prod(ours[1:]), ours[0])
        if self.layout == LINEAR_OUT:
            return (ours[-1], math.prod(ours[:-1]))
        return ours if self.path.endswith("embedding") else (math.prod(ours),)

    def our_shape(self, theirs: Shape, heads: int) -> Shape:
        """Shape of our array (without the layer axis) for one of their tensors."""
        split = "/attention/" in self.path and not self.path.endswith("out/bias")

        def divided(size: int) -> Shape:
            return (heads, size // heads) if split else (size,)

        if self.layout == LINEAR_IN:
            return (theirs[1], *divided(theirs[0]))
        if self.layout == LINEAR_OUT:
            return (*divided(theirs[1]), theirs[0])
        return divided(theirs[0]) if len(theirs) == 1 else theirs

    def from_theirs(self, array: np.ndarray, ours: Shape) -> np.ndarray:
        """One of their tensors in our layout, float32, of shape `ours` (without the layer axis)."""
        array = np.asarray(array, np.float32)
        if self.layout == VOCAB:
            return np.pad(array, [(0, ours[0] - array.shape[0])] + [(0, 0)] * (array.ndim - 1))
        if self.layout in (LINEAR_IN, LINEAR_OUT):
            array = array.T
        return np.ascontiguousarray(array.reshape(ours))

    def to_theirs(self, array: np.ndarray, vocab_size: int) -> np.ndarray:
        """The inverse of `from_theirs`; padded vocabulary rows are cut off."""
        if self.layout == VOCAB:
            return array[:vocab_size]
        if self.layout == LINEAR_IN:
            return array.reshape(array.shape[0], -1).T
        if self.layout == LINEAR_OUT:
            return array.reshape(-1, array.shape[-1]).T
        return array if self.path.endswith("embedding") else array.reshape(-1)


def _norm(path: str, name: str, optional: bool = False) -> list[Entry]:
    return [
        Entry(f"{path}/scale", f"{name}.weight", AS_IS, optional),
        Entry(f"{path}/bias", f"{name}.bias", AS_IS, optional),
    ]


def _linear(path: str, name: str, layout: str, optional: bool = False) -> list[Entry]:
    return [
        Entry(f"{path}/kernel", f"{name}.weight", layout, optional),
        Entry(f"{path}/bias", f"{name}.bias", AS_IS, optional),
    ]


def _layer(path: str, name: str, optional: bool = False) -> list[Entry]:
    projections = [
        _linear(f"{path}/attention/{p}", f"{name}.attention.self.{p}", LINEAR_IN, optional)
        for p in ("query", "key", "value")
    ]
    return [
        *(entry for pair in projections for entry in pair),
        *_linear(f"{path}/attention/out", f"{name}.attention.output.dense", LINEAR_OUT, optional),
        *_norm(f"{path}/attention_norm", f"{name}.attention.output.LayerNorm", optional),
        *_linear(f"{path}/mlp/wi", f"{name}.intermediate.dense", LINEAR_IN, optional),
        *_linear(f"{path}/mlp/wo", f"{name}.output.dense", LINEAR_OUT, optional),
        *_norm(f"{path}/mlp_norm", f"{name}.output.LayerNorm", optional),
    ]


TABLE: tuple[Entry, ...] = (
    Entry("encoder/embeddings/word/embedding", "bert.embeddings.word_embeddings.weight", VOCAB),
    Entry(
        "encoder/embeddings/position/embedding",
        "bert.embeddings.position_embeddings.weight",
        AS_IS,
    ),
    Entry(
        "encoder/embeddings/type/embedding",
        "bert.embeddings.token_type_embeddings.weight",
        AS_IS,
    ),
    *_norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    *_layer("encoder/layers", "bert.encoder.layer.{layer}"),
    *_linear("head/dense", "cls.predictions.transform.dense", LINEAR_IN),
    *_norm("head/norm", "cls.predictions.transform.LayerNorm"),
    Entry("head/bias", "cls.predictions.bias", VOCAB),
    *_linear("pooler/dense", "bert.pooler.dense", LINEAR_IN),
    *_linear("next_sentence", "cls.seq_relationship", LINEAR_IN),
    *_layer("decoder", "c_head", optional=True),
)

BY_PATH: dict[str, Entry] = {entry.path: entry for entry in TABLE}

# Tensors that may be left in a file: copies of tied parameters, buffers, and the two heads of the
# original release that retrieval has no use for.
MAY_STAY = (
    "bert.embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.pooler.dense.*",
    "cls.seq_relationship.*",
)


# (copy, original) of tied tensors, which old files hold twice.
TIED = (
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
)


def canonical(name: str) -> str:
    """The name as the table has it: `lm.` stripped, `bert.` added, gamma and beta renamed."""
    name = name.removeprefix("lm.")
    if re.match(r"(embeddings|encoder|pooler)\.", name):
        name = "bert." + name
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def layer_count(names: set[str]) -> int:
    """Number of encoder layers among canonical `names`: the highest layer number plus one."""
    found = [re.match(r"bert\.encoder\.layer\.(\d+)\.", name) for name in names]
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def export_arrays(arrays: dict[str, np.ndarray], vocab_size: int) -> dict[str, np.ndarray]:
    """Our arrays (path -> array) under their canonical names and in their layout.

    Raises:
        KeyError: a path is not in the table.
    """
    theirs: dict[str, np.ndarray] = {}
    for path, array in arrays.items():
        if path not in BY_PATH:
            raise KeyError(
                f"no Hugging Face name for parameter {path!r}: add it to hf_names.TABLE."
            )
        entry = BY_PATH[path]
        parts = list(array) if entry.stacked else [array]
        for name, part in zip(entry.names(len(parts)), parts, strict=True):
            theirs[name] = entry.to_theirs(np.asarray(part), vocab_size)
    return theirs
