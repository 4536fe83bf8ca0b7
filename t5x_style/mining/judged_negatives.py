"""Stage: mined negatives without those that a re-ranker finds as good as the answer.

A search that ranks by one vector a text cannot see that a passage answers the query, too; a
re-ranker reads both at once (RocketQA's denoised negatives, arXiv:2010.08191). Scores of re-rankers
have no common scale, so that a negative is compared with the query's best positive.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5x_style.mining import provenance
from t5x_style.retrieval import versioned_folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "judged_negatives": {
        "name": "judged_negatives",
        "version": 1,
        "outputs": ["negatives"],
        "check": "check",
    }
}
NEGATIVES = "negatives.jsonl"

Line = Mapping[str, Any]


class JudgeError(ValueError):
    """A file without scores, or a judge that leaves nothing to train on."""


def judged_negatives(scored: str, margin: float, model_dir: str) -> dict[str, str]:
    """Writes the lines of a scored file with fewer negatives, and prints how many are left out.

    A negative stays if its score is below that of the query's best positive, less `margin`. A
    query may be left without negatives: its others are then those of its batch, and random ones.

    Args:
      scored: scored.jsonl of `t5x_style.score`; lines that are not scored are an error.
      margin: in the scores of the re-ranker, which are logits; above 0 leaves out more.
      model_dir: where negatives.jsonl goes, with its origin if the scored file has one.

    Raises:
      ValueError: `margin` is not a number.
      JudgeError: a line without scores; or no query has a negative left.
    """
    check(margin)
    before = list(_lines(scored))
    after = [_judged(line, margin) for line in before]
    first = sum(positive_first(line, line["teacher_scores"]) for line in before)
    counts = [sum(len(line["negative_ids"]) for line in lines) for lines in (before, after)]
    bare = sum(not line["negative_ids"] for line in after)
    if not counts[1]:
        raise JudgeError(
            f"{scored}: the judge finds each of {counts[0]} negatives as good as the answer "
            f"(within {margin}), so that there is none to train with. Is it a re-ranker for such "
            "texts? Lower JUDGE_MARGIN, or leave the judge out"
        )
    print(
        f"judge: {counts[0] - counts[1]:,} of {counts[0]:,} negatives are left out, being as good "
        f"as the answer; {bare:,} of {len(after):,} queries have none. The judge has a positive "
        f"first for {first / len(before):.0%} of the queries",
        file=sys.stderr,
    )
    path = Path(model_dir) / NEGATIVES
    if provenance.path_beside(scored).is_file():
        origin = provenance.read(scored)
        settings = origin.settings | {"judge_margin": margin}
        provenance.save(path, dataclasses.replace(origin, settings=settings))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in after)
    versioned_folder.write_atomically(path, text)
    return {"negatives": NEGATIVES}


def check(margin: float) -> None:
    """Check arguments before the job runs; ValueError for no number."""
    if not math.isfinite(margin):
        raise ValueError(f"judged_negatives.margin: expected a number, found {margin}")


def positive_first(line: Line, scores: Mapping[str, float]) -> bool:
    """Whether a positive of a line scores above all of its negatives."""
    best = max(scores[name] for name in line["positive_ids"])
    return all(scores[name] < best for name in line["negative_ids"])


def _lines(scored: str) -> Iterator[Line]:
    with open(scored, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            line = json.loads(text)
            named = [*line["positive_ids"], *line["negative_ids"]]
            missing = [name for name in named if name not in line.get("teacher_scores", {})]
            if missing or not line["positive_ids"]:
                raise JudgeError(
                    f"{scored}, line {number}: expected a query with a positive, and "
                    f"teacher_scores of all its passages, found none of {missing[:3]}. Run "
                    "t5x_style.score on the file of negatives"
                )
            yield line


def _judged(line: Line, margin: float) -> Line:
    scores = line["teacher_scores"]
    limit = max(scores[name] for name in line["positive_ids"]) - margin
    kept = [name for name in line["negative_ids"] if scores[name] < limit]
    return {
        "query_id": line["query_id"],
        "positive_ids": line["positive_ids"],
        "negative_ids": kept,
    }
