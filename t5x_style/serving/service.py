"""What a server offers of one version of a bundle: the interface between it and its routes.

A request takes one `Service` and keeps it to its end, so that encoder and indexes are always of one
version. Texts go to the device through `submit`, which batches them with those of other requests;
all else is computed by the caller's thread.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from t5x_style.serving.training_curves import Curves

SHOWN = 40  # characters of what was found, in an error
# Modes of search besides the kinds: by words, which needs no model, by all of a bundle as one, and
# by a re-ranker of what words find
BM25, HYBRID, RERANKED = "bm25", "hybrid", "reranked"
ANSWERS, FILLS = "answer", "fill"  # what a reader does, named as the kind of its function
Place = tuple[int, int] | None  # first character, and the one after the last; None: of no text


class RequestError(ValueError):
    """A request that cannot be answered as it is; the message says what was expected and found."""


class Unavailable(RuntimeError):
    """The version was closed: its server ends, or another version answers now."""


class Overloaded(RuntimeError):
    """The queue of texts is full.

    Attributes:
      retry_after: seconds after which there may be room.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(
            f"too many texts are waiting; expected to have room in {retry_after:.1f} s"
        )
        self.retry_after = retry_after


def shown(value: Any) -> str:
    """A value of a request as short ASCII text, whatever it holds, for an error."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    if isinstance(value, str):
        value = value[: SHOWN + 1]
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a bundle says of itself.

    Attributes:
      name: of the run that it was made of.
      version: its number; a later one has a larger one.
      kinds: of representations that its model makes of a text; () of a re-ranker.
      modes: of search: the kinds that are searched, BM25 where the bundle has it, and HYBRID where
        these are several, or RERANKED of a re-ranker. The last one is the default.
      dimension: of a vector.
      similarity: 'cosine' or 'dot'; 'score' of a re-ranker.
      query_length, passage_length: tokens at which texts are cut, specials included.
      passages: how many are indexed.
      sources: of passages, or how they begin where they are many, in alphabetical order; ()
        where passages name none, or too many to choose from.
      reads: of the model's reader, 'answer' or 'fill'; None where it has none.
      reranks: whether the model scores a question with a passage.
      curves: whether it has the curves of its trainings.
      made: when it was made, ISO 8601 in UTC.
      contract: all fields of contract.json.
    """

    name: str
    version: int
    kinds: tuple[str, ...]
    modes: tuple[str, ...]
    dimension: int
    similarity: str
    query_length: int
    passage_length: int
    passages: int
    sources: tuple[str, ...]
    reads: str | None
    reranks: bool
    curves: bool
    made: str
    contract: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Tokens:
    """One text as a model reads it.

    Attributes:
      ids: [n] int32, specials included.
      pieces: n, what the tokenizer calls them: 'token', '##ize', '[CLS]'.
      places: n, the characters of the text of each token; None of special tokens and of
        what was put before the text.
      cut_off: tokens of the text that are not read, since it is longer than the model allows.
    """

    ids: np.ndarray
    pieces: Sequence[str]
    places: Sequence[Place]
    cut_off: int


@dataclasses.dataclass(frozen=True)
class Encoded:
    """What one text became, by kind; None of a kind that was not asked for.

    Attributes:
      dense: [D] float32.
      sparse: token ids int32 [e] and their weights float32 [e].
      multi_vector: [m, d] float32.
      text: itself, for BM25; '' where that is not asked.
    """

    dense: np.ndarray | None = None
    sparse: tuple[np.ndarray, np.ndarray] | None = None
    multi_vector: np.ndarray | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
      score: of the mode.
      scores: kind, or BM25 -> score, of what took part.
      id, title, text, source: of the passage.
    """

    score: float
    scores: Mapping[str, float]
    id: str
    title: str
    text: str
    source: str


@dataclasses.dataclass(frozen=True)
class SharedWord:
    """A token or stem that a query and a passage have in common, as weights of words, or BM25,
    count it.

    Attributes:
      piece: what the tokenizer calls it; the stem.
      query_weight, passage_weight: whose product is its part of the score.
    """

    piece: str
    query_weight: float
    passage_weight: float


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Why a passage was found.

    Attributes:
      passage: its tokens; places are characters of title, a space and text.
      title: of the passage.
      content: title and text, as they were tokenized.
      words: of the sparse kind, or else of BM25, the largest part first; None without both.
      max_sim: [query vectors, passage vectors] float32, inner products; None without that kind.
      query_pieces, passage_pieces: tokens of its rows and columns.
    """

    passage: Tokens
    title: str
    content: str
    words: Sequence[SharedWord] | None
    max_sim: np.ndarray | None
    query_pieces: Sequence[str]
    passage_pieces: Sequence[str]


@dataclasses.dataclass(frozen=True)
class CorpusMap:
    """Passages on a plane: n of them, all or evenly spaced ones.

    Attributes:
      points: [n, 2] float32 from -1 to 1, with 4 decimals: along the first two principal
        components of the dense vectors.
      explained: [2] float32, the share of the variance that each component explains.
      ids: n, of the passages.
      titles, texts: n each, their beginnings.
      sources: of the passages, or how they begin where they are many, in alphabetical order; '' of
        passages without one.
      groups: [n] int32, the place of each passage's source among `sources`.
    """

    points: np.ndarray
    explained: np.ndarray
    ids: Sequence[str]
    titles: Sequence[str]
    texts: Sequence[str]
    sources: Sequence[str]
    groups: np.ndarray


@dataclasses.dataclass(frozen=True)
class Span:
    """What a reader points at in a passage.

    Attributes:
      place: characters of the passage's text; None where there is nothing to point at.
      score: without the passage's relevance.
      probability: p(y|z,x), of the span among all spans of the passage.
    """

    place: Place
    score: float
    probability: float


class Reader(Protocol):
    """What a model makes of a question with a passage. Methods may be called from any thread."""

    @property
    def reads(self) -> str:
        """'answer': it points at spans that answer a question; 'fill': it fills in [MASK]s."""
        ...

    def masked(self, sentence: str) -> Tokens:
        """A sentence as a query, in which each "[MASK]" is to be filled in.

        Raises:
          RequestError: the model would read none, or more than it fills in.
        """
        ...

    def masks(self, tokens: Tokens) -> list[Place]:
        """The places of the "[MASK]"s of a text."""
        ...

    def joint(self, question: Tokens, text: str) -> Tokens:
        """A question and a passage's text as the model reads them; places are of the passage."""
        ...

    def nothing(self) -> Tokens:
        """The passage without a text, which such a model weighs against those that it finds."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What the tokenizer calls token ids."""
        ...

    def span(self, joint: Tokens) -> "Future[Span]":
        """The best span; errors as of `Service.submit`. Of a model that answers."""
        ...

    def words(self, joint: Tokens) -> "Future[np.ndarray]":
        """[m, V] float32: log p(y|z,x) of all tokens for each of m [MASK]s; errors as of `span`."""
        ...


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Passages that a re-ranker is to put in order for a question.

    Attributes:
      rows: [n] int32 of the passages.
      pairs: n, the question with each of them, as the model reads them.
      words: [N] float32, BM25's scores of all passages.
    """

    rows: np.ndarray
    pairs: Sequence[Tokens]
    words: np.ndarray


class Reranker(Protocol):
    """What scores a question with a passage. Methods may be called from any thread.

    A search in mode RERANKED is `candidates`, `score` of each pair, and `ordered`.
    """

    def pair(self, question: Tokens, passage: Tokens) -> Tokens:
        """Both, of `Service.tokenize`, as the model reads them; places are of the passage."""
        ...

    def score(self, pair: Tokens) -> "Future[float]":
        """How well they go together, a logit; errors as of `Service.submit`."""
        ...

    def candidates(self, question: str, source: str | None) -> Candidates:
        """What is to be scored, of a source or of all; RequestError: there is no such source."""
        ...

    def ordered(self, candidates: Candidates, logits: Sequence[float], k: int) -> list[Hit]:
        """The best k passages, best first, after the scores of the n pairs."""
        ...


class Service(Protocol):
    """One open version of a bundle. All methods may be called from any thread."""

    @property
    def facts(self) -> Facts:
        """See `Facts`."""
        ...

    @property
    def reader(self) -> Reader | None:
        """Of the model; None where it reads no passages."""
        ...

    @property
    def reranker(self) -> Reranker | None:
        """Of the model; None where it scores no pairs."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch, padding included; a longer text is a batch by itself."""
        ...

    def tokenize(self, side: str, text: str) -> Tokens:
        """A text as a query or a passage.

        Args:
          side: 'query' or 'passage'.
          text: without a prefix, which is added here.
        """
        ...

    def submit(self, side: str, tokens: Tokens, kinds: Sequence[str]) -> "Future[Encoded]":
        """Encodes one text in a batch with others; a future that is cancelled is left out.

        Args:
          side: 'query' or 'passage'.
          tokens: of `tokenize`.
          kinds: among those of the facts.

        Raises:
          Overloaded: too many tokens are waiting.
          Unavailable: the version is closed.
        """
        ...

    def search(self, query: Encoded, mode: str, k: int, source: str | None = None) -> list[Hit]:
        """The best passages, best first.

        Args:
          query: with the kinds that `needs` names, and its text.
          mode: one of the facts', but RERANKED, which `Reranker` is for.
          k: at least 1.
          source: only passages whose source begins so; None: all.
        """
        ...

    def needs(self, mode: str) -> tuple[str, ...]:
        """Kinds that `search` takes a query in; RequestError for a mode that there is not."""
        ...

    def evidence(self, question: Tokens, query: Encoded, passage_id: str) -> Evidence:
        """Why a passage fits; of the kinds that the query has and the bundle stores.

        Raises:
          RequestError: there is no such passage.
        """
        ...

    def similarity(self, query: Encoded, passages: Sequence[Encoded]) -> list[float]:
        """Scores of passages that are not indexed: by vectors, or else by the first kind."""
        ...

    def map(self) -> "Future[CorpusMap]":
        """The map of the passages, which the first call begins to compute; it is not cancelled.

        Raises:
          RequestError: the bundle stores no dense vectors.
        """
        ...

    def curves(self) -> Curves:
        """How the model was trained.

        Raises:
          RequestError: the bundle has no curves.
        """
        ...

    def waiting(self) -> int:
        """Tokens that wait to be encoded."""
        ...

    def to_compile(self) -> int:
        """Programs that are not compiled yet; until then each text is a batch."""
        ...
