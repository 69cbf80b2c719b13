"""Leads to the control surface (§6): everything below `/v1/stream/__ds/`, before streams are looked for.

The application behind it is imported and made with its first request.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.http.backend import Backend
from tidemark.http.error_handlers import error_response
from tidemark.http.requests import STREAM_ROOTS, read_body, request_path
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import RESERVED_SEGMENT

#: Of a request that has a wake's token in place of the service's, by the last segment of its path.
_WAKE_CALLS: Final = frozenset({"callback", "ack", "release"})
CONTROL_ROOTS: Final = tuple(f"{root}{RESERVED_SEGMENT}/" for root in STREAM_ROOTS)


def control_path(path: str) -> str | None:
    """What follows the control surface's root, with its slash; None for a path elsewhere."""
    return next((path[len(root) - 1 :] for root in CONTROL_ROOTS if path.startswith(root)), None)


def needs_no_token(method: str, path: str) -> bool:
    """The public keys, and the calls that carry a wake's own token: the subscription checks that one."""
    below = control_path(path)
    if below is None:
        return False
    segments = below.split("/")[1:]
    if segments == ["jwks.json"]:
        return method in {"GET", "HEAD"}
    return (
        method == "POST"
        and len(segments) == 3
        and segments[0] == "subscriptions"
        and segments[2] in _WAKE_CALLS
    )


class Control:
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
            from tidemark.http.subscriptions.routes import create_control_app

            self._app = create_control_app(self._backend)
        below = control_path(path) or "/"
        decoded = unquote(below) if encoded else below
        inner = {**scope, "path": decoded, "raw_path": quote(decoded).encode(), "root_path": ""}

        async def replay() -> Message:
            """The whole body, once; what comes after it is the client's leaving."""
            nonlocal body
            if body is None:
                return await receive()
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self._app(inner, replay, send)
