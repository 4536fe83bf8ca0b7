"""Question answering against an answer key: exact match, F1, and how often an answer was found."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_style.evaluation import ranking, retrieval_systems
from t5x_style.evaluation.ranking import Run
from t5x_style.interfaces.answer_key import AnswerKey
from t5x_style.retrieval.answer_reader import Reader

RECALLS = (1, 5, 20)


class QuestionSuite(retrieval_systems.EvaluationSuite):
    """A collection of blocks, asked the questions of an answer key."""

    def __init__(
        self, corpus: str, key: AnswerKey, systems: Sequence[retrieval_systems.System], depth: int
    ) -> None:
        super().__init__(corpus, systems, depth)
        self.key = key

    def texts(self, split: str) -> dict[str, str]:
        """Id -> text of all questions; an answer key has one split."""
        return dict(self.key.questions())


@dataclasses.dataclass(frozen=True)
class Answering:
    """A system that answers: a retriever's best blocks, read.

    Attributes:
      name: in tables.
      retriever: name of the system of the suite that retrieves.
      reader: reads.
      read: how many of its blocks.
      relevance_weight: weight of their relevance relative to the reader's scores: 1 for the
        retriever that the reader was trained with, 0 for one whose scores it never saw.
    """

    name: str
    retriever: str
    reader: Reader
    read: int
    relevance_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.read < 1 or self.relevance_weight < 0:
            raise ValueError(
                f"{self.name}: expected read of at least 1 and relevance_weight of at least 0, "
                f"found {self.read} and {self.relevance_weight}"
            )

    def facts(self) -> dict[str, Any]:
        """Facts that explain its numbers."""
        return {"of": self.retriever, "read": self.read, "relevance_weight": self.relevance_weight}

    def predictions(self, suite: QuestionSuite, run: Run) -> Iterator[tuple[str, str]]:
        """(question id, answer) of each question of a run; '' where there is nothing."""
        texts = suite.texts("")
        hits = {question: found[: self.read] for question, found in run.items()}
        pairs = [(question, *hit) for question, found in hits.items() for hit in found]
        passages = [suite.passages.passage(suite.passages.row(name)).text for _, name, _ in pairs]
        read = self.reader.read([texts[question] for question, _, _ in pairs], passages)
        best: dict[str, tuple[float, str]] = {}
        for (question, _, relevance), text, found in zip(pairs, passages, read, strict=True):
            if found.span is None:
                continue
            score = found.score + self.relevance_weight * relevance
            if question not in best or score > best[question][0]:
                best[question] = (score, text[slice(*found.span)])
        for question in run:
            yield question, best[question][1] if question in best else ""


def score_recall(
    suite: QuestionSuite, run: Run, depths: Sequence[int], titles: bool = False
) -> dict[str, np.ndarray]:
    """Recall@k of each depth: [n] float64, 1 where one of the best k passages holds an answer.

    Args:
      suite: passages and key.
      run: lists, of n questions.
      depths: each k.
      titles: whether an answer may be in a passage's title, too.
    """
    first = np.full(len(run), np.inf)
    for number, (question, hits) in enumerate(sorted(run.items())):
        for place, (name, _) in enumerate(hits[: max(depths)]):
            passage = suite.passages.passage(suite.passages.row(name))
            if suite.key.stands_in(question, passage.content if titles else passage.text):
                first[number] = place
                break
    return {f"Recall@{depth}": (first < depth).astype(np.float64) for depth in depths}


def score_answers(
    key: AnswerKey, answers: Mapping[str, str], questions: Sequence[str]
) -> dict[str, np.ndarray]:
    """EM and F1 of the answers of these questions: [n] float64 each."""
    return {
        "EM": np.array([float(key.exact(q, answers[q])) for q in questions]),
        "F1": np.array([key.f1(q, answers[q]) for q in questions]),
    }


def score(
    suite: QuestionSuite, system: Answering, depths: Sequence[int] = RECALLS
) -> tuple[ranking.Scores, dict[str, str]]:
    """EM, F1 and Recall@k of a system on every question, and its answers by question."""
    run = suite.run(system.retriever, "")
    answers = dict(system.predictions(suite, run))
    questions = tuple(sorted(run))
    values = {
        **score_answers(suite.key, answers, questions),
        **score_recall(suite, run, depths),
    }
    return ranking.Scores(questions, values), answers
