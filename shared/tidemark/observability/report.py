"""Structured logs and metrics of a deployed function.

Metrics leave as log lines that CloudWatch turns into metrics (EMF), at most every ten
seconds in each environment: a line for every append would cost as much as a fifth of it.
What a busy environment has counted in its last seconds is lost when Lambda ends it.

A request has a log line if it failed, or if LOG_LEVEL asks for it: method, stream and
status, and the ids to find it by. Never a query, a header or a body: tokens are in them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from tidemark.observability.invocation import Handler
from tidemark.observability.metrics import (
    BOUNDS,
    COUNTS,
    DURATIONS,
    PROCESS,
    Histogram,
    Meter,
    MetricsSnapshot,
)
from tidemark.observability.tracing import traced
from tidemark.settings import Settings

INTERVAL_SECONDS: Final = 10.0
#: As many as a histogram is spread over, of the hundred values that a metric may have.
_MAX_VALUES: Final = 60


class Reporter:
    """Of one function. Its name is the service's, and the only dimension: each costs money."""

    def __init__(
        self,
        service: str,
        settings: Settings,
        meter: Meter = PROCESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.logger = Logger(service=service, level=settings.log_level)
        self._namespace = settings.metrics_namespace
        self._level = self.logger.log_level
        self._service = service
        self._meter = meter
        self._clock = clock
        self._reported = meter.read()
        self._due_at = 0.0

    def report(self) -> None:
        """What was counted since the last time, where it is due."""
        now = self._clock()
        if now < self._due_at:
            return
        self._due_at = now + INTERVAL_SECONDS
        reading, since = self._meter.read(), self._reported
        self._reported = reading
        metrics = EphemeralMetrics(namespace=self._namespace, service=self._service)
        if _add_counts(metrics, reading, since) + _add_durations(metrics, reading, since):
            metrics.flush_metrics()

    def answered(self, event: Mapping[str, Any], context: Any, status: int) -> None:
        """A request's line, where its status or the level asks for one."""
        level = logging.ERROR if status >= 500 else logging.WARNING if status == 429 else logging.INFO
        if level >= self._level:
            say = {logging.ERROR: self.logger.error, logging.WARNING: self.logger.warning}
            say.get(level, self.logger.info)("answered", extra=_facts(event, context) | {"status": status})


def _facts(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
    request = event.get("requestContext") or {}
    return {
        "request_id": request.get("requestId"),
        "function_request_id": getattr(context, "aws_request_id", None),
        "method": (request.get("http") or {}).get("method"),
        # Without the query, where a token may be.
        "stream": str(event.get("rawPath") or "").partition("?")[0],
    }


def _add_counts(metrics: EphemeralMetrics, reading: MetricsSnapshot, since: MetricsSnapshot) -> int:
    """Labels are added up: each of their values would be a metric of its own, and cost as one."""
    added = 0
    for count in COUNTS:
        value = _total(reading, count) - _total(since, count)
        if value:
            unit = MetricUnit.Bytes if count.title.endswith("bytes") else MetricUnit.Count
            metrics.add_metric(_camel(count.title), unit, value)
            added += 1
    return added


def _total(reading: MetricsSnapshot, count: object) -> float:
    return sum(value for (each, _), value in reading.counts.items() if each is count)


def _add_durations(metrics: EphemeralMetrics, reading: MetricsSnapshot, since: MetricsSnapshot) -> int:
    added = 0
    for duration in DURATIONS:
        name = _camel(duration.title.removesuffix("_seconds")) + "Time"
        for value in spread(reading.durations[duration], since.durations[duration]):
            metrics.add_metric(name, MetricUnit.Milliseconds, value)
            added += 1
    return added


def spread(now: Histogram, since: Histogram) -> list[float]:
    """A few values that stand for all that was observed between the two: each bucket's upper
    bound in milliseconds, in the buckets' proportions, so that percentiles are about right."""
    observed = [new - old for new, old in zip(now.buckets, since.buckets, strict=True)]
    share = max(1.0, sum(observed) / _MAX_VALUES)
    bounds = (*BOUNDS, BOUNDS[-1] * 2)
    values: list[float] = []
    for bound, count in zip(bounds, observed, strict=True):
        values += [bound * 1000] * (max(1, round(count / share)) if count else 0)
    return values


def _camel(title: str) -> str:
    return title.title().replace("_", "")


def reporting(service: str, settings: Settings, handler: Callable[[Any, Any], dict[str, Any]]) -> Handler:
    """The handler of HTTP events, with a word on what it did."""
    reporter = Reporter(service, settings)

    def reported(event: dict[str, Any], context: Any) -> dict[str, Any]:
        answer = handler(event, context)
        reporter.answered(event, context, answer["statusCode"])
        reporter.report()
        return answer

    return traced(service, settings, reported)
