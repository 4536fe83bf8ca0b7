"""Stage: BM25 hard negatives for the queries of a split, as negatives.jsonl."""

import collections
import sys
from pathlib import Path

import tqdm

from t5x_style.retrieval import bm25, mining
from t5x_style.retrieval.passages import Passages, read_qrels, read_queries

NEGATIVES = "negatives.jsonl"


def mine(
    corpus: str, split: str, settings: mining.MiningSettings, model_dir: str
) -> dict[str, str]:
    """Writes {"query_id", "positive_ids", "negative_ids", "negative_scores"}, one line a query.

    Args:
      corpus: a folder in BEIR's layout.
      split: whose queries; never one that is evaluated on.
      settings: which hits become negatives.
      model_dir: where negatives.jsonl appears when it is complete.
    """
    passages, queries = Passages(corpus), read_queries(corpus)
    qrels = read_qrels(corpus, split, queries, passages)
    print(f"mine: BM25 over {len(passages):,} passages", file=sys.stderr)
    mined = mining.mine_negatives(bm25.build(passages), queries, qrels, settings)
    skipped: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[int] = collections.Counter()
    folder = Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / (NEGATIVES + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for one in tqdm.tqdm(
            mined, desc="mine", total=len(qrels), unit="query", disable=not sys.stderr.isatty()
        ):
            file.write(one.line())
            skipped.update(one.skipped)
            counts[len(one.negative_ids)] += 1
    temporary.replace(folder / NEGATIVES)
    print(_report(counts, skipped, settings.negatives), file=sys.stderr)
    return {"negatives": NEGATIVES}


def _report(
    counts: collections.Counter[int], skipped: collections.Counter[str], wanted: int
) -> str:
    total = sum(counts.values())
    mean = sum(n * queries for n, queries in counts.items()) / total
    reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(skipped.items()))
    return (
        f"mine: {total:,} queries, {mean:.2f} negatives each of {wanted}, "
        f"{counts[0]:,} without any; hits passed over: {reasons}"
    )


if __name__ == "__main__":
    from t5x_style import stage

    stage.main("t5x_style.mine.mine")
