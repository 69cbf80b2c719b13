"""Settings: every environment variable the application reads, in one place.

A plain dataclass rather than a settings library: it is imported by every cold start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.authorization_settings import AuthorizationSettings, InvalidSetting

__all__ = ["InvalidSetting", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Units are in the names. The defaults suit AWS: an HTTP API ends a request at 30 s."""

    table_name: str = "tidemark"
    bucket_name: str = "tidemark-blobs"
    #: Begins the name of every queue that wakes a process. The janitor removes orphans by it, so
    #: two systems of one account must not share it.
    queue_prefix: str = "tidemark-wake-"
    long_poll_seconds: float = 25.0
    #: How long a streamed SSE answer lasts (§5.8: about 60 s).
    sse_seconds: float = 55.0
    #: How long an SSE answer waits for data where the platform sends it only once complete.
    sse_buffered_seconds: float = 1.0
    #: How many requests a second a server lets in; 0 is all. An HTTP API has a limit of its own.
    requests_per_second: float = 0.0
    #: From which severity on a deployed function logs; INFO writes a line for every request.
    log_level: str = "WARNING"
    #: Under which a deployed function's metrics are found.
    metrics_namespace: str = "Tidemark"
    #: Whether a deployed function sends traces to X-Ray.
    tracing: bool = False
    authorization: AuthorizationSettings = field(default_factory=AuthorizationSettings)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Raises InvalidSetting."""
        default = cls()
        return cls(
            table_name=environment.get("TABLE_NAME") or default.table_name,
            bucket_name=environment.get("BUCKET_NAME") or default.bucket_name,
            queue_prefix=environment.get("QUEUE_PREFIX") or default.queue_prefix,
            long_poll_seconds=_seconds(environment, "LONG_POLL_SECONDS", default.long_poll_seconds),
            sse_seconds=_seconds(environment, "SSE_SECONDS", default.sse_seconds),
            sse_buffered_seconds=_seconds(environment, "SSE_BUFFERED_SECONDS", default.sse_buffered_seconds),
            requests_per_second=_rate(environment.get("REQUESTS_PER_SECOND") or "0"),
            log_level=_level(environment.get("LOG_LEVEL") or default.log_level),
            metrics_namespace=environment.get("METRICS_NAMESPACE") or default.metrics_namespace,
            tracing=_tracing(environment.get("TRACING") or "Disabled"),
            authorization=AuthorizationSettings.from_environment(environment),
        )


def _rate(value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise InvalidSetting(f"REQUESTS_PER_SECOND must be a number, 0 for no limit, got {value!r}")
    return rate


def _level(name: str) -> str:
    if name not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise InvalidSetting(f"LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, got {name!r}")
    return name


def _tracing(mode: str) -> bool:
    """The words are Lambda's own."""
    if mode not in {"Active", "Disabled"}:
        raise InvalidSetting(f"TRACING must be Active or Disabled, got {mode!r}")
    return mode == "Active"


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    value = environment.get(name) or str(default)
    try:
        seconds = float(value)
    except ValueError:
        raise InvalidSetting(f"{name} must be a number of seconds, got {value!r}") from None
    if not 0 <= seconds <= 900:
        raise InvalidSetting(f"{name} must be between 0 and 900 seconds, got {value!r}")
    return seconds
