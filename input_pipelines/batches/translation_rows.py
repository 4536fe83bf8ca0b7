"""Translations as rows of a token store, [CLS] source [SEP] target [SEP], and taken apart again.

One store serves both stages of LaBSE: TLM reads its rows unchanged, translation ranking reads
both sides apart. Ids begin with the pair of languages, "en_de/...", and rows of a pair are
adjacent, as `translations.gather` writes them.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.sources import places, text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError, Record, UniqueIds
from input_pipelines.store import layouts, mixing
from input_pipelines.store.layouts import Rows
from input_pipelines.store.store_writer import StoreRecord
from input_pipelines.store.token_store import Passages, StoreError, TokenStore
from input_pipelines.tokenizers import tokenization

NAME = "translation"
SIDES = ("source", "target")
SOURCE_LENGTH = "source_length"  # table [rows] int32: tokens up to the first [SEP]


@dataclasses.dataclass(frozen=True)
class TranslationFile:
    """The lines of translations.jsonl: titles are the sources, texts the targets.

    Attributes:
      path: of the file.
      max_line_bytes: longer lines are malformed.
    """

    path: str
    max_line_bytes: int = 1_000_000

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in order, reporting malformed ones to `bad`."""
        unique = UniqueIds()
        for number, line, row in text_sources.json_lines(self.path, self.max_line_bytes, bad):
            where = f"{self.path}:{number}"
            try:
                name = text_sources.text_field(row, "id", is_id=True)
                sides = [text_sources.text_field(row, side) for side in ("source", "target")]
            except FieldError as error:
                bad.add(where, error.reason, str(error), line)
                continue
            if before := unique.first(name, self.path, number):
                bad.add(where, "duplicate_id", f"id {name!r} was already given in {before}", line)
                continue
            yield Record(name, sides[0], sides[1], places.place(self.path, where))


@dataclasses.dataclass(frozen=True)
class Translations(layouts.Plain):
    """A record a row, its title before its text, each cut by itself.

    Attributes:
      side: tokens of a side at most, specials included.
    """

    side: int

    @property
    def name(self) -> str:
        """See `Layout`; says where sides are cut, too."""
        return f"{NAME}:{self.side}"

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """See `Layout`.

        Raises:
          ValueError: rows that do not hold two such sides.
        """
        if not 3 <= self.side <= (length + 1) // 2:
            raise ValueError(
                f"{type(self).__name__}.side: expected from 3 to {(length + 1) // 2}, so that two "
                f"sides fit a row of {length} tokens, found {self.side}"
            )
        before = tokenizer.encode_batch([prefix + r.title for r in records], self.side)
        behind = tokenizer.encode_batch([prefix + r.text for r in records], self.side)
        rows = [
            StoreRecord(
                *(r.id, r.title, r.text, r.source),
                np.concatenate([a.tokens, b.tokens[1:]]),  # the target's [CLS] goes
                np.concatenate([a.word_starts, b.word_starts[1:]]),
            )
            for r, a, b in zip(records, before, behind, strict=True)
        ]
        cut = sum(a.truncated or b.truncated for a, b in zip(before, behind, strict=True))
        sizes = np.array([len(a.tokens) for a in before], np.int32)
        return Rows(rows, cut, {SOURCE_LENGTH: sizes})


def side_of(store: TokenStore) -> int:
    """Tokens at which the sides of a store were cut.

    Raises:
      StoreError: its rows are no translations.
    """
    name, _, side = str(store.manifest["layout"]).partition(":")
    if name != NAME:
        raise StoreError(
            f"token store {store.folder}: expected translations, prepared with "
            f"runs/stores/translations.gin, found rows of layout {store.manifest['layout']!r}"
        )
    return int(side)


def apart(rows: Passages, sep: int) -> tuple[Passages, Passages]:
    """Sources and targets of some rows, each "[CLS] text [SEP]".

    Args:
      rows: as the layout made them.
      sep: id of [SEP].
    """
    ends = np.cumsum(rows.lengths)
    starts = ends - rows.lengths
    numbers = np.arange(len(rows.tokens))
    seps = np.where(rows.tokens == sep, numbers, len(numbers))
    middle = np.minimum.reduceat(seps, starts)  # [rows], where each source ends
    sources = _ranges(rows, starts, middle + 1 - starts)
    targets = _ranges(rows, middle, ends - middle)
    first = np.cumsum(targets.lengths) - targets.lengths
    targets.tokens[first] = rows.tokens[starts]  # its [SEP] gives way to the row's [CLS]
    targets.word_starts[first] = rows.word_starts[starts]
    return sources, targets


def _ranges(rows: Passages, starts: np.ndarray, lengths: np.ndarray) -> Passages:
    at = token_groups.within(lengths) + np.repeat(starts, lengths)
    return Passages(rows.tokens[at], rows.word_starts[at], lengths)


def side_lengths(store: TokenStore) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each row's source and target, as `apart` gives them: int64 [rows] each."""
    sources = np.asarray(store.table(SOURCE_LENGTH), np.int64)
    return sources, store.lengths - sources + 1


def meanings(sources: Passages) -> np.ndarray:
    """[n] int32, 0 or more, equal for equal sources; for others it hardly ever is."""
    weights = np.uint64(0x9E3779B97F4A7C15) * (
        2 * token_groups.within(sources.lengths).astype(np.uint64) + np.uint64(1)
    )
    mixed = mixing.mix64(sources.tokens.astype(np.uint64) * weights + weights)
    starts = np.cumsum(sources.lengths) - sources.lengths
    return (np.add.reduceat(mixed, starts) >> np.uint64(33)).astype(np.int32)


def language_runs(store: TokenStore) -> list[tuple[str, int, int]]:
    """(language or pair of them, first row, one after the last) in the order of the rows.

    Raises:
      StoreError: ids without languages, or rows of one that are not adjacent.
    """
    runs: list[tuple[str, int, int]] = []
    for row, name in enumerate(store.ids):
        language, slash, _ = name.partition("/")
        if not slash:
            raise StoreError(
                f"token store {store.folder}: expected ids that begin with their languages, as "
                f"'en_de/...', found {name!r} in row {row}"
            )
        if runs and runs[-1][0] == language:
            runs[-1] = (language, runs[-1][1], row + 1)
        else:
            runs.append((language, row, row + 1))
    names = [language for language, _, _ in runs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StoreError(
            f"token store {store.folder}: expected the rows of {twice!r} together, found others "
            "between them. Prepare it from the file that translations.gather wrote."
        )
    return runs
