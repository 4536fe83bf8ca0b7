"""What `kennel serve` does with random requests, with too many, and for a long time.

    python -m benchmarks.serve_stress --bundle=runs/mine/bundle [--part=fuzz,overload,soak]

fuzz: --requests random requests on all routes; counts replies by status. Expected: no 5xx, and no
    path or traceback in an error.
overload: four times as many requests at a time as the server allows, for --seconds. Expected: 200
    and 429 with Retry-After alone, the same memory before and after, and an answer at the usual
    speed at most 5 s after the end.
soak: searches by --clients at a time for --seconds, with a new version of a copy of the bundle
    every --swap_every seconds. Expected: no request fails, all versions answer, and memory is flat
    (2 %).

The exit code is 1 where something else happened. `mem` is the server's resident memory in MiB.
"""

import asyncio
import collections
import contextlib
import functools
import json
import logging
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
from absl import app, flags

from benchmarks import code_hash
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import Passages

_BUNDLE = flags.DEFINE_string("bundle", None, "Folder of a bundle; it is copied.", required=True)
_PARTS = flags.DEFINE_list("part", ["fuzz", "overload", "soak"], "What to do.")
_REQUESTS = flags.DEFINE_integer("requests", 10_000, "Of fuzz.")
_SECONDS = flags.DEFINE_float("seconds", 60, "Of overload and of soak.")
_SWAP_EVERY = flags.DEFINE_float("swap_every", 60, "Seconds between versions.")
_CLIENTS = flags.DEFINE_integer("clients", 4, "Of soak, each with a pause of 50 ms.")
_FLAT = 1.02  # memory at the end, at most, as a multiple of that before
_AT_A_TIME = 16  # requests that the server of `overload` allows

# Route -> field -> a value that fits; `fields_of` adds what depends on the bundle
_TEXTS = ["a passage", "another one, of more words"]
_FIELDS: dict[str, dict[str, object]] = {
    "/search": {"query": "a question", "k": 5},
    "/compare": {"query": "a question", "k": 3},
    "/evidence": {"query": "a question"},
    "/answer": {"query": "a question", "k": 3},
    "/fill": {"text": "a sentence with [MASK] in it", "k": 3, "words": 4},
    "/sources": {"query": "a question", "k": 1},
    "/encode": {"texts": _TEXTS, "side": "query", "kinds": ["dense"]},
    "/v1/embeddings": {"input": _TEXTS, "model": "m", "encoding_format": "base64"},
    "/embed": {"inputs": _TEXTS, "truncate": True, "normalize": False},
    "/embed_sparse": {"inputs": "a text", "truncate": False},
    "/embed_all": {"inputs": _TEXTS},
    "/rerank": {"query": "a question", "texts": _TEXTS, "raw_scores": True},
    "/v1/rerank": {"query": "a question", "documents": _TEXTS, "top_n": 1},
    "/v2/rerank": {"query": "a question", "documents": _TEXTS, "model": "m"},
}
_LIKELY = ("dense", "sparse", "multi_vector", "bm25", "hybrid", "reranked", "query", "passage")
_LIKELY += ("base64", "a b c")
_NUMBERS = (0, -1, 1, 10, 10**9, 2**64, 0.5, -1e300)
_INSIDE = re.compile(r"Traceback|/tmp|/root|/home|\.py\b|site-packages|object at 0x")

Part = Callable[["Server"], Coroutine[Any, Any, bool]]


class Server:
    """A `kennel serve` process."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process, self.url = process, url

    def memory(self) -> float:
        """Resident, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


@contextlib.contextmanager
def served(folder: Path, *settings: str) -> Iterator[Server]:
    """A server of a bundle on a free port, until the `with` ends."""
    command = [sys.executable, "-m", "launch.cli", "serve", str(folder), "--port=0", *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(
            (found[0] for line in process.stdout if (found := re.search(r"http://[\d.:]+", line))),
            None,
        )
        if url is None:
            raise RuntimeError("the server ended before it was ready; see above")
        yield Server(process, url)
    finally:
        process.terminate()
        process.wait()


def any_value(draw: random.Random, depth: int = 0) -> object:
    """A value of JSON: likely words, odd texts, numbers, lists and objects."""
    choice = draw.randrange(9 if depth < 2 else 6)
    if choice == 0:
        return draw.choice(_NUMBERS)
    if choice == 1:
        return draw.choice((None, True, False))
    if choice in (2, 3):
        return draw.choice(_LIKELY)
    if choice == 4:  # control characters, right-to-left marks and halves of surrogate pairs, too
        return "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randrange(4)))
    if choice == 5:
        return "word " * draw.choice((1, 30, 3_000))
    if choice == 6:
        return {draw.choice(_LIKELY): any_value(draw, depth + 1)}
    return [any_value(draw, depth + 1) for _ in range(draw.randrange(4))]


async def fields_of(client: httpx.AsyncClient) -> dict[str, dict[str, object]]:
    """`_FIELDS`, with a mode and a passage of the bundle."""
    mode = (await client.get("/info")).json()["modes"][-1]
    (hit,) = (await client.post("/search", json={"query": "a", "k": 1})).json()["hits"]
    search = {**_FIELDS["/search"], "mode": mode}
    return {**_FIELDS, "/search": search, "/evidence": {"query": "a question", "id": hit["id"]}}


def any_request(draw: random.Random, fields: dict[str, dict[str, object]]) -> tuple[str, bytes]:
    """A route and a body: its fields, most with a value that fits; at times damaged bytes."""
    route = draw.choice(tuple(fields))
    body: dict[str, object] = {}
    for field, fitting in fields[route].items():
        if draw.random() < 0.9:
            body[field] = fitting if draw.random() < 0.7 else any_value(draw)
    if draw.random() < 0.1:
        body["unknown"] = any_value(draw)
    content = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass")
    if draw.random() < 0.1:
        at = draw.randrange(len(content))
        content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
    return route, content


async def fuzz(server: Server) -> bool:
    """Whether all replies were as expected."""
    draw, counts, bad = random.Random(0), collections.Counter[int](), []
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=server.url, timeout=120, headers=headers) as client:

        async def one() -> None:
            route, content = any_request(draw, fields)
            reply = await client.post(route, content=content)
            counts[reply.status_code] += 1
            if reply.status_code >= 500 or (reply.is_error and _INSIDE.search(reply.text)):
                bad.append((route, content[:200], reply.status_code, reply.text[:200]))

        fields = await fields_of(client)
        memory = [server.memory()]
        for _ in range(4):
            for _ in range(0, _REQUESTS.value // 4, 8):
                await asyncio.gather(*(one() for _ in range(8)))
            memory.append(server.memory())
    print(f"fuzz: {sum(counts.values()):,} requests; by status {dict(sorted(counts.items()))}")
    shown = ", ".join(f"{one:.0f}" for one in memory)
    print(f"fuzz: mem {shown} (at the start and after each quarter); bad: {len(bad)}")
    for what in bad[:5]:
        print(f"  {what}")
    return not bad


async def overload(server: Server) -> bool:
    """Whether all replies were as expected, and the server recovered."""
    counts, without = collections.Counter[int](), 0
    texts = ["a passage of some words " * 20] * 8
    timeout = httpx.Timeout(120)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=timeout, limits=limits) as client:

        async def seconds() -> float:
            begin = time.perf_counter()
            (await client.post("/embed", json={"inputs": texts})).raise_for_status()
            return time.perf_counter() - begin

        async def run(end: float) -> None:
            nonlocal without
            while time.perf_counter() < end:
                reply = await client.post("/embed", json={"inputs": texts})
                counts[reply.status_code] += 1
                if reply.status_code == 429:
                    without += "retry-after" not in reply.headers
                    await asyncio.sleep(0.02)

        usual = statistics.median([await seconds() for _ in range(10)])
        await asyncio.gather(*(run(time.perf_counter() + 5) for _ in range(4 * _AT_A_TIME)))
        counts.clear()
        before, end = server.memory(), time.perf_counter() + _SECONDS.value
        await asyncio.gather(*(run(end) for _ in range(4 * _AT_A_TIME)))
        begin = time.perf_counter()
        while (took := await seconds()) > 2 * usual and time.perf_counter() - begin < 60:
            pass
        recovered = time.perf_counter() - begin
    after = server.memory()
    by_status = dict(sorted(counts.items()))
    print(f"overload: by status {by_status}; 429 without Retry-After: {without}")
    print(
        f"overload: mem {before:.0f} after 5 s, {after:.0f} at the end ({after / before - 1:+.1%})"
    )
    print(
        f"overload: a request took {usual * 1000:.0f} ms before, {took * 1000:.0f} ms "
        f"{recovered:.1f} s after the end"
    )
    flat = after <= _FLAT * before
    return set(counts) == {200, 429} and not without and recovered < 5 and flat


async def soak(server: Server, folder: Path) -> bool:
    """Whether no request failed, all versions answered, and memory is flat."""
    failed: collections.Counter[str] = collections.Counter()
    versions: collections.Counter[int] = collections.Counter()
    memory: list[float] = []
    swaps: list[int] = []
    end = time.perf_counter() + _SECONDS.value
    ids = Passages(versioned_folder.current(folder)).ids

    async def search(client: httpx.AsyncClient, number: int) -> None:
        while time.perf_counter() < end:
            try:
                reply = await client.post("/compare", json={"query": f"what is {number}?", "k": 5})
                reply.raise_for_status()
                versions[reply.json()["version"]] += 1
            except httpx.HTTPError as error:
                failed[f"{type(error).__name__}: {error}"] += 1
            number += 1
            await asyncio.sleep(0.05)

    async def swap() -> None:
        number = 0
        while time.perf_counter() + _SWAP_EVERY.value + 20 < end:  # the last one answers, too
            await asyncio.sleep(_SWAP_EVERY.value)
            number += 1
            changes = folder.parent / "changes.jsonl"
            line = {"_id": ids[number % len(ids)], "text": f"passage {number} is new", "title": ""}
            changes.write_text(json.dumps(line) + "\n")
            command = [sys.executable, "-m", "launch.cli", "export", f"--bundle={folder}"]
            made = await asyncio.create_subprocess_exec(
                *command, f"--changes={changes}", stdout=subprocess.DEVNULL
            )
            if await made.wait():
                failed["export"] += 1
            swaps.append(number)

    async def watch() -> None:
        while time.perf_counter() < end:
            await asyncio.sleep(5)
            memory.append(server.memory())

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        clients = (search(client, 1000 * n) for n in range(_CLIENTS.value))
        await asyncio.gather(swap(), watch(), *clients)
    fifth = max(1, len(memory) // 5)
    early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    print(
        f"soak: {sum(versions.values()):,} answers by {len(versions)} versions, "
        f"failed: {dict(failed)}"
    )
    print(
        f"soak: mem {early:.0f} in the second fifth, {late:.0f} in the last "
        f"({late / early - 1:+.1%}), highest {max(memory):.0f}"
    )
    expected = 1 + len(swaps)
    if len(versions) < expected:
        print(f"soak: expected answers of {expected} versions")
    return not failed and late <= _FLAT * early and len(versions) == expected


def main(argv: list[str]) -> None:
    del argv
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    code_hash.announce("serve_stress")
    if "soak" in _PARTS.value and _SECONDS.value < 60:
        raise app.UsageError("--seconds: expected at least 60 of a soak")
    fine = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bundle"
        shutil.copytree(_BUNDLE.value, folder)
        parts: dict[str, tuple[list[str], Part]] = {
            "fuzz": ([], fuzz),
            "overload": ([f"--max_requests={_AT_A_TIME}"], overload),
            "soak": ([], functools.partial(soak, folder=folder)),
        }
        for name in _PARTS.value:
            settings, part = parts[name]
            with served(folder, *settings) as server:
                fine &= asyncio.run(part(server))
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    app.run(main)
