"""Routes that Cohere's client calls to re-rank documents.

A document is cut at `max_tokens_per_doc` tokens of the model, specials included, or at the length
that the model was trained with, where that is less. `model` may be any name.
"""

import uuid
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from launch.service.bodies import Text
from launch.service.error_replies import CohereError, documented
from launch.service.json_reply import JsonReply
from launch.service.session import Opened, Session
from launch.service.tei_routes import best_first, relevance, unit_score

router = APIRouter(tags=["Cohere"], responses=documented(CohereError))


class Document(BaseModel):
    """A document; other fields are ignored."""

    text: Text


class RerankRequest(BaseModel):
    """Of /v1/rerank and /v2/rerank; other fields are ignored."""

    query: Text
    documents: list[Text | Document]
    model: str | None = None
    top_n: int | None = Field(None, ge=1, description="results; default: all")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, description="tokens at which documents are cut; default: the model's length"
    )
    return_documents: bool | None = Field(None, description="of version 1")


class Result(BaseModel):
    """A document with its relevance, between 0 and 1."""

    index: int
    relevance_score: float


class RerankReply(BaseModel):
    """Of /v1/rerank and /v2/rerank."""

    id: str
    results: list[Result]
    meta: dict[str, Any]


@router.post("/v2/rerank", responses={200: {"model": RerankReply}})
async def rerank(body: RerankRequest, session: Opened) -> JsonReply:
    """Documents in the order of their relevance to a query."""
    return await _ranked(body, session, "2")


@router.post("/v1/rerank", responses={200: {"model": RerankReply}})
async def rerank_of_version_1(body: RerankRequest, session: Opened) -> JsonReply:
    """The same, in version 1, which may return the documents."""
    return await _ranked(body, session, "1")


async def _ranked(body: RerankRequest, session: Session, version: str) -> JsonReply:
    texts = [one.text if isinstance(one, Document) else one for one in body.documents]
    longest = body.max_tokens_per_doc
    scores, headers = await relevance(
        session, body.query, "documents", texts, truncate=True, longest=longest
    )
    form = unit_score(session.facts.similarity)
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": form(scores[index])}
        for index in best_first(scores)[: body.top_n]
    ]
    if version == "1" and body.return_documents:
        results = [{**one, "document": {"text": texts[one["index"]]}} for one in results]
    meta = {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
    reply = {"id": str(uuid.uuid4()), "results": results, "meta": meta}
    return JsonReply(reply, headers=headers)
