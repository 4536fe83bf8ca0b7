"""Read a published encoder's contract from its sentence-transformers folder.

Pooling and normalisation are modules of `modules.json`, the maximum length is in
`sentence_bert_config.json`, prompts and similarity are in `config_sentence_transformers.json`. None
of them is in the weights. gin_configs/models/published_contract.gin binds the functions below to
the fields of `EmbeddingConfig`, and `checked` compares the result with the folder, so that any
other binding of a field is an override that is reported, or an error.
"""

import dataclasses
import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from models.interop import hf_config, published_folder, sentence_modules
from models.networks import text_embedding

SETTINGS = "config_sentence_transformers.json"
# Names of the file with the maximum length, which early releases called after the architecture.
_LENGTH_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # as `encode_document` looks for them
_POOLINGS = {"Pooling": "mean", "Pooling (mean)": "mean", "Pooling (cls)": "cls"}
_COMPUTED = ("cls", "mean", "pooler", "weighted_mean")  # by an objective, unless it says otherwise
# Field of EmbeddingConfig -> field here.
_FIELDS = {
    "pooling": "pooling",
    "normalise": "normalise",
    "similarity": "similarity",
    "query_length": "max_length",
    "passage_length": "max_length",
    "query_prefix": "query_prefix",
    "passage_prefix": "passage_prefix",
}


# Read from small files: a recipe's check calls these before the first stage (`preflight.trial`).
READ_EARLY = (
    "pooling",
    "normalise",
    "similarity",
    "max_length",
    "query_prefix",
    "passage_prefix",
)


class PublishedContractError(ValueError):
    """A folder that does not say how vectors are made, or a setting that contradicts it."""


@dataclasses.dataclass(frozen=True)
class PublishedContract:
    """Contract of a sentence-transformers folder.

    Attributes:
        pooling: `cls`, `mean`, or `pooler` where a Dense module is BERT's pooler.
        normalise: whether vectors are brought to unit length.
        similarity: `cosine` or `dot`.
        max_length: tokens at which a text is cut, specials included.
        query_prefix, passage_prefix: text that is put before each.
        sources: field -> file in the folder that says so.
    """

    pooling: str
    normalise: bool
    similarity: str
    max_length: int
    query_prefix: str
    passage_prefix: str
    sources: Mapping[str, str] = dataclasses.field(compare=False)


def read(folder: str) -> PublishedContract:
    """Reads the contract of a folder.

    Args:
        folder: as sentence-transformers writes it, on disk.

    Raises:
        FileNotFoundError: there is no `config.json`.
        PublishedContractError: there is no `modules.json`; or it lists modules, a pooling, a
            similarity or prompts that are not supported here.
        ValueError: `config.json` describes another architecture than those of `hf_config`.
    """
    path = Path(folder)
    try:
        pooling, normalise, pooling_file = _pooling(path)
        max_length, length_file = _max_length(path)
        settings = sentence_modules.read_json(path / SETTINGS, {})
        query_prefix, passage_prefix = _prefixes(path, settings)
    except json.JSONDecodeError as error:
        raise PublishedContractError(
            f"folder {folder}: expected JSON, as sentence-transformers writes it: {error}. "
            "Copy the file again."
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise PublishedContractError(
            f"{folder}: expected {sentence_modules.MODULES}, {SETTINGS} and the files of the "
            f"modules as sentence-transformers writes them: {error!r}. Copy the folder again."
        ) from error
    if query_prefix or passage_prefix:
        _require_prompts_in_pooling(path / pooling_file)
    similarity = settings.get("similarity_fn_name") or "cosine"  # the default there
    if similarity not in text_embedding.SIMILARITIES:
        raise PublishedContractError(
            f"{path / SETTINGS}: expected similarity_fn_name to be one of "
            f"{text_embedding.SIMILARITIES}, found {similarity!r}."
        )
    return PublishedContract(
        pooling=pooling,
        normalise=normalise,
        similarity=similarity,
        max_length=max_length,
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
        sources={
            "pooling": pooling_file,
            "normalise": sentence_modules.MODULES,
            "similarity": SETTINGS if settings.get("similarity_fn_name") else "default",
            "max_length": length_file,
            "query_prefix": SETTINGS if settings.get("prompts") else "no prompts",
            "passage_prefix": SETTINGS if settings.get("prompts") else "no prompts",
        },
    )


def pooling(folder: str, override: str | None = None) -> str:
    """`PublishedContract.pooling` of a folder, or `override` unless that is None.

    Errors as for `read`, here and below.
    """
    return _require(folder).pooling if override is None else override


def normalise(folder: str, override: bool | None = None) -> bool:
    """`PublishedContract.normalise` of a folder, or `override` unless that is None."""
    return _require(folder).normalise if override is None else override


def similarity(folder: str, override: str | None = None) -> str:
    """`PublishedContract.similarity` of a folder, or `override` unless that is None."""
    return _require(folder).similarity if override is None else override


def max_length(folder: str, override: int | None = None) -> int:
    """`PublishedContract.max_length` of a folder, or `override` unless that is None.

    Raises:
        PublishedContractError: see `read`; or `override` is more than the encoder's positions.
    """
    if override is None:
        return _require(folder).max_length
    positions = hf_config.max_positions(Path(folder))
    if override > positions:
        raise PublishedContractError(
            f"published_contract.max_length.override: expected at most {positions} tokens of a "
            f"text, the encoder's positions (config.json), found {override}. Set QUERY_LENGTH or "
            f"PASSAGE_LENGTH to {positions} or less, or take an encoder with more positions."
        )
    return override


def query_prefix(folder: str, override: str | None = None) -> str:
    """`PublishedContract.query_prefix` of a folder, or `override` unless that is None."""
    return _require(folder).query_prefix if override is None else override


def passage_prefix(folder: str, override: str | None = None) -> str:
    """`PublishedContract.passage_prefix` of a folder, or `override` unless that is None."""
    return _require(folder).passage_prefix if override is None else override


def checked(
    config: text_embedding.EmbeddingConfig,
    folder: str,
    bound: Sequence[Callable[..., Any]] = (),
    allow_other_pooling: bool = False,
    poolings: Sequence[str] = _COMPUTED,
) -> text_embedding.EmbeddingConfig:
    """`config`, compared with the folder; prints what is from the folder and what is overridden.

    Args:
        config: the bound one.
        folder: of the published encoder.
        bound: functions above that gin binds. They are not called: what is named here is in use,
            and so no error of strict gin, where the field that it is for has another value.
        allow_other_pooling: makes a pooling or normalisation that contradicts the folder a warning.
        poolings: those that the objective can compute.

    Returns:
        config.

    Raises:
        PublishedContractError: the pooling or normalisation contradicts the folder, or the
            objective cannot compute the pooling.
        FileNotFoundError, ValueError: see `read`.
    """
    del bound
    if not (Path(folder) / sentence_modules.MODULES).is_file():
        _report(
            f"{folder}: no {sentence_modules.MODULES}, so it does not say how vectors are made; "
            f"bound: {_values(config, list(_FIELDS))}"
        )
        return config
    contract = read(folder)
    other = [n for n, theirs in _FIELDS.items() if getattr(config, n) != getattr(contract, theirs)]
    contradictions = [name for name in other if _contradicts(name, contract)]
    if contradictions and not allow_other_pooling:
        raise PublishedContractError(_contradiction(config, contract, folder, contradictions))
    if config.pooling not in poolings:
        raise PublishedContractError(
            f"{folder}: its pooling is {contract.pooling!r}; expected one that this objective "
            f"computes, {tuple(poolings)}. Vectors of 'pooler' are those of objectives/labse.gin."
        )
    _report(_line(config, contract, folder, other))
    if contradictions:
        _warn(
            f"{folder}: {_values(config, contradictions)}, but the encoder was trained with "
            f"{_theirs(contract, contradictions)}: its vectors before the first step are not those "
            "that were published."
        )
    return config


def _require(folder: str) -> PublishedContract:
    if not (Path(folder) / sentence_modules.MODULES).is_file():
        published_folder.config_file(Path(folder))
        raise PublishedContractError(
            f"folder {folder}: expected that of sentence-transformers, with "
            f"{sentence_modules.MODULES}, which says how vectors are made; found none. Set those "
            "of POOLING, NORMALISE, SIMILARITY, QUERY_LENGTH, PASSAGE_LENGTH, QUERY_PREFIX and "
            "PASSAGE_PREFIX that are not set, as the encoder's description says; or use the "
            "objective's gin file without the published contract."
        )
    return read(folder)


def _pooling(folder: Path) -> tuple[str, bool, str]:
    """(pooling, whether a Normalize module follows, file that says the pooling)."""
    modules = sentence_modules.modules(folder)
    kinds = [kind for kind, _ in modules]
    found = kinds[1:]
    normalised = found[-1:] == ["Normalize"]
    found = found[:-1] if normalised else found
    pooler = found == ["Pooling (cls)", "Dense"] and sentence_modules.pooler_weights(folder)
    known = kinds[:1] == ["Transformer"] and len(found) == 1 and found[0] in _POOLINGS
    if not (known or pooler):
        raise PublishedContractError(
            f"folder {folder}: expected {sentence_modules.MODULES} to list Transformer, Pooling "
            "(cls) or Pooling (mean), then Dense only after cls and as BERT's pooler (square, "
            f"bias, tanh, safetensors), and perhaps Normalize; found {kinds}. Its vectors cannot "
            "be computed here. Take another encoder."
        )
    file = f"{modules[1][1]}/config.json"
    return ("pooler" if pooler else _POOLINGS[found[0]]), normalised, file


def _max_length(folder: Path) -> tuple[int, str]:
    """(tokens, file that says so), at most as many as the encoder has positions."""
    positions = hf_config.max_positions(folder)
    for file, settings in _length_files(folder):
        _require_lowercase(folder, file, settings)
        length = settings.get("max_seq_length")
        if length is not None:
            return min(int(length), positions), str(file.relative_to(folder))
    tokenizer = sentence_modules.read_json(folder / "tokenizer_config.json", {})
    # Tokenizers without a limit have a huge number.
    length = min(int(tokenizer.get("model_max_length", positions)), positions)
    return length, "tokenizer_config.json" if length < positions else "config.json"


def _length_files(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files that may say a maximum length, with what they say; a missing file says nothing."""
    where = dict(sentence_modules.modules(folder)).get("Transformer", "")
    for name in _LENGTH_FILES:
        yield folder / where / name, sentence_modules.read_json(folder / where / name, {})


def lower_cases(folder: Path, tokenizer: Path) -> bool:
    """Whether a folder says `do_lower_case`, and a tokenizer.json lower-cases, too.

    sentence-transformers then has the same token ids with the field as without it.
    """
    asked = any(settings.get("do_lower_case") for _, settings in _length_files(folder))
    return asked and _lowers(sentence_modules.read_json(tokenizer, {}).get("normalizer"))


def _require_lowercase(folder: Path, file: Path, settings: Mapping[str, Any]) -> None:
    """`do_lower_case` there lower-cases texts before a tokenizer that does not."""
    tokenizer = sentence_modules.read_json(folder / "tokenizer.json", None)
    if settings.get("do_lower_case") and tokenizer and not _lowers(tokenizer.get("normalizer")):
        raise PublishedContractError(
            f"{file}: do_lower_case is true, but the normalizer of tokenizer.json does not "
            "lower-case, so an imported tokenizer would not. Add a Lowercase normalizer to "
            "tokenizer.json, or set do_lower_case to false."
        )


def _lowers(normalizer: Any) -> bool:
    if not isinstance(normalizer, Mapping):
        return False
    if normalizer.get("type") == "Sequence":
        return any(_lowers(one) for one in normalizer.get("normalizers", []))
    return normalizer.get("type") == "Lowercase" or bool(normalizer.get("lowercase"))


def _prefixes(folder: Path, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Prompts of queries and passages; '' where the folder has none."""
    prompts = {name: text or "" for name, text in (settings.get("prompts") or {}).items()}
    default = settings.get("default_prompt_name")
    named = ("query", *_PASSAGE_PROMPTS)
    if default is not None and default not in named and prompts.get(default):
        raise PublishedContractError(
            f"{folder / SETTINGS}: default_prompt_name is {default!r}, with the text "
            f"{prompts[default]!r}; expected prompts named 'query' and 'document', since another "
            "does not say which texts it is for. Add these names to prompts."
        )
    passage = next((prompts[name] for name in _PASSAGE_PROMPTS if name in prompts), "")
    return prompts.get("query", ""), passage


def _require_prompts_in_pooling(file: Path) -> None:
    if sentence_modules.read_json(file, {}).get("include_prompt", True) is False:
        raise PublishedContractError(
            f"{file}: include_prompt is false, so tokens of a prompt are left out of the pooling; "
            "expected true: here a prefix is part of the text."
        )


def _contradicts(field: str, contract: PublishedContract) -> bool:
    """Whether another value of the field gives vectors that the encoder was not trained for.

    A published cosine compares directions alone: unit vectors have the same scores.
    """
    unit = field == "normalise" and contract.similarity == "cosine" and not contract.normalise
    return field in ("pooling", "normalise") and not unit


def _contradiction(
    config: text_embedding.EmbeddingConfig,
    contract: PublishedContract,
    folder: str,
    fields: Sequence[str],
) -> str:
    where = ", ".join(sorted({contract.sources[_FIELDS[name]] for name in fields}))
    return (
        f"{folder}: expected {_theirs(contract, fields)}, which the encoder was trained with "
        f"({where}); found {_values(config, fields)}. Remove the binding, or, to train the encoder "
        "to other vectors on purpose, set ALLOW_OTHER_POOLING = True "
        "(published_contract.checked.allow_other_pooling)."
    )


def _line(
    config: text_embedding.EmbeddingConfig,
    contract: PublishedContract,
    folder: str,
    other: Sequence[str],
) -> str:
    """One line: each field that is the folder's, with its file, and each that is not."""
    files: dict[str, list[str]] = {}
    for name, theirs in _FIELDS.items():
        if name not in other:
            files.setdefault(contract.sources[theirs], []).append(name)
    taken = "; ".join(f"{_values(config, names)} ({file})" for file, names in files.items())
    changed = ", ".join(
        f"{name} {getattr(config, name)!r} in place of {getattr(contract, _FIELDS[name])!r}"
        for name in other
    )
    return f"{folder}: {taken}" + (f"; overridden: {changed}" if other else "; nothing overridden")


def _values(config: text_embedding.EmbeddingConfig, fields: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(config, name)!r}" for name in fields)


def _theirs(contract: PublishedContract, fields: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(contract, _FIELDS[name])!r}" for name in fields)


@functools.cache  # an objective is built several times in a run
def _report(line: str) -> None:
    if jax.process_index() == 0:
        print(f"published contract of {line}", file=sys.stderr, flush=True)


@functools.cache
def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)
