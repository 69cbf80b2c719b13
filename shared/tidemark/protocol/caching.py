"""Cache-Control (§10) of all responses: how long a cache between us and the reader may keep them.

Data at an offset never changes, so a response with data may be kept: at worst it ends before
the present tail, and the reader continues at its end. A response without data says "nothing
yet", which the next append makes untrue: it is never kept, except that the end of a closed
stream is final.

All that holds for one incarnation of a stream. A stream that is deleted and created again has other data at
the same URL, so a cache serves without asking only what was asked for with the stream's own cursor;
for everything else it asks each time whether it is still so (`ETag`).

Entity tags are of a page (§10.1), and of a stream's tail, which `If-Match` takes (an extension).

Cursors (§10.1) change a live request's cache key over time, and bind it to one stream.

A cursor is an interval of time and the stream's mark, in one number. It is a pure function of the time,
of the client's own cursor and of the stream's incarnation: no jitter. Every client that waits at one
offset with one cursor receives the same next one, so a cache in front can go on collapsing them.

A stream that is deleted and created again begins anew at the same offsets, under the same URL, but with
another mark. So a cache may keep only responses to requests with the stream's own mark: such a request cannot
mean another incarnation. And a reader that goes on with a cursor of another one is refused: it would read one
stream's end behind the other's beginning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from tidemark.protocol.errors import Malformed, PreconditionFailed
from tidemark.protocol.header_values import MAX_SAFE_INTEGER, parse_integer
from tidemark.protocol.offset import render_offset

#: For every response that describes one moment: an error, a stream's metadata, everything about
#: buckets and snapshots, health, metrics.
NO_STORE: Final = "no-store"
FRESH_SECONDS: Final = 60
STALE_SECONDS: Final = 300
SHARED: Final = f"public, max-age={FRESH_SECONDS}, stale-while-revalidate={STALE_SECONDS}"
#: An event stream is consumed as it arrives; proxies must not hold it back (§5.8).
EVENT_STREAM: Final = "no-cache, no-store, no-transform"
#: For data that was requested without the stream's own cursor, and the console's files: a cache may keep it,
#: and must ask each time with its entity tag.
REVALIDATED: Final = "public, no-cache"
#: The OpenAPI document changes with a deployment only.
DOCUMENT: Final = "public, max-age=300"


def decide_cache_control(
    *, has_data: bool, closed: bool, from_now: bool, is_bound: bool, life_ms: int | None = None
) -> str:
    """Cache-Control of a catch-up read (§5.6); of a long-poll (§5.7), never `closed`: without data it
    only says that its time is over. `now` names another place at every moment (§8).

    `is_bound` says that the request had the stream's own cursor. `life_ms` is how long the stream lives
    at least, if it ends by itself: no cache may serve it for longer than that, stale or not."""
    if from_now or not (has_data or closed):
        return NO_STORE
    if not is_bound:
        return REVALIDATED
    if life_ms is None or life_ms >= (FRESH_SECONDS + STALE_SECONDS) * 1000:
        return SHARED
    left = life_ms // 1000
    fresh = min(FRESH_SECONDS, left)
    if fresh == 0:
        return NO_STORE
    return f"public, max-age={fresh}, stale-while-revalidate={left - fresh}"


def decide_private(cache_control: str | None, *, token_in_query: bool) -> str:
    """Cache-Control of a response that not everybody may have: the reader's own cache may keep it, others may
    not.

    A URL with a token in it is a secret, so no cache keeps what it leads to. `cache_control` is
    what the response says by itself; None is a response that does not say, which is not kept.
    """
    if token_in_query:
        return f"private, {EVENT_STREAM}"
    return (cache_control or NO_STORE).replace("public", "private")


_ENTITY_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_ENTITY_TAGS: Final = re.compile(rf"{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*")


def render_etag(incarnation: str, start: int, end: int, *, closed: bool, crc: int | None = None) -> str:
    """Closing adds `:c`, so that a 304 never hides it. `crc` tells apart the histories of a stream that was
    put back to an older state. It stands beside the start, where older releases of Spark's source ignore it.
    """
    history = "" if crc is None else f".{crc:08x}"
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(start)}{history}:{render_offset(end)}{suffix}"'


def etag_matches(if_none_match: str | None, etag: str) -> bool:
    """Weak comparison over a list, as RFC 9110 §13.1.2 asks for GET."""
    if if_none_match is None:
        return False
    if if_none_match.strip() == "*":
        return True
    candidates = (candidate.strip() for candidate in if_none_match.split(","))
    return any(candidate.removeprefix("W/") == etag for candidate in candidates)


def render_tail_etag(incarnation: str, tail: int, *, closed: bool) -> str:
    """Changes with every append and with closing. It is not the tag of any page."""
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(tail)}{suffix}"'


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The condition of an append: `*`, or the tags of the tails that it may follow."""

    tags: frozenset[str] | None

    def check(self, incarnation: str, tail: int, *, closed: bool) -> None:
        """Compares strongly (RFC 9110 §13.1.1). Raises PreconditionFailed."""
        etag = render_tail_etag(incarnation, tail, closed=closed)
        if self.tags is not None and etag not in self.tags:
            raise PreconditionFailed(etag, tail)


def parse_if_match(value: str | None) -> IfMatch | None:
    """Raises Malformed for what is neither `*` nor a list of entity tags."""
    if value is None:
        return None
    if value == "*":
        return IfMatch(None)
    if not _ENTITY_TAGS.fullmatch(value):
        raise Malformed(
            f"If-Match must be *, or the ETag of HEAD or of an append, quotes included; got {value[:80]!r}"
        )
    return IfMatch(frozenset(re.findall(_ENTITY_TAG, value)))


INTERVAL_SECONDS: Final = 20
#: October 9, 2024 00:00:00 UTC, the protocol's default epoch, in Unix seconds.
EPOCH_SECONDS: Final = 1_728_432_000
#: Two incarnations have the same mark once in 67 million. The other bits of a JavaScript safe integer count
#: intervals for 85 years.
MARK_BITS: Final = 26
#: No greater cursor could follow this one.
LIMIT: Final = MAX_SAFE_INTEGER >> MARK_BITS << MARK_BITS


#: The interval in the cursor of a catch-up read, which has no time: in June 2025, before the first release,
#: so that every live cursor is greater.
CATCH_UP_INTERVAL: Final = 1 << 20
#: A cursor moves on by one with each request at least, so a busy reader's runs ahead of the clock, by less
#: than so many intervals.
_MOST_AHEAD: Final = 1 << 20


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


def is_of_another(cursor: int | None, incarnation: str, now_ms: int) -> bool:
    """Whether a stream with another incarnation gave the cursor. A number outside of our intervals (another
    server, an early release or the client made it) proves nothing."""
    if cursor is None or is_of(cursor, incarnation):
        return False
    return CATCH_UP_INTERVAL <= cursor >> MARK_BITS <= _interval_at(now_ms) + _MOST_AHEAD


def _interval_at(now_ms: int) -> int:
    return max(0, now_ms // 1000 - EPOCH_SECONDS) // INTERVAL_SECONDS


def decide_cursor(client_cursor: int | None, now_ms: int, incarnation: str) -> int:
    """The interval that `now_ms` lies in, but always greater than the client's cursor.

    A client ahead of the clock still moves forward. Otherwise a cache would give it the response to
    its own last request for ever.
    """
    interval = _interval_at(now_ms)
    if client_cursor is not None:
        interval = max(interval, (client_cursor >> MARK_BITS) + 1)
    return interval << MARK_BITS | mark_of(incarnation)


def decide_catch_up_cursor(client_cursor: int | None, incarnation: str) -> int:
    """The cursor of a catch-up read, which never waits: the client's own, or one without a time, so that all
    readers of an offset share a response."""
    if client_cursor is not None and is_of(client_cursor, incarnation):
        return client_cursor
    return CATCH_UP_INTERVAL << MARK_BITS | mark_of(incarnation)
