"""Sends a request over a checked connection: looks up a name once, checks each address, and connects to a
checked address. Follows no redirect and uses no proxy of the environment."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import httpcore

from tidemark.outbound.request import IpAddress, Url

_T = TypeVar("_T")

#: Most addresses to which a request tries to connect.
MOST_ADDRESSES: Final = 4
#: Most open lookups: in all, and for names of one domain, so that the slow names of one client leave room for
#: the others.
_AT_ONCE: Final = 64
_OF_ONE_DOMAIN: Final = 16
#: Takes 40 ms, which no request's deadline counts.
_TLS: Final = ssl.create_default_context()


class Timeouts(NamedTuple):
    """In seconds: until the headers of the response, of a lookup, a connection or a write, and of a read."""

    headers: float
    connect: float
    silence: float


class AddressRefused(Exception):
    """The host has an address to which the caller may not connect."""


class NotConnected(Exception):
    """There is no connection. The message names no secret."""


class TooManyLookups(OSError):
    """Too many lookups are open."""


class Lookups:
    """Lookups without a timeout, such as the system's DNS resolver, on threads of their own. Callers with the
    same question share one lookup. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[tuple[Any, ...], Future[Any]] = {}

    def ask(self, look: Callable[..., _T], name: str, *more: object) -> Future[_T]:
        """A future with the result of `look` or its exception. Raises TooManyLookups."""
        question, domain = (look, name, *more), _domain(name)
        with self._lock:
            if (known := self._asked.get(question)) is not None:
                return known
            alike = sum(_domain(asked[1]) == domain for asked in self._asked)
            if alike >= _OF_ONE_DOMAIN or len(self._asked) >= _AT_ONCE:
                raise TooManyLookups(f"too many names are looked up at once, {alike} of *.{domain}")
            answer: Future[_T] = Future()
            answer.set_running_or_notify_cancel()  # No caller can cancel the shared answer.
            threading.Thread(target=self._look, args=(question, answer), daemon=True).start()
            self._asked[question] = answer
        return answer

    def _look(self, question: tuple[Any, ...], answer: Future[Any]) -> None:
        look, *about = question
        result, failure = None, None
        try:
            result = look(*about)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            failure = error.with_traceback(None)  # The traceback holds this frame, and the frame the answer.
        with self._lock:
            del self._asked[question]
        answer.set_exception(failure) if failure else answer.set_result(result)


def _domain(name: str) -> str:
    return ".".join(name.split(".")[-2:])


#: The lookups of webhooks, for which slow names of upstreams leave room.
WEBHOOK_NAMES: Final = Lookups()


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to addresses that it has checked. The TLS certificate must belong to the name in the URL."""

    names: Lookups
    may_connect: Callable[[IpAddress], bool]
    #: The deadline of the headers, by the monotonic clock.
    ends_at: float
    #: Closes the connections, also one whose TLS handshake is cancelled.
    opened: AsyncExitStack

    async def connect_tcp(self, host: str, port: int, *_: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        """Try each address: this machine may have no IPv6. An attempt gets at most half of the remaining
        time, and the last attempt the rest."""
        *first, last = await self._addresses(host, port, named["timeout"])
        connect, stream = httpcore.AnyIOBackend().connect_tcp, None
        for address in first:
            most = min(named["timeout"], (self.ends_at - time.monotonic()) / 2)
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                stream = await connect(address, port, **named | {"timeout": most})
                break
        stream = stream or await connect(last, port, **named)
        self.opened.push_async_callback(stream.aclose)
        return stream

    async def _addresses(self, host: str, port: int, seconds: float) -> Sequence[str]:
        """Check every address: a connection to a name with a public and a private address could go to either.
        Raises AddressRefused, NotConnected."""
        try:
            async with asyncio.timeout(seconds):
                addresses = await asyncio.wrap_future(self.names.ask(resolve_host, host, port))
        except TimeoutError:
            raise NotConnected(f"{host} does not resolve in {seconds:.0f} s") from None
        except TooManyLookups as refused:
            raise NotConnected(str(refused)) from None
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise NotConnected(f"{host} has no address")
        if not all(self.may_connect(ipaddress.ip_address(address)) for address in addresses):
            raise AddressRefused
        return addresses[:MOST_ADDRESSES]


@asynccontextmanager
async def answered(
    url: Url,
    method: str,
    headers: Iterable[tuple[str, str]],
    body: AsyncIterable[bytes],
    *,
    names: Lookups,
    may_connect: Callable[[IpAddress], bool],
    timeouts: Timeouts,
) -> AsyncIterator[httpcore.Response]:
    """The response, once its headers are there; its body comes by `aiter_stream`. Raises AddressRefused,
    NotConnected, TimeoutError, and OSError and errors of httpcore if the connection breaks."""
    ends_at, sent = time.monotonic() + timeouts.headers, [("Host", url.authority), *headers]
    connect, silence = timeouts.connect, timeouts.silence
    async with (
        AsyncExitStack() as opened,
        httpcore.AsyncConnectionPool(
            ssl_context=_TLS, network_backend=_Checked(names, may_connect, ends_at, opened)
        ) as pool,
    ):
        request = httpcore.Request(
            method,
            httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent],
            content=body,
            extensions={"timeout": {"connect": connect, "read": silence, "write": connect}},
        )
        try:
            async with asyncio.timeout(timeouts.headers):
                answer = await pool.handle_async_request(request)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
            raise NotConnected(type(failure).__name__) from failure
        except (TimeoutError, httpcore.TimeoutException):
            raise TimeoutError from None
        try:
            yield answer
        finally:
            await answer.aclose()
