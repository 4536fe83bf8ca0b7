"""A server with the routes of `kennel serve` and made-up answers, to look at the page and test it.

`python -m tests.launch.page.fake_server 8123 --reads=answer` serves it. Queries that ask for a
state, also where a sentence is filled in: '!empty', '!slow', '!429', '!500', '!422', '!401' (its
key is 'letmein'); of answers: '!astral', '!long', '!partly' and '!nothing', where some passages and
all have nothing to point at. Longer queries than 32 tokens are cut off.
"""

import argparse
import contextlib
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from launch.service.page_policy import POLICY
from tests.launch.page import fake_languages, fake_reading, fake_trainings
from tests.launch.page.fake_text import noise, pieces_of

PAGE = Path(__file__).resolve().parents[3] / "launch/page"


def read_passages(path):
    """Passages of a file: 'id | title | source', then lines of text, then an empty line."""
    passages = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        head, *lines = block.split("\n")
        name, title, source = (part.strip() for part in head.split("|"))
        passages.append({"id": name, "title": title, "source": source, "text": " ".join(lines)})
    return passages


PASSAGES = read_passages(Path(__file__).parent / "passages.txt")
ASTRAL = {  # has evidence, though no search finds it: characters that UTF-16 writes as two units
    "id": "astral-1",
    "title": "Snow notes",
    "source": "Climate",
    "text": "\U0001f3d4\U0001f3d4 Snow lies until June; ice below it is seen in summer.",
}
KINDS = ("dense", "sparse", "multi_vector")
KEY = "letmein"
QUERY_LENGTH, PASSAGE_LENGTH = 32, 96
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
TYPES[".svg"] = "image/svg+xml"
ERRORS = {
    "!429": (429, "too many texts are waiting; expected to have room in 1.0 s", "overloaded"),
    "!500": (500, "the model failed; see the server's log", "internal"),
    "!422": (422, "query: expected text without control characters, found U+0007", "validation"),
}


def weight(piece, side):
    return round(0.15 + 1.6 * noise(piece) * (1 if side == "query" else 0.8), 4)


def content_of(passage):
    return f"{passage['title']} {passage['text']}".strip()


def passage_of(name):
    """The passage with this id, or None."""
    more = fake_languages.passages(len(fake_languages.SENTENCES))
    return next((one for one in (*PASSAGES, ASTRAL, *more) if one["id"] == name), None)


def similarity(one, other):
    """Of two pieces: alike where they are the same or start the same."""
    if one == other:
        return 0.84 + 0.12 * noise(one, other)
    near = len(one) > 3 and one[:4] == other[:4]
    return (0.55 if near else 0.12) + 0.28 * noise(one, other) ** 2


def scores_of(query, passage):
    asked = [piece for piece, _ in pieces_of(query)][: QUERY_LENGTH - 2]
    there = [piece for piece, _ in pieces_of(content_of(passage))][: PASSAGE_LENGTH - 2]
    sparse = sum(weight(p, "query") * weight(p, "passage") for p in {*asked} & {*there})
    best = [max(similarity(p, other) for other in there) for p in asked]
    late = sum(best) / max(1, len(best))
    dense = 0.55 * late + 0.4 * noise(query, passage["id"])
    return {"dense": dense, "sparse": sparse, "multi_vector": late}


def search(query, mode, k, source=None):
    found = []
    for passage in PASSAGES:
        if (source and passage["source"] != source) or query == "!empty":
            continue
        scores = scores_of(query, passage)
        scores["hybrid"] = (
            scores["dense"] + 0.3 * math.log1p(scores["sparse"]) + scores["multi_vector"]
        )
        scores["bm25"], scores["reranked"] = scores["sparse"], 9 * scores["multi_vector"] - 8
        parts = {"hybrid": KINDS, "reranked": ("bm25", "reranked")}.get(mode, (mode,))
        found.append((scores[mode], {part: scores[part] for part in parts}, passage))
    found.sort(key=lambda one: -one[0])
    return [
        {"rank": rank, "score": score, "scores": scores, **passage}
        for rank, (score, scores, passage) in enumerate(found[:k], 1)
        if mode not in ("sparse", "bm25") or score > 0
    ]


def evidence(query, passage, kinds):
    content = content_of(passage)
    asked = [piece for piece, _ in pieces_of(query)][: QUERY_LENGTH - 2]
    there = pieces_of(content)
    cut_off = max(0, len(there) + 2 - PASSAGE_LENGTH)
    there = [("[CLS]", None), *there[: PASSAGE_LENGTH - 2], ("[SEP]", None)]
    shared = [
        {"piece": p, "query_weight": weight(p, "query"), "passage_weight": weight(p, "passage")}
        for p in dict.fromkeys(asked)
        if any(p == other for other, _ in there)
    ]
    for word in shared:
        word["part"] = word["query_weight"] * word["passage_weight"]
    shared.sort(key=lambda word: -word["part"])
    rows = ["[CLS]", *asked, "[SEP]"]
    return {
        "title": passage["title"],
        "content": content,
        "words": shared if "sparse" in kinds else None,
        "max_sim": {
            "rows": rows,
            "columns": [{"piece": piece, "place": place} for piece, place in there],
            "values": [[similarity(row, piece) for piece, _ in there] for row in rows],
        }
        if "multi_vector" in kinds
        else None,
        "passage": {
            "pieces": [piece for piece, _ in there],
            "places": [place for _, place in there],
            "cut_off": cut_off,
        },
    }


def map_of(server):
    """Status and answer of /map: passages of one source are near each other."""
    if "dense" not in server.kinds:
        error = "a map is drawn of dense vectors: expected a bundle that stores them"
        return 422, {"error": error, "error_type": "validation"}
    shown = [*PASSAGES, *map(made_up, range(len(PASSAGES), server.points))]
    sources = sorted({one["source"] for one in shown})
    groups = [sources.index(one["source"]) for one in shown]
    middles = [(noise(one, "x"), noise(one, "y")) for one in sources]
    spread = [[sum(noise(one["id"], axis, n) for n in range(4)) for one in shown] for axis in "xy"]
    x, y = (
        [round(0.6 * middles[group][axis] + 0.5 * part - 1.3, 4) for group, part in places]
        for axis, places in enumerate([list(zip(groups, one, strict=True)) for one in spread])
    )
    return 200, {
        "version": server.version,
        "passages": max(len(PASSAGES), server.points),
        "explained": [0.1125, 0.0731],
        "ids": [one["id"] for one in shown],
        "x": x,
        "y": y,
        "titles": [one["title"][:80] for one in shown],
        "texts": [one["text"][:79] + "…" for one in shown],
        "sources": sources,
        "groups": groups,
    }


def made_up(number):
    """A passage that is on the map alone."""
    like = PASSAGES[number % len(PASSAGES)]
    source = like["source"] if number % 3 else f"Archive {number % 30:02d}"
    return {**like, "id": f"more-{number}", "source": source}


def curves_of(server):
    """Status and answer of /curves."""
    if server.trainings is None:
        error = "the curves of trainings: expected a bundle that has them, found one without"
        return 422, {"error": error, "error_type": "validation"}
    more = {"unread": server.unread, "left_out": server.left_out}
    return 200, {"version": server.version, "trainings": server.trainings, **more}


class FakeServer(ThreadingHTTPServer):
    """Serves the page and its routes.

    Attributes:
      kinds: of the bundle.
      languages: how many languages the passages are of; 0: they are those of passages.txt.
      more_sources: how many sources to list besides those of the passages.
      points: on the map; 0: one for each passage.
      reads: what the model does with passages that it reads; None, "answer" or "fill".
      version: of the bundle.
      trainings: of /curves; None: the bundle has none.
      unread, left_out: of /curves.
      is_failing: whether /info is an error.
      requests: (path, body) of each request to a route.
    """

    daemon_threads = True

    def __init__(self, port=0, kinds=KINDS, more_sources=0, points=0, reads=None, languages=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.version, self.is_failing = 3, False
        self.kinds, self.more_sources, self.requests = tuple(kinds), more_sources, []
        self.points, self.reads, self.languages = points, reads, languages
        self.trainings, self.unread, self.left_out = list(fake_trainings.TRAININGS), [], 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def sources(self):
        passages = fake_languages.passages(self.languages) if self.languages else PASSAGES
        archives = (f"Archive {number:02d}" for number in range(self.more_sources))
        return sorted({*(passage["source"] for passage in passages), *archives})

    def info(self):
        return {
            "name": "m3-small",
            "version": "0.1.0",
            "bundle_version": self.version,
            "kinds": self.kinds,
            "modes": self.modes(),
            "dimension": 384,
            "similarity": "cosine",
            "query_length": QUERY_LENGTH,
            "passage_length": PASSAGE_LENGTH,
            "passages": max(len(PASSAGES), self.points),
            "sources": self.sources(),
            "reads": self.reads,
            "reranks": not self.kinds,
            "max_read": 50,
            "curves": self.trainings is not None,
            "made": "2026-11-27T18:20:00+00:00",
            "contract": {"pooling": "first token", "prefixes": {"query": "", "passage": ""}},
        }

    def modes(self):
        if not self.kinds:  # of a re-ranker
            return ("bm25", "reranked")
        return (*self.kinds, "hybrid") if len(self.kinds) > 1 else self.kinds


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def log_message(self, *_):
        """Without a line for each request."""

    def do_GET(self):
        path = self.path.partition("?")[0].lstrip("/").removeprefix("page/") or "index.html"
        if path == "info":
            if self.server.is_failing:
                self.reply(503, {"error": "no version is open yet", "error_type": "unhealthy"})
            else:
                self.reply(200, self.server.info())
            return
        if path in ("map", "curves"):
            self.server.requests.append((self.path, None))
            self.reply(*{"map": map_of, "curves": curves_of}[path](self.server))
            return
        file = PAGE / path
        if ".." in path or file.suffix not in TYPES or not file.is_file():
            self.reply(404, {"error": f"no such page: {path}", "error_type": "not_found"})
            return
        self.send(200, file.read_bytes(), TYPES[file.suffix], {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        query = body.get("text", body.get("query")).replace(fake_reading.MASK, "").strip()
        if query == "!401" and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.reply(401, {"error": "expected an API key", "error_type": "unauthorized"})
        elif body.get("id") and passage_of(body["id"]) is None:
            error = f"id: expected one of the bundle's passages, found '{body['id']}'"
            self.reply(404, {"error": error, "error_type": "not_found"})
        elif query in ERRORS:
            status, error, kind = ERRORS[query]
            headers = {"Retry-After": "1"} if status == 429 else {}
            self.reply(status, {"error": error, "error_type": kind}, headers)
        else:
            time.sleep(1.5 if query == "!slow" else 0)
            self.reply(200, getattr(self, self.path.strip("/"))(**body))

    def search(self, query, mode="hybrid", k=10, source=None):
        return {
            **self.read(query),
            "mode": mode,
            "hits": search(query, mode, k, source),
            "seconds": {"tokenization": 0.00021, "encoding": 0.0117, "search": 0.0034},
        }

    def compare(self, query, k=10):
        return {
            "version": self.server.version,
            "modes": {mode: search(query, mode, k) for mode in self.server.modes()},
            "seconds": {"tokenization": 0.0002, "encoding": 0.0121, "search": 0.0098},
        }

    def sources(self, query, k=3, mode="hybrid"):
        count = self.server.languages
        found = [
            {
                "source": one,
                "hits": fake_languages.search(query, one, k, count)
                if count
                else search(query, mode, k, one),
            }
            for one in self.server.sources()
        ]
        found.sort(key=lambda one: -one["hits"][0]["score"] if one["hits"] else math.inf)
        seconds = {"tokenization": 0.0002, "encoding": 0.0121, "search": 0.0098}
        return {**self.read(query), "mode": mode, "sources": found, "seconds": seconds}

    def evidence(self, query, id):
        return evidence(query, passage_of(id), self.server.kinds)

    def answer(self, query, k=5, source=None):
        hits = search(query, self.server.modes()[-1], k, source)
        if query == "!astral":
            hits = [{**hits[0], **ASTRAL}, *hits[1:]]
        if query == "!long":
            hits = [{**hit, "text": " ".join([hit["text"]] * 12)} for hit in hits]
        return {
            **self.read(query),
            "answers": fake_reading.answers(query, hits),
            "seconds": {"tokenization": 0.00021, "encoding": 0.0417, "search": 0.0034},
        }

    def fill(self, text, k=7, words=10, source=None):
        query = text.replace(fake_reading.MASK, "").strip()
        hits = search(query, self.server.modes()[-1], k, source)
        documents, masks = fake_reading.filled(text, hits, words)
        read = self.read(text.replace(fake_reading.MASK, "mask"))
        cut = read["query"]["cut_off"] > 0
        return {
            **read,
            "documents": documents,
            "masks": masks[:-1] if cut and len(masks) > 1 else masks,
            "seconds": {"tokenization": 0.00021, "encoding": 0.0523, "search": 0.0034},
        }

    def read(self, text):
        tokens = len(pieces_of(text)) + 2
        cut_off = max(0, tokens - QUERY_LENGTH)
        return {
            "version": self.server.version,
            "query": {"tokens": tokens - cut_off, "cut_off": cut_off},
        }

    def reply(self, status, answer, headers=None):
        self.send(status, json.dumps(answer).encode(), "application/json", headers or {})

    def send(self, status, content, content_type, headers):
        self.send_response(status)
        fixed = {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # an aborted request
            self.end_headers()
            self.wfile.write(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--reads", choices=["answer", "fill"])
    parser.add_argument("--languages", type=int, default=0)
    options = parser.parse_args()
    server = FakeServer(options.port, reads=options.reads, languages=options.languages)
    print(server.url)
    server.serve_forever()
