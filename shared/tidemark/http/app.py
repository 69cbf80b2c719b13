"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from tidemark import __version__
from tidemark.http import bucket_routes, faults, routes
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
    bucket_routes.install(app)
    faults.install(app)
    return EveryAnswer(app)
