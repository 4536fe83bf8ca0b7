"""Reads BERT and RetroMAE weights from Hugging Face safetensors into our parameter paths.

Official layouts, old (`gamma`, `beta`) and new names, with or without the prefixes `bert.` and
`lm.`.  All shapes are compared before anything is read, and every disagreement is reported at once.
Pickles (`.bin`) are never opened: loading one runs the code inside it.
"""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from models import bert, hf_names

Shape = tuple[int, ...]


class WeightsError(ValueError):
    """Weights do not fit; the message lists each tensor missing, unexpected or misshapen."""


class HuggingFace:
    """Weights in a folder (`model.safetensors`, or shards and their index) or in one file.

    Args:
        path: folder or `.safetensors` file.
        vocab_size: true vocabulary size of the model being filled; the file must have as many rows.
        ignore: glob patterns of canonical tensor names that may stay in the file (`cls.*` when
            only the encoder is wanted), besides `hf_names.MAY_STAY`.
    """

    def __init__(self, path: str, vocab_size: int, ignore: tuple[str, ...] = ()) -> None:
        self.path = Path(path)
        self.vocab_size = vocab_size
        self.ignore = (*hf_names.MAY_STAY, *ignore)
        self._where = _locate(self.path)

    def __str__(self) -> str:
        return f"HuggingFace({str(self.path)!r})"

    def arrays(self, target: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """The weights, under our paths.

        Args:
            target: our path -> shape (or anything with `.shape`) of each parameter to fill.  None
                takes all that the file holds, vocabulary rows unpadded; the number of heads is then
                read from `config.json` beside the weights.

        Returns:
            Our path -> float32 array of that shape; padded vocabulary rows are 0.  Optional
            parameters that the file does not hold (RetroMAE's decoder) are left out.

        Raises:
            WeightsError: names everything that is missing, unexpected or of another shape.
        """
        target = self._held() if target is None else target
        shapes = {path: tuple(getattr(leaf, "shape", leaf)) for path, leaf in target.items()}
        wanted, problems = self._match(shapes)
        if problems:
            raise WeightsError(
                f"{self.path} does not fit the model ({len(problems)} problems):\n  "
                + "\n  ".join(problems)
                + "\nCheck the model's sizes in gin (import_hf.config_from_hf reads them from "
                "config.json), or list what may be left in HuggingFace.ignore."
            )
        return {path: self._read(path, names, shapes[path]) for path, names in wanted.items()}

    def _held(self) -> dict[str, Shape]:
        """Our path -> shape of every parameter of which the file has the first tensor."""
        heads, count = self._heads(), hf_names.layer_count(set(self._where))
        shapes: dict[str, Shape] = {}
        for entry in hf_names.TABLE:
            first = entry.name.format(layer=0)
            if first in self._where:
                ours = entry.our_shape(self._shape(first), heads)
                shapes[entry.path] = (count, *ours) if entry.stacked else ours
        return shapes

    def _heads(self) -> int:
        folder = self.path if self.path.is_dir() else self.path.parent
        file = folder / "config.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"{file}: not found; expected num_attention_heads there, since the weights do not "
                "say how many heads they were trained with."
            )
        return int(json.loads(file.read_text(encoding="utf-8"))["num_attention_heads"])

    def _match(self, shapes: dict[str, Shape]) -> tuple[dict[str, list[str]], list[str]]:
        """Our path -> tensors it is made of, and what is wrong."""
        count = hf_names.layer_count(set(self._where))
        wanted: dict[str, list[str]] = {}
        problems: list[str] = []
        for path, shape in shapes.items():
            entry = hf_names.BY_PATH.get(path)
            if entry is None:
                problems.append(f"{path}: Hugging Face files have no such parameter")
                continue
            names = entry.names(count)
            if entry.optional and not self._holds_any(names[0].split(".")[0]):
                continue
            problems += self._differences(entry, names, shape)
            wanted[path] = names
        return wanted, problems + self._unexpected(wanted) + self._untied()

    def _holds_any(self, prefix: str) -> bool:
        """Whether the file has any tensor of a part that may be absent as a whole."""
        return any(name.startswith(f"{prefix}.") for name in self._where)

    def _differences(self, entry: hf_names.Entry, names: Sequence[str], shape: Shape) -> list[str]:
        """What is wrong with the tensors of one parameter."""
        problems = []
        if entry.stacked and len(names) != shape[0]:
            problems.append(f"{entry.path}: expected {shape[0]} layers, found {len(names)}")
        inner = shape[1:] if entry.stacked else shape
        expected = entry.their_shape(inner, self.vocab_size)
        if entry.layout == hf_names.VOCAB and inner[0] < self.vocab_size:
            problems.append(
                f"{entry.path}: expected at least {self.vocab_size} rows (vocab_size), "
                f"found {inner[0]} in the model"
            )
        for name in names:
            if name not in self._where:
                problems.append(f"{name}: missing (expected {expected})")
            elif (found := self._shape(name)) != expected:
                problems.append(f"{name}: expected {expected}, found {found}")
        return problems

    def _unexpected(self, wanted: dict[str, list[str]]) -> list[str]:
        used = {name for names in wanted.values() for name in names}
        extra = [name for name in sorted(set(self._where) - used) if not self._may_stay(name)]
        return [f"{name}: unexpected {self._shape(name)}" for name in extra]

    def _untied(self) -> list[str]:
        """Output tensors that old files repeat; ours are tied, so they must be copies."""
        problems = []
        for copy, original in hf_names.TIED:
            if copy in self._where and original in self._where:
                repeated, table = (_tensor(*self._where[name]) for name in (copy, original))
                if not np.array_equal(repeated, table):
                    problems.append(f"{copy}: expected a copy of {original}, found other values")
        return problems

    def _may_stay(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.ignore)

    def _shape(self, name: str) -> Shape:
        file, stored = self._where[name]
        with safetensors.safe_open(file, "numpy") as handle:
            return tuple(handle.get_slice(stored).get_shape())

    def _read(self, path: str, names: Sequence[str], shape: Shape) -> np.ndarray:
        entry = hf_names.BY_PATH[path]
        inner = shape[1:] if entry.stacked else shape
        parts = [entry.from_theirs(_tensor(*self._where[name]), inner) for name in names]
        return np.stack(parts) if entry.stacked else parts[0]


def _tensor(file: Path, name: str) -> np.ndarray:
    with safetensors.safe_open(file, "numpy") as handle:
        return handle.get_tensor(name)


def _files(path: Path) -> list[Path]:
    """The safetensors files that make up `path`."""
    if path.is_file() and path.suffix == ".safetensors":
        return [path]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [path / name for name in sorted(set(names))]
    pickles = [path] if path.suffix in (".bin", ".pt", ".pth") else sorted(path.glob("*.bin"))
    if pickles and pickles[0].exists():
        raise WeightsError(
            f"{pickles[0]} is a pickle; loading one runs the code inside it, so it is not opened. "
            "Convert it where you trust it: save_pretrained(..., safe_serialization=True)."
        )
    raise FileNotFoundError(
        f"expected {path} to be a .safetensors file, or a folder with model.safetensors or "
        "model.safetensors.index.json; found neither."
    )


def _locate(path: Path) -> dict[str, tuple[Path, str]]:
    """Canonical name -> (file, name in it)."""
    where: dict[str, tuple[Path, str]] = {}
    for file in _files(path):
        if not file.is_file():
            raise FileNotFoundError(f"{file}: named in the index of {path}, but not there.")
        try:
            with safetensors.safe_open(file, "numpy") as handle:
                stored = list(handle.keys())
        except safetensors.SafetensorError as error:
            raise WeightsError(f"{file}: expected a whole safetensors file: {error}") from error
        for name in stored:
            key = hf_names.canonical(name)
            if key in where:
                raise WeightsError(f"{path}: {name!r} and {where[key][1]!r} both mean {key!r}.")
            where[key] = (file, name)
    return where


_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}


def config_from_hf(
    folder: str,
    dtype: str,
    remat: str,
    vocab_multiple: int,
    vocab_size: int | None = None,
    dropout: float | None = None,
    unroll: int = 1,
) -> bert.BertConfig:
    """The BertConfig that a Hugging Face `config.json` describes.

    Args:
        folder: holds `config.json`.
        dtype, remat, vocab_multiple, unroll: ours to choose; see `BertConfig`.
        vocab_size: the tokenizer's; None takes that of `config.json`.
        dropout: rate for states and attention; None takes the two of `config.json`.

    Raises:
        FileNotFoundError: there is no config.json.
        ValueError: a field is missing, or the file describes something other than plain BERT.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: not found; expected a Hugging Face model folder.")
    fields = json.loads(file.read_text(encoding="utf-8"))
    _require_plain_bert(fields, file)

    def rate(name: str) -> float:
        return fields.get(name, 0.1) if dropout is None else dropout

    return bert.BertConfig(
        vocab_size=fields["vocab_size"] if vocab_size is None else vocab_size,
        hidden=fields["hidden_size"],
        layers=fields["num_hidden_layers"],
        heads=fields["num_attention_heads"],
        mlp=fields["intermediate_size"],
        max_positions=fields["max_position_embeddings"],
        type_vocab=fields["type_vocab_size"],
        activation=_ACTIVATIONS[fields["hidden_act"]],
        layer_norm_eps=fields.get("layer_norm_eps", 1e-12),
        dropout=rate("hidden_dropout_prob"),
        attention_dropout=rate("attention_probs_dropout_prob"),
        initializer_range=fields.get("initializer_range", 0.02),
        dtype=dtype,
        remat=remat,
        unroll=unroll,
        vocab_multiple=vocab_multiple,
    )


_REQUIRED = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_act",
]


def _require_plain_bert(fields: dict[str, Any], file: Path) -> None:
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise ValueError(f"{file}: expected the fields {_REQUIRED}, missing {missing}.")
    for name, allowed in (
        ("model_type", ("bert",)),
        ("position_embedding_type", ("absolute",)),
        ("hidden_act", tuple(_ACTIVATIONS)),
    ):
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(f"{file}: expected {name} in {allowed}, found {fields[name]!r}.")
