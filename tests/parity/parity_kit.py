"""What every golden case needs: reading it, building the objective by gin, comparing numbers.

Tolerances are those of the golden cases' own description; the float64 reference is the truth.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import gin
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.interop import hf_config, import_hf
from models.interop.layout_bert import LAYOUT
from models.networks import bert, text_embedding
from t5x_style.interfaces.objective import Batch, Objective

LOSS_RTOL = 1e-5
ACTIVATION_ATOL = 5e-5
GRADIENT_RTOL = 1e-4
# Gradients that are zero in exact arithmetic (key biases: softmax does not see them) and probes
# that cancel have no relative error. Their floor is this many times the largest distance between
# the reference's own float32 and float64 runs over all parameters of the case: what float32 can
# resolve.
NOISE_FACTOR = 4.0

# Lengths of 1 fit every case's position table; no parity case embeds anything.
EMBEDDING = text_embedding.EmbeddingConfig(
    pooling="cls",
    normalise=False,
    similarity="dot",
    temperature=1.0,
    query_length=1,
    passage_length=1,
    query_prefix="",
    passage_prefix="",
    passage_layout="text",
)


Export = Callable[[Mapping[str, np.ndarray], int], dict[str, np.ndarray]]


class Source(Protocol):
    """Where weights come from."""

    path: Path

    def arrays(self) -> dict[str, np.ndarray]:
        """Our path -> array."""


@dataclasses.dataclass(frozen=True)
class Arrays:
    """A `Source` of weights that were read already."""

    path: Path
    found: Mapping[str, np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        """See `Source`."""
        return dict(self.found)


class CaseError(ValueError):
    """A folder is not a golden case that can be run."""


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One compared number or array: passes if `error` <= `tolerance` (NaN does not)."""

    name: str
    error: float
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.error <= self.tolerance)


@dataclasses.dataclass(frozen=True)
class Case:
    """A golden case folder, read; statistical cases have no float64 numbers."""

    folder: Path
    config: dict[str, Any]
    batch: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]
    float32: dict[str, Any]
    float64: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Case":
        """Raises CaseError if a file is missing or unreadable."""
        names = ("config.json", "batch.npz", "expected.json", "expected.npz")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CaseError(f"{folder}: expected {list(names)}, missing {missing}.")
        try:
            config, expected = (json.loads((folder / names[i]).read_text()) for i in (0, 2))
            batch, arrays = (_npz(folder / names[i]) for i in (1, 3))
            return cls(
                folder, config, batch, arrays, expected["float32"], expected.get("float64", {})
            )
        except (ValueError, KeyError, OSError) as error:
            raise CaseError(f"{folder}: cannot be read: {error!r}") from error

    @property
    def bert(self) -> bert.BertConfig:
        """Sizes from config.json, float32, no dropout."""
        return hf_config.config_from_hf(str(self.folder), "float32", "none", 128)

    def truth(self, name: str) -> np.ndarray:
        """An expected array, float64 where the case stores it."""
        for key in (f"f64/{name}", name):
            if key in self.arrays:
                return self.arrays[key]
        raise CaseError(f"{self.folder}: expected.npz has no array {name!r}.")


def _npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


# --- building -------------------------------------------------------------------------------------


def build(objective: Callable[..., Objective]) -> Objective:
    """The objective that gin binds to `parity_kit.build.objective`."""
    return objective(rngs=nnx.Rngs(0))


def objective_from_gin(case: Case, lines: list[str], overrides: list[str]) -> Objective:
    """An objective built by gin, with the case's weights, in evaluation mode.

    Args:
        case: gives the sizes, bound to `bert.BertConfig`, and the weights.
        lines: gin of the system: imports first, then bindings; binds `parity_kit.build.objective`.
        overrides: further bindings, which win; tests perturb coefficients with them.
    """
    sizes = [f"bert.BertConfig.{k} = {v!r}" for k, v in dataclasses.asdict(case.bert).items()]
    objective = bound_objective([*lines, *sizes], overrides)
    fill(objective, import_hf.HuggingFace(str(weights_file(case)), case.bert.vocab_size))
    objective.eval()
    return objective


def bound_objective(lines: list[str], overrides: list[str]) -> Objective:
    """An objective built by gin, with fresh weights; see `objective_from_gin`."""
    vectors = [
        f"text_embedding.EmbeddingConfig.{k} = {v!r}"
        for k, v in dataclasses.asdict(EMBEDDING).items()
    ]
    header = ["from __gin__ import dynamic_registration", "from tests.parity import parity_kit"]
    header += ["from models.networks import bert", "from models.networks import text_embedding"]
    gin.clear_config()
    try:
        with gin.unlock_config():
            gin.parse_config("\n".join([*header, *vectors, *lines, *overrides]))
            return gin.get_configurable(build)()
    finally:
        gin.clear_config()


def weights_file(case: Case) -> Path:
    """The case's weights. Raises CaseError if there are none.

    A case of DupMAE has those of RetroMAE's case of the same name.
    """
    file = case.folder / "weights.safetensors"
    if case.config.get("architecture") == "DupMAEForPretraining" and not file.is_file():
        folder = case.folder.resolve()
        file = folder.parent.parent / "retromae" / folder.name / "weights.safetensors"
    if not file.is_file():
        raise CaseError(f"{case.folder}: expected weights.safetensors, missing.")
    return file


def vocabulary_lines(case: Case) -> list[str]:
    """Bindings of `contract.Vocabulary` (five special ids, as in every case)."""
    config = case.config
    ids = {
        "pad": config.get("pad_token_id", 0),
        "unk": config.get("unk_token_id", 1),
        "cls": config.get("cls_token_id", 2),
        "sep": config.get("sep_token_id", 3),
        "mask": config.get("mask_token_id", 4),
    }
    fields = {"size": case.config["vocab_size"], **ids, "fingerprint": "golden"}
    fields["special_ids"] = tuple(sorted(ids.values()))
    return ["from t5x_style.interfaces import contract"] + [
        f"contract.Vocabulary.{name} = {value!r}" for name, value in fields.items()
    ]


def parameters(module: nnx.Module) -> dict[str, nnx.Variable]:
    """Our path -> parameter."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {"/".join(map(str, path)): variable for path, variable in flat}


@dataclasses.dataclass(frozen=True)
class Weights:
    """The parameters of a module, as a checkpoint gives them to an export."""

    module: nnx.Module

    def arrays(self) -> dict[str, np.ndarray]:
        """Our path -> array on the host."""
        flat = parameters(self.module)
        return {path: np.asarray(variable[...]) for path, variable in flat.items()}


def fill(module: nnx.Module, source: Source) -> None:
    """Puts the source's weights into `module`; every parameter must get one, padding rows get 0."""
    wanted, arrays = parameters(module), source.arrays()
    if absent := sorted(wanted.keys() - arrays.keys()):
        raise CaseError(f"{source.path}: holds nothing for {absent}.")
    pairs = []
    for path, variable in wanted.items():
        array = arrays[path]
        rows = [(0, variable.shape[0] - len(array)), *[(0, 0)] * (array.ndim - 1)]
        pairs.append((tuple(path.split("/")), variable.replace(jnp.asarray(np.pad(array, rows)))))
    nnx.update(module, nnx.from_flat_state(pairs))


def token_group(
    tokens: np.ndarray, mask: np.ndarray, token_types: np.ndarray | None = None
) -> dict[str, jax.Array]:
    """One segment a row, from the official `input_ids` and `attention_mask`."""
    rows, length = tokens.shape
    group = {
        "tokens": tokens.astype(np.int32),
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "segment_ids": mask.astype(np.int32),
        "word_starts": mask.astype(bool),
        "cls_at": np.zeros((rows, 1), np.int32),
        "segment_valid": np.ones((rows, 1), bool),
        "example_id": np.arange(rows, dtype=np.int32)[:, None],
    }
    if token_types is not None:
        group["token_types"] = token_types.astype(np.int32)
    return {name: jnp.asarray(array) for name, array in group.items()}


def value_and_gradients(
    objective: Objective, batch: Batch, export: Export = LAYOUT.export_arrays
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The loss and metrics of `Objective.loss`, and gradients under canonical official names.

    Args:
        objective: in evaluation mode.
        batch: corrupted.
        export: (our path -> array, vocabulary size) -> official name -> array.
    """
    graph, params, rest = nnx.split(objective, nnx.Param, ...)

    def total(params: nnx.State) -> tuple[jax.Array, dict[str, jax.Array]]:
        module = nnx.merge(graph, params, rest)
        loss, metrics = module.loss(batch, jax.random.key(0))
        return loss.value(), {name: metric.value() for name, metric in metrics.items()}

    (loss, metrics), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    flat = {"/".join(map(str, p)): np.asarray(v[...]) for p, v in nnx.to_flat_state(grads)}
    values = {"loss": float(loss)} | {name: float(value) for name, value in metrics.items()}
    return values, export(flat, objective.config.vocab_size)


# --- comparing ------------------------------------------------------------------------------------


def loss(case: Case, name: str, ours: float) -> Quantity:
    """A scalar loss against `expected.json`."""
    truth = case.float64[name]
    return Quantity(name, abs(ours - truth), LOSS_RTOL * abs(truth), f"{ours:.7g}")


def activation(case: Case, name: str, ours: Any, rows: np.ndarray | None = None) -> Quantity:
    """An array against `expected.npz`, only where `rows` (bool, leading axes) says so."""
    truth, found = case.truth(name), np.asarray(ours, np.float64)
    if truth.shape != found.shape:
        return Quantity(name, np.inf, ACTIVATION_ATOL, f"{found.shape}, expected {truth.shape}")
    rows = np.ones(truth.shape, bool) if rows is None else rows.astype(bool)
    return Quantity(name, _largest(found[rows] - truth[rows]), ACTIVATION_ATOL)


def gradients(
    case: Case, ours: Mapping[str, np.ndarray], group_of: Callable[[str], str]
) -> list[Quantity]:
    """Norms, probes, group norms and complete arrays of all parameters.

    Args:
        case: the expected numbers.
        ours: canonical official name -> gradient in the official layout.
        group_of: canonical name -> name in `grad_norm_groups`.
    """
    ours = {name: np.asarray(array, np.float64) for name, array in ours.items()}
    norms = {name: float(np.linalg.norm(array)) for name, array in ours.items()}
    probes = {name: probe(array) for name, array in ours.items()}
    groups: dict[str, float] = {"__total__": float(np.sqrt(sum(n**2 for n in norms.values())))}
    for group in {group_of(name) for name in norms}:
        members = [norm for name, norm in norms.items() if group_of(name) == group]
        groups[group] = float(np.sqrt(sum(norm**2 for norm in members)))
    return [
        *_scalars(case, "grad_norm_params", norms, LAYOUT.canonical),
        *_scalars(case, "grad_probe_params", probes, LAYOUT.canonical),
        *_scalars(case, "grad_norm_groups", groups, str),
        *_complete(case, ours),
    ]


def probe(gradient: np.ndarray) -> float:
    """sum_i g_i cos(0.7 i + 0.3), row-major: sees signs, order and transposition."""
    return float(gradient.reshape(-1) @ np.cos(0.7 * np.arange(gradient.size) + 0.3))


def noise_floor(case: Case, kind: str) -> float:
    """What float32 cannot resolve in a kind of gradient number; see NOISE_FACTOR."""
    distances = [abs(case.float32[kind][n] - v) for n, v in case.float64[kind].items()]
    return NOISE_FACTOR * max(distances)


def _scalars(
    case: Case, kind: str, ours: Mapping[str, float], rename: Callable[[str], str]
) -> list[Quantity]:
    floor = noise_floor(case, kind)
    expected = {rename(name): value for name, value in case.float64[kind].items()}
    found = [
        Quantity(
            f"{kind}[{name}]",
            abs(ours[name] - truth) if name in ours else np.inf,
            GRADIENT_RTOL * abs(truth) + floor,
            "" if name in ours else "we have no such gradient",
        )
        for name, truth in expected.items()
    ]
    extra = [Quantity(f"{kind}[{n}]", np.inf, 0.0, "not expected") for n in ours.keys() - expected]
    return found + extra


def _complete(case: Case, ours: Mapping[str, np.ndarray]) -> list[Quantity]:
    floor = noise_floor(case, "grad_norm_params")
    found = []
    for key in case.arrays:
        if not key.startswith("wgrad/"):
            continue
        name, truth = LAYOUT.canonical(key.removeprefix("wgrad/")), case.arrays[key]
        fits = name in ours and ours[name].shape == truth.shape
        error = _largest(ours[name] - truth) if fits else np.inf
        found.append(Quantity(key, error, GRADIENT_RTOL * _largest(truth) + floor))
    return found


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array))) if array.size else 0.0
