"""Cache-Control, entity tags and cursors (§10): how long a cache may keep a response.

Data at an offset never changes, so a response with data may be cached: at worst it ends before the current
tail, and the reader continues at its end. A response without data becomes false with the next append and is
never cached. One exception is the end of a closed stream, which is final.

All this holds for one incarnation of a stream. A stream that is deleted and created again has other data at
the same URL. A cache may therefore serve a response without asking only if the request had the stream's own
cursor. Otherwise the cache must revalidate each time (`ETag`).

There are entity tags for pages (§10.1), and for a stream's tail, for `If-Match` (an extension).

Cursors (§10.1) change a live request's cache key over time, and bind it to one stream.

A cursor is a time interval and the stream's mark, in one number. It is a pure function of the time, the
client's own cursor and the stream's incarnation, without jitter. Clients that wait at one offset with one
cursor therefore all receive the same next one, and a cache can keep collapsing their requests.

A re-created stream begins at the same offsets under the same URL, but with another mark. A cache may
therefore keep only responses to requests with the stream's own mark, which cannot mean another incarnation. A
reader with a cursor of another incarnation is refused, because it would join the end of one stream to the
start of another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from tidemark.protocol.errors import Malformed, PreconditionFailed
from tidemark.protocol.header_values import MAX_SAFE_INTEGER, parse_integer
from tidemark.protocol.offset import render_offset

#: For every response about one moment: errors, a stream's metadata, buckets, snapshots, health, metrics.
NO_STORE: Final = "no-store"
FRESH_SECONDS: Final = 60
STALE_SECONDS: Final = 300
SHARED: Final = f"public, max-age={FRESH_SECONDS}, stale-while-revalidate={STALE_SECONDS}"
#: An event stream is consumed as it arrives; proxies must not buffer it (§5.8).
EVENT_STREAM: Final = "no-cache, no-store, no-transform"
#: For data that was requested without the stream's own cursor, and for the console's files: a cache may keep
#: the response, and must revalidate it each time.
REVALIDATED: Final = "public, no-cache"
#: The OpenAPI document changes only with a deployment.
DOCUMENT: Final = "public, max-age=300"


def decide_cache_control(
    *, has_data: bool, closed: bool, from_now: bool, is_bound: bool, life_ms: int | None = None
) -> str:
    """Return the Cache-Control of a catch-up read (§5.6) or a long-poll (§5.7). A long-poll is never
    `closed`: without data it only reports its timeout. `now` means another offset at every moment (§8).

    `is_bound`: the request had the stream's own cursor. `life_ms` is the least time until the stream expires,
    if it does: no cache may serve the response for longer, stale or not.
    """
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
    """Return the Cache-Control of a response that is not public: only the reader's own cache may keep it.

    A URL with a token is a secret, so no cache keeps the response. `cache_control` is the response's own;
    with None it is not kept.
    """
    if token_in_query:
        return f"private, {EVENT_STREAM}"
    return (cache_control or NO_STORE).replace("public", "private")


_ENTITY_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_ENTITY_TAGS: Final = re.compile(rf"{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*")


def render_etag(incarnation: str, start: int, end: int, *, closed: bool, crc: int | None = None) -> str:
    """Return the entity tag of a page. Closing adds `:c`, so that a 304 never hides it. `crc` distinguishes
    the histories of a restored stream; it follows the start, where older Spark sources ignore it."""
    history = "" if crc is None else f".{crc:08x}"
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(start)}{history}:{render_offset(end)}{suffix}"'


def etag_matches(if_none_match: str | None, etag: str) -> bool:
    """Compare weakly with each tag in a list, as RFC 9110 §13.1.2 requires for GET."""
    if if_none_match is None:
        return False
    if if_none_match.strip() == "*":
        return True
    candidates = (candidate.strip() for candidate in if_none_match.split(","))
    return any(candidate.removeprefix("W/") == etag for candidate in candidates)


def render_tail_etag(incarnation: str, tail: int, *, closed: bool) -> str:
    """Return a tag that changes with every append and with closing. It never equals the tag of a page."""
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(tail)}{suffix}"'


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The condition of an append: `*` (None), or the tags that it may follow; no tags: it must create."""

    tags: frozenset[str] | None

    def check(self, incarnation: str, tail: int, *, closed: bool) -> None:
        """Compare strongly (RFC 9110 §13.1.1). Raises PreconditionFailed."""
        etag = render_tail_etag(incarnation, tail, closed=closed)
        if self.tags is not None and etag not in self.tags:
            raise PreconditionFailed(etag, tail)

    def check_missing(self) -> None:
        """Check the condition of an append that creates its stream. Raises PreconditionFailed."""
        if self.tags is None or self.tags:
            raise PreconditionFailed


def parse_if_match(value: str | None, none_match: str | None = None) -> IfMatch | None:
    """Return the condition. Raises Malformed for anything but `*` and, for If-Match, a list of tags."""
    if none_match is not None:
        if none_match != "*" or value is not None:
            raise Malformed(
                f"If-None-Match of an append must be *, without If-Match; got {none_match[:80]!r}"
            )
        return IfMatch(frozenset())
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
#: Two incarnations share a mark once in 67 million. The other bits count intervals for 85 years.
MARK_BITS: Final = 26
#: No cursor could follow this one.
LIMIT: Final = MAX_SAFE_INTEGER >> MARK_BITS << MARK_BITS


#: The interval in the cursor of a catch-up read, which has no time: June 2025, before the first release, so
#: that every live cursor is greater.
CATCH_UP_INTERVAL: Final = 1 << 20
#: The most intervals by which a busy reader's cursor is ahead: each request increments it by one or more.
_MOST_AHEAD: Final = 1 << 20


def mark_of(incarnation: str) -> int:
    return crc32(incarnation.encode()) >> (32 - MARK_BITS)


def parse_cursor(value: str | None) -> int | None:
    """Return the cursor. Raises Malformed, also for a cursor that has no successor."""
    cursor = None if value is None else parse_integer("cursor", value)
    if cursor is not None and cursor >= LIMIT:
        raise Malformed(f"cursor must be less than {LIMIT}")
    return cursor


def known_cursor(value: str | None) -> int | None:
    """Return the cursor of a catch-up read. It only helps caches there, so an invalid one is ignored."""
    try:
        return parse_cursor(value)
    except Malformed:
        return None


def is_of(cursor: int | None, incarnation: str) -> bool:
    """Whether this stream issued the cursor."""
    return cursor is not None and cursor % (1 << MARK_BITS) == mark_of(incarnation)


def is_of_another(cursor: int | None, incarnation: str, now_ms: int) -> bool:
    """Whether a stream with another incarnation issued the cursor. A number outside our intervals proves
    nothing: another server, an early release or the client made it."""
    if cursor is None or is_of(cursor, incarnation):
        return False
    return CATCH_UP_INTERVAL <= cursor >> MARK_BITS <= _interval_at(now_ms) + _MOST_AHEAD


def _interval_at(now_ms: int) -> int:
    return max(0, now_ms // 1000 - EPOCH_SECONDS) // INTERVAL_SECONDS


def decide_cursor(client_cursor: int | None, now_ms: int, incarnation: str) -> int:
    """Return a cursor with the interval of `now_ms`, and always greater than the client's.

    A client ahead of the clock still moves forward. Otherwise a cache would repeat its last response forever.
    """
    interval = _interval_at(now_ms)
    if client_cursor is not None:
        interval = max(interval, (client_cursor >> MARK_BITS) + 1)
    return interval << MARK_BITS | mark_of(incarnation)


def decide_catch_up_cursor(client_cursor: int | None, incarnation: str) -> int:
    """Return the cursor of a catch-up read, which never waits: the client's own, or one without a time, so
    that all readers of an offset share a response."""
    if client_cursor is not None and is_of(client_cursor, incarnation):
        return client_cursor
    return CATCH_UP_INTERVAL << MARK_BITS | mark_of(incarnation)
