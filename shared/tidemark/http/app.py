"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp

from tidemark import __version__
from tidemark.http import faults, routes
from tidemark.http.backend import Backend
from tidemark.http.headers import EveryAnswer


def create_app(backend: Backend) -> EveryAnswer:
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
    faults.install(app)
    return EveryAnswer(_guarded(app, backend))


def _guarded(app: ASGIApp, backend: Backend) -> ASGIApp:
    """Behind what the settings ask for. Without keys everybody may come in: whoever starts
    a server asks `check_not_open` first."""
    settings = backend.settings.authorization
    if settings.is_on:
        # Only where they are wanted: the libraries cost a cold start a tenth of a second.
        from tidemark.http.auth import Authorization, checker

        app = Authorization(app, checker(settings, backend.run), settings.public_read_buckets)
    if settings.edge_secret_name:
        from tidemark.http.edge import EdgeOnly, loader

        app = EdgeOnly(app, loader(settings.edge_secret_name, backend.run))
    return app
