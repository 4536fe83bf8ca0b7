"""Question answering: what a reader takes from what was retrieved, and how often it is right.

    p(z|x)    softmax of the relevance of the blocks that are read
    p(y|z,x)  softmax of the reader's scores over the spans of a block

An answer is the span with the highest sum of its score and its block's relevance, as in training.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.contract import Contract
from t5x_style.evaluation import ranking, systems
from t5x_style.evaluation.ranking import Run
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import encoding

NOTHING = float(jnp.finfo(jnp.float32).min)  # score of a text in which there is nothing to point at
RECALLS = (1, 5, 20)

Answer = Callable[[encoding.Group], Mapping[str, jax.Array]]  # `Objective.functions`' kind 'answer'


class AnswerError(ValueError):
    """Answers that cannot be given: a model without a reader, a tokenizer that is not its own."""


class Pairs(encoding.Batched, Protocol):
    """Questions with passages as token groups, one a row, each once."""

    def characters(self, number: int, start: int, end: int) -> tuple[int, int] | None:
        """The characters of a passage that tokens start to end of its row stand for."""
        ...


class Reading(Protocol):
    """How questions and passages become a reader's texts.

    Attributes:
      query_length, passage_length: tokens at which they are cut.
      fingerprint: of the tokenizer.
    """

    query_length: int
    passage_length: int
    fingerprint: str

    def pairs(self, questions: Sequence[str], passages: Sequence[str]) -> Pairs:
        """Texts of questions[n] with the body passages[n], in this order."""
        ...


class AnswerKey(Protocol):
    """Questions, and what is right."""

    def questions(self) -> Mapping[str, str]:
        """Id -> text."""
        ...

    def exact(self, question: str, prediction: str) -> bool:
        """Whether a prediction is an answer of a question, by its id."""
        ...

    def f1(self, question: str, prediction: str) -> float:
        """How many words it shares with the answer that is most alike, 0 to 1."""
        ...

    def stands_in(self, question: str, text: str) -> bool:
        """Whether a text holds an answer."""
        ...


@dataclasses.dataclass(frozen=True)
class Found:
    """What a reader points at in one passage.

    Attributes:
      passage: its place among those that were read.
      span: characters of its text; None where there is nothing to point at.
      score: of the span, without the passage's relevance.
      log_probability: log p(y|z,x) of the span in its passage.
    """

    passage: int
    span: tuple[int, int] | None
    score: float
    log_probability: float


class Reader:
    """A trained model's reader."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        contract: Contract,
        reading: Reading,
        partitioner: Partitioner | None = None,
    ):
        """
        Args:
          functions: of the model, `answer` among them.
          contract: of the model.
          reading: makes texts as the model was trained on.
          partitioner: the mesh that the model lies on.

        Raises:
          AnswerError: the model offers no answers.
          ContractError: texts are made otherwise than in training.
        """
        if "answer" not in functions:
            raise AnswerError(
                "expected a model that answers, which offers 'answer', found one that offers "
                f"{sorted(functions)}: name the checkpoint of open question answering"
            )
        made = dataclasses.replace(
            contract,
            tokenizer_fingerprint=reading.fingerprint,
            query_length=reading.query_length,
            passage_length=reading.passage_length,
        )
        contract.require(made, "the texts of the reader")
        self._answer: Answer = functions["answer"]
        self._reading, self._partitioner = reading, partitioner

    def read(self, questions: Sequence[str], passages: Sequence[str]) -> list[Found]:
        """What the reader points at in passages[n] for questions[n]; `passage` counts them."""
        if not questions:
            return []
        pairs = self._reading.pairs(questions, passages)
        table = encoding.encode(self._as_vectors, pairs, self._partitioner, "answer")
        return [
            Found(number, self._span(pairs, number, row), float(row[2]), float(row[3]))
            for number, row in enumerate(table)
        ]

    def _as_vectors(self, group: encoding.Group) -> jax.Array:
        """[R, 1, 4] float32: start, end, score, log probability; numbers below 2**24 are exact."""
        found = self._answer(group)
        parts = (found[name] for name in ("start", "end", "score", "log_probability"))
        table = jnp.stack([part.astype(jnp.float32) for part in parts], axis=2)
        return jnp.maximum(table, NOTHING)

    def _span(self, pairs: Pairs, number: int, row: np.ndarray) -> tuple[int, int] | None:
        if row[2] <= NOTHING:
            return None
        return pairs.characters(number, int(row[0]), int(row[1]))


class Model(Protocol):
    """A trained model, as `trained.Trained`."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """By name."""
        ...

    @property
    def contract(self) -> Contract:
        """How it reads texts."""
        ...

    @property
    def partitioner(self) -> Partitioner:
        """The mesh that it lies on."""
        ...


def reader_of(model: Model, reading: Reading) -> Reader:
    """The reader of a trained model; errors as of `Reader`."""
    return Reader(model.functions, model.contract, reading, model.partitioner)


class QuestionBench(systems.Bench):
    """A collection of blocks, asked the questions of an answer key."""

    def __init__(
        self, corpus: str, key: AnswerKey, systems: Sequence[systems.System], depth: int
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
      of: name of the system of the bench that retrieves.
      reader: reads.
      read: how many of its blocks.
      relevance_weight: what their relevance counts for beside the reader's scores: 1 for the
        retriever that the reader was trained with, 0 for one whose scores it never saw.
    """

    name: str
    of: str
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
        """What a reader of its numbers should know."""
        return {"of": self.of, "read": self.read, "relevance_weight": self.relevance_weight}

    def predictions(self, bench: QuestionBench, run: Run) -> Iterator[tuple[str, str]]:
        """(question id, answer) of each question of a run; '' where there is nothing."""
        texts = bench.texts("")
        hits = {question: found[: self.read] for question, found in run.items()}
        pairs = [(question, *hit) for question, found in hits.items() for hit in found]
        passages = [bench.passages.passage(bench.passages.row(name)).text for _, name, _ in pairs]
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


def score_recall(bench: QuestionBench, run: Run, depths: Sequence[int]) -> dict[str, np.ndarray]:
    """Recall@k of each depth: [n] float64, 1 where one of the best k blocks holds an answer."""
    first = np.full(len(run), np.inf)
    for number, (question, hits) in enumerate(sorted(run.items())):
        for place, (name, _) in enumerate(hits[: max(depths)]):
            text = bench.passages.passage(bench.passages.row(name)).text
            if bench.key.stands_in(question, text):
                first[number] = place
                break
    return {f"Recall@{depth}": (first < depth).astype(np.float64) for depth in depths}


def score(
    bench: QuestionBench, system: Answering, depths: Sequence[int] = RECALLS
) -> tuple[ranking.Scores, dict[str, str]]:
    """EM, F1 and Recall@k of a system on every question, and its answers by question."""
    run = bench.run(system.of, "")
    answers = dict(system.predictions(bench, run))
    questions = tuple(sorted(run))
    key = bench.key
    values = {
        "EM": np.array([float(key.exact(q, answers[q])) for q in questions]),
        "F1": np.array([key.f1(q, answers[q]) for q in questions]),
        **score_recall(bench, run, depths),
    }
    return ranking.Scores(questions, values), answers
