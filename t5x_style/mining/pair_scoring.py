"""Score pairs of a query and a passage, each in one text, with a re-ranker."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.joint_texts import JointTexts
from t5x_style.interfaces.objective import Group
from t5x_style.retrieval import encoding

Score = Callable[[Group], jax.Array]  # token group of pairs -> [B, S] float32
Pairs = tuple[Sequence[str], Sequence[str]]  # query ids and passage ids, as many of each


class ScoreError(ValueError):
    """A file of negatives in which there is nothing to score."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Passages of a query to score: its positives, then its best negatives."""

    query_id: str
    positive_ids: list[str]
    negative_ids: list[str]

    @property
    def passages(self) -> list[str]:
        """The ids of both."""
        return self.positive_ids + self.negative_ids


def read_lines(texts: JointTexts, negatives: str, depth: int) -> list[Line]:
    """The queries of a file of negatives, with up to `depth` negatives each.

    Raises:
      ScoreError: depth is below 1, or no query has a negative, so that there is nothing to compare.
      ValueError: see `JointTexts.mined`.
    """
    if depth < 1:
        raise ScoreError(f"depth: expected at least 1 negative of a query, found {depth}")
    found = [Line(query, right, wrong[:depth]) for query, right, wrong in texts.mined(negatives)]
    alone = sum(len(line.passages) == 1 for line in found)
    if alone == len(found):
        raise ScoreError(
            f"{negatives}: each of {alone} queries has a single passage, and a re-ranker's "
            "score of it teaches nothing (the loss would be 0): expected negatives. Mine with "
            "looser settings."
        )
    if alone:
        print(
            f"score: {alone} of {len(found)} queries have a single passage: nothing is learned of "
            "them",
            file=sys.stderr,
        )
    return found


def check_texts(texts: JointTexts, contract: Contract) -> None:
    """Raises ContractError unless the texts were tokenized as the contract says."""
    names = ("query_length", "passage_length", "query_prefix", "passage_prefix", "passage_layout")
    found = {name: getattr(texts, name) for name in (*names, "tokenizer_fingerprint")}
    contract.require(dataclasses.replace(contract, **found), "the token stores that are scored")


def score_parts(
    score: Score,
    texts: JointTexts,
    parts: Iterable[Pairs],
    count: int,
    partitioner: Partitioner | None = None,
    description: str = "score",
    report: bool = False,
) -> Iterator[np.ndarray]:
    """Scores pairs part by part, holding one part's scores at a time.

    Args:
      score: jitted.
      texts: where the pairs come from.
      parts: pairs.
      count: pairs in all parts together.
      partitioner, description, report: see `encoding.encode_parts`.

    Yields:
      [n] float32 of each part.
    """
    sources = (texts.pairs(*part) for part in parts)
    as_vectors = encoding.encode_parts(
        lambda group: score(group)[:, :, None],
        *(sources, count, partitioner, description),
        report=report,
    )
    return (scores[:, 0] for scores in as_vectors)


def pairs_of(lines: Sequence[Line]) -> Pairs:
    """Each query with each of its passages, in order."""
    return (
        [line.query_id for line in lines for _ in line.passages],
        [name for line in lines for name in line.passages],
    )
