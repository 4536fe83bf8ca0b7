"""MS MARCO's triples as the file of negatives that fine-tuning reads.

qidpidtriples.*.tsv    ids: query TAB relevant passage TAB passage that is not    (may be gzipped)
triples.*.tsv          the same by texts, out of which a collection is made, too
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator

from input_pipelines.sources import places, text_sources
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError

_log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 20

Ids = dict[str, None]  # a set that keeps its order

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "negatives_from_triples": {"name": "triple_negatives", "version": 1, "outputs": ["negatives"]}
}


def read_triples(path: str, texts: bool, bad: BadRecords) -> Iterator[tuple[str, str, str, int]]:
    """Yields (query, positive, negative, line) in file order, reporting malformed lines to `bad`.

    Args:
      path: the file.
      texts: whether columns are texts; else they are ids, without white space.
      bad: see there.
    """
    for number, line in text_sources.lines(path, _LINE_BYTES, bad):
        columns = [one.strip() if texts else one for one in line.split("\t")]
        whole = all(columns) if texts else all(one.split() == [one] for one in columns)
        if len(columns) != 3 or not whole:
            what = "texts" if texts else "ids"
            detail = (
                f"expected the {what} of a query, a passage that answers it and one that does not"
            )
            bad.add(f"{path}:{number}", "bad_triple", detail, line)
            continue
        yield columns[0], columns[1], columns[2], number


def name_of(text: str) -> str:
    """The id of a text of triples: a hash of its content, so that it is the same everywhere."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclasses.dataclass(frozen=True)
class Texts:
    """The different queries or passages of triples of texts, in the order of their first line."""

    triples: str
    queries: bool

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records; malformed lines count when passages are read."""
        seen: set[str] = set()
        counted = BadRecords.counted_before() if self.queries else bad
        for query, positive, negative, number in read_triples(self.triples, True, counted):
            for text in (query,) if self.queries else (positive, negative):
                if (name := name_of(text)) not in seen:
                    seen.add(name)
                    where = places.place(self.triples, f"{self.triples}:{number}")
                    yield Record(name, "", text, where)


@dataclasses.dataclass(frozen=True)
class Positives:
    """The judgements of triples of texts: each query's positives, all of relevance 1."""

    triples: str

    def judgements(self, bad: BadRecords) -> Iterator[tuple[str, str, int, str]]:
        """Yields (query, passage, relevance, "file:line"), each pair once."""
        seen: set[tuple[str, str]] = set()
        ignored = BadRecords.counted_before()
        for query, positive, _, number in read_triples(self.triples, True, ignored):
            pair = (name_of(query), name_of(positive))
            if pair not in seen:
                seen.add(pair)
                yield *pair, 1, f"{self.triples}:{number}"


def negatives_from_triples(
    triples: str, texts: bool, negatives: int, max_bad_records: int, model_dir: str
) -> dict[str, str]:
    """The job of a stage: one line a query, in the order in which queries first appear.

    Holds the ids of every query's positives and of its first `negatives` negatives, not the file.

    Args:
      triples: the file.
      texts: whether it holds texts, whose ids are `name_of` them; else ids.
      negatives: how many different ones are kept for a query, from the top of the file.
      max_bad_records: malformed lines that are passed over.
      model_dir: where `negatives.jsonl` appears, as from mining.

    Returns:
      {"negatives": the file}, relative to model_dir.

    Raises:
      SourceError: the file cannot be read or holds no triple, or too many lines are malformed.
      ValueError: `negatives` is below 1.
    """
    if negatives < 1:
        raise ValueError(
            f"negatives_from_triples.negatives: expected at least 1, found {negatives}"
        )
    found: dict[str, tuple[Ids, Ids]] = {}
    for *columns, _ in read_triples(
        triples, texts, BadRecords(max_bad_records, "triples.negatives_from_triples")
    ):
        query, positive, negative = map(name_of, columns) if texts else columns
        positives, kept = found.setdefault(query, ({}, {}))
        positives[positive] = None
        if len(kept) < negatives:
            kept[negative] = None
    if not found:
        raise SourceError(f"{triples}: holds no triples; expected query, positive, negative ids")
    with open(os.path.join(model_dir, "negatives.jsonl"), "w", encoding="utf-8") as file:
        for query, (positives, kept) in found.items():
            # What one triple calls wrong may be right in another.
            wrong = [name for name in kept if name not in positives]
            row = {"query_id": query, "positive_ids": list(positives), "negative_ids": wrong}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    _log.info("triples: %d queries", len(found))
    return {"negatives": "negatives.jsonl"}
