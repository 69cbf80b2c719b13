"""Traces in X-Ray: each request with its storage calls. Made by Powertools' Tracer.

Only with TRACING=Active: the library, which is imported then, adds a twentieth of a second to a cold start
and a datagram to every call. An annotation names the operation or the stream; a trace holds no query, header
or body.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from tidemark.observability.invocation import Handler, event_path, lambda_context
from tidemark.observability.metrics import PROCESS, Meter
from tidemark.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The variable in which Lambda's runtime names an invocation's trace; X-Ray's library reads it.
TRACE_ID: Final = "_X_AMZN_TRACE_ID"
#: X-Ray takes no longer text.
_MAX_CHARACTERS: Final = 1000
_WAITS: Final = frozenset({"long-poll", "sse"})


def traced(service: str, settings: Settings, handler: Handler) -> Handler:
    return Traces(service).of_handler(handler) if settings.tracing else handler


def traced_app(service: str, settings: Settings, app: ASGIApp) -> ASGIApp:
    """The same for an application behind an adapter."""
    return Traces(service).of_app(app) if settings.tracing else app


class Traces:
    """Traces of one function. Nothing is patched: the meter calls `_called` for every storage call."""

    def __init__(self, service: str, meter: Meter = PROCESS) -> None:
        from aws_lambda_powertools import Tracer

        self._service = service
        self._tracer = Tracer(service=service, auto_patch=False)
        meter.watch = self._called

    def of_handler(self, handler: Handler) -> Handler:
        def annotated(event: dict[str, Any], context: Any) -> dict[str, Any]:
            self._annotate(_facts_of_event(event))
            response = handler(event, context)
            self._annotate({"status": response["statusCode"]} if "statusCode" in response else {})
            return response

        annotated.__name__ = self._service
        traced: Handler = self._tracer.capture_lambda_handler(
            annotated, capture_response=False, capture_error=False
        )
        return traced

    def of_app(self, app: ASGIApp) -> ASGIApp:
        """The same for an ASGI application behind an adapter, which serves one request at a time."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            trace_id = lambda_context(scope).get("xray_trace_id")
            if not trace_id:
                await app(scope, receive, send)
                return
            os.environ[TRACE_ID] = str(trace_id)
            with self._tracer.provider.in_subsegment(name=f"## {self._service}"):
                query = scope["query_string"].decode("latin-1")
                self._annotate(_facts(scope["method"], scope["path"], query))

                async def watched(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        self._annotate({"status": message["status"]})
                    await send(message)

                await app(scope, receive, watched)

        return traced

    def _annotate(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            self._tracer.put_annotation(name, value)

    def _called(self, service: str, operation: str, seconds: float, status: int) -> None:
        """Trace a storage call that has just ended. `status` 0 means that there was no reply."""
        recorder: Any = self._tracer.provider
        subsegment = recorder.begin_subsegment(service, namespace="aws")
        if subsegment is None:
            return
        subsegment.start_time = time.time() - seconds
        subsegment.set_aws({"operation": operation})
        subsegment.put_http_meta("status", status)
        subsegment.apply_status_code(status or 503)
        recorder.end_subsegment()


def _facts_of_event(event: Mapping[str, Any]) -> dict[str, str | int]:
    """The request of an event; empty for a schedule's event or a table's records."""
    http = (event.get("requestContext") or {}).get("http")
    if http is None:
        return {}
    return _facts(http["method"], event_path(event), str(event.get("rawQueryString") or ""))


def _facts(method: str, path: str, query: str) -> dict[str, str | int]:
    """Only the kind of wait is taken from the query: tokens may be in it."""
    kind = parse_qs(query).get("live", [""])[0]
    operation = f"{method} {kind}" if kind in _WAITS else method
    return {"operation": operation, "stream": path.partition("?")[0][:_MAX_CHARACTERS]}
