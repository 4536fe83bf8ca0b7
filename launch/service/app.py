"""The app of a server: Kennel's routes, and those that clients of other servers call.

`create_app` needs a bundle that is open, and no files; `launch.serve` opens one and starts the app.
"""

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from fastapi import FastAPI

from launch.service import (
    cohere_routes,
    curves_routes,
    error_replies,
    map_routes,
    native,
    openai_routes,
    page,
    reading_routes,
    source_routes,
    status_routes,
    tei_routes,
)
from launch.service.request_limits import Limits
from launch.service.server_metrics import Metrics
from launch.service.settings import Current, Settings

_KENNEL = (native, source_routes, reading_routes, map_routes, curves_routes, status_routes)
_ROUTERS = (*_KENNEL, tei_routes, openai_routes, cohere_routes, page)


def create_app(
    current: Current, settings: Settings | None = None, metrics: Metrics | None = None
) -> FastAPI:
    """A FastAPI app that answers requests with the current version of a bundle.

    Args:
      current: hands out the version; each request uses one from its start to its end.
      settings: limits; None: the defaults.
      metrics: of a service that counts batches and compilations in it; None: new ones.
    """
    settings = Settings() if settings is None else settings
    metrics = Metrics() if metrics is None else metrics
    pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="service")

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="Kennel",
        description="Search and representations of texts by one trained model.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from another server
        redoc_url=None,
        redirect_slashes=False,  # the redirection would name the host that the client claims
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.current, app.state.settings = current, settings
    app.state.metrics, app.state.pool = metrics, pool
    error_replies.add_handlers(app)
    for module in _ROUTERS:
        app.include_router(module.router)
    app.add_middleware(Limits, settings=settings, metrics=metrics)
    return app
