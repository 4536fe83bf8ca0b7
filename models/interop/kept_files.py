"""Files that a fine-tuned encoder's folder copies from the published one, next to new weights.

The training changes weights, and a recipe may change lengths, prefixes, pooling and normalisation.
All else that the published folder says remains: other prompts, the tokenizer's settings, fields of
config.json that only other libraries read, the licence.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from models.interop import published_contract, sentence_modules

# Tokenizers of transformers read these next to tokenizer.json, which is the imported one.
_TOKENIZER_FILES = (
    *("special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)
_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*")
# Of the published weights, or of code that this folder does not hold.
_OF_WEIGHTS = ("dtype", "quantization_config", "auto_map")
_SETTINGS, _LENGTHS = published_contract.SETTINGS, "sentence_bert_config.json"
_TOKENIZER = "tokenizer_config.json"
# Texts whose ids show whether two tokenizers are one: cases, accents, scripts, special tokens,
# numbers, code, white space, and more than any length.
_PROBES = (
    "A plain sentence, with punctuation.",
    "Naïve CAFÉ, Straße, ΣΊΣΥΦΟΣ and İstanbul",
    "中文 日本語 한국어 हिन्दी العربية 😀",
    "[CLS] <s> in a text [SEP] </s> is text [MASK] <mask>",
    "def f(x_1: int) -> None:\n\treturn x_1**2  # 3.14e-5",
    " \u00a0 leading and trailing \u200b ",
    "unbelievablylongwordwithoutanyspaces" * 4,
    "many words " * 5000,
)


class KeptFilesError(ValueError):
    """A folder that transformers would read in another way than the training did."""


def keep(published: str, folder: Path, max_tokens: int) -> None:
    """Completes an exported folder with what the published one says besides.

    Args:
        published: folder that the training started from.
        folder: as `export_hf` writes it; changed.
        max_tokens: at which a text is cut.

    Raises:
        KeptFilesError: transformers' tokenizer gives other ids than the training's.
    """
    source = Path(published)
    _copy(source, folder)
    _merge(source, folder, "config.json", _OF_WEIGHTS)
    _keep_settings(source, folder)
    keep_tokenizer(source, folder, max_tokens)


def keep_for_reranker(published: str, folder: Path, max_tokens: int) -> None:
    """`keep` for a re-ranker: the tokenizer and the licence; an encoder's settings are none of it.

    Args, Raises: see `keep`.
    """
    _copy(Path(published), folder)
    keep_tokenizer(Path(published), folder, max_tokens, pairs=True)


def _copy(source: Path, folder: Path) -> None:
    """The tokenizer's files for transformers, and licences."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    for pattern in _LICENCES:
        for path in filter(Path.is_file, source.glob(pattern)):
            shutil.copyfile(path, folder / path.name)


def keep_tokenizer(source: Path, folder: Path, max_tokens: int, pairs: bool = False) -> None:
    """Takes the published settings where transformers' tokenizer has the training's ids with them.

    Args:
        source: the published folder.
        folder: with the training's tokenizer.json, and the settings of `export_hf`; changed.
        max_tokens: at which a text is cut.
        pairs: whether it has to join two texts in the same way, too.

    Raises:
        KeptFilesError: it has other ids with both settings.
    """
    ours = sentence_modules.read_json(folder / _TOKENIZER, {})
    theirs = sentence_modules.read_json(source / _TOKENIZER, {})
    as_trained = {
        name: ours[name]
        for name in ("model_max_length", "model_input_names", "split_special_tokens")
    }
    as_trained |= {"truncation_side": "right", "padding_side": "right"}
    for settings in (ours | theirs | as_trained, ours):
        sentence_modules.write_json(folder / _TOKENIZER, settings)
        different = _different(folder, max_tokens, pairs)
        if different is None:
            return
        print(f"{source / _TOKENIZER}: {different}; its settings are left out", flush=True)
    raise KeptFilesError(
        f"{folder}: transformers' tokenizer does not give the ids of the training's: {different}. "
        "Have transformers write the published tokenizer again, with AutoTokenizer."
        "from_pretrained(folder).save_pretrained(folder), and train from that folder."
    )


def _merge(source: Path, folder: Path, name: str, without: Sequence[str] = ()) -> None:
    """Adds the published fields of a JSON file; where both have one, ours remains."""
    theirs, ours = (sentence_modules.read_json(one / name, {}) for one in (source, folder))
    kept = {field: value for field, value in theirs.items() if field not in without}
    sentence_modules.write_json(folder / name, kept | ours)


def _keep_settings(source: Path, folder: Path) -> None:
    """Prompts for other tasks, which prompt is the default, and lower-casing."""
    theirs, ours = (sentence_modules.read_json(one / _SETTINGS, {}) for one in (source, folder))
    merged = theirs | ours
    merged["prompts"] = dict(theirs.get("prompts") or {}) | ours["prompts"]
    merged["default_prompt_name"] = theirs.get("default_prompt_name")
    sentence_modules.write_json(folder / _SETTINGS, merged)
    lengths = sentence_modules.read_json(folder / _LENGTHS, {})
    lengths["do_lower_case"] = published_contract.lower_cases(source, folder / "tokenizer.json")
    sentence_modules.write_json(folder / _LENGTHS, lengths)


def _different(folder: Path, max_tokens: int, pairs: bool) -> str | None:
    """A probe of which transformers' tokenizer makes other ids than tokenizer.json; None: none."""
    from transformers import AutoTokenizer

    expected = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected.encode_special_tokens = True
    expected.no_padding()
    expected.enable_truncation(max_length=max_tokens)
    opened = AutoTokenizer.from_pretrained(str(folder))
    for text in _PROBES:
        wanted = expected.encode(text).ids
        found = opened(text, truncation=True)["input_ids"]
        if list(found) != wanted:
            return f"expected the ids {_shown(wanted)} for {text[:40]!r}, found {_shown(found)}"
    expected.no_truncation()
    wanted, found = expected.encode("a", "a").ids, opened("a", "a")["input_ids"]
    if pairs and list(found) != wanted:
        return f"expected the ids {_shown(wanted)} for the pair of 'a' and 'a', found {list(found)}"
    return None


def _shown(ids: Sequence[int]) -> str:
    return f"{list(ids[:8])}" + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
