"""One request and the version that it uses: texts become tokens, and these what a model makes.

Tokenizing and searching run in threads of the app, so that the event loop stays free; encoding runs
in batches of the service, which gets each text by itself and is free to mix those of requests.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from launch.service.error_replies import MissingKind
from launch.service.server_metrics import ENCODING, SEARCH, TOKENIZATION, Metrics
from launch.service.settings import Settings
from t5x_style.serving.service import Encoded, Facts, Overloaded, RequestError, Service, Tokens

T = TypeVar("T")
NO_KINDS = "none, since it scores pairs of a query and a passage"  # of representations


class Session:
    """The service of one request, with the limits of the app.

    Attributes:
      service: the version; all of a request uses this one.
      settings: limits.
      seconds: stage -> seconds so far.
    """

    def __init__(
        self, service: Service, settings: Settings, metrics: Metrics, pool: ThreadPoolExecutor
    ) -> None:
        self.service, self.settings = service, settings
        self.seconds = dict.fromkeys((TOKENIZATION, ENCODING, SEARCH), 0.0)
        self._metrics, self._pool = metrics, pool

    @property
    def facts(self) -> Facts:
        """Of the version."""
        return self.service.facts

    @property
    def name(self) -> str:
        """Of the model, in replies."""
        return self.settings.name or self.facts.name

    def require_kind(self, kind: str) -> None:
        """Raises MissingKind unless the model makes this kind of representation."""
        if kind not in self.facts.kinds:
            made = f"only {', '.join(self.facts.kinds)}" if self.facts.kinds else NO_KINDS
            raise MissingKind(
                f"this route needs {kind} representations, and the model makes {made}; serve a "
                "model that makes them"
            )

    def check_texts(self, field: str, texts: Sequence[str]) -> None:
        """Refuses texts beyond the limits, and empty ones.

        Raises:
          RequestError: which one, and the limit.
        """
        most, longest = self.settings.max_texts, self.settings.max_characters
        if not 1 <= len(texts) <= most:
            raise RequestError(
                f"{field}: expected 1 to {most:,} texts, found {len(texts):,}"
                f"{'; send them in several requests' if texts else ''}"
            )
        for number, text in enumerate(texts):
            where = field if len(texts) == 1 else f"{field}[{number}]"
            if not text:
                raise RequestError(f"{where}: expected a text, found an empty one")
            if len(text) > longest:
                raise RequestError(
                    f"{where}: expected at most {longest:,} characters, found {len(text):,}; the "
                    f"model reads {self.facts.passage_length} tokens"
                )

    async def tokenize(self, field: str, side: str, texts: Sequence[str]) -> list[Tokens]:
        """Texts as the model reads them.

        Args:
          field: of the request, for errors.
          side: 'query' or 'passage'.
          texts: in any number up to the limit.

        Raises:
          RequestError: see `check_texts`.
        """
        self.check_texts(field, texts)
        return await self.tokenize_by(functools.partial(self.service.tokenize, side), texts)

    async def tokenize_by(
        self, tokenizer: Callable[[str], Tokens], texts: Sequence[str]
    ) -> list[Tokens]:
        """What a function of the service makes of texts, whose limits were checked."""
        found: list[Tokens] = []
        part = self.settings.texts_in_queue  # after each of which a cancelled request ends
        with self._stage(TOKENIZATION):
            for start in range(0, len(texts), part):
                found += await self.in_thread(list, map(tokenizer, texts[start : start + part]))
        self._metrics.texts(len(found), sum(one.cut_off > 0 for one in found))
        return found

    async def encode(
        self, side: str, tokens: Sequence[Tokens], kinds: Sequence[str]
    ) -> list[Encoded]:
        """`encode_mixed` of texts that are all of one side, 'query' or 'passage'."""
        return await self.encode_mixed([(side, one) for one in tokens], kinds)

    async def encode_mixed(
        self, texts: Sequence[tuple[str, Tokens]], kinds: Sequence[str]
    ) -> list[Encoded]:
        """What the model makes of each text, in order.

        Args:
          texts: side, 'query' or 'passage', and tokens of each.
          kinds: among those of the facts.

        Raises:
          Overloaded, Unavailable: see `compute`.
        """
        submit = self.service.submit
        return await self.compute([functools.partial(submit, *text, kinds) for text in texts])

    async def compute(self, submits: Sequence[Callable[[], "Future[T]"]]) -> list[T]:
        """What the model makes of each of several texts, in order.

        A full queue is an error only where none of the request's texts is in it: a request that
        fills the queue by itself continues as its texts leave it. When the request is cancelled,
        its texts leave the queue.

        Args:
          submits: each puts a text into the queue of the service.

        Raises:
          Overloaded: others fill the queue.
          Unavailable: the service is closed.
        """
        found: dict[int, T] = {}
        pending: dict[asyncio.Future[T], int] = {}
        waiting = list(reversed(range(len(submits))))
        try:
            with self._stage(ENCODING):
                while waiting or pending:
                    while waiting and len(pending) < self.settings.texts_in_queue:
                        try:
                            future = submits[waiting[-1]]()
                        except Overloaded:
                            if not pending:
                                raise
                            break
                        pending[asyncio.wrap_future(future)] = waiting.pop()
                    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for one in done:
                        found[pending.pop(one)] = one.result()
        finally:
            for one in pending:
                one.cancel()
        return [found[number] for number in range(len(submits))]

    async def search(self, function: Callable[..., T], *arguments: object) -> T:
        """Calls a function of the service that searches or compares, in a thread."""
        with self._stage(SEARCH):
            return await self.in_thread(function, *arguments)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        with self._metrics.stage(name) as watch:
            yield
        self.seconds[name] += watch.seconds

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Calls a function in a thread, after which a cancelled request ends, as it uses this."""
        future = self._pool.submit(function, *arguments)
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            future.cancel()  # which succeeds while it waits for a thread
            while not waiting.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({waiting})
            if not waiting.cancelled():
                waiting.exception()  # nobody else asks for it
            raise


async def open_session(request: Request) -> AsyncIterator[Session]:
    """The session of a request, for its whole length."""
    state = request.app.state
    with state.current.use() as service:
        yield Session(service, state.settings, state.metrics, state.pool)


Opened = Annotated[Session, Depends(open_session)]
