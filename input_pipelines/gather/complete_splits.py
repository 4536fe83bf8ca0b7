"""A BEIR folder in which every split has its file, whatever the original lacks.

Training, mining and evaluation ask for `train`, `dev` and `test`. Collections often lack one or
two. Here development queries are held out of the training queries where there are none, and a split
that stays without queries gets a file without lines: who reads it knows that nothing is judged.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence

from input_pipelines.gather.dev_split import BeirJudgements, HoldOutSplit
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords, SourceError

_log = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "complete_splits": {
        "name": "complete_splits",
        "version": 2,
        "outputs": ["corpus", "report"],
        "check": "check",
    }
}

Rows = Sequence[tuple[str, str, int]]  # query, passage, relevance


def complete_splits(
    corpus: str,
    dev_share: float,
    max_dev: int,
    min_train: int,
    max_bad_records: int,
    model_dir: str,
) -> dict[str, str]:
    """The job of a stage: copies a BEIR folder and completes its splits. The original is unchanged.

    Args:
      corpus: a BEIR folder with at least one file of qrels.
      dev_share: of the training queries, held out for development where there is no split 'dev'.
      max_dev: the most queries that are held out.
      min_train: with fewer training queries none are held out.
      max_bad_records: malformed lines of qrels that are skipped before the stage stops.
      model_dir: where `corpus/` appears.

    Returns:
      {"corpus": the folder, "report": how many queries each split has}, relative to model_dir.

    Raises:
      SourceError: no split is judged at all, or too many malformed lines.
      ValueError: a share that is not between 0 and 1, or a number below its bound.
    """
    check(corpus, dev_share, max_dev, max_bad_records)
    bad = BadRecords(max_bad_records, "complete_splits.complete_splits")
    found = {split: _rows(corpus, split, bad) for split in SPLITS}
    if not any(found.values()):
        raise _unjudged(corpus)
    judged = {split: len({query for query, *_ in rows}) for split, rows in found.items()}
    if not found["dev"] and judged["train"] >= max(min_train, 2):
        share = min(dev_share, max_dev / judged["train"])
        found["train"], found["dev"] = _divided(corpus, share)
        _log.warning(
            "%s has no development queries: %d of its %d training queries are held out",
            *(corpus, _count(found["dev"]), judged["train"]),
        )
    for split in ("train", "dev"):
        if not found[split]:
            _log.warning(
                "%s has no %s queries: %s",
                *(corpus, _NAMES[split], _CONSEQUENCES[split]),
            )
    folder = os.path.join(model_dir, "corpus")
    _write(folder, corpus, found)
    report = {"queries": {split: _count(rows) for split, rows in found.items()}}
    report["bad_records"] = dict(bad.counts)
    with open(os.path.join(model_dir, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    return {"corpus": "corpus", "report": "report.json"}


def check(corpus: str, dev_share: float, max_dev: int, max_bad_records: int) -> None:
    """Check arguments before the job runs; reads names of files only.

    Raises:
      SourceError, ValueError: see `complete_splits`.
    """
    BadRecords(max_bad_records)
    if not 0 < dev_share < 1:
        raise ValueError(
            "complete_splits.dev_share: expected the share of the training queries that is held "
            f"out, above 0 and below 1, found {dev_share}"
        )
    if max_dev < 1:
        raise ValueError(
            f"complete_splits.max_dev: expected at least 1, found {max_dev}. To hold nothing out, "
            "raise complete_splits.min_train"
        )
    beir.require_texts(corpus, "corpus.jsonl")
    if not any(_exists(path) for split in SPLITS for path in _paths(corpus, split)):
        raise _unjudged(corpus)
    beir.require_texts(corpus, "queries.jsonl")


def _unjudged(corpus: str) -> SourceError:
    return SourceError(
        f"{corpus}: expected judged queries, qrels/train.tsv, qrels/dev.tsv or qrels/test.tsv, "
        "found none. To train on text alone and search it, run recipes/text.gin, which needs "
        "corpus.jsonl only"
    )


_NAMES = {"train": "training", "dev": "development"}
_CONSEQUENCES = {
    "train": "the retriever learns from pairs made of the text alone",
    "dev": "the last checkpoint of a training is kept instead of the best",
}


def _count(rows: Rows) -> int:
    return len({query for query, *_ in rows})


def _rows(corpus: str, split: str, bad: BadRecords) -> Rows:
    """The judgements of a split; none where it has no file."""
    if not any(map(_exists, _paths(corpus, split))):
        return []
    return [(q.query, q.passage, q.score) for q in beir.read_qrels(corpus, split, bad)]


def _paths(corpus: str, split: str) -> list[str]:
    return [os.path.join(corpus, name) for name in (f"qrels/{split}.tsv", f"qrels.{split}.tsv")]


def _exists(path: str) -> bool:
    return os.path.isfile(path) or os.path.isfile(f"{path}.gz")


def _divided(corpus: str, share: float) -> tuple[Rows, Rows]:
    """Training and development judgements out of the training ones, whole queries."""
    base = BeirJudgements(corpus, "train")
    parts = (HoldOutSplit(base, share, held_out).judgements(BadRecords.counted_before())
             for held_out in (False, True))  # fmt: skip
    train, dev = ([(query, passage, score) for query, passage, score, _ in part] for part in parts)
    return train, dev


def _write(folder: str, corpus: str, found: Mapping[str, Rows]) -> None:
    os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        path = beir.find(corpus, name)
        shutil.copyfile(path, os.path.join(folder, os.path.basename(path)))
    for split, rows in found.items():
        with open(os.path.join(folder, "qrels", f"{split}.tsv"), "w", encoding="utf-8") as file:
            file.write("\t".join(beir.QRELS_HEADER) + "\n")
            file.writelines(f"{query}\t{passage}\t{score}\n" for query, passage, score in rows)
