"""Cache-Control (§10) of all responses: how long a cache between us and the reader may keep them.

Data at an offset never changes, so a response with data may be kept: at worst it ends before
the present tail, and the reader continues at its end. A response without data says "nothing
yet", which the next append makes untrue: it is never kept, except that the end of a closed
stream is final.

All that holds for one incarnation of a stream. A stream that is deleted and created again has other data at
the same URL, so a cache serves without asking only what was asked for with the stream's own cursor
(`protocol/cursor.py`); for everything else it asks each time whether it is still so (`ETag`).
"""

from __future__ import annotations

from typing import Final

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
    """Cache-Control of a catch-up read (§5.6). `now` names another place at every moment (§8).

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


def decide_long_poll(*, has_data: bool, from_now: bool, is_bound: bool, life_ms: int | None = None) -> str:
    """Cache-Control of a long-poll (§5.7): without data it only says that its time is over. The rest as
    above."""
    return decide_cache_control(
        has_data=has_data, closed=False, from_now=from_now, is_bound=is_bound, life_ms=life_ms
    )


def decide_private(cache_control: str | None, *, token_in_query: bool) -> str:
    """Cache-Control of a response that not everybody may have: the reader's own cache may keep it, others may
    not.

    A URL with a token in it is a secret, so no cache keeps what it leads to. `cache_control` is
    what the response says by itself; None is a response that does not say, which is not kept.
    """
    if token_in_query:
        return f"private, {EVENT_STREAM}"
    return (cache_control or NO_STORE).replace("public", "private")
