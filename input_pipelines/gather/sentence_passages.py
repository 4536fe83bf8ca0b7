"""Sentences of translations as passages of a collection, for a search across languages.

`gather` writes a folder in BEIR's layout whose passages are the sentences of both sides; the
`source` of a passage is the code of its language. Of a language with more sentences than the limit
it takes those with the smallest rank. The rank of a sentence is the smallest hash of its text and
of the texts of its translations, so that a sentence and its translations are taken together:

    sentence   hash   translations   rank
    en/1       5      de/1, fr/1     2       min(5, 7, 2)
    de/1       7      en/1           5       min(7, 5)
    fr/1       2      en/1           2       min(2, 5)
"""

import hashlib
import heapq
import json
import logging
import os
from collections.abc import Iterator, Sequence

from input_pipelines.sources import languages, text_sources
from input_pipelines.sources.text_sources import BadRecords, SourceError

_log = logging.getLogger(__name__)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "gather": {
        "name": "sentence_passages",
        "version": 1,
        "outputs": ["corpus", "report"],
        "check": "check",
    }
}

_Ranks = dict[str, dict[int, int]]  # language -> hash of a sentence -> its rank


def gather(
    model_dir: str,
    translations: Sequence[str],
    most: int,
    only: Sequence[str] | None,
    max_bad_records: int,
) -> dict[str, str]:
    """The job of a stage: writes corpus/corpus.jsonl and report.json.

    Args:
      model_dir: stage folder.
      translations: files that `translations.gather` wrote; both sides are taken.
      most: sentences of a language, at most.
      only: codes of the languages that are taken; None: all.
      max_bad_records: malformed lines that are skipped before the run stops.

    Returns:
      {"corpus": the folder, "report": report.json}, relative to model_dir. Each line of
      corpus.jsonl has "_id" (LANGUAGE/NUMBER), "title" (empty), "text" and "source" (LANGUAGE).
      A text is there once for a language, in the order of the translations.

    Raises:
      SourceError: there is no sentence, or none of a language of `only`; or too many malformed
        lines.
      ValueError: see `check`.
    """
    check(most, only, max_bad_records)
    bad = BadRecords(max_bad_records, "sentence_passages.gather")
    wanted = None if only is None else [languages.canonical(code) for code in only]
    ranks = _ranks(translations, bad)
    if missing := [code for code in wanted or () if code not in ranks]:
        raise SourceError(
            f"sentence_passages.gather: expected sentences of all of {wanted}, found none of "
            f"{missing} in {list(translations)}, which have {sorted(ranks)}"
        )
    taken = {
        language: _smallest(ranks[language], most)
        for language in (ranks if wanted is None else wanted)
    }
    if not taken:
        raise SourceError(
            f"sentence_passages.gather: expected translations, found none in {list(translations)}"
        )
    report = {
        "passages": sum(map(len, taken.values())),
        "languages": {
            language: {"sentences": len(ranks[language]), "taken": len(taken[language])}
            for language in sorted(taken)
        },
        "malformed": dict(bad.counts),
    }
    folder = os.path.join(model_dir, "corpus")
    os.makedirs(folder, exist_ok=True)
    _write(os.path.join(folder, "corpus.jsonl"), translations, taken)
    with open(os.path.join(model_dir, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    _log.info("%d passages of %d languages", report["passages"], len(taken))
    return {"corpus": "corpus", "report": "report.json"}


def check(most: int, only: Sequence[str] | None, max_bad_records: int) -> None:
    """Check arguments before `gather` runs.

    Raises:
      ValueError: a number out of range, no language in `only`, or one twice; LanguageError, which
        is one, for a code that no language has.
    """
    BadRecords(max_bad_records)
    if most < 1:
        raise ValueError(f"sentence_passages.gather.most: expected 1 or more, found {most}")
    if only is None:
        return
    codes = [languages.canonical(code) for code in only]
    if not codes or len(set(codes)) < len(codes):
        raise ValueError(
            "sentence_passages.gather.only: expected codes of different languages, or None for all,"
            f" found {list(only)}"
        )


def _ranks(paths: Sequence[str], bad: BadRecords) -> _Ranks:
    """The rank of each sentence; the module's docstring says what it is."""
    ranks: _Ranks = {}
    for sides in _pairs(paths, bad):
        rank = min(_hash(text) for _, text in sides)
        for language, text in sides:
            known, name = ranks.setdefault(language, {}), _hash(text)
            known[name] = min(rank, known.get(name, rank))
    return ranks


def _smallest(ranks: dict[int, int], most: int) -> set[int]:
    """Hashes of the `most` sentences with the smallest ranks; all, where they are fewer."""
    if len(ranks) <= most:
        return set(ranks)
    return set(heapq.nsmallest(most, ranks, key=lambda name: (ranks[name], name)))


def _write(path: str, translations: Sequence[str], taken: dict[str, set[int]]) -> None:
    """Writes the sentences that are taken, each where it comes first."""
    left = {language: set(names) for language, names in taken.items()}
    with open(path, "w", encoding="utf-8") as file:
        for sides in _pairs(translations, BadRecords.counted_before()):
            for language, text in sides:
                name = _hash(text)
                if name not in left.get(language, ()):
                    continue
                number = len(taken[language]) - len(left[language])
                left[language].remove(name)
                row = {"_id": f"{language}/{number}", "title": "", "text": text, "source": language}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _hash(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _pairs(paths: Sequence[str], bad: BadRecords) -> Iterator[list[tuple[str, str]]]:
    """(language, sentence) of both sides of each translation, with single spaces."""
    for path in paths:
        for number, line, row in text_sources.json_lines(path, 1_000_000, bad):
            pair, texts = row.get("pair"), [row.get(side) for side in ("source", "target")]
            sides = [" ".join(text.split()) for text in texts if isinstance(text, str)]
            if isinstance(pair, list) and len(pair) == len(sides) == 2 and all(sides):
                yield list(zip(map(str, pair), sides, strict=True))
            else:
                bad.add(f"{path}:{number}", "no_translation", "expected pair, source, target", line)
