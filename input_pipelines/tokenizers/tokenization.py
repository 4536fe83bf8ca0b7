"""Tokenizers: trained here (wordpiece.py; import_tokenizer.py takes existing ones), and their use.

A tokenizer folder holds `tokenizer.json` (the whole truth), `tokenizer_config.json` (so that
transformers opens it), `vocab.txt` (for older tools) and `vocabulary.json` (sizes, special ids and
the fingerprint that stores, checkpoints and indices are checked against).
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from input_pipelines.sources.mixtures import Mixture
from input_pipelines.sources.text_sources import BadRecords, SourceError, TextSource
from input_pipelines.tokenizers import word_start_marks
from input_pipelines.tokenizers.wordpiece import BERT_SPECIALS, LONGEST_WORD, train_wordpiece

ROLES = ("pad", "unk", "cls", "sep", "mask")

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "train_tokenizer": {
        "name": "train_tokenizer",
        "version": 1,
        "outputs": ["tokenizer"],
        "check": "check",
    }
}


class TokenizerError(ValueError):
    """A tokenizer folder that is incomplete, damaged, or not the one that was expected."""


@dataclasses.dataclass(frozen=True)
class Tokenized:
    """Token ids of one text, int32 [n], special tokens included; word_starts bool [n].

    Attributes:
      cut_off: how many tokens were left out at the end.
    """

    tokens: np.ndarray
    word_starts: np.ndarray
    cut_off: int

    @property
    def truncated(self) -> bool:
        """Whether the text was longer."""
        return self.cut_off > 0


@dataclasses.dataclass(frozen=True)
class Pieces:
    """All of a text, without special tokens: ids int32 [n], word_starts bool [n].

    Attributes:
      offsets: int64 [n, 2], the characters that each piece covers, without white space that
        SentencePiece counts to the next piece.
    """

    tokens: np.ndarray
    word_starts: np.ndarray
    offsets: np.ndarray


def fingerprint(tokenizer_json: str) -> str:
    """sha256 hex of the parts of tokenizer.json that decide which ids a text gets.

    Truncation and padding are left out: they are the caller's, and saving changes them.
    """
    value = json.loads(tokenizer_json)
    for field in ("truncation", "padding"):
        value.pop(field, None)
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class Tokenizer:
    """A loaded tokenizer folder.

    Special tokens that occur in a text, such as "[SEP]", are tokenized as ordinary characters: only
    the tokenizer itself places special ids.
    """

    def __init__(self, folder: str):
        """Loads and verifies.

        Raises:
          TokenizerError: a file is missing, or tokenizer.json is not the one vocabulary.json names,
            or has ids beyond the size there.
        """
        for name in ("tokenizer.json", "vocabulary.json"):
            if not os.path.isfile(os.path.join(folder, name)):
                raise TokenizerError(
                    f"tokenizer folder {folder}: no {name}; expected a folder written by "
                    "tokenization.train_tokenizer or import_tokenizer.import_tokenizer"
                )
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
            text = f.read()
        with open(os.path.join(folder, "vocabulary.json"), encoding="utf-8") as f:
            self.vocabulary: dict[str, Any] = json.load(f)
        if fingerprint(text) != self.vocabulary["fingerprint"]:
            raise TokenizerError(
                f"tokenizer folder {folder}: tokenizer.json has fingerprint "
                f"{fingerprint(text)[:12]}, vocabulary.json expects "
                f"{self.vocabulary['fingerprint'][:12]}; one of them was changed. "
                "Train or import the tokenizer again"
            )
        self.folder = folder
        self._backend = tokenizers.Tokenizer.from_str(text)
        self._backend.encode_special_tokens = True
        self._backend.no_padding()
        self._wordpiece = isinstance(self._backend.model, models.WordPiece)
        size = max(self._backend.get_vocab(with_added_tokens=True).values()) + 1
        if self.size != size:  # a model sized by it would be asked for rows that it does not have
            raise TokenizerError(
                f"tokenizer folder {folder}: vocabulary.json says size {self.size}, but the ids of "
                f"tokenizer.json need {size}. Train or import the tokenizer again"
            )

    @property
    def fingerprint(self) -> str:
        """Names the tokenizer's content (see `fingerprint`)."""
        return str(self.vocabulary["fingerprint"])

    @property
    def size(self) -> int:
        """Entries of the vocabulary, holes before the largest id included."""
        return int(self.vocabulary["size"])

    def require(self, expected: str, where: str) -> None:
        """Checks that this is the tokenizer something was made with.

        Raises:
          TokenizerError: naming both fingerprints and `where` the expected one comes from.
        """
        if self.fingerprint != expected:
            raise TokenizerError(
                f"{where} was made with tokenizer {expected[:12]}, but the tokenizer in "
                f"{self.folder} is {self.fingerprint[:12]}: the same ids would mean other words. "
                "Give the tokenizer it was made with, or make it again with this one"
            )

    def encode_batch(self, texts: Sequence[str], length: int) -> list[Tokenized]:
        """Tokenizes texts, each cut to `length` tokens with its special tokens kept.

        Example, length 6, words ["token", "##ize"] in the vocabulary, "a" not:
          "Tokenize a"  ->  tokens       [CLS] token ##ize [UNK] [SEP]
                            word_starts    1     1     0      1     1
        """
        self._backend.enable_truncation(max_length=length)
        encodings = self._backend.encode_batch(list(texts))
        return [self._tokenized(t, e) for t, e in zip(texts, encodings, strict=True)]

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Tokenizes texts whole, however long, without special tokens."""
        self._backend.no_truncation()
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            Pieces(
                np.array(e.ids, np.int32),
                word_start_marks.word_starts(text, e.word_ids, e.offsets, self._wordpiece),
                word_start_marks.without_space(text, np.array(e.offsets, np.int64).reshape(-1, 2)),
            )
            for text, e in zip(texts, encodings, strict=True)
        ]

    def decode_batch(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Texts of token ids, special tokens left out, [UNK] among them.

        By the tokenizer's own decoder: WordPiece gives single spaces between words and none before
        punctuation, whatever was in the text that was tokenized.
        """
        return self._backend.decode_batch([list(ids) for ids in tokens], skip_special_tokens=True)

    def _tokenized(self, text: str, encoding: tokenizers.Encoding) -> Tokenized:
        starts = word_start_marks.word_starts(
            text, encoding.word_ids, encoding.offsets, self._wordpiece
        )
        parts = encoding.overflowing  # the rest in pieces, each with special tokens
        rest = sum(map(len, parts)) - len(parts) * self._backend.num_special_tokens_to_add(False)
        return Tokenized(np.array(encoding.ids, np.int32), starts, rest)


def pair_separators(folder: str | None) -> int:
    """Counts the [SEP] that a tokenizer puts between two texts: 1 (BERT's) or 2 (RoBERTa's).

    Args:
      folder: of the tokenizer; None: 1.

    Raises:
      FileNotFoundError: it has no tokenizer.json.
      TokenizerError: it joins two texts in another way.
    """
    if folder is None:
        return 1
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: not found; expected a tokenizer's folder")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.no_padding()
    backend.no_truncation()
    one, pair = backend.encode("a").ids, backend.encode("a", "a").ids
    forms = {1: [*one, *one[1:]], 2: [*one, one[-1], *one[1:]]}
    found = [count for count, form in forms.items() if pair == form and len(one) > 2]
    if not found:
        raise TokenizerError(
            f"{path}: expected a tokenizer that joins the texts 'a' and 'a' as [CLS] a [SEP] a "
            f"[SEP], ids {forms[1]}, or as [CLS] a [SEP] [SEP] a [SEP], ids {forms[2]}, found "
            f"{pair}: a re-ranker would not read pairs as it was trained to. Give the tokenizer a "
            "post_processor of BERT's or RoBERTa's kind"
        )
    return found[0]


def join_title(title: str, text: str) -> str:
    """The text that is tokenized for a passage: title, a space, body."""
    return f"{title} {text}" if title and text else title or text


def train_tokenizer(
    model_dir: str,
    source: TextSource,
    vocabulary_size: int,
    alphabet_size: int,
    min_frequency: int,
    lowercase: bool,
    strip_accents: bool,
    sample: int,
    seed: int,
    max_bad_records: int,
    longest_word: int = LONGEST_WORD,
    languages: str | None = None,
    split_case: bool = False,
) -> dict[str, str]:
    """Trains a WordPiece tokenizer on titles and texts of a source.

    Args:
      model_dir: stage folder; the tokenizer goes into `tokenizer/` in it.
      source: where the text comes from; it is read three times.
      vocabulary_size: the most entries, specials included; a small text gives fewer.
      alphabet_size: the most distinct characters (BERT: 1000); the rarest become unknown.
      min_frequency: a pair that is rarer is not merged.
      lowercase, strip_accents: BERT's normalisation.
      sample: records drawn from a Mixture by its probabilities; 0 for all records of any source.
      seed: of that draw.
      max_bad_records: malformed records that are skipped before the run stops.
      longest_word: characters; a longer run without spaces is unknown as a whole. Raise it for
        languages that are written without spaces.
      languages: a JSON file with a list of codes, each of which gets a special token '[CODE]'
        after the vocabulary; None: none do.
      split_case: whether names are split where their case changes, before they are lowercased:
        "forwardFill" gives "forward fill", which a question about it says. For text about code.

    Returns:
      {"tokenizer": the folder relative to model_dir}.

    Raises:
      SourceError: no text, or too many malformed records.
      ValueError: the alphabet alone fills the vocabulary, or a number below its bound.
    """
    check(vocabulary_size, alphabet_size, min_frequency, longest_word, max_bad_records, sample)
    if sample and not isinstance(source, Mixture):
        raise SourceError(f"train_tokenizer.sample={sample}: only a Mixture is sampled; give 0")
    strict = [
        BadRecords(max_bad_records, "tokenization.train_tokenizer")
    ]  # the first reading counts, later ones repeat it

    def texts() -> Iterator[str]:
        bad = strict.pop() if strict else BadRecords.counted_before()
        if sample and isinstance(source, Mixture):
            records = source.sample(sample, seed, bad)
        else:
            records = source.records(bad)
        return filter(str.strip, (join_title(record.title, record.text) for record in records))

    tokenizer = train_wordpiece(
        texts,
        vocabulary_size,
        alphabet_size,
        min_frequency,
        lowercase,
        strip_accents,
        longest_word,
        split_case,
    )
    _require_fit(tokenizer, vocabulary_size, source)
    if languages is not None:
        with open(languages, encoding="utf-8") as file:
            tokenizer.add_special_tokens([language_token(code) for code in json.load(file)])
    folder = os.path.join(model_dir, "tokenizer")
    specials = dict(zip(ROLES, BERT_SPECIALS, strict=True))
    write_folder(folder, tokenizer, specials, {"do_lower_case": lowercase})
    return {"tokenizer": "tokenizer"}


def language_token(code: str) -> str:
    """The token of a language in a vocabulary: '[de]'."""
    return f"[{code}]"


def write_folder(
    folder: str,
    tokenizer: tokenizers.Tokenizer,
    specials: Mapping[str, str],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes the four files of a tokenizer folder; returns vocabulary.json.

    Args:
      folder: made where missing.
      tokenizer: complete, with its post-processor.
      specials: role (see ROLES) -> token.
      config: what tokenizer_config.json says in addition to the special tokens.
    """
    os.makedirs(folder, exist_ok=True)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = tokenizer.to_str(pretty=True)
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    ids = {role: vocabulary[specials[role]] for role in ROLES}
    value: dict[str, Any] = {
        # Ids may have holes (an added token beyond the end): the size covers the largest id.
        "size": max(vocabulary.values()) + 1,
        **ids,
        "special_ids": sorted({i for i, token in added.items() if token.special} | {*ids.values()}),
        "fingerprint": fingerprint(text),
    }
    by_id = {i: token for token, i in vocabulary.items()}
    lines = [by_id.get(i, f"[unused-hole-{i}]") for i in range(value["size"])]
    settings: dict[str, Any] = {f"{role}_token": specials[role] for role in ROLES}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    _write(folder, "vocab.txt", "".join(f"{line}\n" for line in lines))
    _write(folder, "tokenizer.json", text)
    _write(folder, "tokenizer_config.json", json.dumps({**settings, **config}, indent=1))
    _write(folder, "vocabulary.json", json.dumps(value, indent=1))
    return value


def _require_fit(tokenizer: tokenizers.Tokenizer, vocabulary_size: int, source: TextSource) -> None:
    """Refuses a tokenizer of no text, or of too many characters."""
    if tokenizer.get_vocab_size() == len(BERT_SPECIALS):
        raise SourceError(
            f"no text to train a tokenizer on: {source} has no record with text. "
            "Expected at least one; correct the file that they come from"
        )
    if tokenizer.get_vocab_size() > vocabulary_size:
        raise ValueError(
            f"train_tokenizer.vocabulary_size={vocabulary_size}, but the characters of the text "
            f"alone need {tokenizer.get_vocab_size()}; raise it, or lower alphabet_size"
        )


def check(
    vocabulary_size: int,
    alphabet_size: int,
    min_frequency: int,
    longest_word: int,
    max_bad_records: int,
    sample: int,
) -> None:
    """Check arguments before `train_tokenizer` reads a text.

    Raises:
      ValueError: a number below its bound.
    """
    BadRecords(max_bad_records)
    for name, value, smallest in (
        ("vocabulary_size", vocabulary_size, len(BERT_SPECIALS) + 1),
        ("alphabet_size", alphabet_size, 1),
        ("min_frequency", min_frequency, 0),
        ("longest_word", longest_word, 1),
        ("sample", sample, 0),
    ):
        if value < smallest:
            raise ValueError(f"train_tokenizer.{name}: expected at least {smallest}, found {value}")


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        f.write(text)
