"""One call of a webhook: resolve, check every address, connect to the one that was checked, send, read
little.

A redirect is not followed, a proxy of the environment is not used, and the whole call has one deadline, from
the question for its address on.
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

#: The addresses of a name that are tried: each has half of the rest of the time, the last one all of it.
MOST_ADDRESSES: Final = 4
#: All that is read of a response.
MAX_RESPONSE_BYTES: Final = 64 * 1024

_LOOKUPS: Final = Lookups()
Resolve = Callable[[str, int], Sequence[str]]
"""The addresses of a host name. Raises OSError."""


class DeliveryFailed(Exception):
    """The webhook was not reached, or has not answered. The message names no secret."""

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
    """Raises DeliveryFailed, and WebhookUrlRejected if an address is not one of the public internet."""
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
    """To the first that can be reached: a name may have an address of IPv6, and this machine no way there.
    Nothing was sent to the others. Raises OSError."""
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), left() / 2)
    return socket.create_connection((addresses[-1], port), left())


def check_addresses(url: WebhookUrl, addresses: Sequence[str]) -> None:
    """All of them: a name with one public and one private address could lead to either. Raises
    WebhookUrlRejected, and OSError where there is none."""
    if not addresses:
        raise OSError("the name has no address")
    for text in addresses:
        address = ipaddress.ip_address(text)
        if url.is_local:
            if not address.is_loopback:
                raise WebhookUrlRejected("A local webhook must lead to this very machine")
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
    # Set here, so that the client never opens a connection by itself.
    client.sock = connection
    client.auto_open = 0
    content = bytearray(MAX_RESPONSE_BYTES)
    fixed = {"Host": url.authority, "Connection": "close", "Accept": "application/json"}
    try:
        client.request("POST", url.target, body, {**headers, **fixed})
        with closing(client.getresponse()) as response:
            # Into a buffer: `read` takes a chunk of -1 bytes for all that comes.
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
        # To http.client, a connection that was cut looks like the end of the headers.
        raise silence
    return WebhookResponse(response.status, bytes(content[:size]))


def _secured(url: WebhookUrl, connection: socket.socket) -> socket.socket:
    """The certificate must be that of the name in the URL, whatever address was connected to."""
    if url.is_local:
        return connection
    return _tls().wrap_socket(connection, server_hostname=url.host)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _until(seconds: float, connection: socket.socket) -> Iterator[Callable[[], bool]]:
    """Cuts the connection when the time is over. A timeout of the socket alone begins anew with each byte.
    TLS takes the socket over, so the cut is made through a handle of its own. Yields what says whether it
    was."""
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
