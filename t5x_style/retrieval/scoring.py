"""What a re-ranker scores: pairs of a query and a passage, each in one text."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from t5x_style.contract import Contract
from t5x_style.retrieval import encoding


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
