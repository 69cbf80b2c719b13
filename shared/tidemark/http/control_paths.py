"""The paths of the control surface: of subscriptions (§6), of the listings and stats, and of the console."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from tidemark.http.requests import STREAM_ROOTS
from tidemark.protocol.stream_key import RESERVED_SEGMENT

SUBSCRIPTION_ROOTS: Final = tuple(f"{root}{RESERVED_SEGMENT}/" for root in STREAM_ROOTS)
#: Of a request that has a wake's token in place of the service's, by the last segment of its path.
_WAKE_CALLS: Final = frozenset({"callback", "ack", "release"})

CONSOLE: Final = "/v1/console"
DOCS: Final = "/v1/docs"
LIST_STREAMS: Final = "/v1/streams"
LIST_BUCKETS: Final = "/v1/buckets"
STATS: Final = "/v1/stats"
START_POINT: Final = "/v1/start"
TIMES: Final = "/v1/times"
FORKS: Final = "/v1/forks"
ME: Final = "/v1/me"

CATALOG: Final = (LIST_STREAMS, LIST_BUCKETS, STATS, START_POINT, TIMES, FORKS, ME)
PAGES: Final = (DOCS, CONSOLE, CONSOLE + "/")


def subscriptions_path(path: str, *, encoded: bool) -> str | None:
    """What follows the root of subscriptions, with its slash and decoded; None for a path elsewhere."""
    below = next((path[len(root) - 1 :] for root in SUBSCRIPTION_ROOTS if path.startswith(root)), None)
    return unquote(below) if encoded and below is not None else below


def needs_no_token(method: str, below: str) -> bool:
    """The public keys, and the calls that carry a wake's own token: the subscription checks that one.
    `below` is what `subscriptions_path` returned."""
    segments = below.split("/")[1:]
    if segments == ["jwks.json"]:
        return method in {"GET", "HEAD"}
    return (
        method == "POST"
        and len(segments) == 3
        and segments[0] == "subscriptions"
        and segments[2] in _WAKE_CALLS
    )


def is_page(path: str) -> bool:
    """A page or a part of one: the same for everybody, with nothing of any stream in it."""
    return path in {CONSOLE, DOCS} or path.startswith(CONSOLE + "/")
