"""Bodies of the routes of models that read what they find."""

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from launch.service.bodies import HitReply, QueryTokens, Request, Seconds, Source, Text

MOST_WORDS = 100  # that are listed for a [MASK]
READ = 5  # passages that answer, as in the papers
FILLED = 7  # passages that fill in, as in REALM's training
_FROM_1: JsonDict = {"minimum": 1}  # for /docs; the route checks it, with a clearer error
_SOURCE = "only passages whose source begins so"


class AnswerRequest(Request):
    """Of POST /answer."""

    query: Text
    k: int = Field(READ, description="passages that are read", json_schema_extra=_FROM_1)
    source: Source = Field(None, description=_SOURCE)


class AnswerLink(BaseModel):
    """Of GET /answer, whose numbers are texts."""

    model_config = ConfigDict(extra="forbid")

    q: str
    k: int = Field(READ, json_schema_extra=_FROM_1)
    source: Source = None


class FillRequest(Request):
    """Of POST /fill."""

    text: Text = Field(description="a sentence with [MASK] for each token to be filled in")
    k: int = Field(FILLED, description="passages that are read", json_schema_extra=_FROM_1)
    words: int = Field(10, description="that are listed for a [MASK]", json_schema_extra=_FROM_1)
    source: Source = Field(None, description=_SOURCE)


class OneAnswer(BaseModel):
    """The best span of a passage."""

    rank: int
    answer: str = Field(description="'' where the passage has nothing to point at")
    place: tuple[int, int] | None = Field(description="characters of the passage's text")
    score: float | None = Field(
        description="the span's score and the passage's relevance; null where there is no span"
    )
    passage_probability: float = Field(description="p(z|x), among the passages that were read")
    span_probability: float = Field(description="p(y|z,x), among all spans of the passage")
    hit: HitReply


class AnswerReply(BaseModel):
    """Of /answer."""

    version: int
    query: QueryTokens
    answers: list[OneAnswer]
    seconds: Seconds


class Document(BaseModel):
    """A passage that was read; the first is the one without a text, and has no hit."""

    hit: HitReply | None
    relevance: float
    probability: float = Field(description="p(z|x)")


class Word(BaseModel):
    """A token for a [MASK]."""

    token: int
    piece: str
    probability: float = Field(description="p(y|x), with all documents")
    by_document: list[float] = Field(description="p(y|z,x), with each document alone")


class Mask(BaseModel):
    """A [MASK], and what is likeliest in its place."""

    place: tuple[int, int] | None = Field(description="characters of the text")
    words: list[Word]


class FillReply(BaseModel):
    """Of POST /fill."""

    version: int
    query: QueryTokens
    documents: list[Document]
    masks: list[Mask]
    seconds: Seconds
