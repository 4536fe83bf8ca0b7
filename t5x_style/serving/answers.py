"""What a reader makes of passages that were found, put together as in its training.

p(z|x)    softmax of the relevance of the passages z that are read
p(y|z,x)  the reader's, of a span or a token y
p(y|x)    the sum over passages of p(z|x) p(y|z,x)
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from t5x_style.serving.service import Hit, Span


@dataclasses.dataclass(frozen=True)
class Answer:
    """A span of a passage, or none.

    Attributes:
      hit: the passage.
      span: in its text.
      score: of reader and relevance together, by which answers are in order.
      passage_probability: p(z|x).
    """

    hit: Hit
    span: Span
    score: float
    passage_probability: float

    @property
    def text(self) -> str:
        """The answer; empty where there is none."""
        return "" if self.span.place is None else self.hit.text[slice(*self.span.place)]


@dataclasses.dataclass(frozen=True)
class Filled:
    """The likeliest tokens for one [MASK], n of them, the best first.

    Attributes:
      tokens: [n] int64, their ids.
      probability: [n] float64, p(y|x).
      by_passage: [passages, n] float64, p(y|z,x).
    """

    tokens: np.ndarray
    probability: np.ndarray
    by_passage: np.ndarray


def probabilities(relevance: Sequence[float]) -> np.ndarray:
    """p(z|x), float64 [n], of passages by their scores."""
    scores = np.asarray(relevance, np.float64)
    chances = np.exp(scores - scores.max(initial=-np.inf))
    return np.asarray(chances / chances.sum())


def ordered(hits: Sequence[Hit], spans: Sequence[Span]) -> list[Answer]:
    """The answers of passages, the best first.

    Args:
      hits: that were read, by one score.
      spans: the best of each.
    """
    chances = probabilities([hit.score for hit in hits])
    found = [
        Answer(hit, span, hit.score + span.score, float(chance))
        for hit, span, chance in zip(hits, spans, chances, strict=True)
    ]
    return sorted(found, key=lambda answer: -answer.score)


def filled(chances: np.ndarray, words: Sequence[np.ndarray], count: int) -> list[Filled]:
    """What is likeliest for each [MASK], with and without each passage.

    Args:
      chances: [passages], p(z|x).
      words: of each passage [m, V], log p(y|z,x).
      count: of tokens that are listed for a [MASK].
    """
    found = []
    for number in range(len(words[0])):  # one at a time: each is a probability of every token
        by_passage = np.exp(np.stack([one[number] for one in words], dtype=np.float64))
        mixed = chances @ by_passage
        best = np.argpartition(-mixed, min(count, len(mixed) - 1))[:count]
        best = best[np.argsort(-mixed[best], kind="stable")]
        found.append(Filled(best, mixed[best], by_passage[:, best]))
    return found
