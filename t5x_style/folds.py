"""One verdict on a cross-validation: several fine-tunings, each with other test queries.

    python -m t5x_style.folds runs/mine/folds --folds=5      # fold_0 to fold_4 are finished runs

A small collection has too few queries to hold enough of them back. With folds each is tested once,
by a model that has not seen it, and the differences of all are put together. With `--repeats=3` the
queries were divided three times (repeat_1/fold_0 and so on are the later runs), and the score of a
query is the mean over its three models. `kennel finetune --folds=5` makes the runs and calls
this. Written are verdict.json, summary.md, metrics.json and per_query.json.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_style.evaluation import comparison, query_groups, ranking
from t5x_style.fine_tuning import verdict
from t5x_style.retrieval import beir_collection

SAMPLES, SEED = 10_000, 0  # of the bootstrap, as of a single verdict
Report = Mapping[str, Any]


class FoldError(ValueError):
    """Runs that are not the folds of one cross-validation."""


class Fold(NamedTuple):
    """Results of a finished run."""

    folder: Path
    verdict: Report
    metrics: Report
    per_query: Report
    data: Report

    @classmethod
    def read(cls, folder: Path) -> "Fold":
        """Of its folder; FoldError if it has not come to its verdict."""
        files = ("verdict/verdict.json", "evaluation/metrics.json", "evaluation/per_query.json")
        found = []
        for name in (*files, "collection/report.json"):
            if not (folder / name).is_file():
                raise FoldError(
                    f"{folder}: expected a run with its verdict, found no {name}. Run kennel "
                    "finetune --folds, which continues it."
                )
            found.append(json.loads((folder / name).read_text(encoding="utf-8")))
        return cls(folder, *found)

    def groups(self) -> list[str]:
        """The passage that each test query asks for."""
        corpus = str(self.folder / "collection/corpus")
        passages = beir_collection.Passages(corpus)
        texts = beir_collection.read_queries(corpus)
        qrels = beir_collection.read_qrels(corpus, "test", texts, passages)
        return query_groups.best_passages(self.per_query["queries"], qrels)


def pool(run_dir: Path, count: int, repeats: int = 1) -> dict[str, Any]:
    """Puts `count` folds together, of each repeat; returns what verdict.json says.

    Raises:
      FoldError: fewer than two folds or no repeat, a fold without a verdict, folds of a repeat that
        share test queries or have other systems, or repeats of other queries.
    """
    if count < 2 or repeats < 1:
        raise FoldError(
            f"expected --folds of 2 or more and --repeats of 1 or more, found {count} and {repeats}"
        )
    places = [run_dir, *(run_dir / f"repeat_{repeat}" for repeat in range(1, repeats))]
    rounds = [[Fold.read(place / f"fold_{number}") for number in range(count)] for place in places]
    _require_rounds(rounds)
    folds = [fold for each in rounds for fold in each]
    first, groups = folds[0], _groups(rounds[0])
    scores = {name: _mean_scores(rounds, name) for name in first.per_query["systems"]}
    pairs = [(one["one"], one["other"]) for one in first.metrics["compared"]]
    baseline = first.verdict["baseline"]
    results = {
        "split": "test",
        **comparison.compare(scores, baseline, pairs, SAMPLES, SEED, groups),
        "grouped_by": "ByPassage()",
        "passages": first.metrics["passages"],
    }
    comparison.write(run_dir, results, scores, groups)
    data = {**first.data, "notes": _notes(folds), "overlap": {"test": _overlap(folds)}}
    per_query = json.loads((run_dir / "per_query.json").read_text(encoding="utf-8"))
    named = (first.verdict["system"], baseline, first.verdict["metric"])
    found = verdict.record(
        results, per_query, data, *named, SAMPLES, SEED, enough=("test",), path=str(run_dir)
    )
    found["folds"] = [
        {"n": fold.metrics["n"], "difference": fold.verdict["difference"], "repeat": repeat}
        for repeat, each in enumerate(rounds)
        for fold in each
    ]
    found |= _weighed(folds)
    verdict.write(run_dir, found, data)
    (run_dir / "verdict.md").rename(run_dir / "summary.md")
    return found


def _weighed(folds: Sequence["Fold"]) -> dict[str, Any]:
    """As in verdict.json of a fold, with the mean `weight`, and `weights` of all; {} if no sum."""
    each = [fold.verdict["weighed"] for fold in folds if fold.verdict.get("weighed")]
    if not each:
        return {}
    weights = [one["weight"] for one in each]
    return {"weighed": each[0] | {"weight": sum(weights) / len(weights), "weights": weights}}


def _require_rounds(rounds: Sequence[Sequence[Fold]]) -> None:
    for folds in rounds:
        _require_folds(folds, rounds[0][0])
    tested = [{q for fold in folds for q in fold.per_query["queries"]} for folds in rounds]
    for folds, queries in zip(rounds, tested, strict=True):
        if queries != tested[0]:
            raise FoldError(
                f"{folds[0].folder.parent}: expected the {len(tested[0])} test queries of "
                f"{rounds[0][0].folder.parent}, found {len(queries)}, {len(queries & tested[0])} "
                "of them the same. Run kennel finetune --folds again."
            )


def _require_folds(folds: Sequence[Fold], first: Fold) -> None:
    seen: dict[str, Fold] = {}
    for fold in folds:
        systems = [set(one.per_query["systems"]) for one in (fold, first)]
        if systems[0] != systems[1]:
            raise FoldError(
                f"{fold.folder}: expected the systems of {first.folder}, {sorted(systems[1])}, "
                f"found {sorted(systems[0])}. Run kennel finetune --folds again."
            )
        for query in fold.per_query["queries"]:
            if query in seen:
                raise FoldError(
                    f"{fold.folder} and {seen[query].folder}: expected each query tested once, "
                    f"found {query!r} in both. Run kennel finetune --folds again: it repeats "
                    "folds of other data or of another number of folds."
                )
            seen[query] = fold


def _scores(folds: Sequence[Fold], system: str) -> ranking.Scores:
    """Of the test queries of all folds, sorted."""
    queries = [query for fold in folds for query in fold.per_query["queries"]]
    order = np.argsort(queries)
    values = {
        metric: np.concatenate([fold.per_query["systems"][system][metric] for fold in folds])[order]
        for metric in folds[0].per_query["systems"][system]
    }
    return ranking.Scores(tuple(queries[place] for place in order), values)


def _mean_scores(rounds: Sequence[Sequence[Fold]], system: str) -> ranking.Scores:
    """The mean of `_scores` over repeats."""
    found = [_scores(folds, system) for folds in rounds]
    values = {
        metric: np.mean([one.values[metric] for one in found], axis=0) for metric in found[0].values
    }
    return ranking.Scores(found[0].queries, values)


def _notes(folds: Sequence[Fold]) -> list[str]:
    """Of the folds' divisions, each once; few development queries are no matter here."""
    notes = dict.fromkeys(note for fold in folds for note in fold.data.get("notes", ()))
    return [note for note in notes if "too few for a verdict" not in note]


def _groups(folds: Sequence[Fold]) -> np.ndarray:
    """[n] int64: a number of the passage that each query of `_scores` asks for."""
    asked = {
        query: passage
        for fold in folds
        for query, passage in zip(fold.per_query["queries"], fold.groups(), strict=True)
    }
    _, numbers = np.unique([asked[query] for query in sorted(asked)], return_inverse=True)
    return numbers.astype(np.int64)


def _overlap(folds: Sequence[Fold]) -> dict[str, list[str]]:
    """Test queries whose passage is also in the training of a fold of theirs, and the others."""
    shared, apart = (
        {query for fold in folds for query in fold.data["overlap"]["test"][part]}
        for part in ("shared", "apart")
    )
    return {"shared": sorted(shared), "apart": sorted(apart - shared)}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="t5x_style.folds", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder with the runs fold_0, fold_1 and so on")
    parser.add_argument("--folds", type=int, required=True, help="how many")
    parser.add_argument("--repeats", type=int, default=1, help="how many divisions; default: 1")
    given = parser.parse_args(argv)
    try:
        pool(given.run_dir, given.folds, given.repeats)
    except FoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
