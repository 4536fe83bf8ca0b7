"""MS MARCO's and TREC's files: collection.tsv, queries.tsv, qrels (each may be gzipped).

collection.tsv, queries.*.tsv    id TAB text
qrels.*.tsv, TREC qrels          query 0 passage relevance, by tabs or spaces
qrels.json                       {query: {passage: relevance}}, as sparse retrievers' code has it
"""

import dataclasses
import json
from collections.abc import Iterator

from input_pipelines.sources import places, text_sources
from input_pipelines.sources.text_sources import BadRecords, Judgements, Record, SourceError


@dataclasses.dataclass(frozen=True)
class Tsv:
    """Passages or queries, one a line: id TAB text. An empty text is malformed."""

    path: str
    max_line_bytes: int = 1_000_000

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in file order, reporting malformed ones to `bad`."""
        unique = text_sources.UniqueIds()
        for number, line in text_sources.lines(self.path, self.max_line_bytes, bad):
            where = f"{self.path}:{number}"
            name, tab, text = line.partition("\t")
            if not tab or name.split() != [name] or not text.strip():
                bad.add(where, "not_id_tab_text", "expected an id, a tab and a text", line)
            elif before := unique.first(name, self.path, number):
                bad.add(where, "duplicate_id", f"id {name!r} was already given in {before}", line)
            else:
                yield Record(name, "", text.strip(), places.place(self.path, where))


@dataclasses.dataclass(frozen=True)
class TrecQrels:
    """Judgements in TREC's four columns; those of relevance 0 are kept, as judged and wrong."""

    path: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, "file:line"), reporting malformed lines to `bad`."""
        for number, line in text_sources.lines(self.path, 1 << 16, bad):
            columns, where = line.split(), f"{self.path}:{number}"
            if not columns:
                continue
            if len(columns) != 4 or not columns[3].lstrip("-").isdigit():
                detail = "expected query, iteration, passage and a whole relevance"
                bad.add(where, "bad_qrel", detail, line)
                continue
            yield columns[0], columns[2], int(columns[3]), where


@dataclasses.dataclass(frozen=True)
class JsonQrels:
    """Judgements as one JSON object of objects: query -> passage -> relevance."""

    path: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, file), reporting what is no judgement to `bad`.

        Raises:
          SourceError: the file is no such object.
        """
        with text_sources.open_binary(self.path) as file:
            try:
                found = json.load(file)
            except ValueError as error:
                raise SourceError(f"{self.path}: is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise SourceError(f"{self.path}: expected an object of queries, found {type(found)}")
        for query, judged in found.items():
            for passage, relevance in judged.items() if isinstance(judged, dict) else [("", None)]:
                if type(relevance) is int:
                    yield query, passage, relevance, self.path
                else:
                    detail = "expected passages of a query, each with a whole relevance"
                    bad.add(self.path, "bad_qrel", detail, f"{query}: {judged}"[:200])


def qrels(path: str) -> Judgements:
    """The judgements of a file: `JsonQrels` if it is named .json or .json.gz, else `TrecQrels`."""
    return JsonQrels(path) if path.removesuffix(".gz").endswith(".json") else TrecQrels(path)
