"""Sends a request over a checked connection: looks a name up once, checks all its addresses, and connects to
one of them. Follows no redirect and uses no proxy of the environment."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import httpcore

from tidemark.outbound.lookups import Lookups, TooManyLookups
from tidemark.outbound.url import IpAddress, Url

#: Most addresses to which a request tries to connect.
MOST_ADDRESSES: Final = 4


class AddressRefused(Exception):
    """The host has an address to which the caller may not connect."""


class NotConnected(Exception):
    """There is no connection. The message names no secret."""


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to addresses that it has checked. The TLS certificate must belong to the name in the URL."""

    names: Lookups
    may_connect: Callable[[IpAddress], bool]
    #: Timeout of the lookup, and most time of an attempt to connect; and the end of the whole request.
    seconds: float
    ends_at: float
    #: Closes the connections, also one whose TLS handshake is cancelled.
    opened: AsyncExitStack

    async def connect_tcp(self, host: str, port: int, *_: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        """Try each address: this machine may have no IPv6. An attempt gets at most half of the remaining
        time, and the last one all of it."""
        *first, last = await self._addresses(host, port)
        connect, stream = httpcore.AnyIOBackend().connect_tcp, None
        for address in first:
            most = min(self.seconds, (self.ends_at - time.monotonic()) / 2)
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                stream = await connect(address, port, **named | {"timeout": most})
                break
        stream = stream or await connect(last, port, **named)
        self.opened.push_async_callback(stream.aclose)
        return stream

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """Check every address: a connection to a name with a public and a private address could go to either.
        Raises AddressRefused, NotConnected."""
        try:
            async with asyncio.timeout(self.seconds):
                addresses = await asyncio.wrap_future(self.names.ask(resolve_host, host, port))
        except TimeoutError:
            raise NotConnected(f"{host} does not resolve in {self.seconds:.0f} s") from None
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
    header_seconds: float,
    connect_seconds: float,
    silent_seconds: float,
) -> AsyncIterator[httpcore.Response]:
    """The response, once its headers are there; its body comes by `aiter_stream`. Raises AddressRefused,
    NotConnected, TimeoutError after `header_seconds`, and OSError and errors of httpcore if the connection
    breaks. `connect_seconds` is also the timeout of a lookup and of a write."""
    timeout = {"connect": connect_seconds, "read": silent_seconds, "write": connect_seconds}
    ends_at = time.monotonic() + header_seconds
    async with (
        AsyncExitStack() as opened,
        httpcore.AsyncConnectionPool(
            ssl_context=_tls(), network_backend=_Checked(names, may_connect, connect_seconds, ends_at, opened)
        ) as pool,
    ):
        request = httpcore.Request(
            method,
            httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
            headers=[
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in (("Host", url.authority), *headers)
            ],
            content=body,
            extensions={"timeout": timeout},
        )
        try:
            async with asyncio.timeout(header_seconds):
                answer = await pool.handle_async_request(request)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
            raise NotConnected(type(failure).__name__) from failure
        except (TimeoutError, httpcore.TimeoutException):
            raise TimeoutError from None
        try:
            yield answer
        finally:
            await answer.aclose()


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
