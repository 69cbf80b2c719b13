"""Calls a webhook: resolves the name, checks every address, connects to a checked address, sends, and reads a
bounded response.

The call follows no redirect and uses no proxy of the environment. The deadline covers the whole call, with
the DNS lookup.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tidemark.protocol.errors import WebhookUrlRejected
from tidemark.subscriptions.lookups import Lookups
from tidemark.subscriptions.state import DeliveryFailure
from tidemark.subscriptions.webhook_url import WebhookUrl, check_address

#: Most addresses to which a call tries to connect. An attempt gets half of the remaining time, and the last
#: one gets all of it.
MOST_ADDRESSES: Final = 4
#: Most bytes read of a response.
MAX_RESPONSE_BYTES: Final = 64 * 1024

_LOOKUPS: Final = Lookups()
Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host name. Raises OSError."""


class DeliveryFailed(Exception):
    """The webhook was not reached, or did not answer. The message contains no secret."""

    def __init__(self, message: str, failure: DeliveryFailure = DeliveryFailure.REFUSED) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def resolve_host(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def call_webhook(
    url: WebhookUrl,
    body: bytes,
    headers: Mapping[str, str],
    timeout_seconds: float,
    resolve: Resolve = resolve_host,
) -> WebhookResponse:
    """Raises DeliveryFailed, and WebhookUrlRejected if an address is not public."""
    deadline = time.monotonic() + timeout_seconds

    def left() -> float:
        return max(0.001, deadline - time.monotonic())

    try:
        addresses = _LOOKUPS.ask(resolve, url.host, url.port).result(left())
        check_addresses(url, addresses)
        with (
            closing(_connected(addresses[:MOST_ADDRESSES], url.port, left)) as connection,
            _until(left(), connection) as is_over,
            closing(_secured(url, connection)) as secured,
        ):
            return _exchange(url, secured, body, headers, is_over)
    except (OSError, http.client.HTTPException, UnicodeError) as failure:
        raise DeliveryFailed(f"{url.authority}: {type(failure).__name__}") from failure


def _connected(addresses: Sequence[str], port: int, left: Callable[[], float]) -> socket.socket:
    """Connect to the first reachable address: this machine may have no IPv6. Raises OSError."""
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), left() / 2)
    return socket.create_connection((addresses[-1], port), left())


def check_addresses(url: WebhookUrl, addresses: Sequence[str]) -> None:
    """Check all addresses: a call of a name with a public and a private address could go to either. Raises
    WebhookUrlRejected, and OSError if there is no address."""
    if not addresses:
        raise OSError("the name has no address")
    for text in addresses:
        address = ipaddress.ip_address(text)
        if url.is_local:
            if not address.is_loopback:
                raise WebhookUrlRejected("A local webhook must lead to this machine")
        elif isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
            raise WebhookUrlRejected("webhook.url must lead to an address of the public internet")
        else:
            check_address(address)


def _exchange(
    url: WebhookUrl,
    connection: socket.socket,
    body: bytes,
    headers: Mapping[str, str],
    is_over: Callable[[], bool],
) -> WebhookResponse:
    silence = DeliveryFailed(f"{url.authority}: no answer in time", DeliveryFailure.SILENT)
    client = http.client.HTTPConnection(url.host, url.port)
    # With a socket and without `auto_open` the client never connects to another address.
    client.sock = connection
    client.auto_open = 0
    content = bytearray(MAX_RESPONSE_BYTES)
    fixed = {"Host": url.authority, "Connection": "close", "Accept": "application/json"}
    try:
        client.request("POST", url.target, body, {**headers, **fixed})
        with closing(client.getresponse()) as response:
            # A buffer bounds the response: `read` has no limit if a chunk gives its size as -1.
            size = response.readinto(content)
            if response.length and size < MAX_RESPONSE_BYTES:
                raise http.client.IncompleteRead(b"", response.length)
    except (OSError, http.client.HTTPException) as failure:
        if is_over() or isinstance(failure, TimeoutError):
            raise silence from failure
        raise DeliveryFailed(
            f"{url.authority}: {type(failure).__name__}", DeliveryFailure.DROPPED
        ) from failure
    if is_over():
        # http.client takes a closed connection for the end of the headers.
        raise silence
    return WebhookResponse(response.status, bytes(content[:size]))


def _secured(url: WebhookUrl, connection: socket.socket) -> socket.socket:
    """Begin TLS. The certificate must belong to the name in the URL, at any address."""
    if url.is_local:
        return connection
    return _tls().wrap_socket(connection, server_hostname=url.host)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _until(seconds: float, connection: socket.socket) -> Iterator[Callable[[], bool]]:
    """Shut the connection down at the deadline: a socket's own timeout starts again with each byte. TLS takes
    the socket over, so the shutdown uses a duplicate handle. Yields a function that returns whether the
    deadline has passed."""
    handle = connection.dup()
    over = threading.Event()

    def cut() -> None:
        over.set()
        with suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield over.is_set
    finally:
        timer.cancel()
        handle.close()
