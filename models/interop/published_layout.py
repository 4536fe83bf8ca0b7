"""Layout of a published family of encoders: fields of config.json, names and shapes.

Each file `layout_*.py` of this folder holds one, `LAYOUT`; import and export find it by the
`model_type` of config.json or by the class of our configuration. A new family is a new file.
"""

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

import models.interop
from models.interop import hf_names
from models.networks import heads, layers
from t5x_style.interfaces.encoder import TokenEncoderConfig

ACTIVATIONS = {  # theirs -> ours
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
# What a module that holds the model puts before every name: RetroMAE's `lm`, the first module of
# sentence-transformers, and wrappers that training scripts use.
_OUTER = re.compile(r"^((lm|0\.auto_model|auto_model|model|module)\.)+")


class Options(NamedTuple):
    """Options that config.json does not set; see the encoder's configuration."""

    dtype: str
    remat: str
    vocab_multiple: int
    vocab_size: int | None
    dropout: float | None
    unroll: int
    attention: str

    def tokens(self, fields: Mapping[str, Any]) -> int:
        """The tokenizer's size, or that of config.json."""
        return int(fields["vocab_size"]) if self.vocab_size is None else self.vocab_size

    def rate(self, published: float) -> float:
        """Return the dropout rate: the bound one, else the published one."""
        return published if self.dropout is None else self.dropout


class PublishedLayout:
    """One family; subclasses fill in what is here.

    Attributes:
        config_type: class of our configuration.
        model_types: `model_type` of config.json -> name of the variant.
        required: fields of config.json.
        numbers: fields that are numbers where they are there.
        table: our parameters and their tensors, under canonical names.
        may_stay: patterns of tensors that may be left in a file: copies, buffers, other tasks'
            heads.
        tied: (copy, original) of tied tensors, which old files hold twice.
        base_models, masked_lms: class in transformers, by variant; a variant that has none is not
            written.
        spellings: variant -> (their beginning of a name, the canonical one); the first that fits
            is taken.
        with_pooler: variants whose base model holds a pooler in transformers.
        pair_models: class of a re-ranker in transformers, by variant.
        pair_names: variant -> (the beginning of a name in a re-ranker's head, the canonical one).
    """

    config_type: type
    model_types: Mapping[str, str]
    required: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    table: tuple[hf_names.Entry, ...]
    may_stay: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    base_models: Mapping[str, str]
    masked_lms: Mapping[str, str]
    spellings: Mapping[str, tuple[tuple[str, str], ...]]
    with_pooler: tuple[str, ...] = ()
    pair_models: Mapping[str, str] = {}
    pair_names: Mapping[str, tuple[tuple[str, str], ...]] = {}

    def config(self, fields: Mapping[str, Any], options: Options) -> TokenEncoderConfig:
        """Our configuration, of a checked config.json."""
        raise NotImplementedError

    def fields(self, config: Any, pad: int) -> dict[str, Any]:
        """Fields of config.json for an encoder of ours; `pad` is the id of the padding token.

        Raises:
            ValueError: transformers has no such layout.
        """
        raise NotImplementedError

    def variant_of(self, config: Any) -> str:
        """The variant that an encoder of ours is written as; ValueError if it is of none."""
        raise NotImplementedError

    def pair_variant_of(self, config: Any) -> str:
        """The variant that a re-ranker of ours is written as; ValueError if it is of none."""
        variant = self.variant_of(config)
        if variant not in self.pair_models:
            raise ValueError(
                f"{type(config).__name__}: transformers has no re-ranker of {variant}: expected "
                f"one of {tuple(self.pair_models)}."
            )
        return variant

    def pair_fields(self, config: Any) -> dict[str, Any]:
        """Fields of config.json that a re-ranker has besides those of its encoder."""
        return {}

    def allowed(self, fields: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """(field, values that we can read); a field that is not there has the first."""
        raise NotImplementedError

    def position_offset(self, fields: Mapping[str, Any]) -> int:
        """Rows of the position table before that of a text's first token."""
        return 0

    def whole_numbers(self, variant: str) -> tuple[str, ...]:
        """Fields that are whole numbers."""
        return tuple(name for name in self.required if name != "model_type")

    def inside(self, name: str) -> str:
        """The canonical form of a name without outer prefixes."""
        raise NotImplementedError

    # What follows is the same for all families.

    @functools.cached_property
    def by_path(self) -> dict[str, hf_names.Entry]:
        """Our path -> entry of the table."""
        return {entry.path: entry for entry in self.table}

    def variant(self, fields: Mapping[str, Any]) -> str:
        """Of a checked config.json."""
        return self.model_types[fields["model_type"]]

    def canonical(self, name: str) -> str:
        """The name as the table has it, whatever module held the model."""
        return self.inside(_OUTER.sub("", name))

    def with_pair_head(
        self, tensors: Mapping[str, Any], variant: str, may_stay: Callable[[str], bool]
    ) -> dict[str, Any]:
        """`tensors`, where they have a classifier, with canonical names for its head.

        Args:
            tensors: by name, canonical but for such a head.
            variant: of the file.
            may_stay: whether a name is left in the file.
        """
        if not any(name.startswith("classifier.") and not may_stay(name) for name in tensors):
            return dict(tensors)
        renamed = {}
        for name in tensors:
            for theirs, ours in self.pair_names.get(variant, ()):
                if name.startswith(theirs) and not may_stay(name):
                    renamed[name] = ours + name.removeprefix(theirs)
                    break
        others = {n: t for n, t in tensors.items() if n not in {*renamed, *renamed.values()}}
        return others | {ours: tensors[name] for name, ours in renamed.items()}

    def spelled(self, name: str, variant: str, in_pair: bool = False) -> str:
        """A canonical name as a variant has it; `in_pair`: in a re-ranker."""
        head = self.pair_names.get(variant, ()) if in_pair else ()
        for theirs, ours in (*head, *self.spellings[variant]):
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name

    def check(self, fields: Mapping[str, Any], file: Path) -> None:
        """Raises ValueError unless config.json describes an encoder that we have."""
        missing = [name for name in self.required if name not in fields]
        if missing:
            raise ValueError(
                f"{file}: expected the fields {list(self.required)}, missing {missing}."
            )
        for names, kind, words in (
            (self.whole_numbers(self.variant(fields)), int, "a whole number"),
            (self.numbers, (int, float), "a number"),
        ):
            for name in names:
                found = fields.get(name, 0)
                if not isinstance(found, kind) or isinstance(found, bool):
                    raise ValueError(f"{file}: expected {words} as {name}, found {found!r}.")
        for name, allowed in self.allowed(fields):
            found = fields.get(name, allowed[0] if allowed else None)
            if found not in allowed:
                raise ValueError(f"{file}: expected {name} in {allowed}, found {found!r}.")

    def parts(
        self, config: TokenEncoderConfig, projection: int, vector: int, in_pair: bool
    ) -> nnx.Module:
        """Every part that a file may hold, with fresh parameters."""
        rngs = nnx.Rngs(0)
        pooler = heads.PairPooler if in_pair else heads.Pooler
        return nnx.Dict(
            encoder=config.build(rngs),
            head=heads.MlmHead(config, rngs=rngs),
            decoder=config.layer(rngs),
            pooler=pooler(config, rngs=rngs),
            classifier=heads.score_head(config, rngs=rngs),
            next_sentence=layers.Dense(
                {"embed": config.hidden}, {"type": 2}, stddev=1.0, dtype=config.dtype, rngs=rngs
            ),
            project=heads.projection(config, projection, rngs),
            norm=layers.layer_norm(projection, 1e-12, config.dtype, rngs),
            sparse=nnx.Dict(dense=heads.score_head(config, rngs=rngs)),
            multi_vector=nnx.Dict(dense=heads.projection(config, vector, rngs)),
        )

    def shapes(
        self,
        config: TokenEncoderConfig,
        projection: int = 128,
        vector: int | None = None,
        in_pair: bool = False,
    ) -> dict[str, tuple[int, ...]]:
        """Our path -> shape of every parameter that the table knows, at these sizes.

        Args:
            config: of the encoder.
            projection: size of REALM's vectors.
            vector: size of M3's vectors of tokens; None: the encoder's width.
            in_pair: of a re-ranker, whose pooler is that of its family.
        """
        size = vector or config.hidden
        made = nnx.eval_shape(lambda: self.parts(config, projection, size, in_pair))
        flat = nnx.to_flat_state(nnx.state(made, nnx.Param))
        shapes = {"/".join(map(str, path)): tuple(variable.shape) for path, variable in flat}
        return {path: shape for path, shape in shapes.items() if path in self.by_path}

    def export_arrays(
        self, arrays: Mapping[str, np.ndarray], vocab_size: int
    ) -> dict[str, np.ndarray]:
        """Our arrays (path -> array) under their canonical names and in their layout.

        Raises:
            KeyError: a path is not in the table.
        """
        pieces: dict[str, dict[int, np.ndarray]] = {}
        for path, array in arrays.items():
            if path not in self.by_path:
                raise KeyError(f"no Hugging Face name for parameter {path!r}: add it to the table.")
            entry = self.by_path[path]
            parts = list(array) if entry.stacked else [array]
            for name, part in zip(entry.names(len(parts)), parts, strict=True):
                piece = entry.to_theirs(np.asarray(part), vocab_size)
                pieces.setdefault(name, {})[entry.piece] = piece
        return {
            name: np.concatenate([found[piece] for piece in sorted(found)])
            if len(found) > 1
            else next(iter(found.values()))
            for name, found in pieces.items()
        }


@functools.cache
def layouts() -> tuple[PublishedLayout, ...]:
    """All, in the order of their files' names."""
    found = []
    for module in pkgutil.iter_modules(models.interop.__path__):
        if module.name.startswith("layout_"):
            found.append(importlib.import_module(f"models.interop.{module.name}").LAYOUT)
    return tuple(found)


def of_model_type(name: Any, file: Path) -> PublishedLayout:
    """The layout of a `model_type`; `file` is named in the error.

    Raises:
        ValueError: there is none.
    """
    for layout in layouts():
        if isinstance(name, str) and name in layout.model_types:
            return layout
    known = tuple(name for layout in layouts() for name in layout.model_types)
    raise ValueError(
        f"{file}: expected model_type in {known}, found {name!r}, an architecture that is not read "
        "here. Take an encoder of one of these families (docs/weights.md, What is read)."
    )


def of_config(config: Any) -> PublishedLayout:
    """The layout of a configuration of ours.

    Raises:
        ValueError: there is none.
    """
    for layout in layouts():
        if isinstance(config, layout.config_type):
            return layout
    raise ValueError(
        f"{type(config).__name__}: no published layout has such an encoder; expected one of "
        f"{[layout.config_type.__name__ for layout in layouts()]}."
    )
