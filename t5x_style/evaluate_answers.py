"""Stage: evaluate readers over retrievers: answers, metrics with intervals, and a table."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from t5x_style.distributed import startup
from t5x_style.evaluation import answer_metrics, comparison, ranking, retrieval_systems
from t5x_style.interfaces.answer_key import AnswerKey
from t5x_style.retrieval import versioned_folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "evaluate_answers": {
        "name": "evaluate_answers",
        "version": 3,
        "outputs": ["answers", "metrics", "per_query"],
        "program": True,
        "check": "check",
    }
}


def evaluate_answers(
    corpus: str,
    key: AnswerKey,
    retrievers: Sequence[retrieval_systems.System],
    answering: Sequence[answer_metrics.Answering],
    baseline: str,
    samples: int,
    seed: int,
    model_dir: str,
    depths: Sequence[int] = answer_metrics.RECALLS,
    compared: Sequence[tuple[str, str]] = (),
) -> dict[str, str]:
    """Writes answers.jsonl, metrics.json and per_query.json, and prints a table.

    metrics.json is that of `evaluate.evaluate`, with EM (exact match), F1 and Recall@k, by which a
    question counts as found if one of the best k blocks holds an answer. Where the key has
    questions of several sets, `sets` has the same of each. answers.jsonl: {"id", "question",
    "right", system: answer} of each question.

    Args:
      corpus: folder in BEIR's layout whose passages are blocks.
      key: questions and their answers.
      retrievers: list blocks.
      answering: readers over retrievers.
      baseline: name of one of these that the others are tested against.
      samples: of the bootstrap and of the randomisation test.
      seed: of both.
      model_dir: where the files go.
      depths: of Recall@k.
      compared: pairs of `answering` that are tested against each other as well, one minus other.

    Raises:
      ValueError: a reader over a retriever that is not there, names that are not distinct.
    """
    check(answering, baseline, samples, compared)
    depth = max([*depths, *(system.read for system in answering)])
    suite = answer_metrics.QuestionSuite(corpus, key, retrievers, depth)
    scores: dict[str, ranking.Scores] = {}
    answers: dict[str, dict[str, str]] = {}
    for system in answering:
        scores[system.name], answers[system.name] = answer_metrics.score(suite, system, depths)
        print(f"answers: {system.name} {scores[system.name].means()}", file=sys.stderr)
    if jax.process_index() == 0:
        folder = Path(model_dir)
        _write_answers(folder / "answers.jsonl", suite, answers)
        facts = {system.name: system.facts() for system in answering}
        facts |= {f"retriever {name}": one.facts() for name, one in suite.systems.items()}
        report = comparison.compare(scores, baseline, compared, samples, seed)
        about = {"passages": len(suite.passages), "facts": facts}
        sets = comparison.compare_sets(scores, key.sets(), baseline, compared, samples, seed)
        report |= {"split": "questions", **about}
        report |= {"sets": {name: one | about for name, one in sets.items()}}
        comparison.write(folder, report, scores)
    return {
        "metrics": "metrics.json",
        "per_query": "per_query.json",
        "answers": "answers.jsonl",
    }


def check(
    answering: Sequence[answer_metrics.Answering],
    baseline: str,
    samples: int,
    compared: Sequence[tuple[str, str]],
) -> None:
    """Check arguments before `evaluate_answers` runs; ValueError, see there."""
    if samples < 1:
        raise ValueError(f"evaluate_answers.samples: expected at least 1, found {samples}")
    names = [system.name for system in answering]
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"answering: expected one or more, of distinct names, found {names}")
    comparison.require_names(names, baseline, compared)


def _write_answers(
    path: Path, suite: answer_metrics.QuestionSuite, answers: dict[str, dict[str, str]]
) -> None:
    lines = []
    for question, text in suite.texts("").items():
        given = {name: found[question] for name, found in answers.items()}
        right = [name for name, answer in given.items() if suite.key.exact(question, answer)]
        row = {"id": question, "question": text, "right": right, **given}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    versioned_folder.write_atomically(path, "".join(lines))


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.evaluate_answers.evaluate_answers")
