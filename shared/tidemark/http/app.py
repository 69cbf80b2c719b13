"""The ASGI application: the data path in Starlette, and beside it the control surface (`control_mounts`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from tidemark.http import bucket_routes, control_mounts, error_handlers, routes
from tidemark.http.backend import Backend
from tidemark.http.control_paths import SUBSCRIPTION_ROOTS
from tidemark.http.headers import ResponseHeaders
from tidemark.http.metrics import METRICS_PATH, metrics
from tidemark.http.traffic import TRAFFIC_PATH, CountedTraffic, Traffic, traffic


def create_app(backend: Backend, *, with_metrics: bool = False) -> ResponseHeaders:
    """`with_metrics` shows the process's numbers at `/v1/metrics`, its busiest streams at `/v1/traffic`."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await backend.close()

    app = Starlette(lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.backend = backend
    subscriptions = control_mounts.Subscriptions(backend)
    for root in SUBSCRIPTION_ROOTS:
        app.router.routes.append(Route(root + "{path:path}", subscriptions))
    routes.install(app)
    bucket_routes.install(app)
    if with_metrics:
        app.add_route(METRICS_PATH, metrics, methods=["GET"])
        counted = Traffic()
        app.add_middleware(CountedTraffic, traffic=counted)
        app.add_route(TRAFFIC_PATH, partial(traffic, counted), methods=["GET"])
    error_handlers.install(app)
    return ResponseHeaders(guarded(control_mounts.Routers(app, backend), backend))


def guarded(app: ASGIApp, backend: Backend) -> ASGIApp:
    """The application behind the checks that the settings switch on. Without keys everybody may
    use it: a deployed function calls `check_not_open` first.

    The imports are here because the libraries add a tenth of a second to a cold start.
    """
    settings = backend.settings.authorization
    if settings.is_on:
        from tidemark.http.security.authorization import Authorization, make_check

        app = Authorization(app, make_check(settings, asyncio.to_thread), settings.public_read_buckets)
    if settings.is_edge_only:
        from tidemark.http.security.origin_secret import OriginSecretRequired, origin_secret_loader

        app = OriginSecretRequired(app, origin_secret_loader(settings, asyncio.to_thread))
    if backend.settings.requests_per_second:
        from tidemark.http.security.rate_limit import RateLimited, TokenBucket

        app = RateLimited(app, TokenBucket(backend.settings.requests_per_second))
    return app
