"""The application of the control surface, imported and made with its first request.

Its models and their validation cost a cold start 100 ms, and most environments never serve it.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.http import error_handlers
from tidemark.http.backend import Backend
from tidemark.http.control_paths import PATHS


class Deferred:
    """ASGI application in the place of the real one."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            from tidemark.http.control.app import create_control_app

            app = create_control_app()
            app.state.backend = self._backend
            error_handlers.install(app)
            self._app = app
        await self._app(scope, receive, send)


def install(app: FastAPI, backend: Backend) -> None:
    deferred = Deferred(backend)
    app.router.routes.extend(Route(path, deferred) for path in PATHS)
