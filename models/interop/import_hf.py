"""Reads the weights of published encoders from Hugging Face safetensors.

Old (`gamma`, `beta`) and new names, with or without prefixes (`published_layout`).  All names,
shapes and dtypes are compared with `config.json` before any weight is read, and every disagreement
is reported at once.  Pickles (`.bin`) are never opened: loading one runs the code inside it.
"""

import dataclasses
import fnmatch
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from models.interop import (
    export_checks,
    hf_config,
    hf_names,
    layout_bert,
    longer_positions,
    published_folder,
    published_layout,
    sentence_modules,
    torch_pickle,
)
from models.interop.published_folder import WeightsError as WeightsError

Shape = tuple[int, ...]

_HEAD = "bert.pooler.dense.weight"  # of a re-ranker, before its classifier
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Stored:
    """Place of a tensor in a file, and its header entry; `dtype` in safetensors' words."""

    file: Path
    name: str
    shape: Shape
    dtype: str

    def read(self) -> np.ndarray:
        """The tensor, in its own dtype."""
        with safetensors.safe_open(self.file, "numpy") as handle:
            return handle.get_tensor(self.name)


@dataclasses.dataclass(frozen=True)
class InMemory(Stored):
    """A tensor of a file that was read whole."""

    array: np.ndarray = dataclasses.field(repr=False)

    def read(self) -> np.ndarray:
        """See `Stored`."""
        return self.array


class HuggingFace:
    """Weights in a folder (`model.safetensors`, or shards and their index) or in one file.

    Args:
        path: folder or `.safetensors` file; `config.json` is next to the weights.
        vocab_size: of the tokenizer. Rows of the word table beyond it are cut off; where the file
            has fewer, it gives those that it has. Either is a warning.
        ignore: glob patterns of canonical tensor names that stay in the file (`classifier.*`),
            besides those that a layout lets stay.
        reranker: whether it has to be a re-ranker, with a classifier of one label.
        m3_heads: whether M3's heads are read, too, from the pickles next to the weights, without
            running code; see `torch_pickle`.
        positions: tokens of the longest text; more than are published lengthen the table, see
            `longer_positions`. None: as published.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: `positions` that the table cannot have.
        WeightsError: a file is damaged, or a pickle.
    """

    def __init__(
        self,
        path: str,
        vocab_size: int,
        ignore: tuple[str, ...] = (),
        reranker: bool = False,
        m3_heads: bool = False,
        positions: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.vocab_size = vocab_size
        self.positions = positions
        self._folder = self.path if self.path.is_dir() else self.path.parent
        self.layout, variant = _layout(self._folder / "config.json")
        self.ignore = (*self.layout.may_stay, *ignore)
        self.reranker = reranker
        located = _locate(self.path, self.layout)
        self._where = self.layout.with_pair_head(located, variant, self._may_stay)
        if m3_heads:
            self._where |= _m3_heads(self._folder)

    @staticmethod
    def check_arguments(
        path: str,
        ignore: tuple[str, ...] = (),
        reranker: bool = False,
        m3_heads: bool = False,
        positions: int | None = None,
    ) -> None:
        """Check arguments before weights are read, by files' headers alone.

        Raises:
            FileNotFoundError, ValueError: see `HuggingFace` and `arrays`.
            ExportError: the tokenizer next to a re-ranker joins pairs in another way than ours.
        """
        source = HuggingFace(path, 0, ignore, reranker, m3_heads, positions)
        source._require_fit(*source._expected(), [])
        tokenizer = source._folder / "tokenizer.json"
        if reranker and tokenizer.is_file():
            config = hf_config.config_from_hf(str(source._folder), "float32", "none", 1)
            export_checks.pair_separators(tokenizer, config.type_vocab)

    def __str__(self) -> str:
        return f"HuggingFace({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        """Two that read alike are one source, of which each may take a part."""
        return isinstance(other, HuggingFace) and vars(self) == vars(other)

    def arrays(self) -> dict[str, np.ndarray]:
        """All parts that the file holds: the encoder; MLM head, decoder, pooler, classifier and
        projection where there.

        Returns:
            Our path -> float32 array; stacked layers have the layers first.

        Raises:
            FileNotFoundError, ValueError: see `hf_config.config_from_hf`.
            WeightsError: names everything that is missing, unexpected, of another shape or dtype.
        """
        fields, shapes, names = self._expected()
        self._require_fit(fields, shapes, names, self._untied())
        self._warn_of_resizing(fields["vocab_size"])
        sentence_modules.warn_of(self._folder)
        found = {path: self._read(path, names[path], shape) for path, shape in shapes.items()}
        if self.positions is not None:
            table = longer_positions.TABLE
            found[table] = longer_positions.lengthened(found[table], self._rows(fields))
        return found

    def _expected(self) -> tuple[Mapping[str, Any], Mapping[str, Shape], Mapping[str, list[str]]]:
        """config.json; our path -> shape, and -> names of tensors, as it describes them."""
        fields = hf_config.read_fields(self._folder)
        self._rows(fields)
        config = hf_config.config_from_hf(str(self._folder), "float32", "none", vocab_multiple=1)
        projection = fields.get("retriever_proj_size", 128)
        several = self._where.get(f"{layout_bert.M3_HEADS[1]}.weight")
        vector = None if several is None else several.shape[0]  # which no config.json says
        shapes = self.layout.shapes(config, projection, vector, self._has_classifier)
        shapes = self._held(shapes)
        names = {path: self.layout.by_path[path].names(shape[0]) for path, shape in shapes.items()}
        return fields, shapes, names

    def _rows(self, fields: Mapping[str, Any]) -> int:
        """Rows of the table of positions; ValueError where it cannot have them."""
        if self.positions is None:
            return int(fields["max_position_embeddings"])
        what = f"HuggingFace.positions of {self._folder}"
        return longer_positions.require(self.layout, fields, self.positions, what)

    def _require_fit(
        self,
        fields: Mapping[str, Any],
        shapes: Mapping[str, Shape],
        names: Mapping[str, Sequence[str]],
        problems: Sequence[str],
    ) -> None:
        """Raises WeightsError with these problems and with all that the files' headers show."""
        variant = self.layout.variant(fields)
        found = [
            problem
            for path, shape in shapes.items()
            for problem in self._differences(path, names[path], shape, variant)
        ]
        found += [*self._unexpected(names), *self._no_score(), *problems]
        if found:
            raise WeightsError(
                f"{self.path} does not fit {self._folder / 'config.json'} ({len(found)} problems):"
                + "\n  ".join(["", *found])
                + "\nAre both files of the same model? Copy them again, or list what may stay in "
                "the file in HuggingFace.ignore."
            )

    def _held(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Our path -> shape, for every part of which the file has anything, and the encoder."""
        names = {entry.names(1)[0]: entry.part for entry in self.layout.table}
        parts = {names[name] for name in names.keys() & self._where if not self._may_stay(name)}
        return {
            path: shape
            for path, shape in shapes.items()
            if self.layout.by_path[path].part in {"encoder", *parts}
        }

    def _differences(
        self, path: str, names: Sequence[str], shape: Shape, variant: str
    ) -> list[str]:
        """Errors in the tensors of one parameter."""
        entry = self.layout.by_path[path]
        expected = entry.their_shape(_inner(entry, shape), shape[0])
        problems = []
        for name in names:
            found = self._where.get(name)
            if found is None:
                spelled = self.layout.spelled(name, variant, self._has_classifier)
                problems.append(f"{spelled}: missing (expected {expected})")
            elif found.shape != expected:
                problems.append(f"{found.name}: expected {expected}, found {found.shape}")
            elif found.dtype not in _DTYPES:
                allowed = ", ".join(_DTYPES.values())
                problems.append(f"{found.name}: expected one of {allowed}, found {found.dtype}")
        return problems

    def _unexpected(self, names: Mapping[str, Sequence[str]]) -> list[str]:
        used = {name for each in names.values() for name in each}
        extra = [name for name in sorted(set(self._where) - used) if not self._may_stay(name)]
        found = [self._where[name] for name in extra]
        return [f"{stored.name}: unexpected {stored.shape}" for stored in found]

    def _no_score(self) -> list[str]:
        """Says so if a classifier is another than a re-ranker's."""
        there = {
            name: stored
            for name, stored in sorted(self._where.items())
            if name.startswith("classifier.") and not self._may_stay(name)
        }
        found = {stored.name: stored.shape for stored in there.values()}
        last = there.get("classifier.weight")
        if last is not None and last.shape[:1] == (1,) and _HEAD in self._where:
            return []
        if not found and not self.reranker:
            return []
        if not found:
            return [
                "classifier: expected that of a re-ranker, with one label; found none: this is an "
                "encoder, which has to be trained before it can judge or put in order (kennel "
                "finetune --kind=reranker)"
            ]
        return [
            "classifier: expected that of a re-ranker, one label after a projection of the "
            f"encoder's state; found {found}. To take all else, list 'classifier.*' in "
            "HuggingFace.ignore (of ModernBERT 'head.*', too)."
        ]

    @property
    def _has_classifier(self) -> bool:
        """Whether a classifier is read."""
        return "classifier.weight" in self._where and not self._may_stay("classifier.weight")

    def _untied(self) -> list[str]:
        """Output tensors that old files repeat; ours are tied, so they must be copies."""
        problems = []
        for copy, original in self.layout.tied:
            if copy in self._where and original in self._where:
                repeated, table = self._where[copy], self._where[original]
                if not np.array_equal(repeated.read(), table.read()):
                    problems.append(
                        f"{repeated.name}: expected a copy of {table.name}, found other values"
                    )
        return problems

    def _may_stay(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.ignore)

    def _warn_of_resizing(self, rows: int) -> None:
        added = self.vocab_size - rows
        if added:
            what = f"{added} rows start fresh" if added > 0 else f"the last {-added} rows are cut"
            warnings.warn(
                f"{self.path} has {rows} tokens, the tokenizer {self.vocab_size}: {what}. Is it "
                "the tokenizer that the weights were trained with, with tokens added or removed?",
                stacklevel=3,
            )

    def _read(self, path: str, names: Sequence[str], shape: Shape) -> np.ndarray:
        entry = self.layout.by_path[path]
        parts = [
            entry.from_theirs(self._where[name].read(), _inner(entry, shape)) for name in names
        ]
        if entry.layout == hf_names.VOCAB:
            return parts[0][: self.vocab_size]
        return np.stack(parts) if entry.stacked else parts[0]


def _inner(entry: hf_names.Entry, shape: Shape) -> Shape:
    """The shape without the layer axis."""
    return shape[1:] if entry.stacked else shape


def _layout(file: Path) -> tuple[published_layout.PublishedLayout, str]:
    """Layout and variant named by config.json; BERT's if none, which `arrays` then reports."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        found = hf_config.layout(fields, file)
        return found, found.variant(fields)
    except (OSError, ValueError, AttributeError):
        return layout_bert.LAYOUT, "bert"


def _locate(path: Path, layout: published_layout.PublishedLayout) -> dict[str, Stored]:
    """Canonical name -> what the files say of it."""
    where: dict[str, Stored] = {}
    for stored in (
        stored for file in published_folder.weight_files(path) for stored in _header(file)
    ):
        key = layout.canonical(stored.name)
        if key in where:
            raise WeightsError(
                f"{path}: {stored.name!r} and {where[key].name!r} both mean {key!r}."
            )
        where[key] = stored
    pooler = sentence_modules.pooler_weights(path) if path.is_dir() else None
    if pooler is not None:  # what sentence-transformers takes, whatever pooler the encoder has
        for stored in _header(pooler):
            where[sentence_modules.POOLER.get(stored.name, stored.name)] = stored
    return where


def _m3_heads(folder: Path) -> dict[str, Stored]:
    """Canonical name -> tensor, of the heads in FlagEmbedding's layout that are there.

    Raises WeightsError for a file that holds anything but tensors.
    """
    found: dict[str, Stored] = {}
    for head in layout_bert.M3_HEADS:
        file = folder / f"{head}.pt"
        for name, array in (torch_pickle.read(file) if file.is_file() else {}).items():
            found[f"{head}.{name}"] = InMemory(file, name, array.shape, "F32", array)
    return found


def _header(file: Path) -> list[Stored]:
    """Header of one file; safetensors checks it, offsets included."""
    try:
        with safetensors.safe_open(file, "numpy") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
            return [
                Stored(file, name, tuple(found.get_shape()), found.get_dtype())
                for name, found in slices.items()
            ]
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(
            f"{file}: expected a whole safetensors file: {error}. Copy it again; one of some "
            "hundred bytes is a pointer of Git LFS, which `git lfs pull` replaces."
        ) from error
