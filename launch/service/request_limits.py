"""Limits of each request: the API key, how many there are, bytes of bodies, and seconds.

The body is read here, before a route sees the request: its size is known only at its end where it
comes in chunks, and afterwards the connection reports nothing but that the client is gone. A
request whose client is gone, or whose time is up, is cancelled, so that its texts leave the queue.
"""

import asyncio
import hmac
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launch.service import error_replies
from launch.service.server_metrics import OTHER, Metrics, Stopwatch
from launch.service.settings import Settings

OPEN = ("/", "/health", "/docs", "/docs/docs.css", "/openapi.json")  # without an API key
OPEN_FOLDER = "/page/"
UNLIMITED = (*OPEN, "/metrics")  # also answered while the server is full
CLIENT_GONE = 499  # nginx's; the client does not see it, the metrics do
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class _TooLarge(Exception):
    """The body has more bytes than allowed."""


class _Full(Exception):
    """The bodies of all requests in progress have more bytes than allowed."""


class _Gone(Exception):
    """The client closed the connection before its request was complete."""


class Limits:
    """ASGI middleware that lets a request pass, or answers it with an error."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._active = self._bytes = 0  # requests in progress, and bytes of their bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, and counts it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer, watch = _Answer(send), Stopwatch()
        try:
            await self._pass_or_refuse(scope, receive, answer)
        finally:
            watch.stop()
            route = getattr(scope.get("route"), "path", OTHER)
            method = scope["method"] if scope["method"] in _METHODS else OTHER
            self._metrics.request(route, method, answer.status, watch.seconds)

    async def _pass_or_refuse(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        path, most = scope["path"], self._settings.max_requests
        if not self._knows_host(scope):
            message = (
                f"the header Host: expected one of {', '.join(self._settings.hosts)}; a server for "
                "other names is started with --allow_host=NAME"
            )
            refusal = error_replies.reply(path, 421, message, error_replies.CLOSES)
            await refusal(scope, receive, answer)
        elif not self._may_pass(scope):
            message = "expected the header Authorization: Bearer KEY with the key of this server"
            headers = {"WWW-Authenticate": "Bearer", **error_replies.CLOSES}
            await error_replies.reply(path, 401, message, headers)(scope, receive, answer)
        elif path in UNLIMITED or path.startswith(OPEN_FOLDER):
            await self._app(scope, receive, answer)
        elif self._active >= most:
            message = f"{most} requests are in progress, which is the limit; try again"
            refusal = error_replies.overloaded(path, 1, message)
            refusal.headers.update(error_replies.CLOSES)
            await refusal(scope, receive, answer)
        else:
            self._active += 1
            self._metrics.active.set(self._active)
            try:
                await self._answer(scope, receive, answer)
            finally:
                self._active -= 1
                self._bytes -= answer.asked
                self._metrics.active.set(self._active)

    def _knows_host(self, scope: Scope) -> bool:
        given = _header(scope, b"host").decode("latin-1").lower()
        name = re.sub(r":\d*$", "", given).removeprefix("[").removesuffix("]")
        return not self._settings.hosts or name in self._settings.hosts

    def _may_pass(self, scope: Scope) -> bool:
        key, path = self._settings.api_key, scope["path"]
        if key is None or path in OPEN or path.startswith(OPEN_FOLDER):
            return True
        scheme, _, given = _header(scope, b"authorization").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())

    async def _answer(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        path, seconds = scope["path"], self._settings.timeout
        try:
            body = await asyncio.wait_for(self._body(scope, receive, answer), seconds)
        except _TooLarge:
            message = (
                f"the body: expected at most {self._settings.max_body:,} bytes, found more; send "
                "the texts in several requests"
            )
            await error_replies.reply(path, 413, message, error_replies.CLOSES)(
                scope, receive, answer
            )
        except _Full:
            message = "the texts of other requests fill the memory that is for them; try again"
            refusal = error_replies.overloaded(path, 1, message)
            refusal.headers.update(error_replies.CLOSES)
            await refusal(scope, receive, answer)
        except TimeoutError:
            message = f"the body: expected all of it in {seconds:g} s"
            await error_replies.reply(path, 408, message, error_replies.CLOSES)(
                scope, receive, answer
            )
        except _Gone:
            answer.drop(CLIENT_GONE)
        else:
            await self._run(scope, receive, answer, body)

    async def _body(self, scope: Scope, receive: Receive, answer: "_Answer") -> bytes:
        """All of it, whose bytes are counted in the answer.

        Raises:
          _TooLarge: it is larger than allowed; nothing more is read.
          _Full: with those of other requests, it is; nothing more is read.
          _Gone: the client closed the connection.
        """
        most = self._settings.max_body
        length = _header(scope, b"content-length")
        if re.fullmatch(rb"\d+", length) and (len(length) > 20 or int(length) > most):
            raise _TooLarge
        chunks = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            chunks.append(message.get("body", b""))
            answer.asked += len(chunks[-1])
            self._bytes += len(chunks[-1])
            if answer.asked > most:
                raise _TooLarge
            if self._bytes > self._settings.max_bodies:
                raise _Full
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer", body: bytes) -> None:
        """Lets the app answer, until it has, the client is gone, or the time is up."""
        seconds = self._settings.timeout
        gone = asyncio.ensure_future(_disconnection(receive))
        work = asyncio.ensure_future(self._app(scope, _Replayed(body, gone), answer))
        try:
            await asyncio.wait({work, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.started and not answer.complete and not gone.done():
                # The reply is ready, and the client reads it slowly.
                await asyncio.wait({work, gone}, timeout=seconds)
            if work.done() or answer.complete:
                await asyncio.wait({work})
            elif answer.started or gone.done():
                answer.drop(CLIENT_GONE)
            else:
                message = f"no answer in {seconds:g} s, which is the limit; try again, or send less"
                send = answer.take()
                await error_replies.reply(scope["path"], 504, message)(scope, receive, send)
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait({work})  # it still counts as active, as it uses a thread
        if not work.cancelled():
            work.result()


class _Answer:
    """The reply to a request: forwards it once, and nothing after it was dropped or taken."""

    def __init__(self, send: Send) -> None:
        self._send, self._dropped = send, False
        self.started = self.complete = False
        self.asked = 0  # bytes of the request's body so far
        self.status = 500  # of one that fails before it has one

    async def __call__(self, message: Message) -> None:
        """Sends a part of the reply of the app."""
        if not self._dropped:
            await self._forward(message)

    def drop(self, status: int) -> None:
        """Sends nothing any more; the status is for the metrics."""
        self.status, self._dropped = status, True

    def take(self) -> Send:
        """What sends another reply than that of the app, which is dropped."""
        self._dropped = True
        return self._forward

    async def _forward(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            message = {**message, "headers": [*message.get("headers", ()), _NO_SNIFFING]}
        await self._send(message)
        if message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)


class _Replayed:
    """`receive` of a request whose body was read."""

    def __init__(self, body: bytes, gone: "asyncio.Future[None]") -> None:
        self._body: bytes | None = body
        self._gone = gone

    async def __call__(self) -> Message:
        """The body, and then that the client is gone, once it is."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait({self._gone})
        return {"type": "http.disconnect"}


async def _disconnection(receive: Receive) -> None:
    """Waits until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _header(scope: Scope, name: bytes) -> bytes:
    """The first header of a name, in lower case; b"" without one."""
    return next((value for key, value in scope["headers"] if key == name), b"")
