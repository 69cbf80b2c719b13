"""A transport for httpx and httpx2: each request becomes a call of the durable proxy.

The two libraries have classes of the same names. A response and its errors belong to the request's library.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from math import inf
from time import monotonic
from typing import Any, Final

from tidemark.client import wire
from tidemark.client.asynchronous import AsyncDriver
from tidemark.client.blocking import BlockingDriver, Following
from tidemark.client.chunks import Chunk
from tidemark.client.core import call_by_proxy
from tidemark.client.errors import StatusError, StreamError
from tidemark.client.exchange import Effect, Request, Retry, Sleep, Wait
from tidemark.client.reading import ReadOperations

#: Headers of the server's own response.
_OWN_HEADERS: Final = {"connection", "content-encoding", "content-length", "transfer-encoding"}


def proxy_transport(url: str, *, token: wire.Value | None = None, key: str | None = None) -> Any:
    """Return a transport for `Client` and `AsyncClient` of httpx and httpx2, which sends each request by the
    durable proxy of the server at `url` and reads the answer's stream, also after a lost connection. If the
    upstream refuses, the response has the upstream's status, headers and body. An answer that ends early
    raises RemoteProtocolError, and silence for the client's read timeout raises ReadTimeout.

    `token` is the server's. The same request with the same `key` (or `Idempotency-Key`) gets the same answer,
    also in another process. If the server has the upstream's key, the SDK's key is "unused". A response that
    is closed early does not stop the upstream: `PATCH` with `&action=abort` does, to the signed URL in the
    header `Location`."""
    return _ProxyTransport(url, wire.bearer(token), key)


class _ProxyTransport(nullcontext[None]):
    """Not a subclass of httpx's transports, because Anthropic's SDK refuses those."""

    def __init__(self, url: str, headers: dict[str, wire.Value], key: str | None) -> None:
        super().__init__()
        self._url, self._headers, self._key = url, headers, key

    def handle_request(self, request: Any) -> Any:
        driver = BlockingDriver(None, self._headers)
        return wire.run_without_loop(self._handle(request, request.read(), driver, Following))

    async def handle_async_request(self, request: Any) -> Any:
        driver = AsyncDriver(None, self._headers)
        return await self._handle(request, await request.aread(), driver, AsyncDriver().chunks)

    async def _handle(self, request: Any, body: bytes, driver: Any, chunks: Callable[[Any], Any]) -> Any:
        call = _Call(request)
        steps = call_by_proxy(self._url, request, body, self._key)
        with call.failures():
            try:
                url, content_type = await driver.finish(call.within(steps))
            except StatusError as refused:
                return call.refusal(refused)
        return call.response(url, content_type, chunks)

    def close(self) -> None:
        """The process shares the connections, as for `Stream`."""

    async def aclose(self) -> None:
        pass


class _Call:
    """A request, which becomes a response or an error of the same library."""

    def __init__(self, request: Any) -> None:
        self._request: Final = request
        self._http: Final[Any] = sys.modules[type(request).__module__.partition(".")[0]]
        self._seconds: Final[float] = request.extensions.get("timeout", {}).get("read") or inf

    @contextmanager
    def failures(self) -> Iterator[None]:
        try:
            yield
        except StreamError as error:
            raise self._http.RemoteProtocolError(str(error), request=self._request) from error

    def within(self, steps: Generator[Effect | Chunk, Any, Any]) -> Generator[Any, Any, Any]:
        """Yield the steps, and raise ReadTimeout if no data comes for the read timeout: `follow` goes on
        without limit."""
        result, since = None, monotonic()
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as done:
                return done.value
            left = self._seconds - (monotonic() - since)
            if isinstance(effect, Chunk) and effect.data:
                result = yield effect
                since = monotonic()
            elif isinstance(effect, Chunk | Wait):
                result = None  # The socket has no news of answers.
            elif left <= 0:
                silent = f"no data from upstream for {self._seconds:g} s"
                raise self._http.ReadTimeout(silent, request=self._request)
            elif isinstance(effect, Request):
                result = yield replace(effect, max_seconds=min(effect.max_seconds, left))
            else:
                result = yield Sleep(min(effect.seconds, left)) if isinstance(effect, Sleep) else effect

    def response(self, url: str, content_type: str, chunks: Callable[[Any], Any]) -> Any:
        steps = self.within(ReadOperations(url, None, Retry()).follow(whole_text=False))
        stream = _stream_class(self._http)(chunks(steps), self.failures)
        headers = {"Content-Type": content_type, "Location": url}
        return self._http.Response(200, headers=headers, stream=stream, request=self._request)

    def refusal(self, refused: StatusError) -> Any:
        headers = {name: value for name, value in refused.headers.items() if name not in _OWN_HEADERS}
        return self._http.Response(
            refused.status, headers=headers, content=refused.body, request=self._request
        )


class _AnswerBody:
    def __init__(self, chunks: Any, failures: Callable[[], AbstractContextManager[None]]) -> None:
        self._chunks, self._failures = chunks, failures

    def __iter__(self) -> Iterator[bytes]:
        with self._failures():
            for chunk in self._chunks:
                yield chunk.data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._failures():
            async for chunk in self._chunks:
                yield chunk.data

    def close(self) -> None:
        self._chunks.close()

    async def aclose(self) -> None:
        await self._chunks.aclose()


@cache
def _stream_class(library: Any) -> Any:
    return type("_ProxiedAnswer", (_AnswerBody, library.SyncByteStream, library.AsyncByteStream), {})
