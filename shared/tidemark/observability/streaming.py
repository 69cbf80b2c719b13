"""Log lines and metrics of a function that is an ASGI application behind an adapter."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.observability.invocation import lambda_context
from tidemark.observability.report import Reporter


class Reporting:
    """ASGI middleware. Lambda freezes an environment between requests, so it reports at a request's end."""

    def __init__(self, app: ASGIApp, reporter: Reporter) -> None:
        self._app = app
        self._reporter = reporter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The event as an HTTP API would send it; the path has no query.
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request = {"requestId": headers.get(b"x-amzn-trace-id"), "http": {"method": scope["method"]}}
        event = {"requestContext": request, "rawPath": scope["path"]}
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._reporter.answered(event, _Invocation(lambda_context(scope)), status)
            self._reporter.report()


class _Invocation:
    """Lambda's context object, as its own runtime hands it to a handler."""

    def __init__(self, context: dict[str, Any]) -> None:
        self.aws_request_id = context.get("request_id")
