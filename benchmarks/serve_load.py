"""Requests to a server, several at a time; see `benchmarks.serve`."""

import asyncio
import time
from collections.abc import Sequence

import httpx


async def load(url: str, texts: Sequence[str], concurrency: int) -> tuple[list[float], int]:
    """Seconds of each request that was answered with vectors, and how many were not."""
    waiting = list(reversed(texts))
    seconds: list[float] = []
    lost = 0
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def run() -> None:
            nonlocal lost
            while waiting:
                body = {"input": waiting.pop(), "model": "kennel", "encoding_format": "base64"}
                begin = time.perf_counter()
                try:
                    reply = await client.post("/v1/embeddings", json=body)
                    reply.raise_for_status()
                except httpx.HTTPError:  # no connection, no answer in time, or an error
                    lost += 1
                else:
                    seconds.append(time.perf_counter() - begin)

        await asyncio.gather(*(run() for _ in range(concurrency)))
    return seconds, lost
