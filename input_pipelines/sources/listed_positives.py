"""Judgements in the query's record, as a list of the passages that answer it: MLDR's.

A line is {"query_id", "query", "positive_passages": [{"docid", ...}, ...]}.
"""

import dataclasses
from collections.abc import Iterator

from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError, text_field


@dataclasses.dataclass(frozen=True)
class ListedPositives:
    """Judgements of jsonl whose lines name a query and list its passages.

    path: of the file. query_field: its id. list_field: the passages. passage_field: the id of each.
    max_line_bytes: a longer line is not parsed; it holds passages with their texts.
    """

    path: str
    query_field: str = "query_id"
    list_field: str = "positive_passages"
    passage_field: str = "docid"
    max_line_bytes: int = 1 << 28

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, 1, "file:line"), reporting malformed lines to `bad`."""
        for number, line, row in text_sources.json_lines(self.path, self.max_line_bytes, bad):
            where = f"{self.path}:{number}"
            try:
                query = text_field(row, self.query_field, is_id=True)
                passages = row.get(self.list_field)
                if not isinstance(passages, list) or not all(isinstance(p, dict) for p in passages):
                    detail = f"field {self.list_field!r}: expected a list of passages"
                    raise FieldError("wrong_type", detail)
                found = [text_field(one, self.passage_field, is_id=True) for one in passages]
            except FieldError as error:
                bad.add(where, error.reason, str(error), line[:200])
                continue
            yield from ((query, passage, 1, where) for passage in found)
