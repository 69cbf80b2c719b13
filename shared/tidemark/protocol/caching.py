"""Cache-Control (§10): what a cache between us and the reader may keep.

Data at an offset never changes, so an answer with data may be kept: at worst it ends
earlier than the tail does by now, and the reader goes on from its end. An answer without
data says "nothing yet", which an append makes untrue: it is never kept, except that the
end of a closed stream is final.
"""

from __future__ import annotations

from typing import Final

NO_STORE: Final = "no-store"
FRESH_SECONDS: Final = 60
STALE_SECONDS: Final = 300
SHARED: Final = f"public, max-age={FRESH_SECONDS}, stale-while-revalidate={STALE_SECONDS}"
#: An event stream is consumed as it arrives; proxies must not hold it back (§5.8).
EVENT_STREAM: Final = "no-cache, no-store, no-transform"


def decide_cache_control(*, has_data: bool, closed: bool, from_now: bool, life_ms: int | None = None) -> str:
    """`life_ms` is how long the stream lives at least, if it ends by itself: no cache may serve it for
    longer than that, stale or not."""
    if from_now or not (has_data or closed):
        return NO_STORE
    if life_ms is None or life_ms >= (FRESH_SECONDS + STALE_SECONDS) * 1000:
        return SHARED
    left = life_ms // 1000
    fresh = min(FRESH_SECONDS, left)
    if fresh == 0:
        return NO_STORE
    return f"public, max-age={fresh}, stale-while-revalidate={left - fresh}"


def decide_private(cache_control: str, *, token_in_query: bool) -> str:
    """The same for an answer that not everybody may have: the reader's own cache may keep
    it, others may not. An address with a token in it is a secret, so nothing is kept by it."""
    if token_in_query:
        return f"private, {EVENT_STREAM}"
    return cache_control.replace("public", "private")
