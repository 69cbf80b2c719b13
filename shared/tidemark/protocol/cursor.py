"""Cursors (§10.1): what changes a live request's cache key as time goes on.

The cursor is a pure function of the time and of the client's own cursor: no jitter. Every
client that waits at one offset with one cursor receives the same next one, so a cache in
front can go on collapsing them.
"""

from __future__ import annotations

from typing import Final

from tidemark.protocol.errors import Malformed
from tidemark.protocol.integer import MAX_SAFE_INTEGER, parse_integer

INTERVAL_SECONDS: Final = 20
#: October 9, 2024 00:00:00 UTC, the protocol's default epoch, in Unix seconds.
EPOCH_SECONDS: Final = 1_728_432_000


def parse_cursor(value: str | None) -> int | None:
    """Raises Malformed, also for the largest integer: no greater cursor could follow it."""
    cursor = None if value is None else parse_integer("cursor", value)
    if cursor == MAX_SAFE_INTEGER:
        raise Malformed(f"cursor must be less than {MAX_SAFE_INTEGER}")
    return cursor


def decide_cursor(client_cursor: int | None, now_ms: int) -> int:
    """The interval that `now_ms` lies in, but always greater than the client's cursor.

    A client ahead of the clock still moves forward. Otherwise a cache would give it the response to
    its own last request for ever.
    """
    current = max(0, now_ms // 1000 - EPOCH_SECONDS) // INTERVAL_SECONDS
    if client_cursor is None or client_cursor < current:
        return current
    return client_cursor + 1
