"""Errors as replies, in the shape that the clients of each route read.

| routes | body |
|---|---|
| OpenAI's: `/v1/embeddings`, `/v1/models` | {"error": {"message", "type", "code"}, and TEI's
  "message", "code", "error_type"} |
| Cohere's: `/v1/rerank`, `/v2/rerank` | {"message", "error_type"} |
| all others: Kennel's, and those of TEI | {"error", "error_type"} |

A reply holds no traceback and no path of this machine; those of unexpected errors are in the log.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from launch.service.json_reply import JsonReply
from t5x_style.serving.service import SHOWN, Overloaded, RequestError, Unavailable, shown

OPENAI, COHERE = ("/v1/embeddings", "/v1/models"), ("/v1/rerank", "/v2/rerank")
CLOSES = {"Connection": "close"}  # where the body of the request was not read to its end
_TYPES = {  # of TEI, where it has one
    401: "Unauthorized",
    404: "NotFound",
    405: "MethodNotAllowed",
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Timeout",
}
_MESSAGES = {
    404: "there is no such route; GET /docs lists all",
    405: "the route does not take this method; GET /docs lists the methods of each route",
}
_PROBLEMS = 5  # of one body


class MissingKind(RuntimeError):
    """The model does not make a kind of representation that the route needs."""


class ErrorReply(BaseModel):
    """An error of Kennel's routes, and of those of TEI."""

    error: str
    error_type: str


class OpenAIDetail(BaseModel):
    """What OpenAI's client shows of an error."""

    message: str
    type: str
    code: str
    param: str | None


class OpenAIError(BaseModel):
    """An error of OpenAI's routes, with the fields of TEI's errors on them."""

    error: OpenAIDetail
    message: str
    code: int
    error_type: str


class CohereError(BaseModel):
    """An error of Cohere's routes."""

    message: str
    error_type: str


def documented(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The errors of a route in openapi.json, of which each has the same shape."""
    return {
        status: {"model": model, "description": text}
        for status, text in {
            400: "the body is no JSON",
            401: "the key is missing or another one",
            408: "the body did not arrive in time",
            413: "the body is too large",
            421: "the header Host names another server",
            422: "a field is wrong",
            424: "the model does not make the kind that the route needs",
            429: "too many requests, or texts; see Retry-After",
            500: "an error of the server",
            503: "the model was closed; see Retry-After",
            504: "no answer in time",
        }.items()
    }


def reply(
    path: str, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error in the shape of a route.

    Args:
      path: of the request.
      status: HTTP status, at least 400.
      message: what was expected, what was found, and what to do.
      headers: of the reply.
    """
    kind = _TYPES.get(status, "Validation")
    body: dict[str, Any] = {"error": message, "error_type": kind}
    if path in OPENAI:
        theirs = "invalid_request_error" if status < 500 else "server_error"
        body = {"message": message, "code": status, "error_type": kind}
        body["error"] = {"message": message, "type": theirs, "code": kind, "param": None}
    elif path in COHERE:
        body = {"message": message, "error_type": kind}
    return JsonReply(body, status, dict(headers or {}))


def overloaded(path: str, seconds: float, message: str) -> Response:
    """429, with the whole seconds after which to try again."""
    wait = math.ceil(min(max(seconds, 1), 3600)) if math.isfinite(seconds) else 60
    return reply(path, 429, message, {"Retry-After": str(wait)})


def add_handlers(app: FastAPI) -> None:
    """Turns every exception of a route into a reply."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        problems = error.errors()
        not_json = any(one["type"] == "json_invalid" for one in problems)
        return reply(request.url.path, 400 if not_json else 422, in_words(problems))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        status = error.status_code
        if status == 400:  # FastAPI's only one: `json.loads` failed in another way than by syntax
            message = "the body: expected JSON in UTF-8, found something that cannot be decoded"
        else:
            message = _MESSAGES.get(status, str(error.detail))
        return reply(request.url.path, status, message, error.headers)

    @app.exception_handler(RequestError)
    async def _wrong(request: Request, error: RequestError) -> Response:
        return reply(request.url.path, 422, str(error))

    @app.exception_handler(MissingKind)
    async def _missing(request: Request, error: MissingKind) -> Response:
        return reply(request.url.path, 424, str(error))

    @app.exception_handler(Overloaded)
    async def _full(request: Request, error: Overloaded) -> Response:
        return overloaded(request.url.path, error.retry_after, str(error))

    @app.exception_handler(Unavailable)
    async def _closed(request: Request, error: Unavailable) -> Response:
        return reply(request.url.path, 503, str(error), {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def _unexpected(request: Request, error: Exception) -> Response:
        del error  # is logged by the server
        message = "the server failed on this request; its log says why. Please report it"
        return reply(request.url.path, 500, message)


def in_words(problems: Sequence[Mapping[str, Any]]) -> str:
    """Pydantic's errors as one text: where, what was expected, and what was found."""
    lines = list(dict.fromkeys(map(_problem, problems)))
    more = [f"and {len(lines) - _PROBLEMS} more"] if len(lines) > _PROBLEMS else []
    return "; ".join(lines[:_PROBLEMS] + more)


def _problem(one: Mapping[str, Any]) -> str:
    kind, place = one["type"], [_name(part) for part in one["loc"]]
    if kind == "json_invalid":
        return f"the body: expected JSON, found an error at character {place[-1]}"
    if place == ["body"] and kind in ("invalid_key", "string_unicode"):
        return "the body: expected names of fields in Unicode, found half of a surrogate pair"
    if place == ["body"]:
        found = one.get("input")
        what = "nothing" if found is None else f"a {type(found).__name__}"
        return (
            f"the body: expected a JSON object with the header Content-Type: application/json, "
            f"found {'bytes of another type' if isinstance(found, bytes) else what}"
        )
    where = ".".join(place)
    if kind == "extra_forbidden":
        return f"{where}: is no field of this route; GET /docs lists its fields"
    if kind == "missing":
        return f"{where}: expected a value, found none"
    if kind == "value_error":
        return f"{where}: {one['msg'].removeprefix('Value error, ')}"
    return f"{where}: {one['msg']}; found {shown(one.get('input'))}"


def _name(part: Any) -> str:
    """A part of a place; the name of an unknown field may be anything."""
    text = str(part)
    plain = text.isascii() and text.isidentifier() and len(text) <= SHOWN
    return text if plain else shown(part)
