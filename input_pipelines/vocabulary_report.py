"""How well a vocabulary holds many languages: what is unknown, and into how much words fall.

A word that has an unknown character is [UNK] as a whole in WordPiece: a model can neither read nor
predict it, and no loss shows it.
"""

import collections
import dataclasses
import json
import os
from collections.abc import Sequence, Set
from typing import Any

from input_pipelines.sources import BadRecords, Mixture
from input_pipelines.tokenization import Tokenizer

BATCH = 1024  # sentences that are tokenized at a time
SHOWN = 10  # unknown characters of a language that are named


class VocabularyError(ValueError):
    """A vocabulary with which too much of a language is unknown."""


@dataclasses.dataclass
class _Count:
    """What was seen of a language."""

    sentences: int = 0
    words: int = 0
    tokens: int = 0
    unknown: int = 0
    bytes: int = 0
    unknown_bytes: int = 0
    characters: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def report(self) -> dict[str, Any]:
        """Shares of the whole, and the unknown characters that are most frequent."""
        return {
            "sentences": self.sentences,
            "tokens_per_word": round(self.tokens / max(self.words, 1), 3),
            "unknown_share": self.unknown / max(self.tokens, 1),
            "bytes_covered": 1 - self.unknown_bytes / max(self.bytes, 1),
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
        lost = "".join(text[start:end] for start, end in pieces.offsets[unknown].tolist())
        count.sentences += 1
        count.words += int(pieces.word_starts.sum())
        count.tokens += len(pieces.tokens)
        count.unknown += int(unknown.sum())
        count.bytes += len(text.encode())
        count.unknown_bytes += len(lost.encode())
        count.characters.update(c for c in lost if c not in known)


def vocabulary_report(
    model_dir: str, tokenizer: str, sentences: Mixture, most: int, max_unknown: float
) -> dict[str, str]:
    """Writes vocabulary_report.json: of each language, what share of tokens is [UNK], and more.

    Args:
      model_dir: stage folder.
      tokenizer: its folder.
      sentences: languages, a member each.
      most: sentences of each that are looked at, the first ones; 0 for all.
      max_unknown: share of a language's tokens that may be [UNK].

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
        batch: list[str] = []
        for record in source.records(BadRecords.counted_before()):
            batch.append(record.text)
            if len(batch) == BATCH:
                _add(count, batch, loaded, known)
                batch = []
            if most and count.sentences + len(batch) >= most:
                break
        _add(count, batch, loaded, known)
        found[name] = count.report()
    report = {"size": loaded.size, "languages": found}
    with open(os.path.join(model_dir, "vocabulary_report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1, ensure_ascii=False)
    worst = {n: one for n, one in found.items() if one["unknown_share"] > max_unknown}
    if worst:
        shown = ", ".join(
            f"{n} {one['unknown_share']:.1%} (first of all {one['unknown_characters']!r})"
            for n, one in sorted(worst.items(), key=lambda item: -item[1]["unknown_share"])[:SHOWN]
        )
        raise VocabularyError(
            f"tokenizer {tokenizer}: expected at most {max_unknown:.1%} of each language's tokens "
            f"to be unknown, found more in {len(worst)} of {len(found)}: {shown}. Train a larger "
            "vocabulary with a larger alphabet_size, leave the languages out, or raise max_unknown."
        )
    return {"report": "vocabulary_report.json"}
