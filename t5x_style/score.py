"""Stage: a re-ranker's scores of mined passages, as scored.jsonl, for a student to learn from.

Queries are scored in parts; stopped and started again, the stage scores the parts that are missing,
and ends with the bytes of a run that was not stopped. In several processes each batch is spread
over all of them, and process 0 writes.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from t5x_style.checkpoints import restored_model
from t5x_style.distributed import startup
from t5x_style.interfaces.joint_texts import JointTexts
from t5x_style.mining import judged_negatives, pair_scoring, provenance
from t5x_style.retrieval import resumable_parts, versioned_folder
from t5x_style.workflow import fingerprints

SCORED = "scored.jsonl"

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "score": {
        "name": "score",
        "version": 1,
        "outputs": ["negatives"],
        "program": True,
        "check": "check",
    }
}


def score(
    model: restored_model.Trained,
    negatives: str,
    texts: JointTexts,
    depth: int,
    part_size: int,
    model_dir: str,
) -> dict[str, str]:
    """Writes the lines of a file of negatives with `teacher_scores`, {passage id: score}.

    docs/mining.md describes the fields of a line.

    Args:
      model: the re-ranker.
      negatives: what `mine` wrote, or a file by hand of the same form.
      texts: the stores of queries and passages.
      depth: how many negatives of a query are scored and kept, from the top.
      part_size: queries in a part: what a kill costs at most.
      model_dir: where scored.jsonl appears when it is complete, and its origin, if there is one.

    Raises:
      ScoreError: not one query has a negative, so that there is nothing to compare.
      ContractError: the texts were tokenized otherwise than the model's contract says.
      ValueError: a line that does not fit, see `JointTexts.mined`.
    """
    check(depth, part_size)
    pair_scoring.check_texts(texts, model.contract)
    lines = pair_scoring.read_lines(texts, negatives, depth)
    content = [
        model.fingerprint,
        versioned_folder.sha256(Path(negatives)),
        texts.fingerprint,
        depth,
    ]
    job = resumable_parts.ResumableParts(
        model_dir, fingerprints.digest(content), len(lines), part_size
    )
    first = jax.process_index() == 0
    missing = resumable_parts.agreed(job.missing() if first else [], len(job.bounds))
    if first and len(missing) < len(job.bounds):
        kept = len(job.bounds) - len(missing)
        print(f"score: {kept} of {len(job.bounds)} parts are there", file=sys.stderr)
    chosen = [lines[start:end] for start, end in (job.bounds[number] for number in missing)]
    for number, scored in zip(missing, _scored(model, texts, chosen), strict=True):
        if first:
            job.write(number, scored)
    if first:
        _write_origin(Path(negatives), Path(model_dir) / SCORED, model.fingerprint, depth)
        job.join(SCORED)
        _tell(Path(model_dir) / SCORED, _compared(negatives, texts))
    if jax.process_count() > 1:  # no process reports an end that the writer has not reached
        multihost_utils.sync_global_devices("score: written")
    return {"negatives": SCORED}


def check(depth: int, part_size: int) -> None:
    """Check arguments before `score` runs.

    Raises:
      ValueError: a number below 1.
    """
    for name, value in (("depth", depth), ("part_size", part_size)):
        if value < 1:
            raise ValueError(f"score.{name}: expected at least 1, found {value}")


def _scored(
    model: restored_model.Trained,
    texts: JointTexts,
    chosen: list[list[pair_scoring.Line]],
) -> Iterator[list[str]]:
    """The lines of scored.jsonl, part by part."""
    pairs = (pair_scoring.pairs_of(part) for part in chosen)
    count = sum(len(line.passages) for part in chosen for line in part)
    for part, scores in zip(chosen, model.score_parts(texts, pairs, count), strict=True):
        given = iter(scores.tolist())
        yield [_line(line, {name: next(given) for name in line.passages}) for line in part]


def _line(line: pair_scoring.Line, scores: dict[str, float]) -> str:
    record: dict[str, Any] = dataclasses.asdict(line)
    record["teacher_scores"] = {name: round(score, 6) for name, score in scores.items()}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _compared(negatives: str, texts: JointTexts) -> Mapping[str, Mapping[str, float]]:
    """Search scores of each query's passages; {} where they chose the negatives.

    With `max_score_ratio` no negative is above a positive by the search's scores, so that no
    re-ranker could be better.
    """
    origin = provenance.path_beside(negatives)
    chosen = origin.is_file() and provenance.read(negatives).settings.get("max_score_ratio")
    return {} if chosen else texts.searched(negatives)


def _tell(scored: Path, searched: Mapping[str, Mapping[str, float]]) -> None:
    """Prints how often a positive ranks first by the scores, and by the search that mined them."""
    places = []  # of each query: whether it does by the one, by the other
    with open(scored, encoding="utf-8") as file:
        for record in map(json.loads, file):
            before = searched.get(record["query_id"])
            if record["negative_ids"] and before:
                orders = (record["teacher_scores"], before)
                places.append([judged_negatives.positive_first(record, order) for order in orders])
    if not places:
        return
    ours, theirs = (sum(side) / len(places) for side in zip(*places, strict=True))
    print(
        f"score: a positive ranks first for {ours:.1%} of {len(places)} queries, by the search's "
        f"scores for {theirs:.1%}",
        file=sys.stderr,
    )
    if ours < theirs:
        print(
            "score: WARNING: this re-ranker orders them worse than the search that it is to "
            "better, and a student will learn that. Train it longer or from another start before "
            "you distill from it.",
            file=sys.stderr,
        )


def _write_origin(negatives: Path, scored: Path, teacher: str, depth: int) -> None:
    """The texts are those of the file that was scored; one by hand has no origin."""
    if not provenance.path_beside(negatives).is_file():
        provenance.path_beside(scored).unlink(missing_ok=True)
        return
    before = provenance.read(negatives)
    settings = before.settings | {"scored_by": teacher, "scored_depth": depth}
    provenance.save(scored, dataclasses.replace(before, settings=settings))


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.score.score")
