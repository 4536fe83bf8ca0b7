"""Routes of Hugging Face's Text Embeddings Inference, so that its clients can call Kennel.

As there, a text that is too long is cut unless `truncate` is false; unlike there, the header
X-Truncated says which, any number of texts is taken, and the model may make all three kinds of
representations.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, Field

from launch.service.bodies import Text, Texts, as_list
from launch.service.error_replies import ErrorReply, documented
from launch.service.json_reply import JsonReply
from launch.service.openai_routes import check_dimensions, truncated
from launch.service.session import Opened, Session
from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, PASSAGE, QUERY, SPARSE
from t5x_style.serving.service import Encoded, RequestError, Tokens, shown

router = APIRouter(tags=["TEI"], responses=documented(ErrorReply))
COSINE = "cosine"
_ROUNDING = 1e-5  # of a length in float32


def _check_direction(direction: str) -> str:
    if direction.lower() != "right":
        raise ValueError(
            f"expected 'Right', as texts are cut at their end alone; found {shown(direction)}"
        )
    return direction


Direction = Annotated[str, AfterValidator(_check_direction)]


class EmbedRequest(BaseModel):
    """Of the three routes that embed; other fields are ignored."""

    inputs: Texts
    truncate: bool | None = Field(None, description="false: texts that are too long are refused")
    truncation_direction: Direction | None = Field(None, description="'Right', or absent")
    prompt_name: Literal["query", "passage"] | None = Field(None, description="default: passage")
    normalize: bool | None = Field(
        None, description="to length 1; default: true where the model compares by cosine"
    )
    dimensions: int | None = Field(None, description="absent, or that of the model")


class SparseValue(BaseModel):
    """A token and its weight."""

    index: int
    value: float


class RerankRequest(BaseModel):
    """Of POST /rerank; other fields are ignored."""

    query: Text
    texts: list[Text]
    raw_scores: bool | None = Field(
        None, description="logits, or similarities; default: between 0 and 1"
    )
    return_text: bool | None = None
    truncate: bool | None = Field(None, description="false: texts that are too long are refused")
    truncation_direction: Direction | None = Field(None, description="'Right', or absent")


class Ranked(BaseModel):
    """A text with its score; the text only where it was asked for."""

    index: int
    score: float
    text: str | None = None


@router.post("/embed", responses={200: {"model": list[list[float]]}})
async def embed(body: EmbedRequest, session: Opened) -> JsonReply:
    """A vector of each text."""
    session.require_kind(DENSE)
    check_dimensions(session, body.dimensions)
    normalize = body.normalize
    if normalize is None:
        normalize = session.facts.similarity == COSINE
    encoded, headers = await _encoded(body, session, DENSE)
    form = normalized if normalize else np.asarray
    return JsonReply([form(one.dense) for one in encoded], headers=headers)


@router.post("/embed_sparse", responses={200: {"model": list[list[SparseValue]]}})
async def embed_sparse(body: EmbedRequest, session: Opened) -> JsonReply:
    """Tokens with weights of each text."""
    encoded, headers = await _encoded(body, session, SPARSE)
    return JsonReply([_sparse(one) for one in encoded], headers=headers)


@router.post("/embed_all", responses={200: {"model": list[list[list[float]]]}})
async def embed_all(body: EmbedRequest, session: Opened) -> JsonReply:
    """A vector of each token of each text, of the multi-vector kind."""
    encoded, headers = await _encoded(body, session, MULTI_VECTOR)
    return JsonReply([one.multi_vector for one in encoded], headers=headers)


@router.post("/rerank", responses={200: {"model": list[Ranked]}})
async def rerank(body: RerankRequest, session: Opened) -> JsonReply:
    """Texts in the order of a re-ranker's scores, or of their similarity to a query."""
    truncate = body.truncate is not False
    scores, headers = await relevance(session, body.query, "texts", body.texts, truncate)
    form = float if body.raw_scores else unit_score(session.facts.similarity)
    ranked: list[dict[str, Any]] = [
        {"index": index, "score": form(scores[index])} for index in best_first(scores)
    ]
    if body.return_text:
        ranked = [{**one, "text": body.texts[one["index"]]} for one in ranked]
    return JsonReply(ranked, headers=headers)


async def _encoded(
    body: EmbedRequest, session: Session, kind: str
) -> tuple[list[Encoded], dict[str, str]]:
    """Texts as one kind, and the header that lists those that were cut."""
    session.require_kind(kind)
    side = body.prompt_name or PASSAGE
    tokens = await session.tokenize("inputs", side, as_list(body.inputs))
    if body.truncate is False:
        require_whole("inputs", tokens)
    return await session.encode(side, tokens, (kind,)), truncated(tokens)


def require_whole(field: str, tokens: Sequence[Tokens]) -> None:
    """Refuses texts that are too long.

    Raises:
      RequestError: which one is the first of them, and by how much.
    """
    for number, one in enumerate(tokens):
        if one.cut_off:
            read = len(one.ids)
            where = field if len(tokens) == 1 else f"{field}[{number}]"
            raise RequestError(
                f"{where}: expected at most {read} tokens, found {read + one.cut_off}; shorten the "
                "text, or leave out truncate, and it is cut"
            )


def shortened(tokens: Tokens, longest: int) -> Tokens:
    """A text cut at `longest` tokens, of which it keeps the special ones at its two ends.

    >>> places = (None, (0, 1), (2, 3), None)
    >>> cut = shortened(Tokens(np.arange(4), ("[CLS]", "a", "b", "[SEP]"), places, 0), 3)
    >>> cut.pieces, cut.places, cut.cut_off
    (['[CLS]', 'a', '[SEP]'], [None, (0, 1), None], 1)
    """
    there = [number for number, place in enumerate(tokens.places) if place is not None]
    if len(tokens.ids) <= longest or not there:
        return tokens
    first, end = there[0], there[-1] + 1
    begin = max(first, end - (len(tokens.ids) - longest))  # of what is cut
    pieces, places = list(tokens.pieces), list(tokens.places)
    return Tokens(
        np.delete(tokens.ids, np.s_[begin:end]),
        pieces[:begin] + pieces[end:],
        places[:begin] + places[end:],
        tokens.cut_off + end - begin,
    )


async def relevance(
    session: Session,
    query: str,
    field: str,
    texts: Sequence[str],
    truncate: bool,
    longest: int | None = None,
) -> tuple[list[float], dict[str, str]]:
    """Scores of texts for a query, in the order of the texts, and headers that say what was cut.

    Those of the model's re-ranker, logits, or else similarities of representations.

    Args:
      session: of the request.
      query: a question.
      field: of the texts, for errors.
      texts: passages.
      truncate: whether texts that are too long are cut; else they are refused.
      longest: tokens at which texts are cut, where that is less than the model's length.

    Raises:
      RequestError: beyond a limit, or too long.
    """
    asked = await session.tokenize("query", QUERY, [query])
    tokens = await session.tokenize(field, PASSAGE, texts)
    if not truncate:
        require_whole("query", asked)
        require_whole(field, tokens)
    if longest is not None:
        tokens = [shortened(one, longest) for one in tokens]
    reranker = session.service.reranker
    if reranker is not None:
        pair = functools.partial(reranker.pair, asked[0])
        pairs: list[Tokens] = await session.in_thread(list, map(pair, tokens))
        scores = await session.compute([functools.partial(reranker.score, one) for one in pairs])
    else:
        kinds = (DENSE,) if DENSE in session.facts.kinds else session.facts.kinds
        both = [(QUERY, asked[0]), *((PASSAGE, one) for one in tokens)]
        question, *passages = await session.encode_mixed(both, kinds)
        scores = await session.search(session.service.similarity, question, passages)
    cut = {"X-Truncated-Query": "true"} if asked[0].cut_off else {}
    return [float(score) for score in scores], truncated(tokens) | cut


def best_first(scores: Sequence[float]) -> list[int]:
    """Indexes in the order of falling scores; equal ones in their order.

    >>> best_first([0.1, 0.3, 0.1])
    [1, 0, 2]
    """
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def unit_score(similarity: str) -> Callable[[float], float]:
    """A function from scores to numbers between 0 and 1, in the same order.

    Clients of re-rankers expect probabilities. A cosine is moved and scaled; of another product,
    and of a re-ranker's logit, which have no bounds, this is the logistic function.

    >>> unit_score("cosine")(0.5)
    0.75
    """

    def of_cosine(score: float) -> float:
        return min(max((1 + score) / 2, 0.0), 1.0)

    def of_product(score: float) -> float:
        return 0.5 * (1 + math.tanh(score / 2))

    return of_cosine if similarity == COSINE else of_product


def normalized(vector: np.ndarray | None) -> np.ndarray:
    """A vector of length 1; zeros stay, and what has this length already, bit by bit."""
    found = np.asarray(vector, np.float32)
    length = float(np.linalg.norm(found))
    return found if length == 0 or abs(length - 1) < _ROUNDING else found / np.float32(length)


def _sparse(one: Encoded) -> list[dict[str, Any]]:
    tokens, weights = one.sparse if one.sparse is not None else (np.empty(0), np.empty(0))
    return [
        {"index": index, "value": value}
        for index, value in zip(tokens.tolist(), weights.tolist(), strict=True)
    ]
