"""What routes that search have in common: checks of a query, its encoding, and hits for replies."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from launch.service.session import Session
from t5x_style.interfaces.representation import QUERY
from t5x_style.serving.service import RERANKED, Encoded, Hit, RequestError, Tokens, shown

LISTED = 20  # names in an error


async def encoded_query(
    session: Session, field: str, query: str, kinds: Sequence[str]
) -> tuple[Tokens, Encoded]:
    """A query's tokens, and what the model makes of it as `kinds`; `field` is for errors."""
    tokens = await session.tokenize(field, QUERY, [query])
    (encoded,) = await session.encode(QUERY, tokens, kinds) if kinds else [Encoded()]
    return tokens[0], dataclasses.replace(encoded, text=query)


async def search(
    session: Session, query: Encoded, mode: str, k: int, source: str | None = None
) -> list[Hit]:
    """The best passages, as `Service.search`; of mode RERANKED with the model's scores.

    Raises:
      Overloaded, Unavailable: see `Session.compute`, in mode RERANKED.
    """
    if mode != RERANKED:
        return await session.search(session.service.search, query, mode, k, source)
    reranker = session.service.reranker
    assert reranker is not None  # of a bundle with this mode
    candidates = await session.search(reranker.candidates, query.text, source)
    submits = [functools.partial(reranker.score, one) for one in candidates.pairs]
    logits = await session.compute(submits)
    return await session.search(reranker.ordered, candidates, logits, k)


def mode_of(session: Session, mode: str | None) -> str:
    """The mode that is asked for; None: the last one. RequestError."""
    modes = session.facts.modes
    if mode is None:
        return modes[-1]
    if mode not in modes:
        raise RequestError(f"mode: expected one of {', '.join(modes)}, found {shown(mode)}")
    return mode


def check_k(session: Session, k: int) -> None:
    """Raises RequestError for a number of passages that is out of its limits."""
    if not 1 <= k <= session.settings.max_k:
        raise RequestError(f"k: expected 1 to {session.settings.max_k:,}, found {shown(k)}")


def check_source(session: Session, source: str | None) -> None:
    """Refuses a source with which none of the listed ones agrees; the list may be of prefixes."""
    known = session.facts.sources
    if source is None or not known:
        return
    if not any(one.startswith(source) or source.startswith(one) for one in known):
        more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
        raise RequestError(
            f"source: expected the beginning of one of {', '.join(known[:LISTED])}{more}, found "
            f"{shown(source)}"
        )


def lengths(tokens: Tokens) -> Mapping[str, int]:
    """How the model reads a text, as `bodies.QueryTokens`."""
    return {"tokens": len(tokens.ids), "cut_off": tokens.cut_off}


def hits_of(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    """Passages in their order, as `bodies.HitReply`."""
    return [
        {
            "rank": rank,
            "id": hit.id,
            "title": hit.title,
            "text": hit.text,
            "source": hit.source,
            "score": hit.score,
            "scores": dict(hit.scores),
        }
        for rank, hit in enumerate(hits, 1)
    ]
