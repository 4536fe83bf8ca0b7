"""Stage: hard negatives for the queries of a split, as negatives.jsonl.

They are hits of BM25 or of a trained bi-encoder (`mining.candidates`). Queries are mined for in
parts; stopped and started again, the stage mines for the parts that are missing, and ends with the
bytes of a run that was not stopped. In several processes each mines for its share of a part, and
process 0 writes.
"""

import dataclasses
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
from absl import logging
from jax.experimental import multihost_utils

from t5x_style.distributed import progress, startup
from t5x_style.mining import hard_negatives, provenance
from t5x_style.mining.candidates import Candidates, MakeCandidates
from t5x_style.retrieval import resumable_parts, versioned_folder
from t5x_style.retrieval.beir_collection import (
    Passages,
    Qrels,
    find_qrels,
    has_judgements,
    read_qrels,
    read_queries,
)
from t5x_style.workflow import fingerprints

NEGATIVES = "negatives.jsonl"

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "mine": {
        "name": "mine",
        "version": 1,
        "outputs": ["negatives"],
        "program": True,
        "check": "check",
    }
}


def mine(
    corpus: str,
    split: str,
    candidates: MakeCandidates,
    settings: hard_negatives.MiningSettings,
    part_size: int,
    model_dir: str,
    most_queries: int = 0,
    given: str | None = None,
    teacher: str | None = None,
) -> dict[str, str]:
    """Writes a line for each query that the split judges, in the order of queries.jsonl.

    docs/mining.md describes the fields of a line, and the purpose of negatives.origin.json.

    Args:
      corpus: a folder in BEIR's layout.
      split: whose queries; never one that is evaluated on.
      candidates: what is searched: `candidates.Bm25` or `candidates.IndexSearch`.
      settings: which hits become negatives.
      part_size: queries in a part: what a kill costs at most.
      model_dir: where both files appear when they are complete.
      most_queries: mine for so many at most, spread evenly over the split; 0: for all.
      given: a file of the same lines, whose negatives come before those that are found; None: none.
      teacher: how the training learns from a teacher (TEACHER): lines then keep the
        `teacher_scores` of `given`. Negatives that are found have none. None: they are dropped.

    A split whose file holds no judgements gives an empty file, and a warning.

    Raises:
      hard_negatives.MiningError: not one query has a negative, or `given` no teacher's scores that
        are to be kept.
    """
    check(corpus, split, part_size, most_queries, given, teacher)
    if not has_judgements(corpus, split):
        logging.warning("mine: %s judges no %s queries: nothing to mine for", corpus, split)
        if jax.process_index() == 0:
            versioned_folder.write_atomically(Path(model_dir) / NEGATIVES, "")
        return {"negatives": NEGATIVES}
    passages, texts = Passages(corpus), read_queries(corpus)
    qrels = read_qrels(corpus, split, texts, passages)
    queries = _sample({q: text for q, text in texts.items() if q in qrels}, most_queries)
    first = jax.process_index() == 0
    if first:
        print(f"mine: {len(queries):,} queries, {len(passages):,} passages", file=sys.stderr)
    found = candidates(passages, queries)
    known = _given(given, qrels, passages) if given else {}
    taught = _taught(given, known) if given and teacher else {}
    used = {"split": split, **dataclasses.asdict(settings)}
    judged, answers = hard_negatives.judged_queries(queries, qrels, passages)
    content = [
        versioned_folder.sha256(passages.path),
        list(queries.items()),
        judged,
        sorted(answers),
        *([sorted(known.items())] if known else []),
        *([sorted(taught.items())] if taught else []),
    ]
    version = fingerprints.digest([found.version, used, content])
    job = resumable_parts.ResumableParts(model_dir, version, len(queries), part_size)
    _mine_parts(job, found, judged, settings, answers, known, taught)
    if first:
        print(hard_negatives.report(job.lines(), settings.negatives), file=sys.stderr)
        path = Path(model_dir) / NEGATIVES
        provenance.write(
            path, found.made_by, used, passages, queries
        )  # first: never one without it
        job.join(NEGATIVES)
    if jax.process_count() > 1:  # no process reports an end that the writer has not reached
        multihost_utils.sync_global_devices("mine: written")
    return {"negatives": NEGATIVES}


def check(
    corpus: str,
    split: str,
    part_size: int,
    most_queries: int,
    given: str | None = None,
    teacher: str | None = None,
) -> None:
    """Check arguments before `mine` runs; reads names of files only.

    Raises:
      ValueError: a number below its bound, or a teacher without given negatives.
      FileNotFoundError: the collection has no such split.
    """
    for name, value, smallest in (("part_size", part_size, 1), ("most_queries", most_queries, 0)):
        if value < smallest:
            raise ValueError(f"mine.{name}: expected at least {smallest}, found {value}")
    if teacher is not None and given is None:
        raise ValueError(
            f"TEACHER: negatives that are mined have no teacher's scores: expected None, or given "
            f"negatives with scores (mine.mine.given), found {teacher!r} without them. Leave "
            "TEACHER out here; docs/finetune.md has a command that learns from a teacher."
        )
    find_qrels(corpus, split)


def _sample(queries: dict[str, str], max_queries: int) -> dict[str, str]:
    if max_queries < 0:
        raise ValueError(f"mine.most_queries: expected 0, for all, or more, found {max_queries}")
    if not max_queries or len(queries) <= max_queries:
        return queries
    names = list(queries)
    chosen = [names[number * len(names) // max_queries] for number in range(max_queries)]
    return {name: queries[name] for name in chosen}


def _given(path: str, qrels: Qrels, passages: Passages) -> dict[str, list[int]]:
    """Query -> rows of the negatives that a file names for it, without its positives."""
    found = {}
    with open(path, "rb") as file:
        for line in file:
            record = json.loads(line)
            query, positives = record["query_id"], qrels.get(record["query_id"], {})
            rows = [passages.row(name) for name in record["negative_ids"] if name not in positives]
            if rows and positives:
                found[query] = rows
    return found


def _taught(path: str, known: Collection[str]) -> dict[str, dict[str, float]]:
    """Query -> passage -> a teacher's score, of the queries with known negatives.

    Raises MiningError where there are none.
    """
    found = {}
    with open(path, "rb") as file:
        for line in file:
            record = json.loads(line)
            if record["query_id"] in known and record.get("teacher_scores"):
                found[record["query_id"]] = dict(sorted(record["teacher_scores"].items()))
    if not found:
        raise hard_negatives.MiningError(
            f"{path}: expected a teacher's scores of the negatives that are given "
            "(teacher_scores), found none. Give scores with the data (docs/training_data.md), or "
            "leave TEACHER out."
        )
    return found


def _mine_parts(
    job: resumable_parts.ResumableParts,
    candidates: Candidates,
    judged: Sequence[hard_negatives.Judged],
    settings: hard_negatives.MiningSettings,
    answers: Collection[int],
    given: Mapping[str, Sequence[int]],
    taught: Mapping[str, Mapping[str, float]],
) -> None:
    """Mines for the parts that are missing, on all processes together."""
    first = jax.process_index() == 0
    missing = resumable_parts.agreed(job.missing() if first else [], len(job.bounds))
    if first and len(missing) < len(job.bounds):
        kept = len(job.bounds) - len(missing)
        print(f"mine: {kept} of {len(job.bounds)} parts are there", file=sys.stderr)
    shares = [resumable_parts.share(*job.bounds[number]) for number in missing]
    count = sum(end - start for start, end in shares)  # those of this process
    with progress.progress(count, "mine", "queries") as bar:
        for number, (start, end) in zip(missing, shares, strict=True):
            lines = []
            for one in hard_negatives.mine_negatives(
                candidates, judged[start:end], settings, answers, given
            ):
                lines.append(one.line(taught.get(one.query_id, {})))
                bar.update()
            lines = resumable_parts.gathered(lines)
            if first:
                job.write(number, lines)


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.mine.mine")
