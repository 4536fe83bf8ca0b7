"""Golden weights whose names are not those of a published folder: our paths next to theirs."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import numpy as safetensors

from models.interop import hf_names
from models.interop.layout_bert import LAYOUT
from models.networks import bert


@dataclasses.dataclass(frozen=True)
class Named:
    """One parameter of ours.

    Attributes:
        path: in our objective.
        entry: how it is laid out.
        names: the case's tensors; one a layer where ours has a layer axis.
        shape: of ours, without the layer axis.
        stacked: whether ours has a layer axis.
    """

    path: str
    entry: hf_names.Entry
    names: Sequence[str]
    shape: tuple[int, ...]
    stacked: bool


def encoder_and_head(
    config: bert.BertConfig, path: str, prefix: str, family: str
) -> Iterable[Named]:
    """An encoder and its MLM head, below `path` with us, with `prefix` before the case's names."""
    for ours, shape in LAYOUT.shapes(config).items():
        entry = LAYOUT.by_path[ours]
        if entry.part in ("encoder", "head"):
            names = [prefix + LAYOUT.spelled(n, family) for n in entry.names(config.layers)]
            one = shape[1:] if entry.stacked else shape
            yield Named(path + ours, entry, names, one, entry.stacked)


def decoder(config: bert.BertConfig, layers: int, prefix: str) -> Iterable[Named]:
    """A stack of layers, `decoder` with us, `prefix`K. in the case."""
    for ours, shape in LAYOUT.shapes(config).items():
        entry = LAYOUT.by_path[ours]
        if entry.part == "decoder":
            names = [entry.name.replace("c_head.", f"{prefix}{layer}.") for layer in range(layers)]
            yield Named(ours, entry, names, shape, True)


def realm_reader(config: bert.BertConfig, prefix: str) -> Iterable[Named]:
    """The encoder of REALM's reader, `reader` with us."""
    for ours, shape in LAYOUT.shapes(config).items():
        entry = LAYOUT.by_path[ours]
        if entry.part == "encoder":
            names = [prefix + LAYOUT.spelled(n, "realm") for n in entry.names(config.layers)]
            path = "reader" + ours.removeprefix("encoder")
            one = shape[1:] if entry.stacked else shape
            yield Named(path, entry, names, one, entry.stacked)


def span_head(config: bert.BertConfig, hidden: int, prefix: str) -> Iterable[Named]:
    """The scores of spans of REALM's reader, `head` with us."""
    linear, as_is = hf_names.LINEAR_IN, hf_names.AS_IS
    for ours, theirs, layout, shape in (
        ("ends/kernel", "dense_intermediate.weight", linear, (config.hidden, 2 * hidden)),
        ("ends/bias", "dense_intermediate.bias", as_is, (2 * hidden,)),
        ("norm/scale", "layer_normalization.weight", as_is, (hidden,)),
        ("norm/bias", "layer_normalization.bias", as_is, (hidden,)),
        ("output/kernel", "dense_output.weight", linear, (hidden, 1)),
        ("output/bias", "dense_output.bias", as_is, (1,)),
    ):
        name = f"{prefix}qa_outputs.{theirs}"
        entry = hf_names.Entry(f"head/{ours}", name, layout)
        yield Named(entry.path, entry, [name], shape, False)


class Weights:
    """The tensors of a file under our paths; those that it has."""

    def __init__(self, path: Path, named: Iterable[Named]) -> None:
        self.path = path
        self._named = list(named)

    def arrays(self) -> dict[str, np.ndarray]:
        """Our path -> array; tables without padded rows."""
        theirs, found = safetensors.load_file(self.path), {}
        for one in self._named:
            if one.names[0] in theirs:
                parts = [one.entry.from_theirs(theirs[name], one.shape) for name in one.names]
                found[one.path] = np.stack(parts) if one.stacked else parts[0]
        return found


def export(
    named: Iterable[Named], ours: Mapping[str, np.ndarray], vocab_size: int
) -> dict[str, np.ndarray]:
    """Our arrays under the canonical form of the case's names, and in its layout."""
    found = {}
    for one in named:
        if one.path in ours:
            parts = list(ours[one.path]) if one.stacked else [ours[one.path]]
            for name, part in zip(one.names, parts, strict=True):
                array = one.entry.to_theirs(np.asarray(part), vocab_size)
                found[LAYOUT.canonical(name)] = array
    return found
