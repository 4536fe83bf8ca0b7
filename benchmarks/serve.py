"""Latency and throughput of `kennel serve` on loopback, next to encoding without a server.

    python -m benchmarks.serve --bundle=runs/mine/bundle [--peer=path/to/encoder] \
        [--peer_backends=torch,onnx,onnx_int8 --peer_python=path/to/python]

Encodes passages of the bundle, one a request, with 1 to 64 requests at a time: p50, p95 and p99 of
an answered request, requests and tokens a second that were answered, and how many were lost.
`offline` is the same programs in this process, without a server: all texts at once, and one text a
call. `--peer` is a folder of sentence-transformers, which a small FastAPI app serves on the same
cores afterwards, once for each backend (`benchmarks.serve_peer`). The load generator runs on the
same cores; `net` are tokens a second after its processor time is subtracted. The load begins when
the server has all of its programs; ends with the compilations that it counted from then on.
"""

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
from absl import app, flags

from benchmarks import code_hash, serve_load
from t5x_style.interfaces.representation import DENSE, PASSAGE
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving import text_tokens
from t5x_style.serving.opened.bundle_service import BundleService

_BUNDLE = flags.DEFINE_string("bundle", None, "Folder of a bundle.", required=True)
_PEER = flags.DEFINE_string("peer", None, "Folder of sentence-transformers, served by FastAPI.")
_BACKENDS = flags.DEFINE_list("peer_backends", ["torch"], "Of the peer: torch, onnx, onnx_int8.")
_PEER_PYTHON = flags.DEFINE_string("peer_python", sys.executable, "That has what the peer needs.")
_TEXTS = flags.DEFINE_integer("texts", 512, "Passages that are encoded at each concurrency.")
_CONCURRENCY = flags.DEFINE_list("concurrency", ["1", "4", "16", "32", "64"], "Requests at a time.")
_COMPILATIONS = "kennel_compilations_total"
_ALONE = 64  # texts that are encoded one after the other


def texts_of(version: Path, count: int) -> list[str]:
    """Evenly spaced passages of the tokenized ones."""
    passages = Passages(version)
    rows = np.linspace(0, len(passages) - 1, min(count, len(passages))).astype(int)
    found = [passages.passage(int(row)) for row in np.unique(rows)]
    return [text_tokens.content(one.title, one.text) for one in found]


def offline(version: Path, texts: Sequence[str]) -> tuple[float, float, list[int]]:
    """Tokens a second of all texts, median seconds of one text, and the tokens of each."""
    service = BundleService(version)
    service.warm_up()

    def encode(given: Sequence[str]) -> None:
        tokens = [service.tokenize(PASSAGE, text) for text in given]
        futures = [service.submit(PASSAGE, one, [DENSE]) for one in tokens]
        for one in futures:
            one.result()

    counts = [len(service.tokenize(PASSAGE, text).ids) for text in texts]
    encode(texts)
    begin = time.perf_counter()
    encode(texts)
    rate = sum(counts) / (time.perf_counter() - begin)
    alone = []
    for text in texts[:_ALONE]:
        begin = time.perf_counter()
        encode([text])
        alone.append(time.perf_counter() - begin)
    service.close()
    return rate, float(np.median(alone)), counts


@contextlib.contextmanager
def served(*command: str, python: str = sys.executable) -> Iterator[str]:
    """The URL of a server that a command starts; it is stopped at the end."""
    process = subprocess.Popen([python, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[\d.:]+", line):
                break
        else:
            raise RuntimeError(f"{command[0]} ended before it was ready")
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def show(name: str, url: str, texts: Sequence[str], tokens: int) -> None:
    """A line for each concurrency."""
    asyncio.run(serve_load.load(url, texts[:64], 8))  # connections, caches
    for concurrency in map(int, _CONCURRENCY.value):
        given = texts[:_ALONE] if concurrency == 1 else texts
        begin, spent = time.perf_counter(), time.process_time()
        seconds, lost = asyncio.run(serve_load.load(url, given, concurrency))
        wall, spent = time.perf_counter() - begin, time.process_time() - spent
        share = tokens * len(seconds) / len(texts)  # without those that were lost
        p50, p95, p99 = (
            1000 * float(np.quantile(seconds or [np.nan], q)) for q in (0.5, 0.95, 0.99)
        )
        net = share / max(wall - spent / len(os.sched_getaffinity(0)), 1e-9)
        print(
            f"{name:<24} {concurrency:>3} {p50:8.1f} {p95:8.1f} {p99:8.1f} "
            f"{len(seconds) / wall:8.1f} {share / wall:9,.0f} {net:9,.0f} {lost:>5}",
            flush=True,
        )


def counted(url: str, name: str) -> float:
    """A number that the server counts."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    found = re.search(rf"^{name} ([\d.e+]+)$", text, re.M)
    if found is None:
        raise RuntimeError(f"{url}/metrics: expected a line of {name}, found none")
    return float(found[1])


def wait_until_compiled(url: str) -> None:
    """Until the server has all of its programs, which it also compiles while it answers."""
    while counted(url, "kennel_programs_to_compile"):
        time.sleep(0.2)


def main(_: list[str]) -> None:
    """Offline first, then each server alone on the machine."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    version = versioned_folder.current(_BUNDLE.value)
    texts = texts_of(version, _TEXTS.value)
    rate, alone, counts = offline(version, texts)
    tokens = sum(counts)
    print(f"{len(texts)} passages, {tokens:,} tokens; {len(os.sched_getaffinity(0))} cores")
    print(f"offline: {rate:,.0f} tokens/s; one text a call: {1000 * alone:.1f} ms")
    head = f"{'':<24} {'at':>3} {'p50 ms':>8} {'p95':>8} {'p99':>8} {'req/s':>8} {'tokens/s':>9}"
    print(f"{head} {'net':>9} {'lost':>5}")
    begin = time.perf_counter()
    with served("launch.serve", _BUNDLE.value, "--port=0") as url:
        ready = time.perf_counter() - begin
        wait_until_compiled(url)
        print(f"ready after {ready:.1f} s, all programs {time.perf_counter() - begin:.1f} s")
        before = counted(url, _COMPILATIONS)
        show("kennel serve", url, texts, tokens)
        print(f"compilations after that: {counted(url, _COMPILATIONS) - before:.0f}")
    for backend in _BACKENDS.value if _PEER.value else []:
        peer = "benchmarks.serve_peer", f"--model={_PEER.value}", f"--backend={backend}"
        with served(*peer, python=_PEER_PYTHON.value) as url:
            show(f"s.-transformers {backend}", url, texts, tokens)


if __name__ == "__main__":
    code_hash.announce("serve")
    app.run(main)
