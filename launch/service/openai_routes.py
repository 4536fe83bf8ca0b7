"""Routes that OpenAI's client calls, so that what embeds with OpenAI can embed here.

Texts are encoded as passages. A model whose name ends in ':query' encodes them as queries, which
the protocol has no other way to ask for: `model="kennel:query"`. The rest of the name is free, as
many programs name a model of OpenAI and let no one change it.
"""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field

from launch.service.bodies import Texts, as_list
from launch.service.error_replies import OpenAIError, documented
from launch.service.json_reply import JsonReply
from launch.service.session import Opened, Session
from t5x_style.interfaces.representation import DENSE, PASSAGE, QUERY
from t5x_style.serving.service import RequestError, Tokens

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=documented(OpenAIError))
AS_QUERY = ":query"
_LISTED = 256  # indexes in a header, which proxies limit to 4 or 8 KiB


class EmbeddingsRequest(BaseModel):
    """Of POST /v1/embeddings; other fields are ignored."""

    input: Texts
    model: str | None = Field(
        None, description=f"any; with {AS_QUERY} at its end texts are queries"
    )
    encoding_format: Literal["float", "base64"] | None = Field(None, description="default: float")
    dimensions: int | None = Field(None, description="absent, or that of the model")
    user: Any = None


class Embedding(BaseModel):
    """Of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """Of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


@router.post("/embeddings", responses={200: {"model": EmbeddingsReply}})
async def embeddings(body: EmbeddingsRequest, session: Opened) -> JsonReply:
    """Vectors of texts; the header X-Truncated lists the indexes of those that were too long."""
    session.require_kind(DENSE)
    check_dimensions(session, body.dimensions)
    side = QUERY if (body.model or "").endswith(AS_QUERY) else PASSAGE
    tokens = await session.tokenize("input", side, as_list(body.input))
    encoded = await session.encode(side, tokens, (DENSE,))
    form = in_base64 if body.encoding_format == "base64" else np.asarray
    data = [
        {"object": "embedding", "index": index, "embedding": form(one.dense)}
        for index, one in enumerate(encoded)
    ]
    count = sum(len(one.ids) for one in tokens)
    return JsonReply(
        {
            "object": "list",
            "data": data,
            "model": session.name + AS_QUERY * (side == QUERY),
            "usage": {"prompt_tokens": count, "total_tokens": count},
        },
        headers=truncated(tokens),
    )


@router.get("/models")
async def models(session: Opened) -> JsonReply:
    """The model, as it encodes passages and queries; of a re-ranker its name alone."""
    names = [session.name, session.name + AS_QUERY] if session.facts.kinds else [session.name]
    data = [{"id": one, "object": "model", "created": 0, "owned_by": "kennel"} for one in names]
    return JsonReply({"object": "list", "data": data})


def check_dimensions(session: Session, dimensions: int | None) -> None:
    """Refuses vectors of another length than the model makes.

    Raises:
      RequestError: the length is another one.
    """
    made = session.facts.dimension
    if dimensions not in (None, made):
        raise RequestError(
            f"dimensions: expected {made}, which the model makes, or none; found {dimensions}"
        )


def in_base64(vector: np.ndarray | None) -> str:
    """A vector as base64 of float32 in little endian, which OpenAI's client asks for."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def truncated(tokens: Sequence[Tokens]) -> dict[str, str]:
    """The header that lists texts which were too long; {} without any."""
    indexes = [str(index) for index, one in enumerate(tokens) if one.cut_off]
    if not indexes:
        return {}
    return {"X-Truncated": ",".join(indexes[:_LISTED]), "X-Truncated-Count": str(len(indexes))}
