"""The route that searches within each source, such as each language of a corpus of translations."""

import math
from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel, Field
from pydantic.config import JsonDict

from launch.service import queries
from launch.service.bodies import HitReply, QueryTokens, Request, Seconds, Text
from launch.service.error_replies import ErrorReply, documented
from launch.service.json_reply import JsonReply
from launch.service.session import Opened, Session
from t5x_style.serving.service import BM25, RERANKED, Encoded, Hit, RequestError, shown

MOST_SOURCES = 24  # that are searched for one query
SHOWN = 3  # passages of each source, if the request names no number
_DEEPER = 8  # times as many passages, where the first ones are of longer sources
_FROM_1: JsonDict = {"minimum": 1}  # for /docs; the route checks it, with a clearer error

router = APIRouter(tags=["Kennel"], responses=documented(ErrorReply))


class SourcesRequest(Request):
    """Of POST /sources."""

    query: Text
    k: int = Field(SHOWN, description="passages of each source, from 1", json_schema_extra=_FROM_1)
    mode: str | None = Field(
        None, description="one of /info's modes; default: the last, but bm25 of a re-ranker"
    )


class SourceHits(BaseModel):
    """The best passages of one source."""

    source: str
    hits: list[HitReply]


class SourcesReply(BaseModel):
    """Of POST /sources."""

    mode: str
    version: int
    query: QueryTokens
    sources: list[SourceHits] = Field(
        description="all that /info lists, in the order of their best scores"
    )
    seconds: Seconds


@router.post("/sources", responses={200: {"model": SourcesReply}})
async def sources(body: SourcesRequest, session: Opened) -> JsonReply:
    """The best passages of each source for a query, which is encoded once."""
    listed = _listed(session, body.k)
    mode = queries.mode_of(session, body.mode or (BM25 if session.facts.reranks else None))
    kinds = session.service.needs(mode)
    tokens, encoded = await queries.encoded_query(session, "query", body.query, kinds)
    found = {one: await _search(session, encoded, mode, body.k, one, listed) for one in listed}
    best = {one: _best(hits) for one, hits in found.items()}
    return JsonReply(
        {
            "mode": mode,
            "version": session.facts.version,
            "query": queries.lengths(tokens),
            "sources": [
                {"source": one, "hits": queries.hits_of(found[one])}
                for one in sorted(listed, key=lambda one: -best[one])
            ],
            "seconds": session.seconds,
        }
    )


def _best(hits: Sequence[Hit]) -> float:
    """What sources are ordered by: a re-ranker's scores, since sums are of each source's scale."""
    return max((hit.scores.get(RERANKED, hit.score) for hit in hits), default=-math.inf)


def _listed(session: Session, k: int) -> Sequence[str]:
    """The sources of the bundle, for k passages of each; RequestError: too many, or none."""
    listed = session.facts.sources
    if not listed:
        raise RequestError(
            "/sources searches within each source: expected a bundle whose passages name their "
            "source, found one that lists none"
        )
    if len(listed) > MOST_SOURCES:
        raise RequestError(
            f"/sources searches within each source: expected at most {MOST_SOURCES}, found "
            f"{len(listed)}; /search finds passages of one with `source`"
        )
    most = max(1, session.settings.max_k // len(listed))
    if not 1 <= k <= most:
        raise RequestError(
            f"k: expected 1 to {most:,}, for each of {len(listed)} sources, found {shown(k)}"
        )
    return listed


async def _search(
    session: Session, encoded: Encoded, mode: str, k: int, source: str, listed: Sequence[str]
) -> list[Hit]:
    """The best passages of a source, without those of a longer one: of 'zh', not of 'zh-Hant'."""
    longer = tuple(one for one in listed if one != source and one.startswith(source))
    asked = k
    while True:
        hits = await queries.search(session, encoded, mode, asked, source)
        kept = [hit for hit in hits if not hit.source.startswith(longer)] if longer else hits
        if len(kept) >= k or len(hits) < asked:
            return kept[:k]
        asked *= _DEEPER
