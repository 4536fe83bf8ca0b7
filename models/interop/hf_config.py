"""Sizes of an encoder from and to the `config.json` of Hugging Face, for every family we have."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.interop import (
    layout_bert,
    longer_positions,
    published_folder,
    published_layout,
    torch_pickle,
)
from t5x_style.interfaces.encoder import TokenEncoderConfig

# Read from a small file: a recipe's check calls it before the first stage (`preflight.trial`).
READ_EARLY = ("token_vector_size", "fresh_head_factor")


def config_from_hf(
    folder: str,
    dtype: str,
    remat: str,
    vocab_multiple: int,
    vocab_size: int | None = None,
    dropout: float | None = None,
    unroll: int = 1,
    attention: str = "auto",
    attention_dropout: float | None = None,
    positions: int | None = None,
) -> TokenEncoderConfig:
    """The configuration of the encoder that a Hugging Face `config.json` describes.

    Args:
        folder: holds `config.json`.
        dtype, remat, vocab_multiple, unroll, attention: ours to choose; see `BertConfig`.
        vocab_size: the tokenizer's; None takes that of `config.json`.
        dropout: rate for states and attention; None takes the two of `config.json`.
        attention_dropout: rate for attention in place of that.
        positions: tokens of the longest text, more than are published: with weights of
            `HuggingFace(positions=...)`, which lengthens their table. None: as published.

    Raises:
        FileNotFoundError: there is no config.json.
        ValueError: a field is missing, the file describes another architecture, or the encoder
            cannot have these positions.
    """
    fields = read_fields(folder)
    options = published_layout.Options(
        dtype, remat, vocab_multiple, vocab_size, dropout, unroll, attention
    )
    family = layout(fields, Path(folder))
    changes: dict[str, Any] = {}
    if attention_dropout is not None:
        changes["attention_dropout"] = attention_dropout
    if positions is not None:
        longer_positions.require(family, fields, positions, f"config_from_hf.positions of {folder}")
        changes["max_positions"] = positions
    return dataclasses.replace(family.config(fields, options), **changes)


def read_fields(folder: str | Path) -> dict[str, Any]:
    """`config.json` of a folder, checked; raises as `config_from_hf` does."""
    file = published_folder.config_file(Path(folder))
    try:
        fields = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: expected a JSON object: {error}") from error
    layout(fields, file).check(fields, file)
    return fields


def layout(fields: Mapping[str, Any], file: Path) -> published_layout.PublishedLayout:
    """Of a config.json, which may still be unchecked; ValueError if we have none."""
    return published_layout.of_model_type(fields.get("model_type"), file)


def max_positions(folder: Path) -> int:
    """Tokens of the longest text; raises as `config_from_hf` does."""
    fields = read_fields(folder)
    offset = layout(fields, folder / published_folder.CONFIG).position_offset(fields)
    return int(fields["max_position_embeddings"]) - offset


def token_vector_size(folder: str, fresh: int, override: int | None = None) -> int:
    """Dimensions of the vectors of tokens of an M3 that begins with a published folder.

    Args:
        folder: may hold a head in FlagEmbedding's layout (`colbert_linear.pt`).
        fresh: of a head that the folder lacks.
        override: takes the place of `fresh`, and has to be the head's where there is one.

    Raises:
        ValueError: the head has another size than `override`, or no matrix of weights.
        WeightsError: the head's file is damaged, or holds anything but tensors.
    """
    file = Path(folder) / f"{layout_bert.M3_HEADS[1]}.pt"
    if not file.is_file():
        return fresh if override is None else override
    weight = torch_pickle.read(file).get("weight")
    if weight is None or weight.ndim != 2:
        found = "none" if weight is None else f"shape {weight.shape}"
        raise ValueError(f"{file}: expected a matrix `weight`, as FlagEmbedding has it: {found}")
    if override not in (None, len(weight)):
        raise ValueError(
            f"VECTOR_SIZE: expected {len(weight)}, the dimensions of the vectors of tokens of "
            f"{file}, found {override}. Leave VECTOR_SIZE out, or set it to {len(weight)}; for a "
            "fresh head of another size, take a copy of the folder without this file."
        )
    return len(weight)


def fresh_head_factor(folder: str, factor: float) -> float:
    """`factor` where a re-ranker that begins with a published folder has a fresh head, else 1.

    Args:
        folder: of an encoder, or of a re-ranker, whose head is trained already.
        factor: of the learning rate, with a fresh head.

    Raises:
        FileNotFoundError, ValueError: as `config_from_hf`.
    """
    made = read_fields(folder).get("architectures") or ()
    return 1.0 if any("ForSequenceClassification" in str(one) for one in made) else factor


def config_to_hf(config: Any, pad: int, architecture: str) -> dict[str, Any]:
    """Fields of `config.json` for an encoder.

    Args:
        config: ours.
        pad: id of the padding token.
        architecture: class of transformers that the weights are for.

    Raises:
        ValueError: transformers would compute other positions, or has no such layout.
    """
    fields = published_layout.of_config(config).fields(config, pad)
    return {"architectures": [architecture], **fields, "torch_dtype": "float32"}


def score_fields() -> dict[str, Any]:
    """Further fields of a re-ranker's `config.json`: one label, scores unchanged.

    sentence-transformers (4 and later) would send the score of a single label through a sigmoid.
    """
    return {
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    }
