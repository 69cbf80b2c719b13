"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from tidemark import __version__
from tidemark.http import bucket_routes, error_handlers, routes
from tidemark.http.backend import Backend
from tidemark.http.headers import EveryAnswer
from tidemark.http.metrics import METRICS_PATH, metrics


def create_app(backend: Backend, *, with_metrics: bool = False) -> EveryAnswer:
    """`with_metrics` shows the process's numbers at `/v1/metrics`."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await backend.close()

    app = FastAPI(
        title="Tidemark",
        version=__version__,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.backend = backend
    routes.install(app)
    bucket_routes.install(app)
    if with_metrics:
        app.add_route(METRICS_PATH, metrics, methods=["GET"])
    error_handlers.install(app)
    return EveryAnswer(_guarded(app, backend))


def _guarded(app: ASGIApp, backend: Backend) -> ASGIApp:
    """Behind what the settings ask for. Without keys everybody may come in: whoever starts
    a server asks `check_not_open` first."""
    settings = backend.settings.authorization
    if settings.is_on:
        # Only where they are wanted: the libraries cost a cold start a tenth of a second.
        from tidemark.http.security.authorization import Authorization, checker

        app = Authorization(app, checker(settings, asyncio.to_thread), settings.public_read_buckets)
    if settings.is_edge_only:
        from tidemark.http.security.origin_secret import EdgeOnly, word_of

        app = EdgeOnly(app, word_of(settings, asyncio.to_thread))
    if backend.settings.requests_per_second:
        from tidemark.http.security.rate_limit import Bucket, RateLimited

        app = RateLimited(app, Bucket(backend.settings.requests_per_second))
    return app
