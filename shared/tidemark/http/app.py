"""The ASGI application: the table of operations behind what every request passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.types import ASGIApp

from tidemark.http import error_handlers
from tidemark.http.backend import Backend
from tidemark.http.dispatch import AnyOperation
from tidemark.http.headers import ResponseHeaders
from tidemark.http.traffic import CountedTraffic, Traffic


def create_app(backend: Backend, *, with_metrics: bool = False) -> ResponseHeaders:
    """`with_metrics` shows the process's numbers at `/v1/metrics`, its busiest streams at `/v1/traffic`."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await backend.close()

    app = Starlette(lifespan=lifespan)
    app.router.redirect_slashes = False
    app.router.default = AnyOperation()
    app.state.backend = backend
    app.state.traffic = Traffic() if with_metrics else None
    if with_metrics:
        app.add_middleware(CountedTraffic, traffic=app.state.traffic)
    error_handlers.install(app)
    return ResponseHeaders(guarded(app, backend))


def guarded(app: ASGIApp, backend: Backend) -> ASGIApp:
    """The application behind the checks that the settings switch on. Without keys everybody may
    use it: a deployed function calls `check_not_open` first.

    The imports are here because the libraries add a tenth of a second to a cold start.
    """
    settings = backend.settings.authorization
    if settings.is_on:
        from tidemark.http.security.authorization import Authorization, make_check

        app = Authorization(app, make_check(settings, asyncio.to_thread), settings.public_read_buckets)
    if settings.has_edge:
        from tidemark.http.security.origin_secret import BehindEdge, origin_secret_loader

        load = origin_secret_loader(settings, asyncio.to_thread)
        app = BehindEdge(app, load, is_required=settings.edge_only)
    if backend.settings.requests_per_second:
        from tidemark.http.security.rate_limit import RateLimited, TokenBucket

        app = RateLimited(app, TokenBucket(backend.settings.requests_per_second))
    return app
