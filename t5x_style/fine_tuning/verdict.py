"""Stage: test whether a fine-tuned encoder is better than its initial model.

It follows from the paired difference of one metric on held-out queries (bootstrap, see
`evaluation.significance`):

    better          the 95 % interval lies above 0
    worse           it lies below 0
    no difference   it contains 0
    no verdict      fewer than `LEAST_QUERIES` development or test queries, or test queries of
                    fewer than `LEAST_GROUPS` relevant passages
"""

import json
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from t5x_style.evaluation import ranking, score_files, significance
from t5x_style.fine_tuning import verdict_page
from t5x_style.interfaces import verdict_record
from t5x_style.retrieval import beir_collection

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "verdict": {"name": "verdict", "version": 6, "outputs": ["page", "verdict"], "check": "check"}
}
LEAST_QUERIES = 200  # with fewer, a difference of two systems is hardly ever significant
LEAST_GROUPS = 50  # resampling fewer gives intervals that are too narrow
ROUNDING = 1e-9  # of sums in another order: less is no difference

Report = Mapping[str, Any]  # metrics.json, or another JSON object


class LongTexts(Protocol):
    """Attributes:
    length: tokens of a text that a model reads at most.
    ids: of the texts with so many tokens or more.
    """

    @property
    def length(self) -> int: ...
    @property
    def ids(self) -> AbstractSet[str]: ...


def verdict(
    evaluation: str,
    per_query: str,
    collection: str,
    tuned: str,
    original: str,
    metric: str,
    model_dir: str,
    interpolation: str | None = None,
    suspects: str | None = None,
    others: Mapping[str, str] = types.MappingProxyType({}),
    short: Mapping[str, str] = types.MappingProxyType({}),
    samples: int = 10_000,
    seed: int = 0,
    long_passages: LongTexts | None = None,
    corpus: str | None = None,
    measured: Sequence[str] | None = None,
    systems: Sequence[str] | None = None,
) -> dict[str, str]:
    """Writes verdict.json and verdict.md, and prints the verdict.

    verdict.json: {"line", "verdict", "metric", "system", "baseline", "difference", "low", "high",
    "p", "queries": {split: n}, "passages", "systems": {system: {metric: {"value", "low", "high"}}},
    "parts": {"shared" | "apart": {"n", "systems": {system: value}, "difference", "low", "high"}},
    "others": {collection: {"queries", "passages", "systems", "difference", "low", "high"}},
    "others_not_measured": true where other collections could have been measured and none was given,
    "interpolation": share or null, "suspects": report.json of `suspects` or null, "data": {"name",
    "sha256"}}; where short vectors were measured, "short": as "others", by their length; where
    `tuned` adds the scores of two systems, "weighed": {"first", "second", "weight" of the first,
    "hits" or null, "queries", and "tuned_on", their split}; where the model may not read all of a
    test query's passage, "long": {"tokens", "passages", "parts": {"long" | "whole": as above}}.

    Args:
      evaluation, per_query: metrics.json and per_query.json of an evaluation that has `original`
        for its baseline.
      collection: report.json of the labelled collection.
      tuned, original: names of the two systems.
      metric: that decides.
      model_dir: where both files go.
      suspects: report.json of `t5x_style.suspects`; None: nobody looked for wrong pairs.
      interpolation: interpolation.json; None: the tuned weights are as trained.
      others: scores.json of `forgetting` of both systems, by their names; {}: nothing can be
        measured elsewhere.
      short: scores.json of `evaluate_short_vectors` of both systems, in the same way.
      samples, seed: of the bootstrap.
      long_passages: those that the model may not have read to their end; None: nobody asked.
      corpus: folder of the labelled collection, for the judgements; needed with `long_passages`.
      measured: metrics that the evaluation will have, for `check`; None: not known before it.
      systems: names that `tuned` may be, in the same way.

    Returns:
      {"verdict": verdict.json, "page": verdict.md}.

    Raises:
      ValueError: the evaluation lacks a system or the metric, or has another baseline;
        `long_passages` comes without `corpus`.
    """
    check(metric, measured, tuned, systems)
    if long_passages is not None and corpus is None:
        raise ValueError("verdict.corpus: expected a folder, which long_passages needs")
    results, data = _read(evaluation), _read(collection)

    def compared(files: Mapping[str, str], where: str) -> dict[str, Any]:
        return score_files.compared(files, tuned, original, metric, samples, seed, where)

    elsewhere = compared(others, "verdict.others")
    found = record(
        results, _read(per_query), data, tuned, original, metric, samples, seed, path=evaluation
    ) | {
        "others": elsewhere,
        "others_not_measured": bool(others) and not elsewhere,
        "interpolation": _read(interpolation)["share"] if interpolation else None,
        "suspects": _read(suspects) if suspects else None,
    }
    if short:
        found["short"] = compared(short, "verdict.short")
    if long_passages is not None and corpus is not None:
        found |= _long(_read(per_query), long_passages, corpus, found, samples, seed)
    write(Path(model_dir), found, data)
    return {"verdict": "verdict.json", "page": "verdict.md"}


def record(
    results: Report,
    per_query: Report,
    data: Report,
    tuned: str,
    original: str,
    metric: str,
    samples: int,
    seed: int,
    enough: Sequence[str] = ("dev", "test"),
    path: str = "the evaluation",
) -> dict[str, Any]:
    """Entry of verdict.json for the test queries.

    Args:
      results, per_query, data: content of the files that `verdict` reads.
      tuned, original, metric, samples, seed: as there.
      enough: splits that need `LEAST_QUERIES`.
      path: where `results` comes from, for messages.

    Raises:
      ValueError: as `verdict`.
    """
    test = _test(results, tuned, original, metric, path)
    overlap = {part: data["overlap"]["test"][part] for part in ("shared", "apart")}
    counts = {**data["splits"], "test": results["n"]}
    word, why = decide(test, counts, results["groups"], enough)
    return {
        "line": f"VERDICT {word}: {_sentence(tuned, original, metric, test, results['n'])}{why}",
        "verdict": word,
        "metric": metric,
        "system": tuned,
        "baseline": original,
        **{name: test[name] for name in ("difference", "low", "high", "p")},
        "queries": counts,
        "passages": results["passages"],
        "systems": results["systems"],
        "parts": _parts(per_query, overlap, (tuned, original), metric, samples, seed),
        "others": {},
        "interpolation": None,
        "suspects": None,
        "data": {"name": data["path"], "sha256": data["sha256"]},
        **_weighed(results.get("facts", {}).get(tuned, {})),
    }


def _weighed(facts: Report) -> dict[str, Any]:
    """Entry of verdict.json on a system that adds the scores of two; {} for another.

    Args:
      facts: of the system, as `retrieval_systems.Fusion` writes them.
    """
    if facts.get("weight_of_first") is None:
        return {}
    first, second = facts["of"]
    found = {"first": first, "second": second, "weight": facts["weight_of_first"]}
    found |= {"hits": facts.get("reranked")}
    return {"weighed": found | {name: facts[name] for name in ("queries", "tuned_on")}}


def write(folder: Path, found: Report, data: Report) -> None:
    """Writes verdict.json and verdict.md, and prints the first line."""
    (folder / "verdict.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "verdict.md").write_text(verdict_page.page(found, data), encoding="utf-8")
    print(found["line"], flush=True)


def check(
    metric: str,
    measured: Sequence[str] | None,
    tuned: str,
    systems: Sequence[str] | None = None,
) -> None:
    """Check arguments before `verdict` runs.

    Raises:
      MetricError: an unknown metric.
      ValueError: a metric or a system that the evaluation will not have.
    """
    if systems is not None and tuned not in systems:
        raise ValueError(f"verdict.tuned: expected one of {list(systems)}, found {tuned!r}")
    ranking.measure(metric)
    if measured is not None and metric not in measured:
        raise ValueError(
            f"verdict.metric: expected one of those that the evaluation measures, "
            f"{list(measured)}, found {metric!r}. Add it to them: "
            f'METRICS="{[*measured, metric]}"'
        )


def decide(
    test: Mapping[str, float],
    counts: Mapping[str, int],
    groups: int,
    enough: Sequence[str] = ("dev", "test"),
) -> tuple[str, str]:
    """One of `verdict_record.VERDICTS`, and why there is none.

    Args:
      test: low and high of the paired difference's interval.
      counts: queries of 'dev', which chose the model, and of 'test', which judge it.
      groups: of test queries, those that ask for one passage.
      enough: splits that need `LEAST_QUERIES`.
    """
    names = {"dev": "development", "test": "test"}
    few = [
        f"{counts[split]} {names[split]} queries"
        for split in enough
        if counts[split] < LEAST_QUERIES
    ]
    if not few and groups < LEAST_GROUPS:
        passages = f"the test queries ask for {groups} passages: at least {LEAST_GROUPS} are needed"
        return verdict_record.NO_VERDICT, f" {passages[0].upper()}{passages[1:]}."
    if few:
        return (
            verdict_record.NO_VERDICT,
            f" {' and '.join(few)}: at least {LEAST_QUERIES} are needed.",
        )
    if test["low"] > ROUNDING:
        return verdict_record.BETTER, ""
    worse = test["high"] < -ROUNDING
    return (verdict_record.WORSE if worse else verdict_record.NO_DIFFERENCE), ""


def _sentence(tuned: str, original: str, metric: str, test: Report, queries: int) -> str:
    return (
        f"{metric} of `{tuned}` minus `{original}` is {test['difference']:+.4f}, 95 % interval "
        f"{test['low']:+.4f} to {test['high']:+.4f}, p = {test['p']:.2g}, on {queries} held-out "
        "queries."
    )


def _read(path: str) -> Report:
    found: Report = json.loads(Path(path).read_text(encoding="utf-8"))
    return found


def _test(results: Report, tuned: str, original: str, metric: str, path: str) -> Report:
    against = results["against"]
    if against["baseline"] != original or tuned not in against["systems"]:
        raise ValueError(
            f"{path}: expected {tuned!r} tested against the baseline {original!r}, found "
            f"{sorted(against['systems'])} against {against['baseline']!r}"
        )
    tests: Mapping[str, Report] = against["systems"][tuned]
    if metric not in tests:
        raise ValueError(f"{path}: expected the metric {metric!r}, found {list(tests)}")
    return tests[metric]


def _long(
    per_query: Report, long: LongTexts, corpus: str, verdict: Report, samples: int, seed: int
) -> dict[str, Any]:
    """The metric on queries for long passages, and on the others; {} where none is for those."""
    passages = beir_collection.Passages(corpus)
    queries = beir_collection.read_queries(corpus)
    relevant = beir_collection.read_qrels(corpus, "test", queries, passages)
    parts: dict[str, list[str]] = {"long": [], "whole": []}
    for query, judged in relevant.items():
        asked = [name for name, grade in judged.items() if grade > 0]
        parts["whole" if long.ids.isdisjoint(asked) else "long"].append(query)
    if not parts["long"]:
        return {}
    systems = verdict["system"], verdict["baseline"]
    some = {part: queries for part, queries in parts.items() if queries}
    found = _parts(per_query, some, systems, verdict["metric"], samples, seed)
    return {"long": {"tokens": long.length, "passages": len(long.ids), "parts": found}}


def _parts(
    per_query: Report,
    queries: Mapping[str, Sequence[str]],
    systems: Sequence[str],
    metric: str,
    samples: int,
    seed: int,
) -> dict[str, Any]:
    """The metric on each part of the test queries, given their ids; {} if one is empty."""
    place = {query: number for number, query in enumerate(per_query["queries"])}
    found, groups = {}, per_query["groups"]
    for part, members in queries.items():
        rows = [place[query] for query in members if query in place]
        if not rows:
            return {}
        values = {name: np.array(per_query["systems"][name][metric])[rows] for name in systems}
        differences = values[systems[0]] - values[systems[1]]
        units = (
            np.array(groups)[rows] if groups and len({groups[row] for row in rows}) > 1 else None
        )
        low, high = significance.bootstrap_interval(differences, samples, seed, groups=units)
        found[part] = {
            "n": len(rows),
            "systems": {name: float(one.mean()) for name, one in values.items()},
            "difference": float(differences.mean()),
            "low": low,
            "high": high,
        }
    return found
