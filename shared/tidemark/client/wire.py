"""The only place, beside the two drivers, that knows httpx."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx

from tidemark._version import __version__
from tidemark.client.batches import Batches
from tidemark.client.core import Default, Protocol
from tidemark.client.exchange import Lost, Request, Retry

#: A value, or what makes one for each request: a token that expires, the id of a trace.
Value: TypeAlias = str | Callable[[], str]
AsyncValue: TypeAlias = Value | Callable[[], Awaitable[str]]
ClientT = TypeVar("ClientT")
ValueT = TypeVar("ValueT")
_T = TypeVar("_T", bound=Callable[..., Any])

_CONNECT_SECONDS: Final = 10.0
#: Seconds in which an interrupted producer (Ctrl-C, a cancelled task) may still send its messages.
INTERRUPTED_SECONDS: Final = 2.0
#: Each follower holds a connection for as long as it follows.
CLIENT_OPTIONS: Final[Mapping[str, Any]] = {
    "headers": {"User-Agent": f"tidemark-python/{__version__}"},
    "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100),
}
#: Slowest body that the client accepts, in bytes a second; a poor mobile connection is faster.
_SLOWEST_BYTES_A_SECOND: Final = 4096
_MAX_REDIRECTS: Final = 20
#: With these errors the request was not sent.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


#: Expiry of a stop signal that its writer did not remove, in seconds.
SIGNAL_TTL_SECONDS: Final = 24 * 3600
log: Final = logging.getLogger("tidemark.client")


class StreamAddress(Generic[ClientT, ValueT]):
    """The URL, headers, parameters and client of requests to one stream."""

    def __init__(
        self,
        url: str,
        *,
        content_type: str | None = None,
        headers: Mapping[str, ValueT] | None = None,
        params: Mapping[str, ValueT] | None = None,
        client: ClientT | None = None,
        retry: Retry | None = None,
        default: Default | None = None,
    ) -> None:
        self._protocol = Protocol(url, content_type, retry or Retry(), default)
        self._headers, self._params, self._client = headers or {}, params or {}, client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        return self._protocol.url

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make another stream on the same server."""
        kept = {"headers": self._headers, "params": self._params, "client": self._client}
        learned = {"content_type": self.content_type, "default": self._protocol.default}
        return kept | learned | {"retry": self._protocol.retry}

    def _stop_signal(self) -> Self:
        """A request to stop is not the end of the stream. It is built of what the protocol has: the writer
        makes a second stream, `<url>.stop`, and waits for its end. A reader closes that, and needs no right
        to write anything else."""
        parts = urlsplit(self.url)
        url = parts._replace(path=f"{parts.path}.stop").geturl()
        return type(self)(url, **self.options | {"content_type": "text/plain"})

    @property
    def content_type(self) -> str | None:
        """The content type, if it is known yet; `head` asks for it."""
        return self._protocol.content_type


def documented(method: _T, returns: str | None = None) -> _T:
    """`help` shows what a method returns, and not the steps of its operation."""
    signature = inspect.signature(method)
    result = returns or str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    vars(method)["__signature__"] = signature.replace(return_annotation=result)
    return method


def check_process(process: int, what: str = "producer") -> None:
    """Raises RuntimeError in a process that was forked from the one it was made in: its threads are not
    there."""
    if process != os.getpid():
        raise RuntimeError(f"this {what} was made before os.fork; make one in the process that uses it")


def warn_of_unwritten(batches: Batches) -> None:
    if batches.unwritten and not batches.failure_is_told:
        why = f": {batches.failure}" if batches.failure else ""
        warnings.warn(
            f"producer {batches.producer_id!r} was not closed, and {batches.unwritten} of its messages were "
            f"not acknowledged{why}; use it in a with block, or call close or detach",
            RuntimeWarning,
            stacklevel=2,
        )


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
    try:
        return client.build_request(
            request.method,
            url.copy_merge_params({**params, **request.params}),
            headers={**headers, **request.headers},
            content=request.body or None,
            timeout=httpx.Timeout(request.timeout_seconds, connect=_CONNECT_SECONDS),
        )
    except UnicodeEncodeError as wrong:
        raise ValueError(
            f"the request cannot be sent: {wrong.object!r} is not ASCII, as a header is"
        ) from wrong


def may_redirect(request: Request) -> range:
    """One turn for each redirect that may be followed: none for a write, which could end as a GET."""
    return range(_MAX_REDIRECTS if request.method in {"GET", "HEAD"} else 0)


#: Takes the place of a response's stream, which is in a cycle with the response and thus the request's body.
NO_STREAM: Final = httpx.ByteStream(b"")


class Body:
    """The bytes of a reply, which may neither be endless nor come a byte a second."""

    def __init__(self, request: Request) -> None:
        self._request, self._pieces, self._size, self._began = request, list[bytes](), 0, monotonic()

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        self._request.check_size(self._size)
        seconds = monotonic() - self._began
        if seconds > self._request.timeout_seconds + self._size / _SLOWEST_BYTES_A_SECOND:
            raise httpx.ReadTimeout(f"only {self._size} bytes came in {seconds:.0f} s")

    def of(self, response: httpx.Response) -> httpx.Response:
        """The response whose body this is."""
        return httpx.Response(response.status_code, content=bytes(self), request=response.request)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


def lost(error: httpx.RequestError) -> Lost:
    """httpx's errors in this package's words."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        # Would fail again, and is the caller's: a header that HTTP does not allow, an unknown scheme.
        raise ValueError(f"the request cannot be sent: {error}") from error  # noqa: TRY004
    reason = f"{type(error).__name__} {error}".strip()
    return Lost(reason, not isinstance(error, _NOT_SENT), isinstance(error, httpx.ReadTimeout))
