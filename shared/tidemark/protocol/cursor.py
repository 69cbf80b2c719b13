"""Cursors (§10.1) change a live request's cache key over time, and bind it to one stream.

A cursor is an interval of time and the stream's mark, in one number. It is a pure function of the time,
of the client's own cursor and of the stream's incarnation: no jitter. Every client that waits at one
offset with one cursor receives the same next one, so a cache in front can go on collapsing them.

A stream that is deleted and created again begins anew at the same offsets, under the same URL, but with
another mark. So a cache may keep only responses to requests with the stream's own mark: such a request cannot
mean another incarnation.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from tidemark.protocol.errors import Malformed
from tidemark.protocol.integer import MAX_SAFE_INTEGER, parse_integer

INTERVAL_SECONDS: Final = 20
#: October 9, 2024 00:00:00 UTC, the protocol's default epoch, in Unix seconds.
EPOCH_SECONDS: Final = 1_728_432_000
#: Two incarnations have the same mark once in 67 million. The other bits of a JavaScript safe integer count
#: intervals for 85 years.
MARK_BITS: Final = 26
#: No greater cursor could follow this one.
LIMIT: Final = MAX_SAFE_INTEGER >> MARK_BITS << MARK_BITS


def mark_of(incarnation: str) -> int:
    return crc32(incarnation.encode()) >> (32 - MARK_BITS)


def parse_cursor(value: str | None) -> int | None:
    """Raises Malformed, also for a cursor that no greater one could follow."""
    cursor = None if value is None else parse_integer("cursor", value)
    if cursor is not None and cursor >= LIMIT:
        raise Malformed(f"cursor must be less than {LIMIT}")
    return cursor


def known_cursor(value: str | None) -> int | None:
    """The cursor of a catch-up read. It only helps caches there, so an invalid one is ignored."""
    try:
        return parse_cursor(value)
    except Malformed:
        return None


def is_of(cursor: int | None, incarnation: str) -> bool:
    """Whether the cursor is one that this very stream gave."""
    return cursor is not None and cursor % (1 << MARK_BITS) == mark_of(incarnation)


def decide_cursor(client_cursor: int | None, now_ms: int, incarnation: str) -> int:
    """The interval that `now_ms` lies in, but always greater than the client's cursor.

    A client ahead of the clock still moves forward. Otherwise a cache would give it the response to
    its own last request for ever.
    """
    interval = max(0, now_ms // 1000 - EPOCH_SECONDS) // INTERVAL_SECONDS
    if client_cursor is not None:
        interval = max(interval, (client_cursor >> MARK_BITS) + 1)
    return interval << MARK_BITS | mark_of(incarnation)


def decide_catch_up_cursor(client_cursor: int | None, incarnation: str) -> int:
    """The cursor of a catch-up read, which never waits: the client's own, or one without a time, so that all
    readers of an offset share a response."""
    if client_cursor is not None and is_of(client_cursor, incarnation):
        return client_cursor
    return mark_of(incarnation)
