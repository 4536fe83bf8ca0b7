"""The page at `/` and `/page/...`, and the list of routes at `/docs`, which need no other server.

The Content-Security-Policy lets a browser load from this server alone, and run no script in HTML.
"""

import html
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from launch.service.page_policy import POLICY

INDEX = "index.html"
TYPES = {  # a file of another type is not served
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { margin-top: 2rem; } code { font-size: 0.95em; } td, th { text-align: left; padding: 0 1rem 0 0;
vertical-align: top; } table { margin: 0 0 1rem 1rem; } :root { color-scheme: light dark; }
"""
router = APIRouter(include_in_schema=False)


@router.get("/")
def index(request: Request) -> Response:
    """The page."""
    return file_reply(request.app.state.settings.page, INDEX)


@router.get("/page/{name:path}")
def file(name: str, request: Request) -> Response:
    """A file that the page needs."""
    return file_reply(request.app.state.settings.page, name)


@router.get("/docs")
def docs(request: Request) -> Response:
    """The routes with their fields, from openapi.json."""
    text = docs_page(request.app.openapi())
    return _reply(text.encode(), "text/html", "no-store")


@router.get("/docs/docs.css")
def docs_style() -> Response:
    """The style of /docs; the policy lets none be in its HTML."""
    return _reply(_STYLE.encode(), "text/css", "no-cache")


def file_reply(folder: Path, name: str) -> Response:
    """A file of a folder, or of a folder in it.

    Raises:
      HTTPException: 404: there is none, it is outside, hidden, or of another type.
    """
    parts = name.split("/")
    media_type = TYPES.get(Path(parts[-1]).suffix)
    if media_type is None or any(not part or part.startswith(".") for part in parts):
        raise HTTPException(404)
    try:
        path = folder.joinpath(*parts).resolve()  # a link may point anywhere
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise HTTPException(404)
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise HTTPException(404) from error
    return _reply(content, media_type, "no-store" if media_type == "text/html" else "no-cache")


def _reply(content: bytes, media_type: str, cache: str) -> Response:
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": cache}
    return Response(content, media_type=media_type, headers=headers)


def docs_page(document: dict[str, Any]) -> str:
    """HTML of an OpenAPI document: routes by tag, with the fields of their bodies."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            tag = (route.get("tags") or [""])[0]
            by_tag.setdefault(tag, []).append(_route(document, path, method.upper(), route))
    sections = "".join(f"<h2>{_text(tag)}</h2>{''.join(routes)}" for tag, routes in by_tag.items())
    title = _text(document["info"]["title"])
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}: routes</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/docs/docs.css"></head><body><main>'
        f"<h1>{title}: routes</h1><p>{_text(document['info'].get('description', ''))}</p>"
        f'<p><a href="/openapi.json">openapi.json</a></p>{sections}</main></body></html>'
    )


def _route(document: dict[str, Any], path: str, method: str, route: dict[str, Any]) -> str:
    fields = [(one["name"], one["schema"], one["required"]) for one in route.get("parameters", ())]
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(document, content.get("schema", {}))
    required = schema.get("required", ())
    fields += [(name, one, name in required) for name, one in schema.get("properties", {}).items()]
    rows = "".join(
        f"<tr><th scope='row'><code>{_text(name)}</code></th><td>{_text(_type(one))}</td>"
        f"<td>{'required' if needed else _default(one)}</td>"
        f"<td>{_text(one.get('description', ''))}</td></tr>"
        for name, one, needed in fields
    )
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f"<h3><code>{method} {_text(path)}</code></h3>"
        f"<p>{_text(route.get('description', ''))}</p>{table}"
    )


def _type(schema: dict[str, Any]) -> str:
    """A type in few words: 'string or array of string'."""
    if choices := schema.get("enum"):
        return " or ".join(map(repr, choices))
    if options := schema.get("anyOf"):
        return " or ".join(_type(one) for one in options)
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    name = str(schema.get("type", "any"))
    return f"array of {_type(schema['items'])}" if "items" in schema else name


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value in (None, "") else f"default: {_text(str(value))}"


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document
    for part in str(schema["$ref"]).removeprefix("#/").split("/"):
        found = found[part]
    return found


def _text(value: str) -> str:
    return html.escape(value)
