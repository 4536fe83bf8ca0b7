"""Import an existing tokenizer: a Hugging Face folder on disk becomes a tokenizer folder."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import models

from input_pipelines.sources import text_sources
from input_pipelines.tokenizers import sentencepiece_model, tokenization, wordpiece
from input_pipelines.tokenizers.tokenization import TokenizerError

# Names that tokenizers of other families use for the same roles.
_ROLE_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}

PADDING = 128  # word tables are padded to a multiple of this, or of a number that divides it

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "import_tokenizer": {
        "name": "import_tokenizer",
        "version": 1,
        "outputs": ["tokenizer"],
        "check": "check",
    }
}


def import_tokenizer(
    model_dir: str, folder: str, vocabulary_size: int | None = None
) -> dict[str, str]:
    """Makes a tokenizer folder of a Hugging Face one: tokenizer.json, vocab.txt, or
    sentencepiece.bpe.model with fairseq's ids (XLM-R).

    Args:
      model_dir: stage folder; the tokenizer goes into `tokenizer/` in it.
      folder: on disk; nothing is fetched.
      vocabulary_size: the number of tokens that it must have; None takes what fits the word table
        that the folder's config.json describes.

    Returns:
      {"tokenizer": the folder relative to model_dir}.

    Raises:
      TokenizerError: nothing there to read, a special token is missing, or another size.
    """
    tokenizer, specials = _read(folder)
    _require_size(folder, _size(tokenizer), vocabulary_size)
    config = _json(folder, "tokenizer_config.json")
    kept = {k: v for k, v in config.items() if k in ("do_lower_case", "model_max_length")}
    tokenization.write_folder(os.path.join(model_dir, "tokenizer"), tokenizer, specials, kept)
    return {"tokenizer": "tokenizer"}


def check(folder: str, vocabulary_size: int | None) -> None:
    """Check all arguments, before the job runs.

    Raises:
      TokenizerError: see `import_tokenizer`.
    """
    tokenizer, _ = _read(folder)
    _require_size(folder, _size(tokenizer), vocabulary_size)


def _read(folder: str) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The tokenizer of a folder, and role -> special token."""
    name = next((one for one in _readers() if os.path.isfile(os.path.join(folder, one))), None)
    if name is None:
        raise TokenizerError(
            f"folder {folder}: expected that of a published encoder with its tokenizer, one of "
            f"{', '.join(_readers())}; {text_sources.found_in(folder)}. Copy that file of the same "
            "encoder into the folder, or name another folder"
        )
    config = _json(folder, "tokenizer_config.json")
    tokenizer = _readers()[name](os.path.join(folder, name), config)
    declared = {**_json(folder, "special_tokens_map.json"), **config}
    return tokenizer, {
        role: _special(tokenizer, role, declared, folder) for role in tokenization.ROLES
    }


def _size(tokenizer: tokenizers.Tokenizer) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _require_size(folder: str, size: int, expected: int | None) -> None:
    """Raises TokenizerError for another size than the expected one, or than the word table's."""
    if expected is not None:
        if size != expected:
            raise TokenizerError(f"folder {folder}: expected {expected} tokens, found {size}")
        return
    rows = _json(folder, "config.json").get("vocab_size")
    if isinstance(rows, int) and not 0 <= rows - size < PADDING:
        raise TokenizerError(
            f"folder {folder}: its tokenizer has {size} tokens, and the word table of the encoder "
            f"{rows} rows (vocab_size in config.json); expected a row for each token, and fewer "
            f"than {PADDING} rows more. Ids of another tokenizer are other words: copy the "
            "tokenizer of the same encoder into the folder. If tokens were added or removed at the "
            f"end on purpose, set import_tokenizer.import_tokenizer.vocabulary_size = {size}"
        )


def _from_json(path: str, config: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing more specific
        raise TokenizerError(
            f"{path}: expected a tokenizer as the library tokenizers writes it: {error}. Copy the "
            "file again"
        ) from error


def _readers() -> dict[str, Callable[[str, dict[str, Any]], tokenizers.Tokenizer]]:
    """File -> what makes a tokenizer of it, the first that is there counts."""
    return {
        "tokenizer.json": _from_json,
        "vocab.txt": _from_vocab,
        "sentencepiece.bpe.model": _from_sentencepiece,
    }


def _json(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as f:
        try:
            return dict(json.load(f))
        except (ValueError, TypeError) as error:
            raise TokenizerError(
                f"{path}: expected a JSON object: {error}. Copy the file again"
            ) from error


def _from_vocab(path: str, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """A BERT tokenizer of a vocab.txt; lower-cased unless tokenizer_config.json says otherwise."""
    lowercase = bool(config.get("do_lower_case", True))
    strip = config.get("strip_accents")
    if not config.get("tokenize_chinese_chars", True):
        raise TokenizerError(
            f"{path}: tokenizer_config.json says tokenize_chinese_chars false, which is read "
            "from a tokenizer.json only, which transformers writes: AutoTokenizer.from_pretrained("
            "folder).save_pretrained(folder)"
        )
    vocabulary = models.WordPiece.read_file(path)
    missing = [t for t in wordpiece.BERT_SPECIALS if t not in vocabulary]
    if missing:
        raise TokenizerError(
            f"{path}: expected the entries {wordpiece.BERT_SPECIALS}, missing {missing}"
        )
    return wordpiece.from_vocabulary(
        vocabulary, lowercase, lowercase if strip is None else bool(strip)
    )


def _from_sentencepiece(path: str, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """XLM-R's; CamemBERT, mBART and others have files of this name, and other ids for pieces."""
    folder = os.path.dirname(path)
    stated = config.get("tokenizer_class") or _json(folder, "config.json").get("model_type")
    if stated and not stated.lower().replace("-", "").startswith("xlmroberta"):
        raise TokenizerError(
            f"{path}: read with XLM-R's ids, but the folder says {stated!r}, which numbers pieces "
            "in its own way. Have transformers write a tokenizer.json: AutoTokenizer."
            "from_pretrained(folder).save_pretrained(folder); or, if the ids are XLM-R's, set "
            "tokenizer_class to XLMRobertaTokenizer in tokenizer_config.json"
        )
    try:
        return sentencepiece_model.read(path)
    except ValueError as error:
        raise TokenizerError(str(error)) from error


def _special(
    tokenizer: tokenizers.Tokenizer, role: str, declared: Mapping[str, Any], folder: str
) -> str:
    """The token of a role: as declared in the folder, else by its usual names."""
    value = declared.get(f"{role}_token")
    names = [value["content"] if isinstance(value, dict) else value, *_ROLE_NAMES[role]]
    for name in names:
        if isinstance(name, str) and tokenizer.token_to_id(name) is not None:
            return name
    raise TokenizerError(
        f"{folder}: no {role} token; expected {role}_token in tokenizer_config.json or one of "
        f"{_ROLE_NAMES[role]} in the vocabulary"
    )
