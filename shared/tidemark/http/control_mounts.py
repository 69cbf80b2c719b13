"""The control surface is all that is not on a stream's data path. It is two applications of FastAPI:

- Subscriptions, below `/v1/stream/__ds/` (§6, §7): `subscriptions/`, with errors of their own form.
- Listings, stats and the console: the routers that `control_routers.py` lists.

FastAPI takes a cold start more than a tenth of a second, so the first request to an application imports it.
What needs only their paths, as the check of a token does, imports `control_paths.py` alone.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.http import control_routers
from tidemark.http.backend import Backend
from tidemark.http.control_paths import subscriptions_path
from tidemark.http.error_handlers import error_response
from tidemark.http.requests import read_body, request_path
from tidemark.protocol.errors import ProtocolError


def routed_method(scope: Scope) -> str:
    """HEAD is GET without the body, which `ResponseHeaders` leaves out. Routes of Starlette answer to it by
    themselves, those of FastAPI do not."""
    return "GET" if scope["method"] == "HEAD" else scope["method"]


class Routers:
    """ASGI middleware: hands the requests of the listed routers to them, and all others to the data path."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self._app = app
        self._backend = backend
        paths = [path for router in control_routers.ROUTERS for path in router.paths]
        self._exact = frozenset(paths)
        self._below = tuple(path for path in paths if path.endswith("/"))
        self._routers: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            # It is decoded: `%5F%5Fds` is the same place as `__ds`.
            path = scope["path"]
            if path in self._exact or path.startswith(self._below):
                app = self._routers = self._routers or self._make()
                scope = {**scope, "method": routed_method(scope)}
        await app(scope, receive, send)

    def _make(self) -> ASGIApp:
        from tidemark.http import control_errors

        app = control_routers.control_app()
        app.state.backend = self._backend
        control_errors.install(app)
        return app


class Subscriptions:
    """ASGI application. Paths are given to the one behind it decoded once, however they came."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            path, encoded = request_path(scope)
            body: bytes | None = await read_body(request)
        except ProtocolError as refusal:
            await error_response(request, refusal)(scope, receive, send)
            return
        if self._app is None:
            from tidemark.http.subscriptions.routes import create_subscriptions_app

            self._app = create_subscriptions_app(self._backend)
        decoded = subscriptions_path(path, encoded=encoded) or "/"
        inner = {
            **scope,
            "method": routed_method(scope),
            "path": decoded,
            "raw_path": quote(decoded).encode(),
            "root_path": "",
        }

        async def replay() -> Message:
            """The whole body, once; what comes after it is the client's leaving."""
            nonlocal body
            if body is None:
                return await receive()
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self._app(inner, replay, send)
