"""Structured logs and metrics of a deployed function.

Metrics are written as log lines, which CloudWatch turns into metrics (EMF), at most every 10 s in each
environment: a line for every append would cost as much as a fifth of the append. When Lambda ends an
environment, the counts of its last seconds are lost.

A request has a log line if it failed, or if LOG_LEVEL is low enough: method, stream, status and ids. The line
never contains a query, a header or a body, because these contain tokens.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.observability import metrics as meters
from tidemark.observability.invocation import Handler, event_path, lambda_context
from tidemark.settings import Settings

REPORT_SECONDS: Final = 10.0
#: The number of values that represent a histogram; EMF allows a hundred for one metric.
_MAX_VALUES: Final = 60


class Reporter:
    """Reports for one function. Its name (`service`) is the only dimension, because each one costs money."""

    def __init__(
        self,
        service: str,
        settings: Settings,
        meter: meters.Meter = meters.PROCESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.logger = Logger(service=service, level=settings.log_level)
        self._namespace = settings.metrics_namespace
        self._level = self.logger.log_level
        self._service = service
        self._meter = meter
        self._clock = clock
        self._reported = meter.snapshot()
        self._due_at = 0.0

    def report(self, lasted_ms: Mapping[str, float] | None = None) -> None:
        """Write the counts since the last report, at most every 10 s, and the durations `lasted_ms`."""
        if self._meter.spans:
            self._meter.spans.flush()
        seconds = self._clock()
        if seconds < self._due_at:
            return
        self._due_at = seconds + REPORT_SECONDS
        now, before = self._meter.snapshot(), self._reported
        self._reported = now
        metrics = EphemeralMetrics(namespace=self._namespace, service=self._service)
        # Labels are summed: each label value would be billed as a metric of its own.
        grown: defaultdict[meters.Counter, float] = defaultdict(float)
        for (counter, labels), value in now.counts.items():
            grown[counter] += value - before.counts.get((counter, labels), 0.0)
        counted = [counter for counter in meters.COUNTERS if grown[counter]]
        for counter in counted:
            unit = MetricUnit.Bytes if counter.title.endswith("bytes") else MetricUnit.Count
            metrics.add_metric(_camel(counter.title), unit, grown[counter])
        for name, value in (lasted_ms or {}).items():
            metrics.add_metric(name, MetricUnit.Milliseconds, value)
        if _add_histograms(metrics, now, before) or counted or lasted_ms:
            metrics.flush_metrics()

    def answered(self, event: Mapping[str, Any], context: Any, status: int) -> None:
        """Write the request's log line, if its status or LOG_LEVEL requires one."""
        level = logging.ERROR if status >= 500 else logging.WARNING if status == 429 else logging.INFO
        if level < self._level:
            return
        request = event.get("requestContext") or {}
        facts = {
            "request_id": request.get("requestId"),
            "function_request_id": getattr(context, "aws_request_id", None),
            "method": (request.get("http") or {}).get("method"),
            "stream": event_path(event),
            "status": status,
        }
        log = {logging.ERROR: self.logger.error, logging.WARNING: self.logger.warning}
        log.get(level, self.logger.info)("answered", extra=facts)


def _add_histograms(
    metrics: EphemeralMetrics, now: meters.MetricsSnapshot, before: meters.MetricsSnapshot
) -> int:
    added = 0
    for histogram in meters.HISTOGRAMS:
        name = _camel(histogram.title.removesuffix("_seconds")) + "Time"
        for value in spread(now.distributions[histogram], before.distributions[histogram]):
            metrics.add_metric(name, MetricUnit.Milliseconds, value)
            added += 1
    return added


def spread(now: meters.Distribution, before: meters.Distribution) -> list[float]:
    """Return a few values, in milliseconds, that represent all observations between the two: the upper bounds
    of the buckets, in the buckets' proportions, so that percentiles are approximately right."""
    observed = [new - old for new, old in zip(now.buckets, before.buckets, strict=True)]
    share = max(1.0, sum(observed) / _MAX_VALUES)
    bounds = (*meters.BOUNDS, meters.BOUNDS[-1] * 2)
    values: list[float] = []
    for bound, count in zip(bounds, observed, strict=True):
        values += [bound * 1000] * (max(1, round(count / share)) if count else 0)
    return values


def _camel(title: str) -> str:
    return title.title().replace("_", "")


def reporting(service: str, settings: Settings, handler: Callable[[Any, Any], dict[str, Any]]) -> Handler:
    """Return the handler of HTTP events, with its log lines and metrics."""
    reporter = Reporter(service, settings)

    def reported(event: dict[str, Any], context: Any) -> dict[str, Any]:
        response = handler(event, context)
        reporter.answered(event, context, response["statusCode"])
        reporter.report()
        return response

    return reported


class Reporting:
    """ASGI middleware that reports at a request's end, because Lambda freezes idle environments."""

    def __init__(self, app: ASGIApp, reporter: Reporter) -> None:
        self._app = app
        self._reporter = reporter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # An event in the form of an HTTP API; the path has no query.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = {"requestId": headers.get("x-amzn-trace-id"), "http": {"method": scope["method"]}}
        event = {"requestContext": request, "rawPath": scope["path"], "headers": headers}
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            context = SimpleNamespace(aws_request_id=lambda_context(scope).get("request_id"))
            self._reporter.answered(event, context, status)
            self._reporter.report()
