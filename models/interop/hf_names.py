"""Our parameter paths beside Hugging Face's tensor names, and the layouts between them.

One table, read in both directions: import goes from names to paths, export and the parity tests
from paths to names.  Its names are the canonical ones (`canonical`): those of BERT, prefix `bert.`,
norms called `LayerNorm.weight/bias`; `FAMILIES` says how others spell them.  A torch
Linear stores [out, in]; our kernels are [in, out], with heads split, and stacked on a leading layer
axis.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

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
    """

    path: str
    name: str
    layout: str

    @property
    def part(self) -> str:
        """What a file holds whole or not at all: `encoder`, `head`, `decoder`, `pooler`, ..."""
        return self.path.split("/")[0]

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

    def from_theirs(self, array: np.ndarray, ours: Shape) -> np.ndarray:
        """One of their tensors in our layout, float32; `ours` is its shape without the layer axis.

        Vocabulary rows stay as many as they are.
        """
        array = np.asarray(array, np.float32)
        if self.layout == VOCAB:
            return array
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


def _norm(path: str, name: str) -> list[Entry]:
    return [
        Entry(f"{path}/scale", f"{name}.weight", AS_IS),
        Entry(f"{path}/bias", f"{name}.bias", AS_IS),
    ]


def _linear(path: str, name: str, layout: str) -> list[Entry]:
    return [
        Entry(f"{path}/kernel", f"{name}.weight", layout),
        Entry(f"{path}/bias", f"{name}.bias", AS_IS),
    ]


def _layer(path: str, name: str) -> list[Entry]:
    projections = [
        _linear(f"{path}/attention/{p}", f"{name}.attention.self.{p}", LINEAR_IN)
        for p in ("query", "key", "value")
    ]
    return [
        *(entry for pair in projections for entry in pair),
        *_linear(f"{path}/attention/out", f"{name}.attention.output.dense", LINEAR_OUT),
        *_norm(f"{path}/attention_norm", f"{name}.attention.output.LayerNorm"),
        *_linear(f"{path}/mlp/wi", f"{name}.intermediate.dense", LINEAR_IN),
        *_linear(f"{path}/mlp/wo", f"{name}.output.dense", LINEAR_OUT),
        *_norm(f"{path}/mlp_norm", f"{name}.output.LayerNorm"),
    ]


def _table(path: str, name: str, layout: str) -> Entry:
    return Entry(
        f"encoder/embeddings/{path}/embedding", f"bert.embeddings.{name}_embeddings.weight", layout
    )


TABLE: tuple[Entry, ...] = (
    _table("word", "word", VOCAB),
    _table("position", "position", AS_IS),
    _table("type", "token_type", AS_IS),
    *_norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    *_linear("encoder/embeddings/project", "bert.embeddings_project", LINEAR_IN),
    *_layer("encoder/layers", "bert.encoder.layer.{layer}"),
    *_linear("head/dense", "cls.predictions.transform.dense", LINEAR_IN),
    *_norm("head/norm", "cls.predictions.transform.LayerNorm"),
    Entry("head/bias", "cls.predictions.bias", VOCAB),
    *_linear("pooler/dense", "bert.pooler.dense", LINEAR_IN),
    *_linear("classifier", "classifier", LINEAR_IN),
    *_linear("next_sentence", "cls.seq_relationship", LINEAR_IN),
    *_layer("decoder", "c_head"),
    *_linear("project", "project", LINEAR_IN),
    *_norm("norm", "project_norm"),
)

BY_PATH: dict[str, Entry] = {entry.path: entry for entry in TABLE}

# Tensors that may be left in a file: copies of tied parameters, buffers, and the discriminator that
# ELECTRA leaves on its encoder, which retrieval has no use for.
MAY_STAY = (
    "bert.embeddings.position_ids",
    "bert.embeddings.token_type_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "decoder_embeddings.*",
    "discriminator_predictions.*",
)


# (copy, original) of tied tensors, which old files hold twice; `decoder_embeddings` is the name by
# which the official RetroMAE hands the encoder's embeddings to its decoder.
TIED = (
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    *(
        (f"decoder_embeddings.{name}", f"bert.embeddings.{name}")
        for name in (
            "word_embeddings.weight",
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "LayerNorm.weight",
            "LayerNorm.bias",
        )
    ),
)

# Family -> (their beginning of a name, the canonical one); the first that fits is taken.
FAMILIES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bert": (),
    "roberta": (
        ("roberta.", "bert."),
        ("lm_head.dense.", "cls.predictions.transform.dense."),
        ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
        ("lm_head.decoder.", "cls.predictions.decoder."),
        ("lm_head.bias", "cls.predictions.bias"),
    ),
    "electra": (
        ("electra.", "bert."),
        ("generator_predictions.dense.", "cls.predictions.transform.dense."),
        ("generator_predictions.LayerNorm.", "cls.predictions.transform.LayerNorm."),
        ("generator_lm_head.weight", "cls.predictions.decoder.weight"),
        ("generator_lm_head.bias", "cls.predictions.bias"),
    ),
    "realm": (
        ("realm.", "bert."),
        ("cls.dense.", "project."),
        ("cls.LayerNorm.", "project_norm."),
    ),
}

# What a module that holds the model puts before every name: RetroMAE's `lm`, the first module of
# sentence-transformers, and wrappers that training scripts use.
_OUTER = re.compile(r"^((lm|0\.auto_model|auto_model|model|module)\.)+")
_WITHOUT_PREFIX = re.compile(r"^(embeddings|embeddings_project|encoder|pooler)\.")


def canonical(name: str) -> str:
    """The name as the table has it: outer prefixes stripped, `bert.` added, old norms renamed."""
    name = _OUTER.sub("", name)
    for theirs, ours in (pair for pairs in FAMILIES.values() for pair in pairs):
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
            break
    if _WITHOUT_PREFIX.match(name):
        name = "bert." + name
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def spelled(name: str, family: str) -> str:
    """A canonical name as a family of models has it."""
    for theirs, ours in FAMILIES[family]:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def export_arrays(arrays: Mapping[str, np.ndarray], vocab_size: int) -> dict[str, np.ndarray]:
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
