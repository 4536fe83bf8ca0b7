"""What a server is, whether it answers, and what it counts."""

import dataclasses
from importlib import metadata
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from launch.service.error_replies import ErrorReply, documented
from launch.service.json_reply import JsonReply
from launch.service.server_metrics import CONTENT_TYPE
from launch.service.session import Opened

_RERANKER = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
router = APIRouter(tags=["Status"], responses=documented(ErrorReply))


@router.get("/health")
async def health(request: Request, session: Opened) -> JsonReply:
    """200 as long as the server answers, with the version of the bundle.

    `failed`: a newer version that could not be opened, and the kind of the error; null for none.
    """
    failure = request.app.state.current.failure
    failed = None if failure is None else {"version": failure.version, "reason": failure.reason}
    return JsonReply({"status": "ok", "version": session.facts.version, "failed": failed})


@router.get("/info")
async def info(session: Opened) -> JsonReply:
    """Facts of the bundle and limits of the server, also under the names that TEI gives them.

    `version` is that of the server, a text, as TEI has it; `bundle_version` is what other routes
    call `version`.
    """
    facts, settings = session.facts, session.settings
    contract = dict(facts.contract)
    named = {field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)}
    theirs: dict[str, Any] = {
        "version": _software(),
        "bundle_version": facts.version,
        "model_id": session.name,
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": _RERANKER if facts.reranks else _embedding(contract.get("pooling")),
        "max_input_length": facts.passage_length,
        "max_client_batch_size": settings.max_texts,
        "max_concurrent_requests": settings.max_requests,
        "max_batch_tokens": session.service.batch_tokens,
        "auto_truncate": True,
        "tokenization_workers": settings.threads,
    }
    ours = {
        "max_k": settings.max_k,
        "max_read": settings.max_read,
        "max_body": settings.max_body,
        "max_characters": settings.max_characters,
        "timeout": settings.timeout,
    }
    return JsonReply({**named, "contract": contract, **theirs, **ours})


def _embedding(pooling: Any) -> dict[str, Any]:
    return {"embedding": {"pooling": pooling}}


def _software() -> str:
    """The version of Kennel; "unknown" where it runs without being installed."""
    try:
        return metadata.version("kennel")
    except metadata.PackageNotFoundError:
        return "unknown"


@router.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
async def metrics(request: Request, session: Opened) -> Response:
    """Counters in the format of Prometheus."""
    service = session.service
    text = request.app.state.metrics.text(
        service.waiting(), service.to_compile(), session.facts.version
    )
    return Response(text, media_type=CONTENT_TYPE)
