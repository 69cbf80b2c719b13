"""The word that the distribution in front says with every request: who does not know it
has come past the distribution, its cache and its limits, and is sent away."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.http.error_handlers import refusal_answer
from tidemark.http.requests import header
from tidemark.http.security.refreshing_cache import CannotFetch, RefreshingCache
from tidemark.http.security.required_scopes import is_open
from tidemark.protocol.errors import KeysUnavailable, OriginAccessDenied, ProtocolError
from tidemark.settings import AuthorizationSettings

HEADER: Final = "X-Tidemark-Edge"
Load = Callable[[], Awaitable[str | None]]
Run = Callable[[Callable[[], str | None]], Awaitable[str | None]]


class EdgeOnly:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self._app = app
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope):
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal(Request(scope))
        answer = self._app if refusal is None else refusal_answer(Request(scope), refusal)
        await answer(scope, receive, send)

    async def _refusal(self, request: Request) -> ProtocolError | None:
        expected = await self._load()
        if expected is None:
            return KeysUnavailable()
        said = header(request, HEADER) or ""
        return None if hmac.compare_digest(said.encode(), expected.encode()) else OriginAccessDenied()


def word_of(settings: AuthorizationSettings, run: Run) -> Load:
    """The stack's own word, which never changes; or one that is kept elsewhere, and may."""
    if settings.edge_secret_name:
        return _fetched(settings.edge_secret_name, run)

    async def known() -> str | None:
        return settings.edge_secret

    return known


def _fetched(name: str, run: Run) -> Load:
    def fetch() -> str:
        try:
            return load_parameter(name)
        except ParameterUnavailable as failure:
            raise CannotFetch(str(failure)) from None

    word = RefreshingCache(fetch)
    return lambda: run(word.get)
