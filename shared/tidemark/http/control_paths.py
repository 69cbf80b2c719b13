"""The paths of the listings and stats (`catalog`), and of the console."""

from __future__ import annotations

from typing import Final

CONSOLE: Final = "/v1/console"
DOCS: Final = "/v1/docs"
LIST_STREAMS: Final = "/v1/streams"
LIST_BUCKETS: Final = "/v1/buckets"
STATS: Final = "/v1/stats"
START_POINT: Final = "/v1/start"
ME: Final = "/v1/me"

CATALOG: Final = (LIST_STREAMS, LIST_BUCKETS, STATS, START_POINT, ME)
PAGES: Final = (DOCS, CONSOLE, CONSOLE + "/")


def is_page(path: str) -> bool:
    """A page or a part of one: the same for everybody, with nothing of any stream in it."""
    return path in {CONSOLE, DOCS} or path.startswith(CONSOLE + "/")
