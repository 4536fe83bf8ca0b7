"""Detect the layout of labelled data from the names of files and columns."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from input_pipelines.labelled import (
    beir_layout,
    column_layout,
    corpus_files,
    flag_embedding,
    split_files,
    table_files,
    tevatron,
)
from input_pipelines.labelled.examples import (
    Cells,
    LabelledSource,
    LayoutError,
    Row,
    RowLayout,
    Text,
)
from input_pipelines.sources.text_sources import BadRecords, FieldError

ColumnNames = Mapping[str, str | Sequence[str]]

_KNOWN = (
    "lines with query and pos (FlagEmbedding), lines with query and positive_passages (Tevatron), "
    "or columns in the order query, positive[, negative...] with further ones named negative* "
    f"and a label or score in one of {list(column_layout.SCORES)} (sentence-transformers)"
)


@dataclass(frozen=True)
class RowFiles:
    """Files of rows in one layout, and perhaps a corpus.

    Attributes:
      files: split -> its files and the layout of each.
      corpus: file of passages, "" for none.
      max_line_bytes: longer lines are malformed.
    """

    files: Mapping[str, Sequence[tuple[str, RowLayout]]]
    corpus: str
    max_line_bytes: int

    @property
    def _first(self) -> RowLayout:
        return next(layout for files in self.files.values() for _, layout in files)

    @property
    def layout(self) -> str:
        """See `LabelledSource`."""
        return self._first.name

    @property
    def guessed(self) -> bool:
        """See `LabelledSource`."""
        return self._first.guessed

    @property
    def roles(self) -> Mapping[str, str]:
        """See `LabelledSource`."""
        return self._first.roles

    def passages(self, bad: BadRecords) -> Iterator[tuple[Text, str]]:
        """See `LabelledSource`."""
        if self.corpus:
            yield from corpus_files.passages(self.corpus, self.max_line_bytes, bad)

    def rows(self, bad: BadRecords) -> Iterator[Row]:
        """See `LabelledSource`.

        Raises:
          LayoutError: a row is of another layout than the first one of its file.
        """
        for split, files in self.files.items():
            for path, layout in files:
                for where, cells in table_files.records(path, self.max_line_bytes, bad):
                    try:
                        yield Row(split, *layout.read(cells), where)
                    except FieldError as error:
                        _require_same(layout, cells, where)
                        bad.add(where, error.reason, str(error), str(dict(cells)))


def open_labelled(
    path: str, corpus: str = "", columns: ColumnNames | None = None, max_line_bytes: int = 1 << 24
) -> LabelledSource:
    """Opens labelled data, whatever its layout; reads the first row of each file.

    Args:
      path: a file, a folder of files, a `datasets` folder or a BEIR folder.
      corpus: a file of passages, or a folder with corpus.jsonl; "" for that in the folder, if any.
      columns: role -> column, see `column_layout.mapped`; None or empty to find out.
      max_line_bytes: longer lines are malformed.

    Raises:
      LayoutError: the layout is unknown, files are of several layouts, columns are swapped by
        their names, or it is a model; says what was found and what to write.
    """
    split_files.require_no_model(path)
    if beir_layout.is_beir(path):
        if corpus or columns:
            raise LayoutError(
                f"{path} is a BEIR folder, which has its own corpus.jsonl and no columns; found "
                f"LABELLED_CORPUS={corpus!r}, COLUMNS={dict(columns or {})}. Leave them out"
            )
        return beir_layout.BeirFolder(path, max_line_bytes)
    if corpus:
        found = corpus_files.find(corpus)
    else:
        found = corpus_files.in_folder(path) if os.path.isdir(path) else ""
    files = {
        split: [(file, _layout(file, columns or {}, max_line_bytes)) for file in names]
        for split, names in split_files.find(path).items()
    }
    _require_one_layout(files)
    return RowFiles(files, found, max_line_bytes)


def _layout(path: str, columns: ColumnNames, max_line_bytes: int) -> RowLayout:
    names = table_files.column_names(path, max_line_bytes)
    if columns:
        return column_layout.mapped(names, columns, path)
    found = _recognised(names, path)
    if found is None:
        raise LayoutError(
            f"{path}: expected {_KNOWN}; found the columns {names[:20]}. Rename them, or say "
            "which is which: COLUMNS=\"{'query': 'NAME', 'positive': 'NAME'}\", and 'negative': "
            "['NAME'] and 'score': 'NAME' where there are some"
        )
    return found


def _recognised(names: Sequence[str], path: str) -> RowLayout | None:
    lines = flag_embedding.recognise(names) or tevatron.recognise(names)
    return lines or column_layout.recognise(names, path)


def _require_one_layout(files: Mapping[str, Sequence[tuple[str, RowLayout]]]) -> None:
    """Numbers of negatives, and whether there are scores, may differ."""
    found: dict[tuple[str, ...], str] = {}
    for layouts in files.values():
        for path, layout in layouts:
            roles = layout.roles
            found.setdefault((type(layout).__name__, roles["query"], roles["positive"]), path)
    if len(found) > 1:
        seen = "; ".join(f"{path}: {', '.join(kind)}" for kind, path in found.items())
        raise LayoutError(f"expected files of one layout, found {seen}. Write all in the same one")


def _require_same(layout: RowLayout, cells: Cells, where: str) -> None:
    """Raises LayoutError for a row of another layout; a malformed one is none."""
    other = flag_embedding.recognise(list(cells)) or tevatron.recognise(list(cells))
    if other is not None and type(other) is not type(layout):
        raise LayoutError(
            f"{where}: expected a row like those before, {layout.name}, found one of "
            f"{other.name} with the fields {sorted(cells)}. Write all rows in the same layout"
        )
