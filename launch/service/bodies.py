"""Bodies of Kennel's routes: what they take, which is checked, and what they give, for /docs."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from t5x_style.serving.service import shown

Side = Literal["query", "passage"]
_FROM_1: JsonDict = {"minimum": 1}  # for /docs; the route checks it, with a clearer error
_IDS = (
    "expected a text or an array of texts, found token ids; ids of another tokenizer would give "
    "wrong vectors. With langchain-openai, set OpenAIEmbeddings(check_embedding_ctx_length=False)"
)


def check_texts(value: Any) -> Any:
    """Refuses all but a text and a list of texts, with a message that says what was found.

    Raises:
      ValueError: another value, among others the token ids that some clients send.
    """
    if isinstance(value, str):
        _check_text(value, "")
        return value
    if not isinstance(value, list):
        raise ValueError(f"expected a text or an array of texts, found {shown(value)}")
    for number, text in enumerate(value):
        if isinstance(text, int | list):
            raise ValueError(_IDS)
        _check_text(text, f"item {number}: ")
    return value


def _check_text(text: Any, where: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{where}expected a text, found {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}expected Unicode text, found half of a surrogate pair at character "
            f"{error.start}"
        ) from None


def check_unicode(text: str) -> str:
    """Refuses half of a surrogate pair, which JSON can express and UTF-8 cannot.

    Raises:
      ValueError: the text has one.
    """
    _check_text(text, "")
    return text


def as_list(texts: str | list[str]) -> list[str]:
    """One text, or several, as a list."""
    return [texts] if isinstance(texts, str) else texts


_NOT_EMPTY: JsonDict = {"minLength": 1, "minItems": 1}
Text = Annotated[str, AfterValidator(check_unicode), Field(json_schema_extra={"minLength": 1})]
Texts = Annotated[
    str | list[str], BeforeValidator(check_texts), Field(json_schema_extra=_NOT_EMPTY)
]


# "" is a link's way to say that there is none; as a beginning it would choose all passages, slowly.
Source = Annotated[str | None, AfterValidator(lambda source: source or None)]


class Request(BaseModel):
    """A body of Kennel's routes: with no other fields, and no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(Request):
    """Of POST /search."""

    query: Text
    mode: str | None = Field(None, description="one of /info's modes; default: the last")
    k: int = Field(10, description="passages, from 1", json_schema_extra=_FROM_1)
    source: Source = Field(None, description="only passages whose source begins so")


class SearchLink(BaseModel):
    """Of GET /search, whose numbers are texts."""

    model_config = ConfigDict(extra="forbid")

    q: str
    mode: str | None = None
    k: int = Field(10, json_schema_extra=_FROM_1)
    source: Source = None


class CompareRequest(Request):
    """Of POST /compare."""

    query: Text
    k: int = Field(10, description="passages of each mode, from 1", json_schema_extra=_FROM_1)


class EvidenceRequest(Request):
    """Of POST /evidence."""

    query: Text
    id: Text = Field(description="of a passage")


class EncodeRequest(Request):
    """Of POST /encode."""

    texts: Texts
    side: Side = Field("passage", description="the model reads queries and passages differently")
    kinds: list[str] | None = Field(None, description="of representations; default: all")


class QueryTokens(BaseModel):
    """How the model reads a query."""

    tokens: int
    cut_off: int = Field(description="tokens that are not read, as the query is too long")


class HitReply(BaseModel):
    """A passage that was found."""

    rank: int
    id: str
    title: str
    text: str
    source: str
    score: float
    scores: dict[str, float] = Field(description="kind -> score")


class Seconds(BaseModel):
    """Of the stages of a request."""

    tokenization: float
    encoding: float
    search: float


class SearchReply(BaseModel):
    """Of /search."""

    mode: str
    version: int
    query: QueryTokens
    hits: list[HitReply]
    seconds: Seconds


class CompareReply(BaseModel):
    """Of POST /compare."""

    version: int
    query: QueryTokens
    modes: dict[str, list[HitReply]]
    seconds: Seconds


class WordReply(BaseModel):
    """A token that query and passage have in common."""

    piece: str
    query_weight: float
    passage_weight: float
    part: float = Field(description="of the score: the product of the weights")


class Column(BaseModel):
    """A vector of a passage; its place in the content, if it has one."""

    piece: str
    place: tuple[int, int] | None


class MaxSimReply(BaseModel):
    """Inner products of the vectors of query and passage."""

    rows: list[str]
    columns: list[Column]
    values: list[list[float]]


class PassageReply(BaseModel):
    """A passage as the model reads it."""

    pieces: list[str]
    places: list[tuple[int, int] | None] = Field(description="characters of the content")
    cut_off: int


class EvidenceReply(BaseModel):
    """Of POST /evidence."""

    title: str
    content: str
    words: list[WordReply] | None
    max_sim: MaxSimReply | None
    passage: PassageReply


class WeightedToken(BaseModel):
    """Of a sparse representation; the piece of a token that is not in the text is null."""

    token: int
    piece: str | None
    weight: float


class EncodedReply(BaseModel):
    """A text; the kinds that were not asked for are absent."""

    tokens: int
    cut_off: int
    dense: list[float] | None = None
    sparse: list[WeightedToken] | None = None
    multi_vector: list[list[float]] | None = None


class EncodeReply(BaseModel):
    """Of POST /encode."""

    version: int
    items: list[EncodedReply]


class MapReply(BaseModel):
    """Of GET /map: passages on a plane. Lists have an entry for each passage, except `sources`."""

    version: int
    passages: int = Field(description="that are indexed; the map may have fewer")
    explained: list[float] = Field(
        description="share of the variance, of each of the 2 axes", min_length=2, max_length=2
    )
    ids: list[str]
    x: list[float] = Field(description="from -1 to 1: the first principal component")
    y: list[float] = Field(description="the second, in the scale of the first")
    titles: list[str] = Field(description="the beginning, as of texts")
    texts: list[str]
    sources: list[str] = Field(description="'' of passages without one")
    groups: list[int] = Field(description="of each passage, the number of its source, from 0")


class CurveReply(BaseModel):
    """A metric over the steps of a training."""

    name: str = Field(description="as it was logged: 'train/loss', 'eval/dev/MRR@10'")
    logged: int = Field(description="points of the log; those of the curve are some of them")
    steps: list[int]
    values: list[float | None] = Field(description="null where it was NaN or infinite")


class TrainingReply(BaseModel):
    """A training, with its curves."""

    name: str
    served: bool = Field(description="whether the model that is served was made from it")
    finished: str
    seconds: float = Field(description="of training, evaluation included")
    curves: list[CurveReply]


class CurvesReply(BaseModel):
    """Of GET /curves: trainings, each after those that it was made from."""

    version: int
    trainings: list[TrainingReply]
    unread: list[str] = Field(description="trainings whose log is missing or damaged")
    left_out: int = Field(description="curves beyond the limits of curves.json")
