"""Translations between many languages: tables, keyed files of one language, files of one pair.

Of a text in many languages, the pairs are those with one of them, the pivot.
"""

import dataclasses
import itertools
import os
from collections.abc import Container, Iterable, Iterator, Mapping

from input_pipelines.sources import languages, text_sources
from input_pipelines.sources.bitext import Languages, Translation, name_of, two_languages
from input_pipelines.sources.text_sources import BadRecords, FieldError, SourceError

SUFFIXES = (".tsv", ".tsv.gz")


@dataclasses.dataclass(frozen=True)
class Columns:
    """A table, tab between columns, names in its first line; an empty cell is an empty side.

    Attributes:
      name: of the text, part of every key.
      path: .tsv, perhaps gzipped.
      codes: column -> language code; other columns are not read. A table of pairs has two.
      pivot: code that every pair has.
      max_line_bytes: longer lines are malformed.
      header: names of the columns, where the file's first line is none.
      document: column with the name of the document that a line is of, which is part of its key
        then; '' for none.
    """

    name: str
    path: str
    codes: Mapping[str, str]
    pivot: str
    max_line_bytes: int = 1_000_000
    header: tuple[str, ...] = ()
    document: str = ""

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return _with_pivot(self.name, self.pivot, self.codes.values())

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`."""
        lines = text_sources.lines(self.path, self.max_line_bytes, bad)
        header = list(self.header) or next(lines, (0, ""))[1].split("\t")
        wanted = [*self.codes, *([self.document] if self.document else [])]
        if missing := [name for name in wanted if name not in header]:
            raise SourceError(f"{self.path}: expected columns {missing}, found {header}")
        document = header.index(self.document) if self.document else None
        columns = [header.index(_field(self.codes, language)) for language in pair]
        for number, line in lines:
            where, cells = f"{self.path}:{number}", line.split("\t")
            if len(cells) != len(header):
                detail = f"expected {len(header)} columns, found {len(cells)}"
                bad.add(where, "columns", detail, line)
            else:
                source, target = (cells[column] for column in columns)
                key = str(number) if document is None else f"{cells[document]}/{number}"
                yield Translation(f"{self.name}/{key}", source, target, where)


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """A line an object, a field a language; one that is missing is an empty side.

    Attributes:
      name: of the text, part of every key.
      path: .jsonl, perhaps gzipped.
      codes: field -> language code; other fields are not read.
      pivot: code that every pair has.
      max_line_bytes: longer lines are malformed.
    """

    name: str
    path: str
    codes: Mapping[str, str]
    pivot: str
    max_line_bytes: int = 1_000_000

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return _with_pivot(self.name, self.pivot, self.codes.values())

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`."""
        fields = [_field(self.codes, language) for language in pair]
        for number, line, row in text_sources.json_lines(self.path, self.max_line_bytes, bad):
            where = f"{self.path}:{number}"
            try:
                texts = [text_sources.text_field({field: "", **row}, field) for field in fields]
            except FieldError as error:
                bad.add(where, error.reason, str(error), line)
                continue
            yield Translation(f"{self.name}/{number}", texts[0], texts[1], where)


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A folder with a file for each language, lines 'key TAB text'; equal keys are translations.

    The text is the last column, the key all before it, '/' between its columns. One language is in
    memory at a time.

    Attributes:
      name: of the text, part of every key.
      folder: files CODE.tsv or CODE.tsv.gz.
      pivot: code that every pair has.
      codes: file name without its ending -> language code, of those whose names are none; '' leaves
        a file out.
      only: names of the files that are read; None: all.
      max_line_bytes: longer lines are malformed.
    """

    name: str
    folder: str
    pivot: str
    codes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only: tuple[str, ...] | None = None
    max_line_bytes: int = 100_000

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return _with_pivot(self.name, self.pivot, self._files())

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`."""
        files = self._files()
        known = {key: text for key, text, _ in self._lines(files[pair[0]], bad)}
        for key, text, where in self._lines(files[pair[1]], bad):
            if key in known:
                yield Translation(f"{self.name}/{key}", known[key], text, where)

    def _files(self) -> dict[str, str]:
        """Language -> path."""
        found: dict[str, str] = {}
        tables = dict(_tables(self.folder))
        _require_there(self.folder, [*self.codes, *(self.only or ())], tables)
        for stem, path in tables.items():
            code = self.codes.get(stem, stem)
            if not code or (self.only is not None and stem not in self.only):
                continue
            language = languages.canonical(code)
            if language in found:
                raise SourceError(
                    f"{self.folder}: both {found[language]} and {path} are {language!r}; say by "
                    "`codes` what one of them is, '' to leave it out"
                )
            found[language] = path
        return found

    def _lines(self, path: str, bad: BadRecords) -> Iterator[tuple[str, str, str]]:
        for number, line in text_sources.lines(path, self.max_line_bytes, bad):
            key, tab, text = line.rpartition("\t")
            if tab:
                yield key.replace("\t", "/"), text, f"{path}:{number}"
            else:
                bad.add(f"{path}:{number}", "columns", "expected 'key TAB text'", line)


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """A folder with a file for each pair, CODE-CODE.tsv or .tsv.gz, lines 'text TAB translation'.

    Attributes:
      name: of the text, part of every key.
      folder: of the files.
      codes: part of a file's name -> language code, where that is none; '' leaves the file out.
      max_line_bytes: longer lines are malformed.
    """

    name: str
    folder: str
    codes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_line_bytes: int = 100_000

    def pairs(self) -> list[Languages]:
        """See `Bitext`."""
        return list(self._files())

    def read(self, pair: Languages, bad: BadRecords) -> Iterator[Translation]:
        """See `Bitext`."""
        path = self._files()[pair]
        for number, line in text_sources.lines(path, self.max_line_bytes, bad):
            cells = line.split("\t")
            where = f"{path}:{number}"
            if len(cells) == 2:
                key = f"{self.name}/{name_of(pair)}/{number}"
                yield Translation(key, cells[0], cells[1], where)
            else:
                bad.add(where, "columns", f"expected 2 columns, found {len(cells)}", line)

    def _files(self) -> dict[Languages, str]:
        found: dict[Languages, str] = {}
        tables = dict(_tables(self.folder))
        parts = {part for stem in tables for part in (stem.rpartition("-")[0::2])}
        _require_there(self.folder, self.codes, parts)
        for stem, path in tables.items():
            first, dash, second = stem.rpartition("-")
            if not dash:
                raise SourceError(f"{path}: expected a name such as deu-eng.tsv, two codes")
            codes = [self.codes.get(part, part) for part in (first, second)]
            if all(codes):
                pair = two_languages(*codes)
                if pair in found:
                    raise SourceError(
                        f"{self.folder}: both {found[pair]} and {path} are {name_of(pair)!r}; say "
                        "by `codes` what one of them is, '' to leave it out"
                    )
                found[pair] = path
        return found


def _tables(folder: str) -> Iterator[tuple[str, str]]:
    """Name without its ending, and path, of each table in a folder."""
    if not os.path.isdir(folder):
        raise SourceError(f"{folder}: expected a folder of .tsv files, perhaps gzipped")
    for file in sorted(os.listdir(folder)):
        ending = next((suffix for suffix in SUFFIXES if file.endswith(suffix)), None)
        if ending is not None:
            yield file.removesuffix(ending), os.path.join(folder, file)


def _field(codes: Mapping[str, str], language: str) -> str:
    """The field of a language."""
    return next(name for name, code in codes.items() if languages.canonical(code) == language)


def _with_pivot(name: str, pivot: str, codes: Iterable[str]) -> list[Languages]:
    """Pairs of the pivot with each other language."""
    given = [languages.canonical(code) for code in codes]
    first = languages.canonical(pivot)
    if first not in given or len(given) < 2 or len(set(given)) < len(given):
        raise SourceError(
            f"{name}: expected the pivot {first!r} and other languages, each once, found "
            f"{sorted(given)}"
        )
    return list(itertools.product([first], sorted(set(given) - {first})))


def _require_there(folder: str, named: Iterable[str], there: Container[str]) -> None:
    """Raises SourceError for names that no file has."""
    if missing := [name for name in named if name not in there]:
        raise SourceError(f"{folder}: expected tables named {missing}, as `codes` and `only` say")
