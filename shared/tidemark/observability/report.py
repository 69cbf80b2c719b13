"""Structured logs and metrics of a deployed function.

Metrics leave as log lines that CloudWatch turns into metrics (EMF), at most every ten
seconds in each environment: a line for every append would cost as much as a fifth of the append.
When Lambda ends an environment, what it counted in its last seconds is lost.

A request has a log line if it failed, or if LOG_LEVEL asks for one: method, stream, status, and
the ids to find it by. It never holds a query, a header or a body, because tokens are in them.
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
#: How many values stand for a histogram; EMF allows a hundred for one metric.
_MAX_VALUES: Final = 60


class Reporter:
    """Reports for one function. Its name is the only dimension (`service`): each one costs money."""

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
        """Write what was counted since the last report, unless that was less than ten seconds ago, and
        `lasted_ms`: durations by the names of their metrics."""
        seconds = self._clock()
        if seconds < self._due_at:
            return
        self._due_at = seconds + REPORT_SECONDS
        now, before = self._meter.snapshot(), self._reported
        self._reported = now
        metrics = EphemeralMetrics(namespace=self._namespace, service=self._service)
        # Labels are added up: each of their values would be a metric of its own, and cost as one.
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
        """Write the request's log line, where its status or LOG_LEVEL asks for one."""
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
    """A few values, in milliseconds, that represent all observations between the two: each bucket's upper
    bound, in the buckets' proportions, so that percentiles are about right."""
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
    """The handler of HTTP events, with its log lines and metrics."""
    reporter = Reporter(service, settings)

    def reported(event: dict[str, Any], context: Any) -> dict[str, Any]:
        response = handler(event, context)
        reporter.answered(event, context, response["statusCode"])
        reporter.report()
        return response

    return reported


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
