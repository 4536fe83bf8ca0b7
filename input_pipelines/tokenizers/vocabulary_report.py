"""Coverage of languages by a vocabulary: unknown words, and tokens per word.

A word that has an unknown character, or is too long, is [UNK] as a whole in WordPiece: a model can
neither read nor predict it, and no loss shows it. So bytes are counted: one token may cover a
sentence of Thai, which has no spaces.
"""

import collections
import dataclasses
import json
import os
from collections.abc import Sequence, Set
from typing import Any

from input_pipelines.sources.mixtures import Mixture
from input_pipelines.sources.text_sources import BadRecords
from input_pipelines.tokenizers.tokenization import Tokenizer

BATCH = 1024  # sentences that are tokenized at a time
SHOWN = 10  # unknown characters of a language that are named

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"vocabulary_report": {"name": "vocabulary_report", "version": 1, "outputs": ["report"]}}


class VocabularyError(ValueError):
    """A vocabulary with which too much of a language is unknown."""


@dataclasses.dataclass
class _Count:
    """Counts of a language."""

    sentences: int = 0
    words: int = 0
    tokens: int = 0
    unknown: int = 0
    bytes: int = 0
    unknown_bytes: int = 0
    too_long: int = 0
    characters: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def report(self) -> dict[str, Any]:
        """Shares of the whole, and the unknown characters that are most frequent."""
        return {
            "sentences": self.sentences,
            "tokens_per_word": round(self.tokens / max(self.words, 1), 3),
            "unknown_tokens": self.unknown / max(self.tokens, 1),
            "unknown_bytes": self.unknown_bytes / max(self.bytes, 1),
            "words_too_long": self.too_long,
            "unknown_characters": "".join(c for c, _ in self.characters.most_common(SHOWN)),
        }


def _add(count: _Count, texts: Sequence[str], tokenizer: Tokenizer, known: Set[str]) -> None:
    """Counts some sentences.

    Args:
      count: of their language.
      texts: sentences.
      tokenizer: what they are tokenized with.
      known: characters that the vocabulary has.
    """
    unknown_id = tokenizer.vocabulary["unk"]
    for text, pieces in zip(texts, tokenizer.pieces(texts), strict=True):
        unknown = pieces.tokens == unknown_id
        words = [text[start:end] for start, end in pieces.offsets[unknown].tolist()]
        lost = "".join(words)
        count.sentences += 1
        count.words += int(pieces.word_starts.sum())
        count.tokens += len(pieces.tokens)
        count.unknown += int(unknown.sum())
        count.bytes += len(text.encode())
        count.unknown_bytes += len(lost.encode())
        count.too_long += sum(known >= set(word) for word in words)
        count.characters.update(c for c in lost if c not in known)


def vocabulary_report(
    model_dir: str, tokenizer: str, sentences: Mixture, max_sentences: int, max_unknown: float
) -> dict[str, str]:
    """Writes vocabulary_report.json: of each language, what share of tokens is [UNK], and more.

    Args:
      model_dir: stage folder.
      tokenizer: its folder.
      sentences: languages, a member each.
      max_sentences: sentences of each that are looked at, from all over; 0 for all.
      max_unknown: share of a language's bytes that may be in words that are [UNK].

    Returns:
      {"report": vocabulary_report.json}, relative to model_dir.

    Raises:
      VocabularyError: more is unknown in some language; the report is written all the same.
    """
    loaded = Tokenizer(tokenizer)
    with open(os.path.join(tokenizer, "vocab.txt"), encoding="utf-8") as file:
        known = {line.rstrip("\n").removeprefix("##") for line in file}
    found = {}
    for name, source, _ in sentences.members:
        count = _Count()
        total = sum(1 for _ in source.records(BadRecords.counted_before()))
        every = -(-total // max_sentences) if max_sentences else 1
        batch: list[str] = []
        for number, record in enumerate(source.records(BadRecords.counted_before())):
            if number % every == 0:
                batch.append(record.text)
            if len(batch) == BATCH:
                _add(count, batch, loaded, known)
                batch = []
        _add(count, batch, loaded, known)
        found[name] = count.report()
    report = {"size": loaded.size, "languages": found}
    with open(os.path.join(model_dir, "vocabulary_report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1, ensure_ascii=False)
    worst = {n: one for n, one in found.items() if one["unknown_bytes"] > max_unknown}
    if worst:
        shown = ", ".join(
            f"{n} {one['unknown_bytes']:.1%} ({one['words_too_long']} words too long; characters "
            f"{one['unknown_characters']!r})"
            for n, one in sorted(worst.items(), key=lambda item: -item[1]["unknown_bytes"])[:SHOWN]
        )
        raise VocabularyError(
            f"tokenizer {tokenizer}: expected at most {max_unknown:.1%} of each language's bytes "
            f"in words that are unknown, found more in {len(worst)} of {len(found)}: {shown}. For "
            "unknown characters train a larger vocabulary with a larger alphabet_size, for words "
            "that are too long raise longest_word; or leave languages out, or raise max_unknown."
        )
    return {"report": "vocabulary_report.json"}
