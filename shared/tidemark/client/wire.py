"""What both drivers need to know of httpx, which is known nowhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import httpx

from tidemark._version import __version__
from tidemark.client.core import Lost, Reply, Request

#: A value, or what makes one for each request: a token that expires, the id of a trace.
Value: TypeAlias = str | Callable[[], str]
AsyncValue: TypeAlias = Value | Callable[[], Awaitable[str]]

_CONNECT_SECONDS: Final = 10.0
#: Each follower holds a connection for as long as it follows.
_OPTIONS: Final[Mapping[str, Any]] = {
    "headers": {"User-Agent": f"tidemark-python/{__version__}"},
    "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100),
}
#: These failed before the request was sent.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def new_client() -> httpx.Client:
    return httpx.Client(**_OPTIONS)


def new_async_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(**_OPTIONS)


def request_of(
    client: httpx.Client | httpx.AsyncClient,
    request: Request,
    headers: Mapping[str, str],
    params: Mapping[str, str],
) -> httpx.Request:
    """`headers` and `params` are the caller's; the URL may have parameters too."""
    try:
        url = httpx.URL(request.url)
    except httpx.InvalidURL as wrong:
        raise ValueError(f"{request.url!r} is not a URL: {wrong}") from wrong
    return client.build_request(
        request.method,
        url.copy_merge_params({**params, **request.params}),
        headers={**headers, **request.headers},
        content=request.body or None,
        timeout=httpx.Timeout(request.timeout_seconds, connect=_CONNECT_SECONDS),
    )


def follows_redirects(request: Request) -> bool:
    """A redirected write could end as a GET, whose 200 acknowledges nothing."""
    return request.method in {"GET", "HEAD"}


def reply_of(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, response.headers, body)


def lost(error: httpx.RequestError) -> Lost:
    """httpx's errors in this package's words."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        # Would fail again, and is the caller's: a header that HTTP does not allow, an unknown scheme.
        raise ValueError(f"the request cannot be sent: {error}") from error  # noqa: TRY004
    reason = f"{type(error).__name__} {error}".strip()
    return Lost(reason, sent=not isinstance(error, _NOT_SENT))
