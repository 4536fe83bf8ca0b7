"""The modules that sentence-transformers puts after an encoder: those we write and read.

`modules.json` in a folder lists them in order. Ours are Transformer, Pooling, Dense where the
pooling is BERT's pooler (tanh(P . h[CLS] + b), as published LaBSE folders have it), and Normalize.
"""

import itertools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from t5x_style.interfaces.contract import Contract

# The tensors of a Dense module, and the canonical names (`hf_names`) of BERT's pooler.
POOLER = {
    "linear.weight": "bert.pooler.dense.weight",
    "linear.bias": "bert.pooler.dense.bias",
}
MODULES = "modules.json"
_WEIGHTS = "model.safetensors"
_TANH = "torch.nn.modules.activation.Tanh"


def write(
    folder: Path,
    contract: Contract,
    max_tokens: int,
    model_args: Mapping[str, Any],
    pooler: Mapping[str, np.ndarray],
) -> None:
    """Write the files that sentence-transformers needs, in the format of its first releases.

    Args:
        folder: of the model.
        contract: pooling, normalisation, prefixes, similarity.
        max_tokens: at which a text is cut.
        model_args: for the constructor of transformers' model.
        pooler: canonical name -> tensor, where the contract's pooling is 'pooler'.
    """
    kinds = ["Transformer", "Pooling"]
    kinds += ["Dense"] if contract.pooling == "pooler" else []
    kinds += ["Normalize"] if contract.normalise else []
    paths = {kind: f"{number}_{kind}" if number else "" for number, kind in enumerate(kinds)}
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": paths[kind],
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    write_json(folder / MODULES, listed)
    for name, content in _settings(contract, max_tokens, model_args).items():
        write_json(folder / name, content)
    write_json(folder / paths["Pooling"] / "config.json", _pooling(contract))
    if "Dense" in paths:
        settings = {
            "in_features": contract.dimension,
            "out_features": contract.dimension,
            "bias": True,
            "activation_function": _TANH,
        }
        write_json(folder / paths["Dense"] / "config.json", settings)
        dense = {
            name: np.ascontiguousarray(pooler[canonical], np.float32)
            for name, canonical in POOLER.items()
        }
        save_file(dense, folder / paths["Dense"] / _WEIGHTS, {"format": "pt"})
    if "Normalize" in paths:
        write_json(folder / paths["Normalize"] / "config.json", {})


def _settings(
    contract: Contract, max_tokens: int, model_args: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    return {
        "sentence_bert_config.json": {
            "max_seq_length": max_tokens,
            "do_lower_case": False,
            "model_args": dict(model_args),
        },
        "config_sentence_transformers.json": {
            "prompts": {"query": contract.query_prefix, "document": contract.passage_prefix},
            "default_prompt_name": None,
            "similarity_fn_name": contract.similarity,
        },
    }


def _pooling(contract: Contract) -> dict[str, Any]:
    return {
        "word_embedding_dimension": contract.dimension,
        "pooling_mode_cls_token": contract.pooling in ("cls", "pooler"),
        "pooling_mode_mean_tokens": contract.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "include_prompt": True,
    }


def pooler_weights(folder: Path) -> Path | None:
    """The safetensors file of the Dense module that is BERT's pooler; None if there is none.

    That is one directly after the pooling of [CLS], square, with a bias and tanh.
    """
    for (before, _), (kind, path) in itertools.pairwise(modules(folder)):
        weights = folder / path / _WEIGHTS
        if before == "Pooling (cls)" and kind == "Dense" and weights.is_file():
            fields = read_json(folder / path / "config.json", {})
            square = fields.get("in_features") == fields.get("out_features")
            if square and fields.get("bias") and fields.get("activation_function") == _TANH:
                return weights
    return None


def warn_of(folder: Path) -> None:
    """Says which modules of a sentence-transformers folder change its vectors, and are not taken.

    And of a Dense module that is taken as a pooler, since a model without one leaves it, too.
    """
    pooler = pooler_weights(folder)
    known = {"Transformer", "Pooling", "Pooling (cls)", "Pooling (mean)", "Normalize"}
    taken = None if pooler is None else pooler.parent
    left = [kind for kind, path in modules(folder) if kind not in known and folder / path != taken]
    if left:
        warnings.warn(
            f"{folder}: only the encoder is imported, not the modules {left} of modules.json; "
            "its vectors are not those that sentence-transformers gives.",
            stacklevel=4,
        )
    elif pooler is not None:
        warnings.warn(
            f"{folder}: its Dense module is the pooler here; a model whose pooling is not 'pooler' "
            "leaves it, and has other vectors than sentence-transformers gives.",
            stacklevel=4,
        )


def modules(folder: Path) -> list[tuple[str, str]]:
    """(kind, path) of each module of `modules.json`, in order; empty where there is no such file.

    The kind of a Pooling includes its modes where its file names any: `Pooling (cls + max)`.
    """
    found = []
    for module in read_json(folder / MODULES, []):
        kind, path = module["type"].rpartition(".")[2], module["path"]
        modes = _pooling_modes(folder / path) if kind == "Pooling" else []
        found.append((f"{kind} ({' + '.join(modes)})" if modes else kind, path))
    return found


def _pooling_modes(folder: Path) -> list[str]:
    """`cls`, `mean`, `max`, ... of a Pooling module; several are concatenated."""
    fields = read_json(folder / "config.json", {})
    if "pooling_mode" in fields:  # newer files have one field
        mode = fields["pooling_mode"]
        return [mode] if isinstance(mode, str) else list(mode)
    switches = [name for name, on in fields.items() if name.startswith("pooling_mode_") and on]
    return [
        n.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for n in switches
    ]


def read_json(path: Path, otherwise: Any) -> Any:
    """The content of a JSON file, or `otherwise` where there is no such file.

    Raises:
        json.JSONDecodeError: it is damaged; names the file.
    """
    if not path.is_file():
        return otherwise
    text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(f"{path}: {error.msg}", text, error.pos) from error


def write_json(path: Path, content: Any) -> None:
    """A readable file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
