"""Passages of a corpus; rows name some of them by id, or repeat their texts."""

import os
from collections.abc import Iterator

from input_pipelines.labelled import examples, table_files
from input_pipelines.labelled.examples import Cells, LayoutError, Text
from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError, text_field

IDS = ("_id", "id", "docid", "doc_id", "passage_id", "corpus_id", "pid")
TEXTS = ("text", "passage", "contents", "content", "document")


def find(path: str) -> str:
    """The file of a corpus: the path itself or, of a folder, its corpus.jsonl (or .jsonl.gz ...).

    Raises:
      LayoutError: there is none.
    """
    if os.path.isfile(path) and table_files.ending(path):
        return path
    found = in_folder(path)
    if not found:
        raise LayoutError(
            f"{path}: expected a file of passages that ends in one of {list(table_files.ENDINGS)}, "
            f"or a folder with corpus.jsonl; {text_sources.found_in(path)}"
        )
    return found


def in_folder(path: str) -> str:
    """The file of a corpus in a folder, "" where there is none."""
    for end in table_files.ENDINGS:
        for name in (f"corpus{end}", f"corpus{end}.gz"):
            if os.path.isfile(os.path.join(path, name)):
                return os.path.join(path, name)
    return ""


def passages(path: str, max_line_bytes: int, bad: BadRecords) -> Iterator[tuple[Text, str]]:
    """Yields (passage, "file:line"), reporting to `bad` what has no text."""
    for where, cells in table_files.records(path, max_line_bytes, bad):
        try:
            yield _passage(cells), where
        except FieldError as error:
            bad.add(where, error.reason, str(error), str(dict(cells)))


def _passage(cells: Cells) -> Text:
    name = next((one for one in TEXTS if one in cells), TEXTS[0])
    title = text_field(cells, "title") if cells.get("title") else ""
    text = text_field(cells, name)  # may be empty where there is a title
    if not (text.strip() or title.strip()):
        raise FieldError("empty_field", f"field {name!r}: expected a text, found an empty one")
    return Text(text, examples.optional_id(cells, *IDS), title)
