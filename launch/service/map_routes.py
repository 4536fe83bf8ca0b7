"""The map of the corpus, which the page draws."""

import asyncio
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Header

from launch.service import bodies
from launch.service.error_replies import ErrorReply, documented
from launch.service.json_reply import JsonReply, compressed
from launch.service.session import Opened

router = APIRouter(tags=["Kennel"], responses=documented(ErrorReply))


@router.get("/map", responses={200: {"model": bodies.MapReply}})
async def corpus_map(
    session: Opened, accept_encoding: Annotated[str | None, Header(include_in_schema=False)] = None
) -> JsonReply:
    """Up to 20,000 passages on the plane of the first two principal components of their vectors.

    The first request of a version computes it, and others wait for the same.
    """
    found = await asyncio.wrap_future(session.service.map())
    x, y = np.ascontiguousarray(found.points.T)
    content = {
        "version": session.facts.version,
        "passages": session.facts.passages,
        "explained": found.explained,
        "ids": found.ids,
        "x": x,
        "y": y,
        "titles": found.titles,
        "texts": found.texts,
        "sources": found.sources,
        "groups": found.groups,
    }
    return await session.in_thread(compressed, content, accept_encoding)
