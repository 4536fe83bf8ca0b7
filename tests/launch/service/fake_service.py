"""A service without a model: vectors from hashes of texts, three kinds, a few passages."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from t5x_style.serving.service import (
    BM25,
    HYBRID,
    RERANKED,
    CorpusMap,
    Encoded,
    Evidence,
    Facts,
    Hit,
    Overloaded,
    Place,
    RequestError,
    SharedWord,
    Span,
    Tokens,
    Unavailable,
)
from t5x_style.serving.training_curves import Curve, Curves, Training

KINDS = ("dense", "sparse", "multi_vector")
DIMENSION, LENGTH = 4, 8
VOCABULARY = ["cat", "dog", "flour"]  # of a reader's words
PASSAGES = {
    "p1": ("Cats", "a cat sleeps all day", "pets"),
    "p2": ("Dogs", "the dog barks at a cat", "pets"),
    "p3": ("Bread", "bread is made of flour", "food"),
}


def number(word: str) -> int:
    """The same for a word in every process."""
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "little") + 1


CURVES = Curves(
    [
        Training("first", False, "2026-11-27 10:00:00", 60.0, []),
        Training(
            "second", True, "2026-11-27 11:00:00", 90.5,
            [Curve("train/loss", 3, [5, 10, 15], [2.5, None, 1.25])],
        ),
    ],
    ["third"],
    2,
)  # fmt: skip


class FakeService:
    """See `t5x_style.serving.service.Service`.

    Attributes:
      submitted: side, number of tokens and kinds of each text that was submitted.
      cancelled: how many futures were cancelled before they were encoded.
      sources: that `search` was given.
      room: texts that may wait; more raise Overloaded.
      hanging: encodes nothing until `release`.
      failure: raised by `search`, if any.
      maps: what each call of `map` returned.
    """

    def __init__(self, version: int = 1, kinds: Sequence[str] = KINDS, **facts: object) -> None:
        kinds = tuple(kinds)
        modes = (*kinds, HYBRID) if len(kinds) > 1 else kinds
        values = {
            "name": "fake",
            "version": version,
            "kinds": kinds,
            "modes": modes,
            "dimension": DIMENSION,
            "similarity": "cosine",
            "query_length": LENGTH,
            "passage_length": LENGTH,
            "passages": len(PASSAGES),
            "sources": ("food", "pets"),
            "reads": None,
            "reranks": False,
            "curves": True,
            "made": "2026-11-27T00:00:00Z",
            "contract": {"pooling": "cls"},
        }
        self.facts = Facts(**{**values, **facts})
        self.reader = None if self.facts.reads is None else FakeReader(self.facts.reads)
        self.reranker = FakeReranker() if self.facts.reranks else None
        self.submitted: list[tuple[str, int, tuple[str, ...]]] = []
        self.batch_tokens = 64
        self.sources: list[str | None] = []
        self.room: int | None = None
        self.hanging, self.is_open = False, True
        self.failure: Exception | None = None
        self.maps: list[Future[CorpusMap]] = []
        self._waiting: list[tuple[Future, Tokens, Sequence[str]]] = []
        self._lock = threading.Lock()

    @property
    def cancelled(self) -> int:
        return sum(future.cancelled() for future, _, _ in self._waiting)

    def tokenize(self, side: str, text: str) -> Tokens:
        words, places, at = text.split(), [], 0
        for word in words:
            at = text.index(word, at)
            places.append((at, at + len(word)))
            at += len(word)
        kept = words[: LENGTH - 2]
        ids = np.asarray([0, *map(number, kept), 1], np.int32)
        places = [None, *places[: len(kept)], None]
        return Tokens(ids, ["[CLS]", *kept, "[SEP]"], places, len(words) - len(kept))

    def submit(self, side: str, tokens: Tokens, kinds: Sequence[str]) -> "Future[Encoded]":
        if not self.is_open:
            raise Unavailable("the version is closed; try again")
        assert set(kinds) <= set(self.facts.kinds) and kinds
        with self._lock:
            if self.room is not None:
                waiting = sum(not future.done() for future, _, _ in self._waiting)
                if waiting >= self.room:
                    raise Overloaded(2.3)
            self.submitted.append((side, len(tokens.ids), tuple(kinds)))
            future: Future[Encoded] = Future()
            self._waiting.append((future, tokens, kinds))
        if not self.hanging and self.room is not None:
            threading.Timer(0.001, self.release).start()
        elif not self.hanging:
            self.release()
        return future

    def release(self) -> None:
        """Encodes what waits."""
        with self._lock:
            for future, tokens, kinds in self._waiting:
                if not future.done() and future.set_running_or_notify_cancel():
                    future.set_result(encoded(tokens, kinds))

    def close(self) -> None:
        """Encodes what waits, and then nothing more."""
        self.is_open = False
        self.release()

    def needs(self, mode: str) -> tuple[str, ...]:
        if mode not in self.facts.modes:
            raise RequestError(f"no mode {mode}")
        if mode in (BM25, RERANKED):
            return ()
        return self.facts.kinds if mode == HYBRID else (mode,)

    def search(self, query: Encoded, mode: str, k: int, source: str | None = None) -> list[Hit]:
        assert self.is_open
        if self.failure is not None:
            raise self.failure
        self.sources.append(source)
        kinds = self.needs(mode)
        assert all(getattr(query, kind) is not None for kind in kinds)
        assert query.text or BM25 not in self.facts.modes
        found = [
            Hit(1 / place, dict.fromkeys(kinds or [mode], 1 / place), name, title, text, where)
            for place, (name, (title, text, where)) in enumerate(PASSAGES.items(), 1)
            if source is None or where.startswith(source)
        ]
        return found[:k]

    def evidence(self, question: Tokens, query: Encoded, passage_id: str) -> Evidence:
        if passage_id not in PASSAGES:
            raise RequestError("id: expected that of a passage of the index, found another one")
        title, text, _ = PASSAGES[passage_id]
        passage = self.tokenize("passage", f"{title} {text}")
        shared = [word for word in question.pieces[1:-1] if word in passage.pieces]
        values = None
        if query.multi_vector is not None:
            values = query.multi_vector @ encoded(passage, KINDS).multi_vector.T
        return Evidence(
            passage,
            title,
            f"{title} {text}",
            None if query.sparse is None else [SharedWord(word, 0.5, 0.25) for word in shared],
            values,
            question.pieces[1:],
            passage.pieces[1:],
        )

    def similarity(self, query: Encoded, passages: Sequence[Encoded]) -> list[float]:
        assert query.dense is not None or query.sparse is not None
        if query.dense is None:
            return [1.0] * len(passages)
        return [float(query.dense @ one.dense) for one in passages]

    def map(self) -> "Future[CorpusMap]":
        assert self.is_open
        if "dense" not in self.facts.kinds:
            raise RequestError("a map is drawn of dense vectors: expected some, found none")
        titles, texts, sources = zip(*PASSAGES.values(), strict=True)
        known = sorted(set(sources))
        made = CorpusMap(
            np.asarray([[-1, 0.25], [0.5, -0.1234], [0.5, 0]], np.float32),
            np.asarray([0.5, 0.25], np.float32),
            list(PASSAGES),
            titles,
            texts,
            known,
            np.asarray([known.index(one) for one in sources], np.int32),
        )
        future: Future[CorpusMap] = Future()
        future.set_running_or_notify_cancel()
        if not self.hanging:
            future.set_result(made)
        self.maps.append(future)
        return future

    def curves(self) -> Curves:
        assert self.is_open
        if not self.facts.curves:
            raise RequestError("the curves of trainings: expected a bundle that has them")
        return CURVES

    def to_compile(self) -> int:
        return 7

    def waiting(self) -> int:
        return sum(len(tokens.ids) for future, tokens, _ in self._waiting if not future.done())


def encoded(tokens: Tokens, kinds: Sequence[str]) -> Encoded:
    """Representations that depend on the tokens alone."""
    vectors = np.stack([np.sin(number(piece) * np.arange(1, 5)) for piece in tokens.pieces])
    vectors = vectors.astype(np.float32)
    mean = vectors[1:-1].sum(0) if len(vectors) > 2 else vectors.sum(0)
    every = {
        "dense": mean / np.linalg.norm(mean),
        "sparse": (np.unique(tokens.ids[1:-1]), np.full(len(set(tokens.ids[1:-1])), 0.5, "f4")),
        "multi_vector": vectors[1:] / np.linalg.norm(vectors[1:], axis=1, keepdims=True),
    }
    return Encoded(**{kind: every[kind] for kind in kinds})


class FakeReader:
    """Points at the second word of a passage, and fills in words of it; see `service.Reader`.

    Attributes:
      read: texts that it was given.
    """

    def __init__(self, reads: str) -> None:
        self.reads = reads
        self.read: list[str] = []

    def masked(self, sentence: str) -> Tokens:
        if "[MASK]" not in sentence:
            raise RequestError("text: expected [MASK], found none")
        pieces = ["[CLS]", *sentence.split(), "[SEP]"]
        at = sentence.index("[MASK]")
        places = [(at, at + 6) if piece == "[MASK]" else None for piece in pieces]
        return Tokens(np.arange(len(pieces), dtype=np.int32), pieces, places, 0)

    def masks(self, tokens: Tokens) -> list[Place]:
        return [place for place in tokens.places if place is not None]

    def joint(self, question: Tokens, text: str) -> Tokens:
        self.read.append(text)
        return Tokens(question.ids, text.split(), question.places, 0)

    def nothing(self) -> Tokens:
        return Tokens(np.asarray([0, 1, 1], np.int32), ["[CLS]", "[SEP]", "[SEP]"], [None] * 3, 0)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [VOCABULARY[one] for one in ids]

    def span(self, joint: Tokens) -> "Future[Span]":
        words = list(joint.pieces)
        start = len(words[0]) + 1
        return done(Span((start, start + len(words[1])), -0.1 * len(words), 0.5))

    def words(self, joint: Tokens) -> "Future[np.ndarray]":
        """Of one [MASK]: words of the passage are nine times as likely as others."""
        chances = np.asarray([9.0 if one in joint.pieces else 1.0 for one in VOCABULARY])
        return done(np.log(chances / chances.sum())[None].astype(np.float32))


class FakeReranker:
    """Counts the words that a pair has in common; see `service.Reranker`."""

    def pair(self, question: Tokens, passage: Tokens) -> Tokens:
        pieces = [*question.pieces[:-1], *passage.pieces]
        cut = question.cut_off + passage.cut_off
        return Tokens(np.arange(len(pieces), dtype=np.int32), pieces, [None] * len(pieces), cut)

    def score(self, pair: Tokens) -> "Future[float]":
        at = pair.pieces.index("[CLS]", 1)
        return done(float(len(set(pair.pieces[1:at]) & set(pair.pieces[at + 1 : -1]))))


def done(value: object) -> "Future":
    """A future that has ended."""
    future: Future = Future()
    future.set_result(value)
    return future


class FakeCurrent:
    """See `launch.service.settings.Current`; `service` may be replaced.

    Attributes:
      users: requests that use a service now.
    """

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.users = 0
        self.failure = None

    @contextlib.contextmanager
    def use(self) -> Iterator[FakeService]:
        service = self.service
        self.users += 1
        try:
            yield service
        finally:
            self.users -= 1
