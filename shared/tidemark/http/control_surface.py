"""The way to the routers of the control surface (`control_routers.py`): the first request imports them."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.http import control_routers
from tidemark.http.backend import Backend


class ControlSurface:
    """ASGI middleware: hands the control surface's requests to it, and all others to the data path."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self._app = app
        self._backend = backend
        paths = [path for router in control_routers.ROUTERS for path in router.paths]
        self._exact = frozenset(paths)
        self._below = tuple(path for path in paths if path.endswith("/"))
        self._control: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and self.has(scope["path"]):
            app = self._control = self._control or self._make_control()
        await app(scope, receive, send)

    def has(self, path: str) -> bool:
        """`path` is decoded: `%5F%5Fds` is the same place as `__ds`."""
        return path in self._exact or path.startswith(self._below)

    def _make_control(self) -> ASGIApp:
        from tidemark.http import control_errors

        app = control_routers.control_app()
        app.state.backend = self._backend
        control_errors.install(app)
        return app
