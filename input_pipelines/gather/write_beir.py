"""Any collection as a BEIR folder, which mining, fine-tuning and evaluation read."""

import json
import logging
import os
from collections.abc import Mapping

from input_pipelines.sources.text_sources import (
    BadRecords,
    Judgements,
    Record,
    SourceError,
    TextSource,
    UniqueIds,
)
from input_pipelines.store.token_store import TokenStore

_log = logging.getLogger(__name__)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "write_collection": {"name": "collection", "version": 2, "outputs": ["corpus", "report"]},
    "write_blocks": {"name": "block_collection", "version": 1, "outputs": ["corpus"]},
}


def write_collection(
    passages: TextSource,
    queries: TextSource,
    judgements: Mapping[str, Judgements],
    max_bad_records: int,
    model_dir: str,
) -> dict[str, str]:
    """The job of a stage: writes corpus.jsonl, queries.jsonl and qrels/<split>.tsv, streaming.

    Queries that no split judges are left out, and from a split those of which nothing is relevant:
    every metric would be 0 whatever the system. A judgement that names what is not there, or that
    was given before, is a malformed record.

    Args:
      passages, queries: with ids that the judgements name.
      judgements: split ('train', 'dev', 'test') -> judgements.
      max_bad_records: how many malformed records are passed over, all files together.
      model_dir: where `corpus/` appears.

    Returns:
      {"corpus": the folder, "report": counts and what was passed over}, relative to model_dir.

    Raises:
      SourceError: something cannot be read, there are more malformed records than allowed, or a
        split comes out empty.
    """
    folder = os.path.join(model_dir, "corpus")
    os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
    bad = BadRecords(max_bad_records, "write_beir.write_collection")
    known = _Written(os.path.join(folder, "corpus.jsonl"), passages, bad)
    counts, unanswered = {}, {}
    judged: set[str] = set()
    asked = {record.id for record in queries.records(BadRecords.counted_before())}
    for split, given in judgements.items():
        qrels, unanswered[split] = _answered(given, asked, known, bad)
        if not qrels:
            raise SourceError(
                f"split {split!r} comes out empty: of {unanswered[split]} queries that it judges "
                "none has a relevant passage here. Give it other judgements or, where it is held "
                "out of another split, another share; or leave it out of "
                "write_collection.judgements"
            )
        counts[split] = _write_qrels(folder, split, qrels)
        judged |= qrels.keys()
    written = _Written(os.path.join(folder, "queries.jsonl"), queries, bad, judged)
    report = {
        "passages": known.count,
        "queries": written.count,
        "judgements": counts,
        "queries_without_answer": unanswered,
        "bad_records": dict(bad.counts),
        "examples": bad.examples,
    }
    with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    _log.info("collection: %s", {k: v for k, v in report.items() if k != "examples"})
    return {"corpus": "corpus", "report": "corpus/report.json"}


def write_blocks(store: str, model_dir: str) -> dict[str, str]:
    """The job of a stage: the rows of a token store as passages, one each, `corpus/corpus.jsonl`.

    For what searches or reads the blocks themselves, instead of the documents they are of.

    Args:
      store: a token store.
      model_dir: where `corpus/` appears.

    Returns:
      {"corpus": the folder}, relative to model_dir.
    """
    folder = os.path.join(model_dir, "corpus")
    os.makedirs(folder, exist_ok=True)
    opened = TokenStore.open(store)
    with open(os.path.join(folder, "corpus.jsonl"), "w", encoding="utf-8") as file:
        for row in range(len(opened)):
            text = opened.text(row)
            record = _row(Record(text.id, text.title, text.text, text.source))
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return {"corpus": "corpus"}


class _Written:
    """A source written as jsonl; remembers a hash of each id."""

    def __init__(
        self, path: str, source: TextSource, bad: BadRecords, only: set[str] | None = None
    ) -> None:
        self.count = 0
        self._ids = UniqueIds()
        with open(path, "w", encoding="utf-8") as file:
            for record in source.records(bad):
                if only is None or record.id in only:
                    self.count += 1
                    self._ids.first(record.id, path, self.count)
                    file.write(json.dumps(_row(record), ensure_ascii=False) + "\n")

    def __contains__(self, name: str) -> bool:
        return self._ids.knows(name)


def _row(record: Record) -> dict[str, str]:
    title = {"title": record.title} if record.title else {}
    return {"_id": record.id, **title, "text": record.text}


def _answered(
    given: Judgements, asked: set[str], known: _Written, bad: BadRecords
) -> tuple[dict[str, dict[str, int]], int]:
    """Query -> passage -> relevance, and how many queries were left out for want of an answer."""
    found: dict[str, dict[str, int]] = {}
    for query, passage, relevance, where in given.judgements(bad):
        if query not in asked:
            detail = f"this judgement names query {query!r}, which is not there"
            bad.add(where, "qrel_names_no_query", detail, query)
        elif passage not in known:
            detail = f"this judgement names passage {passage!r}, which is not there"
            bad.add(where, "qrel_names_no_passage", detail, passage)
        elif passage in found.setdefault(query, {}):
            detail = f"query {query!r} and passage {passage!r} were judged before"
            bad.add(where, "judged_twice", detail, f"{query} {passage} {relevance}")
        else:
            found[query][passage] = relevance
    kept = {query: judged for query, judged in found.items() if max(judged.values(), default=0) > 0}
    return kept, len(found) - len(kept)


def _write_qrels(folder: str, split: str, qrels: Mapping[str, Mapping[str, int]]) -> int:
    """Writes one split; returns the number of its judgements."""
    with open(os.path.join(folder, "qrels", f"{split}.tsv"), "w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for query, judged in qrels.items():
            file.writelines(f"{query}\t{passage}\t{score}\n" for passage, score in judged.items())
    return sum(map(len, qrels.values()))
