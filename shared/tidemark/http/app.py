"""The ASGI application."""

from __future__ import annotations

from fastapi import FastAPI

from tidemark import __version__
from tidemark.http import faults
from tidemark.http.backend import Backend
from tidemark.http.headers import EveryAnswer
from tidemark.http.routes import router


def create_app(backend: Backend) -> EveryAnswer:
    app = FastAPI(
        title="Tidemark",
        version=__version__,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.backend = backend
    app.include_router(router)
    faults.install(app)
    return EveryAnswer(app)
