"""Gathers translations of many languages into one file, and says what was left out and why.

`gather` writes `translations.jsonl`, pair of languages after pair of languages, lines
{"id", "pair", "source", "target"}; a layout (translation_rows.py) makes rows of a token store of
them. report.json counts what each rule dropped, for each pair.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from input_pipelines.sources import languages
from input_pipelines.sources.bitext import Bitext, Languages, Translation, name_of
from input_pipelines.sources.text_sources import BadRecords, SourceError

_log = logging.getLogger(__name__)
FILES = ("translations.jsonl", "development.jsonl")
EXAMPLES = 3  # of each reason and pair that are quoted in the report
QUOTE = 60  # characters of a side that are quoted
WRONG_SHARE = 0.1  # of a pair that is in another script: more is reported

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "gather": {
        "name": "gather_translations",
        "version": 1,
        "outputs": ["development", "report", "translations"],
        "check": "check",
    }
}


@dataclasses.dataclass(frozen=True)
class TranslationRules:
    """Rules that a pair of sentences must fulfil.

    Attributes:
      min_characters, max_characters: of each side. LaBSE (arXiv:2007.01852) drops lines of fewer
        than 10 and more than 5,000.
      max_ratio: characters of the longer side for one of the shorter, at most.
      min_script: share of a side's letters that are of its language's script, at least; low, since
        names and code in Latin letters take much of a Chinese sentence's.
      min_pairs: pairs of languages with fewer translations are left out: smoothing would show
        these few over and over.
    """

    min_characters: int = 1
    max_characters: int = 5000
    max_ratio: float = 9.0
    min_script: float = 0.2
    min_pairs: int = 2

    def __post_init__(self) -> None:
        if not (
            1 <= self.min_characters <= self.max_characters
            and self.max_ratio >= 1
            and 0 <= self.min_script <= 1
            and self.min_pairs >= 1
        ):
            raise ValueError(
                "TranslationRules: expected 1 <= min_characters <= max_characters, max_ratio of at "
                f"least 1, min_script from 0 to 1 and min_pairs of at least 1, found {self}"
            )

    def broken(self, source: str, target: str, scripts: Sequence[str | None]) -> str:
        """Name of the rule that two sides break; '' for none."""
        lengths = sorted((len(source), len(target)))
        if not lengths[0]:
            return "empty_side"
        if lengths[0] < self.min_characters or lengths[1] > self.max_characters:
            return "length"
        if source == target:
            return "same_on_both_sides"
        if lengths[1] > self.max_ratio * lengths[0]:
            return "length_ratio"
        for text, script in zip((source, target), scripts, strict=True):
            if languages.share_in_script(text, script) < self.min_script:
                return "wrong_script"
        return ""


class _Seen:
    """Texts that were seen, at 8 bytes of hash each, plus the overhead of a set."""

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()

    def add(self, *texts: str) -> bool:
        """Remembers these together; whether they were new."""
        digest = _digest(*texts)
        new = digest not in self._hashes
        self._hashes.add(digest)
        return new

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, text: str) -> bool:
        return _digest(text) in self._hashes


def _digest(*texts: str) -> bytes:
    return hashlib.blake2b("\t".join(texts).encode(), digest_size=8).digest()


class _Kept(NamedTuple):
    """A translation that breaks no rule."""

    id: str
    source: str
    target: str


class _Tally:
    """Counts of sentences read, kept and dropped for a pair of languages."""

    def __init__(self) -> None:
        self.read = 0
        self.dropped: collections.Counter[str] = collections.Counter()
        self.examples: dict[str, list[str]] = {}

    def drop(self, reason: str, one: Translation) -> None:
        """Counts one, and quotes it if few were."""
        self.dropped[reason] += 1
        quoted = self.examples.setdefault(reason, [])
        if len(quoted) < EXAMPLES:
            quoted.append(f"{one.where}: {one.source[:QUOTE]!r} | {one.target[:QUOTE]!r}")

    def warn_of_scripts(self, pair: Languages) -> None:
        """Says so where many are in another script than their languages'."""
        wrong = self.dropped["wrong_script"]
        if wrong > WRONG_SHARE * self.read:
            scripts = [languages.script(code) for code in pair]
            _log.warning(
                "%s: %d of %d translations are not in the scripts %s. A wrong label, or say which "
                "script it is: 'grc-Grek'. The first: %s",
                *(name_of(pair), wrong, self.read, scripts, self.examples["wrong_script"][0]),
            )

    def report(self, kept: int) -> dict[str, Any]:
        """For report.json."""
        return {
            "read": self.read,
            "kept": kept,
            "dropped": dict(sorted(self.dropped.items())),
            "examples": self.examples,
        }


def gather(
    model_dir: str,
    bitexts: Sequence[Bitext],
    rules: TranslationRules | None,
    held_out: Sequence[Bitext],
    max_bad_records: int,
    pivot: str | None = None,
    development_share: float = 0.0,
) -> dict[str, str]:
    """Writes translations.jsonl, development.jsonl and report.json.

    White space is made single spaces. Of pairs of languages that are each other's reverse one is
    made. A pair of sentences counts once, however often it occurs.

    Args:
      model_dir: stage folder.
      bitexts: what is gathered, in the order of precedence among repeated pairs.
      rules: see there; None keeps every translation that has both sides, for a test set.
      held_out: no sentence of these is on either side of what is kept.
      max_bad_records: malformed records that are skipped before the run stops.
      pivot: code of a language that is the source wherever it is one of a pair.
      development_share: of the sources; what translates them, in whatever language, is not in
        translations.jsonl but in development.jsonl. With a pivot, what develops is held out in
        all languages.

    Returns:
      {"translations": translations.jsonl, "development": development.jsonl, "report": report.json},
      relative to model_dir.

    Raises:
      SourceError: a file that is missing, damaged or not aligned, or nothing is left.
      languages.LanguageError: a code that no language has.
      ValueError: a share out of range, or bitexts of one name.
    """
    check(bitexts, development_share, max_bad_records)
    bad = BadRecords(max_bad_records, "translations.gather")
    test = _held_out(held_out, bad)
    report: dict[str, Any] = {}
    counts = dict.fromkeys(FILES, 0)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(open(os.path.join(model_dir, name), "w", encoding="utf-8"))
            for name in FILES
        }
        for pair in _pairs(bitexts, pivot):
            tally = _Tally()
            kept = list(_checked(pair, bitexts, rules, test, tally, bad))
            parts = _divided(pair, kept, rules, development_share, tally)
            report[name_of(pair)] = tally.report(sum(map(len, parts)))
            for name, part in zip(FILES, parts, strict=True):
                counts[name] += len(part)
                files[name].writelines(_line(pair, one) for one in part)
    if not counts[FILES[0]]:
        read = sum(one["read"] for one in report.values())
        raise SourceError(
            f"nothing to gather: of {read} translations none is left; {counts[FILES[1]]} develop, "
            f"dropped: {_all_dropped(report)}"
        )
    found: dict[str, Any] = {
        "translations": counts[FILES[0]],
        "development": counts[FILES[1]],
        "held_out_sentences": len(test),
        "dropped": _all_dropped(report),
        "unknown_scripts": sorted(
            {code for pair in _pairs(bitexts, pivot) for code in pair if not languages.script(code)}
        ),
        "pairs": report,
        "malformed": dict(bad.counts),
        "bad_records": bad.examples,
    }
    with open(os.path.join(model_dir, "report.json"), "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1, ensure_ascii=False)
    _log.info("%s translations of %d pairs of languages", counts, len(report))
    return {"translations": FILES[0], "development": FILES[1], "report": "report.json"}


def trained_on(report: str) -> languages.Among:
    """The languages of a gathering, from its report.json."""
    with open(report, encoding="utf-8") as file:
        pairs = json.load(file)["pairs"]
    kept = (pair for pair, found in pairs.items() if found["kept"])
    return languages.Among(code for pair in kept for code in pair.split("_"))


def check(bitexts: Sequence[Bitext], development_share: float, max_bad_records: int) -> None:
    """Check arguments before `gather` runs; ValueError, see there."""
    BadRecords(max_bad_records)
    if not 0 <= development_share < 1:
        raise ValueError(
            f"gather.development_share: expected 0 to below 1, found {development_share}"
        )
    names = [bitext.name for bitext in bitexts]
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"gather.bitexts: expected one or more of distinct names, found {names}")


def _line(pair: Languages, one: _Kept) -> str:
    row = {"id": one.id, "pair": list(pair), "source": one.source, "target": one.target}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _divided(
    pair: Languages,
    kept: list[_Kept],
    rules: TranslationRules | None,
    development_share: float,
    tally: _Tally,
) -> tuple[list[_Kept], list[_Kept]]:
    """Split into training and development; both empty for a pair of languages with too few.

    One alone cannot develop: it would always be found.
    """
    tally.warn_of_scripts(pair)
    parts: tuple[list[_Kept], list[_Kept]] = ([], [])
    for one in kept:
        parts[_share_of(one.source) < development_share].append(one)
    if len(parts[1]) == 1:
        tally.dropped["alone_in_development"] += 1
        parts[1].clear()
    if rules is not None and 0 < len(parts[0]) < rules.min_pairs:
        _log.warning(
            "%s: left out, %d translations are too few", name_of(pair), len(parts[0] + parts[1])
        )
        tally.dropped["too_few_of_the_pair"] += len(parts[0] + parts[1])
        return [], []
    return parts


def _share_of(source: str) -> float:
    """A number from 0 to 1 that follows from a text alone."""
    return int.from_bytes(_digest(source), "big") / 2**64


def _pairs(bitexts: Sequence[Bitext], pivot: str | None) -> list[Languages]:
    """Pairs of languages, sorted; of one and its reverse the one that comes first.

    With a pivot, the one that it is the source of.
    """
    first = None if pivot is None else languages.canonical(pivot)
    found: dict[frozenset[str], Languages] = {}
    for bitext in bitexts:
        for pair in bitext.pairs():
            found.setdefault(frozenset(pair), pair[::-1] if pair[1] == first else pair)
    return sorted(found.values())


def _checked(
    pair: Languages,
    bitexts: Sequence[Bitext],
    rules: TranslationRules | None,
    test: _Seen,
    tally: _Tally,
    bad: BadRecords,
) -> Iterator[_Kept]:
    """The translations of a pair of languages that are kept, the others counted."""
    name = name_of(pair)
    scripts = [languages.script(code) for code in pair]
    seen = _Seen()
    for one in _translations(pair, bitexts, bad):
        tally.read += 1
        source, target = _spaced(one.source), _spaced(one.target)
        if rules is None:
            reason = "" if source and target else "empty_side"
        else:
            reason = rules.broken(source, target, scripts)
        if not reason and (source in test or target in test):
            reason = "held_out"
        if not reason and rules is not None and not seen.add(source, target):
            reason = "repeated"
        if reason:
            tally.drop(reason, one)
        else:
            key = one.key.replace(" ", "_")  # "GEN 1:1": ids go into files with columns
            yield _Kept(f"{name}/{key}", source, target)


def _translations(
    pair: Languages, bitexts: Sequence[Bitext], bad: BadRecords
) -> Iterator[Translation]:
    """Those of a pair of languages, in either direction."""
    for bitext in bitexts:
        for found in bitext.pairs():
            if found == pair:
                yield from bitext.read(found, bad)
            elif found == pair[::-1]:
                for one in bitext.read(found, bad):
                    yield dataclasses.replace(one, source=one.target, target=one.source)


def _held_out(bitexts: Sequence[Bitext], bad: BadRecords) -> _Seen:
    """Every sentence of some bitexts.

    Raises:
      SourceError: one of them has none, so that it would hold nothing out.
    """
    found = _Seen()
    for bitext in bitexts:
        before = len(found)
        for pair in bitext.pairs():
            for one in bitext.read(pair, bad):
                for side in map(_spaced, (one.source, one.target)):
                    if side:
                        found.add(side)
        if len(found) == before:
            raise SourceError(f"gather.held_out: {bitext.name} has no sentence to hold out")
    return found


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _all_dropped(report: dict[str, Any]) -> dict[str, int]:
    counted: collections.Counter[str] = collections.Counter()
    for one in report.values():
        counted.update(one["dropped"])
    return dict(sorted(counted.items()))
