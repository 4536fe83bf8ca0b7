"""Kennel's routes: search, side-by-side comparison, evidence and encoding."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from launch.service import bodies, queries
from launch.service.error_replies import ErrorReply, MissingKind, documented
from launch.service.json_reply import JsonReply
from launch.service.session import NO_KINDS, Opened, Session
from t5x_style.serving.service import Encoded, Evidence, RequestError, Tokens, shown

router = APIRouter(tags=["Kennel"], responses=documented(ErrorReply))
_QUERY, _PASSAGE = "query", "passage"


@router.post("/search", responses={200: {"model": bodies.SearchReply}})
async def search(body: bodies.SearchRequest, session: Opened) -> JsonReply:
    """The best passages for a query, best first."""
    return await _search(session, "query", body.query, body.mode, body.k, body.source)


@router.get("/search", responses={200: {"model": bodies.SearchReply}})
async def search_by_link(link: Annotated[bodies.SearchLink, Query()], session: Opened) -> JsonReply:
    """The same, for links and curl: `/search?q=...&mode=&k=&source=`."""
    return await _search(session, "q", link.q, link.mode or None, link.k, link.source)


async def _search(
    session: Session, field: str, query: str, mode: str | None, k: int, source: str | None
) -> JsonReply:
    mode = queries.mode_of(session, mode)
    queries.check_k(session, k)
    queries.check_source(session, source)
    needs = session.service.needs(mode)
    tokens, encoded = await queries.encoded_query(session, field, query, needs)
    hits = await queries.search(session, encoded, mode, k, source)
    return JsonReply(
        {
            "mode": mode,
            "version": session.facts.version,
            "query": queries.lengths(tokens),
            "hits": queries.hits_of(hits),
            "seconds": session.seconds,
        }
    )


@router.post("/compare", responses={200: {"model": bodies.CompareReply}})
async def compare(body: bodies.CompareRequest, session: Opened) -> JsonReply:
    """The best passages of every mode side by side, with one encoding of the query."""
    queries.check_k(session, body.k)
    service, modes = session.service, session.facts.modes
    needs = tuple(dict.fromkeys(kind for mode in modes for kind in service.needs(mode)))
    tokens, encoded = await queries.encoded_query(session, "query", body.query, needs)
    found = {
        mode: queries.hits_of(await queries.search(session, encoded, mode, body.k))
        for mode in modes
    }
    return JsonReply(
        {
            "version": session.facts.version,
            "query": queries.lengths(tokens),
            "modes": found,
            "seconds": session.seconds,
        }
    )


@router.post("/evidence", responses={200: {"model": bodies.EvidenceReply}})
async def evidence(body: bodies.EvidenceRequest, session: Opened) -> JsonReply:
    """Why a passage fits a query: shared words with weights, and similarities of all tokens."""
    kinds = session.facts.kinds
    tokens, encoded = await queries.encoded_query(session, "query", body.query, kinds)
    found = await session.search(session.service.evidence, tokens, encoded, body.id)
    return JsonReply(
        {
            "title": found.title,
            "content": found.content,
            "words": None if found.words is None else _words(found),
            "max_sim": None if found.max_sim is None else _max_sim(found),
            "passage": {
                "pieces": list(found.passage.pieces),
                "places": list(found.passage.places),
                "cut_off": found.passage.cut_off,
            },
        }
    )


@router.post("/encode", responses={200: {"model": bodies.EncodeReply}})
async def encode(body: bodies.EncodeRequest, session: Opened) -> JsonReply:
    """What the model makes of texts: all kinds of representations of one forward pass."""
    kinds = _kinds(session, body.kinds)
    tokens = await session.tokenize("texts", body.side, bodies.as_list(body.texts))
    encoded = await session.encode(body.side, tokens, kinds)
    items = [_item(one, made) for one, made in zip(tokens, encoded, strict=True)]
    return JsonReply({"version": session.facts.version, "items": items})


def _kinds(session: Session, kinds: Sequence[str] | None) -> tuple[str, ...]:
    known = session.facts.kinds
    if not known:
        raise MissingKind(
            f"this route needs a model that makes representations, and {session.name} makes "
            f"{NO_KINDS}; ask /rerank or /search"
        )
    if kinds is None:
        return known
    if not kinds or not set(kinds) <= set(known):
        found = ", ".join(shown(kind) for kind in kinds[: queries.LISTED]) or "none"
        raise RequestError(f"kinds: expected some of {', '.join(known)}, found {found}")
    return tuple(dict.fromkeys(kinds))


def _item(tokens: Tokens, made: Encoded) -> dict[str, Any]:
    item: dict[str, Any] = {**queries.lengths(tokens)}
    if made.dense is not None:
        item["dense"] = made.dense
    if made.sparse is not None:
        pieces = dict(zip(tokens.ids.tolist(), tokens.pieces, strict=True))
        item["sparse"] = [
            {"token": token, "piece": pieces.get(token), "weight": weight}
            for token, weight in zip(*(one.tolist() for one in made.sparse), strict=True)
        ]
    if made.multi_vector is not None:
        item["multi_vector"] = made.multi_vector
    return item


def _words(found: Evidence) -> list[dict[str, Any]]:
    return [
        {
            "piece": word.piece,
            "query_weight": word.query_weight,
            "passage_weight": word.passage_weight,
            "part": word.query_weight * word.passage_weight,
        }
        for word in found.words or ()
    ]


def _max_sim(found: Evidence) -> dict[str, Any]:
    places = column_places(found.passage, found.passage_pieces)
    return {
        "rows": list(found.query_pieces),
        "columns": [
            {"piece": piece, "place": place}
            for piece, place in zip(found.passage_pieces, places, strict=True)
        ],
        "values": found.max_sim,
    }


def column_places(passage: Tokens, pieces: Sequence[str]) -> list[tuple[int, int] | None]:
    """Where the tokens that have a vector are in the text.

    A model may make vectors of fewer tokens than it reads: most leave out the first, some more.
    Tokens are in the order of the text, so that they are found by their pieces.

    >>> import numpy as np
    >>> passage = Tokens(np.arange(3), ("[CLS]", "a", "b"), (None, (0, 1), (2, 3)), 0)
    >>> column_places(passage, ["a", "b"])
    [(0, 1), (2, 3)]
    """
    wanted, all_pieces = list(pieces), list(passage.pieces)
    for start in range(len(all_pieces) - len(wanted) + 1):
        if all_pieces[start : start + len(wanted)] == wanted:
            return list(passage.places[start : start + len(wanted)])
    places: list[tuple[int, int] | None] = []
    at = 0
    for piece in wanted:
        match = next((n for n in range(at, len(all_pieces)) if all_pieces[n] == piece), None)
        places.append(None if match is None else passage.places[match])
        at = at if match is None else match + 1
    return places
