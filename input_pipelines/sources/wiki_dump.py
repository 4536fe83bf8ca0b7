"""Articles of a Wikipedia dump as WikiExtractor writes them, in its text form.

    <doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">
    Anarchism

    Anarchism is a political philosophy ...
    </doc>

Its other form, JSON lines, is what `text_sources.Jsonl` reads.
"""

import dataclasses
import html
import os
import re
from collections.abc import Iterator

from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, Record

_OPENS = re.compile(r"<doc (.*)>")
_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=\s|$)')


@dataclasses.dataclass(frozen=True)
class WikiExtracted:
    """Every article of a folder of such files, or of one file.

    Attributes:
      path: the folder (its files in the order of their names, each may be gzipped) or the file.
      max_line_bytes: longer lines are passed over; a line is a paragraph.
    """

    path: str
    max_line_bytes: int = 1_000_000

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the articles, reporting what is none to `bad`."""
        unique = text_sources.UniqueIds()
        for path in text_sources.files_of(self.path):
            folder = self.path if path != self.path else os.path.dirname(path)
            inside = os.path.relpath(path, folder or ".")
            for number, attributes, lines in self._documents(path, bad):
                where = f"{path}:{number}"
                name, title = attributes.get("id", ""), attributes.get("title", "")
                if not name or not title:
                    detail = "expected <doc> with an id and a title"
                    bad.add(where, "doc_without_id_or_title", detail, str(attributes))
                elif before := unique.first(name, path, number):
                    bad.add(
                        where, "duplicate_id", f"id {name!r} was already given in {before}", name
                    )
                else:
                    # The first line repeats the title.
                    body = lines[1:] if lines and lines[0].strip() == title else lines
                    yield Record(name, title, "\n".join(body).strip(), f"{inside}:{number}")

    def _documents(
        self, path: str, bad: BadRecords
    ) -> Iterator[tuple[int, dict[str, str], list[str]]]:
        """(line where it begins, attributes, lines) of each document that is closed."""
        begun: tuple[int, dict[str, str], list[str]] | None = None
        for number, line in text_sources.lines(path, self.max_line_bytes, bad):
            opens = _OPENS.fullmatch(line.strip())
            if opens is None and line.strip() != "</doc>":
                if begun is not None:
                    begun[2].append(line)
                elif line.strip():
                    detail = "expected <doc ...> before any text"
                    bad.add(f"{path}:{number}", "text_outside_doc", detail, line)
                continue
            if opens is None and begun is not None:
                yield begun
            elif opens is None:
                bad.add(f"{path}:{number}", "doc_not_opened", "</doc> without <doc ...>", line)
            elif begun is not None:
                _not_closed(path, begun[0], bad)
            begun = None if opens is None else (number, _attributes(opens[1]), [])
        if begun is not None:
            _not_closed(path, begun[0], bad)


def _not_closed(path: str, number: int, bad: BadRecords) -> None:
    bad.add(f"{path}:{number}", "doc_not_closed", "expected </doc>; the file may be cut", "")


def _attributes(text: str) -> dict[str, str]:
    return {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(text)}
