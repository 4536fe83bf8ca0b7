"""Sizes of an encoder from and to the `config.json` of Hugging Face: BERT and its relatives.

RoBERTa counts positions from its pad id: the first token of a text is at pad id + 1, so that its
position table has as many rows before the first that is used. ELECTRA's tables may be narrower than
its layers. All else is BERT; REALM's files have other names and a projection behind the encoder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.networks import bert

# model_type in config.json -> family in `hf_names.FAMILIES`.
FAMILY_OF = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "electra": "electra",
    "realm": "realm",
}
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
_REQUIRED = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_act",
]
_OWN_FIELD = {"roberta": "pad_token_id", "electra": "embedding_size"}  # by family
_NUMBERS = (
    "layer_norm_eps",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
)
_ROBERTA_PAD = 1  # transformers' default, where config.json does not say


def config_from_hf(
    folder: str,
    dtype: str,
    remat: str,
    vocab_multiple: int,
    vocab_size: int | None = None,
    dropout: float | None = None,
    unroll: int = 1,
    attention: str = "auto",
) -> bert.BertConfig:
    """The BertConfig that a Hugging Face `config.json` describes.

    Args:
        folder: holds `config.json`.
        dtype, remat, vocab_multiple, unroll, attention: ours to choose; see `BertConfig`.
        vocab_size: the tokenizer's; None takes that of `config.json`.
        dropout: rate for states and attention; None takes the two of `config.json`.

    Raises:
        FileNotFoundError: there is no config.json.
        ValueError: a field is missing, or the file describes another architecture.
    """
    fields = read_fields(folder)

    def rate(name: str) -> float:
        return fields.get(name, 0.1) if dropout is None else dropout

    offset = position_offset(fields)
    width = fields.get("embedding_size") if family(fields) == "electra" else None
    return bert.BertConfig(
        vocab_size=fields["vocab_size"] if vocab_size is None else vocab_size,
        hidden=fields["hidden_size"],
        layers=fields["num_hidden_layers"],
        heads=fields["num_attention_heads"],
        mlp=fields["intermediate_size"],
        max_positions=fields["max_position_embeddings"] - offset,
        type_vocab=fields["type_vocab_size"],
        activation=_ACTIVATIONS[fields["hidden_act"]],
        layer_norm_eps=fields.get("layer_norm_eps", 1e-12),
        dropout=rate("hidden_dropout_prob"),
        attention_dropout=rate("attention_probs_dropout_prob"),
        initializer_range=fields.get("initializer_range", 0.02),
        dtype=dtype,
        remat=remat,
        unroll=unroll,
        attention=attention,
        vocab_multiple=vocab_multiple,
        position_offset=offset,
        embedding_size=None if width == fields["hidden_size"] else width,
    )


def read_fields(folder: str | Path) -> dict[str, Any]:
    """`config.json` of a folder, checked; raises as `config_from_hf` does."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: not found; expected the config.json of a Hugging Face model folder, since "
            "weights do not say how many heads they were trained with."
        )
    try:
        fields = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: expected a JSON object: {error}") from error
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise ValueError(f"{file}: expected the fields {_REQUIRED}, missing {missing}.")
    _require_supported(fields, file)
    _require_numbers(fields, file)
    return fields


def family(fields: Mapping[str, Any]) -> str:
    """Key of `hf_names.FAMILIES` for a checked config.json."""
    return FAMILY_OF[fields["model_type"]]


def position_offset(fields: Mapping[str, Any]) -> int:
    """Rows of the position table before that of a text's first token, for a checked config.json."""
    roberta = family(fields) == "roberta"
    return int(fields.get("pad_token_id", _ROBERTA_PAD)) + 1 if roberta else 0


def _require_supported(fields: Mapping[str, Any], file: Path) -> None:
    activations = tuple(_ACTIVATIONS)
    # The MLM heads of RoBERTa and ELECTRA have a gelu, whatever the layers have.
    plain = FAMILY_OF.get(fields["model_type"], "bert") in ("bert", "realm")
    for name, allowed in (
        ("model_type", tuple(FAMILY_OF)),
        ("hidden_act", activations if plain else ("gelu",)),
        ("position_embedding_type", ("absolute",)),
        ("is_decoder", (False,)),
        ("add_cross_attention", (False,)),
    ):
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(f"{file}: expected {name} in {allowed}, found {fields[name]!r}.")


def _require_numbers(fields: Mapping[str, Any], file: Path) -> None:
    own = _OWN_FIELD.get(family(fields))
    whole = [name for name in (*_REQUIRED, own) if name not in ("model_type", "hidden_act")]
    for names, kind, words in (
        (whole, int, "a whole number"),
        (_NUMBERS, (int, float), "a number"),
    ):
        for name in names:
            found = fields.get(name, 0)
            if not isinstance(found, kind) or isinstance(found, bool):
                raise ValueError(f"{file}: expected {words} as {name}, found {found!r}.")


def family_of(config: bert.BertConfig) -> str:
    """The family that an encoder of ours is written as.

    Raises:
        ValueError: it is of none: narrow tables and an offset, or a head that theirs lacks.
    """
    roberta, electra = config.position_offset > 0, config.embedding_size is not None
    if roberta and electra:
        raise ValueError(
            "BertConfig: Hugging Face has no layout with both position_offset (RoBERTa) and "
            f"embedding_size (ELECTRA), found {config.position_offset} and {config.embedding_size}."
        )
    if (roberta or electra) and config.activation != "gelu":
        raise ValueError(
            "BertConfig.activation: RoBERTa's and ELECTRA's layouts have 'gelu' in their MLM head, "
            f"found {config.activation!r}."
        )
    return "roberta" if roberta else "electra" if electra else "bert"


def config_to_hf(config: bert.BertConfig, pad: int, architecture: str) -> dict[str, Any]:
    """What `config.json` says of an encoder.

    Args:
        config: ours.
        pad: id of the padding token.
        architecture: class of transformers that the weights are for.

    Raises:
        ValueError: transformers would compute other positions, or has no such layout.
    """
    if config.position_offset not in (0, pad + 1):
        raise ValueError(
            "RoBERTa's first position is its pad id + 1: expected BertConfig.position_offset "
            f"{pad + 1} for the tokenizer's pad id {pad}, found {config.position_offset}."
        )
    kind = family_of(config)
    fields = {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "max_position_embeddings": config.max_positions + config.position_offset,
        "type_vocab_size": config.type_vocab,
        "hidden_act": config.activation,
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
    return fields | ({"embedding_size": config.embedding_size} if kind == "electra" else {})


def score_fields() -> dict[str, Any]:
    """What `config.json` says of a re-ranker besides: one label, scores as they are.

    sentence-transformers (4 and later) would send the score of a single label through a sigmoid.
    """
    return {
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "classifier_dropout": None,
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
    }
