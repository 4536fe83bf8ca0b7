"""A BEIR folder as labelled data: corpus.jsonl, queries.jsonl and qrels of one split or several."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from input_pipelines.labelled import corpus_files
from input_pipelines.labelled.examples import NAMES, Judged, LayoutError, Row, Text
from input_pipelines.sources import beir, text_sources
from input_pipelines.sources.text_sources import BadRecords


def is_beir(path: str) -> bool:
    """Whether a path is a folder with queries.jsonl, which no other layout has."""
    names = ("queries.jsonl", "queries.jsonl.gz")
    return any(os.path.isfile(os.path.join(path, name)) for name in names)


@dataclass(frozen=True)
class BeirFolder:
    """See the module. A query stays under its id, and so does a passage whose text occurs again."""

    folder: str
    max_line_bytes: int
    layout: str = "BEIR folder"
    guessed: bool = False

    def __post_init__(self) -> None:
        beir.require_texts(self.folder, "corpus.jsonl")
        beir.require_texts(self.folder, "queries.jsonl")
        if not self._splits():
            raise LayoutError(
                f"{self.folder}: expected judgements, qrels/train.tsv, qrels/dev.tsv or "
                f"qrels/test.tsv (or qrels.train.tsv ...), found none; "
                f"{text_sources.found_in(self.folder)}"
            )

    @property
    def roles(self) -> Mapping[str, str]:
        """See `LabelledSource`."""
        return {"query": "queries.jsonl", "passage": "corpus.jsonl", "score": "qrels"}

    def passages(self, bad: BadRecords) -> Iterator[tuple[Text, str]]:
        """See `LabelledSource`."""
        path = beir.find(self.folder, "corpus.jsonl")
        return corpus_files.passages(path, self.max_line_bytes, bad)

    def rows(self, bad: BadRecords) -> Iterator[Row]:
        """Yields a row for each judgement; see `LabelledSource`."""
        queries = self._queries(bad)
        for name, split in self._splits().items():
            for qrel in beir.read_qrels(self.folder, name, bad):
                if qrel.query not in queries:
                    detail = f"this qrel names query {qrel.query!r}, which is not in queries.jsonl"
                    bad.add(qrel.where, "qrel_names_no_query", detail, qrel.query)
                    continue
                judged = Judged(Text("", qrel.passage), float(qrel.score))
                query = Text(queries[qrel.query], qrel.query)
                yield Row(split, query, (judged,), qrel.where)

    def _queries(self, bad: BadRecords) -> dict[str, str]:
        path = beir.find(self.folder, "queries.jsonl")
        source = text_sources.Jsonl([path], ["_id"], "", "text", "", self.max_line_bytes)
        return {record.id: record.text.strip() for record in source.records(bad)}

    def _splits(self) -> dict[str, str]:
        """Name of qrels -> split, those that are there."""
        return {name: split for name, split in NAMES.items() if self._judged(name)}

    def _judged(self, name: str) -> bool:
        paths = (f"qrels/{name}.tsv", f"qrels.{name}.tsv")
        return any(
            os.path.isfile(os.path.join(self.folder, path + end))
            for path in paths
            for end in ("", ".gz")
        )
