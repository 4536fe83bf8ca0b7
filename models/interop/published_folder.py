"""Recognise the folder of a published encoder by its file names, and find its weights.

The messages say what else was found in its place: nothing, a file, data to train on, or weights
that are pickles, which are never opened.
"""

import json
import re
from pathlib import Path

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHARDS = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_DATA = (".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".jsonl.gz", ".csv.gz", ".tsv.gz")
_SHOWN = 8  # names of files


class WeightsError(ValueError):
    """Weights do not fit; the message lists each tensor missing, unexpected or misshapen."""


def config_file(folder: Path) -> Path:
    """`config.json` of a folder.

    Raises:
        FileNotFoundError: there is none; says what is there in its place.
    """
    file = folder / CONFIG
    if file.is_file():
        return file
    raise FileNotFoundError(
        f"{folder}: expected the folder of a model, as save_pretrained of transformers or "
        f"sentence-transformers writes it, with {CONFIG}, weights and a tokenizer; {_found(folder)}"
    )


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that make up a folder's weights, or that `path` is.

    Raises:
        FileNotFoundError: there are none, or a shard is missing.
        WeightsError: there are pickles alone, or a damaged index.
    """
    if path.is_file() and path.suffix == ".safetensors":
        return [path]
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        return _shards(path / INDEX)
    there = [path] if path.is_file() else sorted(path.glob("*"))
    pickles = [file for file in there if file.suffix in _PICKLES]
    if pickles:
        raise WeightsError(_conversion(pickles))
    if path.is_dir():
        config_file(path)
    raise FileNotFoundError(
        f"{path}: expected weights, a .safetensors file or a folder with {WEIGHTS} or {INDEX}; "
        f"{_listed(path)}. Copy the weights of the same model into the folder (docs/weights.md "
        "says how to convert others)"
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{index}: expected a JSON object with weight_map, tensor name -> file: {error!r}. "
            "Copy the file again"
        ) from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"folder {index.parent}: expected {len(names)} files of weights, which {index.name} "
            f"names; {len(missing)} are missing: {', '.join(missing[:_SHOWN])}. Copy them into the "
            "folder"
        )
    return [index.parent / name for name in names]


def _conversion(pickles: list[Path]) -> str:
    """Advice about pickles: those with the names of weights or, of others, the largest."""
    of_model = [file for file in pickles if _SHARDS.fullmatch(file.name)]
    first = of_model[0] if of_model else max(pickles, key=lambda file: file.stat().st_size)
    pattern = "pytorch_model*.bin" if of_model else first.name
    return (
        f"{first} is a pickle; loading one runs the code inside it, so it is "
        f"not opened. Expected {WEIGHTS}. PyTorch's reader of bare tensors, which runs no code, "
        f"converts it:\n{command(first.parent, pattern)}\n"
    )


def command(folder: Path, pattern: str) -> str:
    """A shell command that writes `model.safetensors` of a folder's pickles.

    Args:
        folder: of the model.
        pattern: of the pickles' names; tensors of several are written into one file.
    """
    return (
        f"cd '{folder}' && python -c \"import glob, torch, safetensors.torch as s; "
        f"s.save_file({{n: t.contiguous().clone() for f in glob.glob('{pattern}') for n, t in "
        f"torch.load(f, 'cpu', weights_only=True).items()}}, '{WEIGHTS}', {{'format': 'pt'}})\""
    )


def _found(folder: Path) -> str:
    """Describe a path where a model folder is expected, with advice."""
    if not folder.exists():
        return "there is nothing. Correct the path; nothing is fetched from a hub"
    names = [folder.name] if folder.is_file() else sorted(p.name for p in folder.iterdir())
    data = [name for name in names if name.lower().endswith(_DATA)]
    if data:
        return (
            f"found data, {', '.join(data[:_SHOWN])}. Are the data and the model swapped? The "
            "model is the folder here"
        )
    if folder.is_file():
        return "found a file. Name the folder that it is in"
    return f"{_listed(folder)}. Copy the whole folder, or name another"


def _listed(path: Path) -> str:
    if not path.is_dir():
        return "found a file" if path.is_file() else "there is nothing"
    names = sorted(file.name for file in path.iterdir())
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"found {', '.join(names[:_SHOWN])}{more}" if names else "the folder is empty"
