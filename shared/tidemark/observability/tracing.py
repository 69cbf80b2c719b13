"""Spans for OpenTelemetry. Imported only to export them (`metrics.Meter.export_spans`).

A request's span is below the client's `traceparent`. Storage calls are its children; upstreams get its span.
A webhook and a woken reader are only linked to the append, because a delivery is about many appends, and an
append has many readers; links are in memory, so one process must serve both. No span has a stream's name, a
path or a query, which name people and contain secrets. Background work has no spans.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Hashable, Iterable
from threading import Thread
from time import time_ns
from typing import Any, Final, cast

from opentelemetry import context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider, export
from opentelemetry.trace import Link, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette import requests, responses

from tidemark import __version__

#: The most seconds for which the end of an invocation, or of a server, waits for the collector.
FLUSH_SECONDS: Final = 1.0
#: The most streams whose last append is kept for links, which most need for less than a second.
_MAX_LINKED: Final = 1000
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Spans:
    """Makes the spans of this process, and exports them in batches on a thread. The SDK reads the variables
    `OTEL_…`. Safe to share between threads."""

    def __init__(self) -> None:
        resource = Resource.create({"service.name": "tidemark", "service.version": __version__})
        resource = resource.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(export.BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("tidemark", __version__)
        self._appends: dict[Hashable, Link] = {}
        self._flushing = Thread()

    def flush(self) -> None:
        """Export the finished spans before Lambda freezes the process, or before it ends. The SDK's flush has
        no timeout; while one hangs, no other waits."""
        if not self._flushing.is_alive():
            flushing = self._flushing = Thread(target=self._provider.force_flush, daemon=True)
            flushing.start()
            flushing.join(FLUSH_SECONDS)

    async def guard(
        self, respond: Callable[[requests.Request], Awaitable[responses.Response]], request: requests.Request
    ) -> responses.Response:
        """Guard around all others, which makes the request's span."""
        scope, method = request.scope, request.method if request.method in _METHODS else "_OTHER"
        # Not `request.headers`, which would keep what later guards change.
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        caller, attributes = _PROPAGATOR.extract(sent, context.Context()), {"http.request.method": method}
        span = self._tracer.start_span(method, caller, SpanKind.SERVER, attributes)
        # Never detached: each request has a task of its own, which also sends its event stream.
        context.attach(context.set_value("scope", scope, set_span_in_context(span)))
        response = await respond(request)
        if (operation := scope.get("tidemark.operation")) and operation.path:  # Of `http/paths.py`.
            span.update_name(f"{method} {operation.path}")
            span.set_attribute("http.route", operation.path)
        span.set_attribute("http.response.status_code", response.status_code)
        if response.status_code >= 500:
            span.set_status(StatusCode.ERROR)
        if isinstance(response, responses.StreamingResponse):

            async def until_sent(pieces: AsyncIterable[Any]) -> AsyncIterator[Any]:
                try:
                    async for piece in pieces:
                        yield piece
                finally:
                    span.end()

            response.body_iterator = until_sent(response.body_iterator)
        else:
            span.end()
        return response

    def called(self, operation: str, seconds: float) -> None:
        """Make the span of a finished storage call, in the context of the call."""
        if get_current_span().is_recording():
            began = time_ns() - int(seconds * 1e9)
            self._tracer.start_span(operation, kind=SpanKind.CLIENT, start_time=began).end()

    def keep_append(self, key: Hashable) -> None:
        """Keep the current request as the last append to a stream, for links."""
        if len(self._appends) >= _MAX_LINKED:
            self._appends.clear()
        self._appends[key] = Link(get_current_span().get_span_context())

    def woken(self) -> None:
        """Note that an append has woken the current request."""
        span, scope = get_current_span(), cast("dict[str, Any]", context.get_value("scope") or {})
        span.add_event("woken")
        if append := self._appends.get(scope.get("tidemark.stream")):  # Of `http/requests.py`.
            span.add_link(append.context)

    def carried(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers with the current span in place of the client's."""
        own: dict[str, str] = {}
        _PROPAGATOR.inject(own)
        return [each for each in headers if not own or each[0] not in _PROPAGATOR.fields] + [*own.items()]

    def delivering(self, call: Callable[..., Any], keys: Iterable[Hashable]) -> Callable[..., Any]:
        """Wrap the call of a webhook about these streams."""
        links = [append for key in keys if (append := self._appends.get(key))]

        def traced(url: Any, body: bytes, headers: dict[str, str], seconds: float) -> Any:
            attributes = {"http.request.method": "POST", "server.address": url.host, "server.port": url.port}
            with self._tracer.start_as_current_span(
                "POST webhook", context.Context(), SpanKind.CLIENT, attributes, links, record_exception=False
            ) as span:
                response = call(url, body, dict(self.carried(headers.items())), seconds)
                span.set_attribute("http.response.status_code", response.status)
                return response

        return traced
