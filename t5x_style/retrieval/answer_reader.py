"""Answer questions with a trained reader: it points at spans of retrieved passages.

    p(z|x)    softmax of the relevance of the passages that are read
    p(y|z,x)  softmax of the reader's scores over the spans of a passage

An answer is the span with the highest sum of its score and its passage's relevance, as in training.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import ANSWER, Group, ModelFunction, function_of
from t5x_style.interfaces.reading import JointPairs, Reading
from t5x_style.retrieval import encoding

NOTHING = float(jnp.finfo(jnp.float32).min)  # score of a text in which there is nothing to point at

Answer = Callable[[Group], Mapping[str, jax.Array]]  # `Objective.functions`' kind 'answer'


def as_vectors(answer: Answer) -> encoding.Embed:
    """A token group to [R, S, 4] float32: start, end, score, log probability, of `answer`'s [R, S].

    Numbers below 2**24 are exact; a score is NOTHING at least, so that all are finite.
    """

    def embed(group: Group) -> jax.Array:
        found = answer(group)
        parts = (found[name] for name in ("start", "end", "score", "log_probability"))
        table = jnp.stack([part.astype(jnp.float32) for part in parts], axis=2)
        return jnp.maximum(table, NOTHING)

    return embed


@dataclasses.dataclass(frozen=True)
class Found:
    """A reader's answer in one passage.

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

    @property
    def probability(self) -> float:
        """p(y|z,x)."""
        return float(np.exp(self.log_probability))


class Reader:
    """A trained model's reader."""

    def __init__(
        self,
        functions: Mapping[str, ModelFunction],
        contract: Contract,
        reading: Reading,
        partitioner: Partitioner | None = None,
    ):
        """
        Args:
          functions: of the model, one of kind `answer` among them.
          contract: of the model.
          reading: makes texts as the model was trained on.
          partitioner: the mesh that the model lies on.

        Raises:
          FunctionError: the model offers no answers.
          ContractError: texts are made otherwise than in training.
        """
        answer = function_of(functions, ANSWER, "a reader, as open question answering trains")
        made = dataclasses.replace(
            contract,
            tokenizer_fingerprint=reading.fingerprint,
            query_length=reading.query_length,
            passage_length=reading.passage_length,
        )
        contract.require(made, "the texts of the reader")
        self._as_vectors = as_vectors(answer)
        self._reading, self._partitioner = reading, partitioner

    def read(self, questions: Sequence[str], passages: Sequence[str]) -> list[Found]:
        """Spans that the reader finds in passages[n] for questions[n]; `passage` counts them."""
        if not questions:
            return []
        pairs = self._reading.pairs(questions, passages)
        table = encoding.encode(self._as_vectors, pairs, self._partitioner, "answer")
        return [
            Found(number, self._span(pairs, number, row), float(row[2]), float(row[3]))
            for number, row in enumerate(table)
        ]

    def _span(self, pairs: JointPairs, number: int, row: np.ndarray) -> tuple[int, int] | None:
        if row[2] <= NOTHING:
            return None
        return pairs.characters(number, int(row[0]), int(row[1]))


class Model(Protocol):
    """A trained model, as `restored_model.Trained`."""

    @property
    def functions(self) -> Mapping[str, ModelFunction]:
        """Functions by name."""
        ...

    @property
    def contract(self) -> Contract:
        """Contract of the model."""
        ...

    @property
    def partitioner(self) -> Partitioner:
        """The mesh that it lies on."""
        ...


def reader_of(model: Model, reading: Reading) -> Reader:
    """The reader of a trained model; errors as of `Reader`."""
    return Reader(model.functions, model.contract, reading, model.partitioner)
