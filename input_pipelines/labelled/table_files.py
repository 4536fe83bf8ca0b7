"""Rows of files with named columns: csv, tsv, jsonl, parquet and Arrow streams, read in parts."""

import csv
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from input_pipelines.labelled.examples import Cells, LayoutError
from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords

DELIMITERS = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".json", ".ndjson")
ENDINGS = (*DELIMITERS, *LINES, ".parquet", ".arrow")
_BATCH = 1024  # rows that are held as Python objects


def ending(path: str) -> str:
    """The one of ENDINGS that a file has, before .gz; "" for any other."""
    name = path.lower()
    packed = name.removesuffix(".gz")
    found = next((one for one in ENDINGS if packed.endswith(one)), "")
    return "" if packed != name and found in (".parquet", ".arrow") else found


def records(path: str, max_line_bytes: int, bad: BadRecords) -> Iterator[tuple[str, Cells]]:
    """Yields ("file:line", column -> value) of each row; of parquet and Arrow, "file:row".

    Args:
      path: a file with one of ENDINGS.
      max_line_bytes: longer lines are malformed.
      bad: counts what is malformed.

    Raises:
      LayoutError: a file of another format than its name says.
      SourceError: see `text_sources.lines`.
    """
    kind = ending(path)
    if kind in LINES:
        for number, _, row in text_sources.json_lines(path, max_line_bytes, bad):
            yield f"{path}:{number}", row
    elif kind in DELIMITERS:
        yield from _table(path, DELIMITERS[kind], max_line_bytes, bad)
    else:
        yield from _arrow(path, kind)


def column_names(path: str, max_line_bytes: int) -> list[str]:
    """Names of the columns, in order; of jsonl, those of the first row that is well formed.

    Raises:
      LayoutError: there are no rows, or see `records`.
    """
    first = next(records(path, max_line_bytes, BadRecords.counted_before()), None)
    if first is None:
        raise LayoutError(f"{path}: expected rows with a query and a passage, found none")
    return list(first[1])


class _Lines:
    """Lines for the csv module, which reports no line numbers where some are left out.

    Attributes:
      first: the number of the first line since this was 0.
    """

    def __init__(self, path: str, max_line_bytes: int, bad: BadRecords) -> None:
        self._lines = text_sources.lines(path, max_line_bytes, bad)
        self.first = 0

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self.first = self.first or number
            yield (line.removeprefix("\ufeff") if number == 1 else line) + "\n"


def _table(
    path: str, delimiter: str, max_line_bytes: int, bad: BadRecords
) -> Iterator[tuple[str, Cells]]:
    csv.field_size_limit(max(csv.field_size_limit(), max_line_bytes))
    lines = _Lines(path, max_line_bytes, bad)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _header(path, delimiter, next(reader, []))
    while True:
        lines.first = 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            detail = (
                f"not a row ({error}): a cell with quotation marks is in such, inner ones twice"
            )
            bad.add(f"{path}:{lines.first}", "not_a_row", detail, "")
            continue
        if cells is None:
            return
        if len(cells) == len(header):
            yield f"{path}:{lines.first}", dict(zip(header, cells, strict=True))
        elif cells:
            detail = f"expected {len(header)} cells, as the first line has, found {len(cells)}"
            bad.add(f"{path}:{lines.first}", "columns", detail, delimiter.join(cells))


def _header(path: str, delimiter: str, names: list[str]) -> list[str]:
    """Raises LayoutError for a first line that can name no columns."""
    if len(set(names)) == len(names) and all(_can_be_a_name(name) for name in names):
        if len(names) > 1 or not names:
            return names
        other = next((sign for sign in (",", ";", "\t", "|") if sign in names[0]), "")
        detail = f"expected {delimiter!r} between columns" + (f", found {other!r}" if other else "")
    else:
        detail = "expected names of columns in the first line, each once"
    shown = [name[:40] for name in names[:6]]
    raise LayoutError(
        f"{path}:1: {detail}; the line is {shown}. Write a first line such as "
        f"query{delimiter}positive (.csv has commas, .tsv tabs between columns)"
    )


def _can_be_a_name(text: str) -> bool:
    return 0 < len(text) <= 60 and len(text.split()) <= 3 and text[-1] not in ".?!"


def _arrow(path: str, kind: str) -> Iterator[tuple[str, Cells]]:
    try:
        number = 0
        for batch in _batches(path, kind):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", row
    except (pa.ArrowInvalid, OSError) as error:
        raise LayoutError(
            f"{path}: expected a file in the format {kind[1:]}, which it is not or not wholly "
            f"({str(error)[:200]}). Write it again"
        ) from error


def _batches(path: str, kind: str) -> Iterator[Any]:
    if kind == ".parquet":
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH)
    else:
        with pa.memory_map(path) as mapped, pa.ipc.open_stream(mapped) as stream:
            for batch in stream:
                for start in range(0, batch.num_rows, _BATCH):
                    yield batch.slice(start, _BATCH)
