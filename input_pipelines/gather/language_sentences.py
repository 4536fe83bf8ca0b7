"""Sentences of many languages, a file each, to train vocabularies and language models on.

`gather_sentences` writes `sentences/CODE.jsonl`, lines {"_id", "text"}, each sentence once, from
both sides of translations and from text of one language; `mixture` reads the folder with languages
in smoothed shares.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from input_pipelines.sources import languages, text_sources
from input_pipelines.sources.mixtures import Mixture
from input_pipelines.sources.text_sources import (
    BadRecords,
    Jsonl,
    Lines,
    SourceError,
    TextSource,
)

FOLDER = "sentences"
ENDING = ".jsonl"

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "gather_sentences": {
        "name": "gather_sentences",
        "version": 1,
        "outputs": ["report", "sentences"],
    }
}


@dataclasses.dataclass(frozen=True)
class SentenceRules:
    """Rules for text of one language; sides of translations were checked before.

    Attributes:
      min_characters, max_characters: LaBSE drops lines of fewer than 10 and more than 5,000.
      min_script: share of the letters that are of the language's script, at least.
    """

    min_characters: int = 10
    max_characters: int = 5000
    min_script: float = 0.2

    def __post_init__(self) -> None:
        if not (1 <= self.min_characters <= self.max_characters and 0 <= self.min_script <= 1):
            raise ValueError(
                "SentenceRules: expected 1 <= min_characters <= max_characters and min_script "
                f"from 0 to 1, found {self}"
            )

    def broken(self, text: str, script: str | None) -> str:
        """Name of the rule that a sentence breaks; '' for none."""
        if not self.min_characters <= len(text) <= self.max_characters:
            return "length"
        if languages.share_in_script(text, script) < self.min_script:
            return "wrong_script"
        return ""


def texts_of(folder: str, max_line_bytes: int = 100_000) -> dict[str, TextSource]:
    """Language -> its text, of a folder with files CODE.txt or CODE.txt.gz, a sentence a line.

    Raises:
      SourceError: there is none, or two files are of one language.
      languages.LanguageError: a name that is no language.
    """
    found: dict[str, TextSource] = {}
    for path in sorted(Path(folder).glob("*.txt*")):
        code, _, ending = path.name.partition(".")
        if ending not in ("txt", "txt.gz"):
            continue
        language = languages.canonical(code)
        if language in found:
            raise SourceError(f"{folder}: two files are {language!r}, the second {path.name}")
        found[language] = Lines([str(path)], max_line_bytes)
    if not found:
        raise SourceError(f"{folder}: expected files such as de.txt or de.txt.gz, found none")
    return found


class _Files:
    """A file for each language, which is made when its first sentence comes."""

    def __init__(self, folder: str):
        os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._files: dict[str, IO[str]] = {}
        self._seen: set[bytes] = set()
        self.kept: collections.Counter[str] = collections.Counter()
        self.dropped: dict[str, collections.Counter[str]] = {}

    def add(self, language: str, text: str) -> None:
        """Writes a sentence that was not there before."""
        digest = hashlib.blake2b(f"{language}\t{text}".encode(), digest_size=8).digest()
        if digest in self._seen:
            self.drop(language, "repeated")
            return
        self._seen.add(digest)
        if language not in self._files:
            path = os.path.join(self._folder, language + ENDING)
            opened = open(path, "w", encoding="utf-8")  # noqa: SIM115
            file = self._stack.enter_context(opened)
            self._files[language] = file
        row = {"_id": str(self.kept[language]), "text": text}
        self._files[language].write(json.dumps(row, ensure_ascii=False) + "\n")
        self.kept[language] += 1

    def drop(self, language: str, reason: str) -> None:
        """Counts one that is left out."""
        self.dropped.setdefault(language, collections.Counter())[reason] += 1

    def close(self) -> None:
        """Close all files; their content is on disk afterwards."""
        self._stack.close()


def gather_sentences(
    model_dir: str,
    translations: Sequence[str],
    texts: Mapping[str, TextSource],
    rules: SentenceRules,
    max_bad_records: int,
) -> dict[str, str]:
    """Writes sentences/CODE.jsonl and report.json.

    Args:
      model_dir: stage folder.
      translations: files that `translations.gather` wrote; both sides are taken.
      texts: language code -> where text of it comes from, a record a sentence.
      rules: for those.
      max_bad_records: malformed records that are skipped before the run stops.

    Returns:
      {"sentences": the folder, "report": report.json}, relative to model_dir.

    Raises:
      SourceError: nothing to write, or too many malformed records.
      languages.LanguageError: a code that no language has.
    """
    bad = BadRecords(max_bad_records, "language_sentences.gather_sentences")
    files = _Files(os.path.join(model_dir, FOLDER))
    for path in translations:
        for language, text in _sides(path, bad):
            files.add(language, text)
    for code, source in texts.items():
        language = languages.canonical(code)
        script = languages.script(language)
        for record in source.records(bad):
            text = " ".join(record.text.split())
            if reason := rules.broken(text, script):
                files.drop(language, reason)
            else:
                files.add(language, text)
    files.close()
    if not files.kept:
        raise SourceError(f"no sentence in {list(translations)} and {list(texts)}")
    report = {
        "sentences": sum(files.kept.values()),
        "languages": {
            language: {"kept": files.kept[language], "dropped": files.dropped.get(language, {})}
            for language in sorted(files.kept | files.dropped)
        },
        "malformed": dict(bad.counts),
    }
    with open(os.path.join(model_dir, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    return {"sentences": FOLDER, "report": "report.json"}


def _sides(path: str, bad: BadRecords) -> Iterator[tuple[str, str]]:
    """(language, sentence) of each side of each translation."""
    for number, line, row in text_sources.json_lines(path, 1_000_000, bad):
        pair, texts = row.get("pair"), [row.get(side) for side in ("source", "target")]
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in texts):
            yield from zip(map(str, pair), map(str, texts), strict=True)
        else:
            bad.add(f"{path}:{number}", "no_translation", "expected pair, source, target", line)


def mixture(folder: str, alpha: float, only: Sequence[str] | None = None) -> Mixture:
    """The languages of a folder, in the order of their codes.

    Args:
      folder: that `gather_sentences` wrote.
      alpha: exponent of their sizes; 0.3 in LaBSE's vocabulary.
      only: codes of those that are taken; None: all.

    Raises:
      SourceError: nothing there.
    """
    found = {
        file.removesuffix(ENDING): os.path.join(folder, file)
        for file in sorted(os.listdir(folder) if os.path.isdir(folder) else [])
        if file.endswith(ENDING)
    }
    if only is not None:
        missing = [code for code in only if code not in found]
        found = {code: path for code, path in found.items() if code in only}
        if missing:
            raise SourceError(f"{folder}: no sentences of {missing}")
    if not found:
        raise SourceError(f"{folder}: expected files CODE.jsonl of sentences, found none")
    return Mixture([(code, _sentences(path), 1.0) for code, path in found.items()], alpha)


def _sentences(path: str) -> Jsonl:
    return Jsonl([path], ["_id"], "", "text", "", 1_000_000)
