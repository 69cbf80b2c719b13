"""Creating a stream (§5.1): idempotent where the configuration matches."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.protocol.content_type import ContentType
from tidemark.protocol.errors import Conflict
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.retention import FOREVER, Retention


@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """The configuration of a creation; a repeated PUT must match it."""

    content_type: ContentType
    expiry: Expiry
    closed: bool
    retention: Retention = FOREVER


def check_same_configuration(existing: StreamConfiguration, requested: StreamConfiguration) -> None:
    """Raises Conflict that names the first difference."""
    if existing.content_type.essence != requested.content_type.essence:
        raise Conflict(
            f"Stream exists with content type {existing.content_type.essence}, "
            f"not {requested.content_type.essence}"
        )
    if not existing.expiry.matches(requested.expiry):
        raise Conflict("Stream exists with a different Stream-TTL or Stream-Expires-At")
    if existing.retention != requested.retention:
        raise Conflict("Stream exists with a different Stream-Retain-Seconds or Stream-Retain-Bytes")
    if existing.closed != requested.closed:
        state = "closed" if existing.closed else "open"
        raise Conflict(f"Stream exists and is {state}; Stream-Closed must match")
