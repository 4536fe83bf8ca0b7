"""Stage: evaluate retrievers by whether a retrieved passage holds an answer."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from t5x_style.evaluation import (
    answer_metrics,
    comparison,
    evaluation_suite,
    ranking,
    retrieval_systems,
)
from t5x_style.interfaces.answer_key import AnswerKey

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "evaluate_answered": {
        "name": "evaluate_answered",
        "version": 1,
        "outputs": ["metrics", "per_query", "runs"],
        "check": "check",
    }
}


def evaluate_answered(
    corpus: str,
    key: AnswerKey,
    systems: Sequence[retrieval_systems.System],
    baseline: str,
    depths: Sequence[int],
    samples: int,
    seed: int,
    model_dir: str,
    compared: Sequence[tuple[str, str]] = (),
    titles: bool = True,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, str]:
    """Writes runs/<system>.trec, metrics.json and per_query.json, and prints a table of each set.

    metrics.json is that of `evaluate.evaluate`, with Recall@k: the share of questions for which one
    of the best k passages holds an answer. That is what evaluations of open question answering call
    so; no judgements are needed. Where the key has questions of several sets, such as languages,
    `sets` has the same of each, and `mean_of_sets` {system: {metric: the mean over sets}}.

    Args:
      corpus: folder with corpus.jsonl.
      key: questions and their answers.
      systems: to compare.
      baseline: name of the system that the others are tested against.
      depths: each k.
      samples: of the bootstrap and of the randomisation test.
      seed: of both.
      model_dir: where the files go.
      compared: pairs of systems that are tested against each other as well, one minus other.
      titles: whether an answer may be in a passage's title, too.
      published: system -> metric -> a figure that others have published, of the mean over sets
        where there are several; a row of the table each. metrics.json has it as given.

    Raises:
      ValueError: names that are not distinct, a system that does not exist, a depth below 1,
        `published` of something that is not measured, see `comparison.require_published`.
    """
    check(systems, baseline, depths, samples, compared, published)
    suite = answer_metrics.QuestionSuite(corpus, key, systems, max(depths))
    questions = tuple(sorted(key.questions()))
    folder = Path(model_dir)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    scores: dict[str, ranking.Scores] = {}
    for name in suite.systems:
        made = suite.run(name, "")
        run = {question: made.get(question, [])[: max(depths)] for question in questions}
        ranking.write_run(folder / "runs" / f"{name}.trec", run, name)
        found = answer_metrics.score_recall(suite, run, depths, titles)
        scores[name] = ranking.Scores(questions, found)
        print(f"answered passages: {name} {scores[name].means()}", file=sys.stderr)
    facts = {name: system.facts() for name, system in suite.systems.items()}
    about = {"passages": len(suite.passages), "facts": facts}
    report = comparison.compare(scores, baseline, compared, samples, seed) | about
    sets = comparison.compare_sets(scores, key.sets(), baseline, compared, samples, seed)
    report |= {"split": "questions", "sets": {name: one | about for name, one in sets.items()}}
    report |= {"mean_of_sets": _means(report["sets"])}
    report |= {"published": published} if published else {}
    comparison.write(folder, report, scores)
    return {"metrics": "metrics.json", "per_query": "per_query.json", "runs": "runs"}


def check(
    systems: Sequence[retrieval_systems.System],
    baseline: str,
    depths: Sequence[int],
    samples: int,
    compared: Sequence[tuple[str, str]],
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Check arguments before `evaluate_answered` runs; ValueError, see there."""
    if samples < 1:
        raise ValueError(f"evaluate_answered.samples: expected at least 1, found {samples}")
    if not depths or min(depths) < 1:
        raise ValueError(f"evaluate_answered.depths: expected some of 1 or more, found {depths}")
    names = [system.name for system in systems]
    evaluation_suite.require_systems(names, max(depths))
    comparison.require_names(names, baseline, compared)
    comparison.require_published(published, names, [f"Recall@{depth}" for depth in depths])


def _means(sets: dict[str, dict]) -> dict[str, dict[str, float]]:
    """System -> metric -> the mean over sets, each counting the same."""
    found: dict[str, dict[str, float]] = {}
    for one in sets.values():
        for system, metrics in one["systems"].items():
            for metric, value in metrics.items():
                share = value["value"] / len(sets)
                means = found.setdefault(system, {})
                means[metric] = means.get(metric, 0.0) + share
    return found
