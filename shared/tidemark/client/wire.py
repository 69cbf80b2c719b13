"""The use of httpx, blocking or not: requests, and what the drivers and the streams share."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from math import inf, isinf
from time import monotonic
from typing import Any, Final, Generic, Self, TypeAlias, TypedDict, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx

from tidemark.client.batches import Batches
from tidemark.client.core import CreateOptions, DataT, Default, Protocol
from tidemark.client.errors import forget_frames
from tidemark.client.exchange import Effect, Lost, Receive, Reply, Request, Retry, Steps
from tidemark.protocol import __version__

#: A value, or a function called for each request: a token that expires, the id of a trace.
Value: TypeAlias = str | Callable[[], str]
AsyncValue: TypeAlias = Value | Callable[[], Awaitable[str]]
ClientT = TypeVar("ClientT")
ValueT = TypeVar("ValueT")
_MethodT = TypeVar("_MethodT", bound=Callable[..., Any])
_T = TypeVar("_T")

_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0)
#: The timeout of a client of httpx whose caller gave none.
_DEFAULT_TIMEOUT: Final = httpx.Timeout(5.0)
#: Time to send the queued messages after an interrupted `with` block (Ctrl-C, a cancelled task).
INTERRUPTED_SECONDS: Final = 2.0
#: No limit of connections, because each follower holds one.
CLIENT_OPTIONS: Final[Mapping[str, Any]] = {
    "headers": {"User-Agent": f"tidemark-python/{__version__}"},
    "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100),
    "timeout": _TIMEOUT,
}
#: The client abandons a slower response body; a poor mobile connection is faster.
_SLOWEST_BYTES_A_SECOND: Final = 4096
_MAX_REDIRECTS: Final = 20
#: Errors before the request is sent.
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
#: Lifetime of the stop signal of a writer that crashed.
SIGNAL_TTL_SECONDS: Final = 24 * 3600
log: Final = logging.getLogger("tidemark.client")


class StreamOptions(TypedDict, Generic[ClientT, ValueT], total=False):
    """The options of a stream, which its creation takes too, as it takes `default`."""

    content_type: str | None
    headers: Mapping[str, ValueT] | None
    params: Mapping[str, ValueT] | None
    client: ClientT | None
    retry: Retry | None
    timeout: float | timedelta | None


class NewStream(StreamOptions[ClientT, ValueT], CreateOptions, total=False):
    pass


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a stream, and those of its creation."""
    options = {name: given[name] for name in ("default", *StreamOptions.__annotations__) if name in given}
    return options, {name: value for name, value in given.items() if name not in options}


class Address(Generic[ClientT, ValueT, DataT]):
    """The URL, headers, parameters and client of requests to a stream or a server."""

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
        timeout: float | timedelta | None = None,
    ) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and not seconds > 0:
            raise ValueError(f"timeout is {timeout}; it must be above 0, in seconds")
        self._protocol: Protocol[DataT] = Protocol(url, content_type, retry or Retry(), default)
        self._headers, self._params, self._client = headers or {}, params or {}, client
        self._timeout, self._followed = seconds, WeakSet[Any]()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        return self._protocol.url

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments for another stream on the same server."""
        kept = {"headers": self._headers, "params": self._params, "client": self._client}
        learned = {"content_type": self.content_type, "default": self._protocol.default}
        return kept | learned | {"retry": self._protocol.retry, "timeout": self._timeout}

    def _stop_signal(self) -> Self:
        """Return the stream `<url>.stop`. The writer creates this second stream and waits for its end. A
        reader closes it to ask the writer to stop, and needs no right to write the stream itself."""
        parts = urlsplit(self.url)
        url = parts._replace(path=f"{parts.path}.stop").geturl()
        return type(self)(url, **self.options | {"content_type": "text/plain"})

    @property
    def content_type(self) -> str | None:
        """Return the content type if it is known; `head` requests it."""
        return self._protocol.content_type


class HttpxDriver(Generic[ClientT, ValueT]):
    """Runs the steps of an operation on httpx. A driver holds one open event stream at most.

    The coroutines serve both kinds of client: with a blocking one they never wait for an event loop."""

    def __init__(
        self,
        client: ClientT | None = None,
        headers: Mapping[str, ValueT] = {},
        params: Mapping[str, ValueT] = {},
        seconds: float | None = None,
    ) -> None:
        self._client, self._headers, self._params, self._seconds = client, headers, params, seconds
        self._open: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def finish(self, steps: Steps[_T]) -> _T:
        result = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as done:
                value: _T = done.value
                return value
            result = await _awaited(self.perform(effect))

    def perform(self, effect: Effect) -> Any:
        raise NotImplementedError

    def _default_client(self) -> Any:
        raise NotImplementedError

    async def _answer(self, effect: Request | Receive) -> Reply | Lost | bytes:
        began, outer = time.monotonic(), sys.exc_info()[1]
        try:
            if isinstance(effect, Request):
                return await self._send(effect)
            return b"" if self._pieces is None else await anext(self._pieces, b"")
        except httpx.RequestError as error:
            forget_frames(error, outer)
            if isinstance(effect, Request):
                error.request = httpx.Request(effect.method, effect.url)  # Without the body.
            return lost(error, time.monotonic() - began)

    async def _send(self, request: Request) -> Reply:
        await self._close()
        client: Any = self._client or await _awaited(self._default_client())
        given = [{}, {}] if request.anonymous else [self._headers, self._params]
        prepared = request_of(client, request, *[await made_values(each) for each in given])
        prepared.extensions["timeout"] = _timeout(request, client.timeout, self._seconds).as_dict()
        began = time.monotonic()
        auth = {"auth": None} if request.anonymous else {}
        response = await _awaited(client.send(prepared, stream=True, follow_redirects=False, **auth))
        # A write follows no redirect, which can turn it into a GET.
        for _ in range(_MAX_REDIRECTS if request.method in {"GET", "HEAD"} else 0):
            if (moved := response.next_request) is None:
                break
            moved.url = _RequestURL(moved.url)
            await _close(response)
            # Do not send the client's own credentials to another server.
            sending = client.send(moved, stream=True, auth=None, follow_redirects=False)
            response = await _awaited(sending)
        body = Body(request, prepared.extensions["timeout"]["read"])
        if request.streams and response.is_success:
            self._open, self._pieces = response, _pieces_of(response)
        else:
            try:
                async for piece in _pieces_of(response):
                    body.add(piece)
            finally:
                await _close(response)
                response.stream = _NO_STREAM
        return Reply(response.status_code, response.headers, bytes(body), time.monotonic() - began)

    async def _close(self) -> None:
        response, self._open, self._pieces = self._open, None, None
        if response is not None:
            await _close(response)


async def _pieces_of(response: httpx.Response) -> AsyncIterator[bytes]:
    if isinstance(response.stream, httpx.SyncByteStream):
        for piece in response.iter_bytes():
            yield piece
    else:
        async for piece in response.aiter_bytes():
            yield piece


async def _close(response: httpx.Response) -> None:
    if isinstance(response.stream, httpx.SyncByteStream):
        response.close()
    else:
        await response.aclose()


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def made_values(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the values, made by functions or coroutine functions for this request."""
    return {name: await _awaited(value()) if callable(value) else value for name, value in given.items()}


def run_without_loop(steps: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that waits for no event loop."""
    try:
        steps.send(None)
    except StopIteration as done:
        value: _T = done.value
        return value
    steps.close()
    raise TypeError("a value of a blocking stream's headers or params is a coroutine function")


def documented(method: _MethodT, returns: str | None = None) -> _MethodT:
    """Give a method the signature that `help` shows: its result instead of `Steps[…]`."""
    signature = inspect.signature(method)
    result = returns or str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    vars(method)["__signature__"] = signature.replace(return_annotation=result)
    return method


def check_process(process: int, what: str = "producer") -> None:
    """Raises RuntimeError in a forked process, which does not have the threads of its parent."""
    if process != os.getpid():
        raise RuntimeError(f"this {what} was made before os.fork; make one in the process that uses it")


def warn_of_unwritten(batches: Batches) -> None:
    if batches.unwritten and not batches.failure_is_raised:
        why = f": {batches.failure}" if batches.failure else ""
        warnings.warn(
            f"producer {batches.producer_id!r} was not closed, and {batches.unwritten} of its messages were "
            f"not acknowledged{why}; use it in a with block, or call close or detach",
            RuntimeWarning,
            stacklevel=2,
        )


class _RequestURL(httpx.URL):
    """A URL whose parameters, perhaps a token, stay out of httpx's log."""


def _shorten(record: logging.LogRecord) -> bool:
    given = record.args if isinstance(record.args, tuple) else ()
    record.args = tuple(
        each.copy_with(query=None) if isinstance(each, _RequestURL) else each for each in given
    )
    return True


logging.getLogger("httpx").addFilter(_shorten)


def request_of(
    client: httpx.Client | httpx.AsyncClient,
    request: Request,
    headers: Mapping[str, str],
    params: Mapping[str, str],
) -> httpx.Request:
    """Return httpx's request, with the caller's `headers` and `params` added."""
    try:
        url = httpx.URL(request.url)
        prepared = client.build_request(
            request.method,
            url.copy_merge_params({**params, **request.params}),
            headers={**headers, **request.headers},
            content=request.body or None,
        )
    except httpx.InvalidURL as wrong:
        raise ValueError(f"{request.url!r} is not a URL: {wrong}") from wrong
    except UnicodeEncodeError as wrong:
        raise ValueError(
            f"the request cannot be sent: {wrong.object!r} is not ASCII, as a header is"
        ) from wrong
    prepared.url = _RequestURL(prepared.url)
    if request.anonymous:
        prepared.headers.pop("Authorization", None)
    return prepared


def _timeout(request: Request, given: httpx.Timeout, seconds: float | None) -> httpx.Timeout:
    """Return the stream's timeout, else the client's, and for the answer what the server may wait besides."""
    if seconds is not None:
        given = httpx.Timeout(seconds)
    elif given == _DEFAULT_TIMEOUT:
        given = _TIMEOUT
    read = min(inf if given.read is None else given.read + request.wait_seconds, request.max_seconds)
    return httpx.Timeout(
        given.connect, read=None if isinf(read) else read, write=given.write, pool=given.pool
    )


def bearer(token: Value | None) -> dict[str, Value]:
    """Return the header with a token, or with a fresh one for each request."""
    if callable(token):
        return {"Authorization": lambda: f"Bearer {token()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


#: Replaces a response's stream, to break the reference cycle that keeps the request's body in memory.
_NO_STREAM: Final = httpx.ByteStream(b"")


class Body:
    """The bytes of a reply, with limits of size and time."""

    def __init__(self, request: Request, seconds: float | None) -> None:
        self._request, self._seconds, self._began = request, inf if seconds is None else seconds, monotonic()
        self._pieces, self._size = list[bytes](), 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        self._request.check_size(self._size)
        seconds = monotonic() - self._began
        if seconds > self._seconds + self._size / _SLOWEST_BYTES_A_SECOND:
            raise httpx.ReadTimeout(f"only {self._size} bytes came in {seconds:.0f} s")

    def of(self, response: httpx.Response) -> httpx.Response:
        """Return a response with this body."""
        return httpx.Response(response.status_code, content=bytes(self), request=response.request)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)


def lost(error: httpx.RequestError, seconds: float = 0.0) -> Lost:
    """Turn an error of httpx into `Lost`, or a ValueError if the caller made the mistake."""
    if isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        # A retry cannot succeed: the caller gave an invalid header or an unknown scheme.
        raise ValueError(f"the request cannot be sent: {error}") from error  # noqa: TRY004
    reason, is_late = f"{type(error).__name__} {error}".strip(), isinstance(error, httpx.ReadTimeout)
    return Lost(reason, not isinstance(error, _NOT_SENT), is_late, seconds, error)
