"""The same for a function that is an ASGI application behind an adapter."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.observability.invocation import lambda_context
from tidemark.observability.report import Reporter


class Reporting:
    """ASGI middleware. An environment is frozen between requests, so it speaks at their end."""

    def __init__(self, app: ASGIApp, reporter: Reporter) -> None:
        self._app = app
        self._reporter = reporter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._reporter.answered(_event(scope), _Invocation(lambda_context(scope)), status)
            self._reporter.report()


class _Invocation:
    """As Lambda's own runtime hands it to a handler."""

    def __init__(self, context: dict[str, Any]) -> None:
        self.aws_request_id = context.get("request_id")


def _event(scope: Scope) -> dict[str, object]:
    """What the adapter hands on of the event; the path without its query."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    http = {"method": scope["method"]}
    request = {"requestId": headers.get(b"x-amzn-trace-id"), "http": http}
    return {"requestContext": request, "rawPath": scope["path"]}
