"""What a re-ranker scores: pairs of a query and a passage, each in one text."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from t5x_style.contract import Contract
from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import encoding

Score = Callable[[encoding.Group], jax.Array]  # token group of pairs -> [B, S] float32
Pairs = tuple[Sequence[str], Sequence[str]]  # query ids and passage ids, as many of each


class JointTexts(Protocol):
    """Queries and passages out of which pairs are made.

    Attributes:
      query_length, passage_length: tokens at which texts are cut.
      query_prefix, passage_prefix: text that was put before each.
      tokenizer_fingerprint: of the tokenizer that made the tokens.
    """

    query_length: int
    passage_length: int
    query_prefix: str
    passage_prefix: str
    tokenizer_fingerprint: str

    def pairs(self, query_ids: Sequence[str], passage_ids: Sequence[str]) -> encoding.Batched:
        """The pairs query_ids[n], passage_ids[n], in this order, as token groups."""
        ...


def check_texts(texts: JointTexts, contract: Contract) -> None:
    """Raises ContractError unless the texts were tokenized as the contract says."""
    names = ("query_length", "passage_length", "query_prefix", "passage_prefix")
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


def pairs_of(lines: Sequence["Line"]) -> Pairs:
    """Each query with each of its passages, in order."""
    return (
        [line.query_id for line in lines for _ in line.passages],
        [name for line in lines for name in line.passages],
    )


class ScoreError(ValueError):
    """A file of negatives that cannot be scored; the message names the line."""


@dataclasses.dataclass(frozen=True)
class Line:
    """What is scored of a query: its positives, then its best negatives."""

    query_id: str
    positive_ids: list[str]
    negative_ids: list[str]

    @property
    def passages(self) -> list[str]:
        """The ids of both."""
        return self.positive_ids + self.negative_ids


def read_lines(path: str | Path, depth: int) -> list[Line]:
    """The queries of a file of negatives, with up to `depth` negatives each.

    Raises:
      ScoreError: a line that is malformed, a query without a positive, or not one query with a
        negative, so that there is nothing to compare.
    """
    found = []
    with Path(path).open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            where = f"{path}:{number}"
            try:
                record = json.loads(text)
                ids = [list(record[name]) for name in ("positive_ids", "negative_ids")]
                positives, negatives = (list(dict.fromkeys(names)) for names in ids)
                wrong = [name for name in negatives if name not in positives]
                line = Line(record["query_id"], positives, wrong[:depth])
            except (ValueError, KeyError, TypeError) as error:
                raise ScoreError(
                    f"{where}: expected query_id, positive_ids and negative_ids, found "
                    f"{text.strip()[:80]!r} ({error!r})"
                ) from error
            if not line.positive_ids:
                raise ScoreError(
                    f"{where}: query {line.query_id!r} has no positive: expected one or more. Take "
                    "the line out, or name the passages that answer the query."
                )
            found.append(line)
    _check_groups(path, found)
    return found


def _check_groups(path: str | Path, lines: list[Line]) -> None:
    if not lines:
        raise ScoreError(f"{path} is empty: expected a line for each query")
    alone = sum(len(line.passages) == 1 for line in lines)
    if alone == len(lines):
        raise ScoreError(
            f"{path}: each of {alone} queries has a single passage, and what a teacher says of it "
            "teaches nothing (the loss would be 0): expected negatives. Mine with looser settings."
        )
    if alone:
        print(
            f"score: {alone} of {len(lines)} queries have a single passage: nothing is learned of "
            "them from a teacher",
            file=sys.stderr,
        )
