"""MS MARCO's triples of ids as the file of negatives that fine-tuning reads.

qidpidtriples.*.tsv    query TAB relevant passage TAB passage that is not    (may be gzipped)
"""

import json
import logging
import os
from collections.abc import Iterator

from input_pipelines import sources
from input_pipelines.sources import BadRecords, SourceError

_log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 16

Ids = dict[str, None]  # a set that keeps its order


def read_triples(path: str, bad: BadRecords) -> Iterator[tuple[str, str, str]]:
    """Yields (query, positive, negative) in file order, telling `bad` of malformed lines."""
    for number, line in sources.lines(path, _LINE_BYTES, bad):
        columns = line.split("\t")
        if len(columns) != 3 or any(column.split() != [column] for column in columns):
            detail = "expected the ids of a query, a passage that answers it and one that does not"
            bad.add(f"{path}:{number}", "bad_triple", detail, line)
            continue
        yield columns[0], columns[1], columns[2]


def negatives_from_triples(
    triples: str, negatives: int, max_bad_records: int, model_dir: str
) -> dict[str, str]:
    """The job of a stage: one line a query, in the order in which queries first appear.

    Holds the ids of every query's positives and of its first `negatives` negatives, not the file.

    Args:
      triples: the file.
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
    for query, positive, negative in read_triples(triples, BadRecords(max_bad_records)):
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
