"""HTTP connections of the local server, with the limits that uvicorn lacks.

A client that sends half a request, or does not read its response, occupies a descriptor and memory that
other clients need. Environment variables set the limits (`docs/reference/limits.md`).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import re
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidemark.protocol.caching import NO_STORE
from tidemark.settings import parse_number

#: The application waits while more of its response than this is in the transport's buffer.
WRITE_BUFFER_BYTES: Final = 16 * 1024
#: The kernel's send buffer. Its default grows to 4 MB for a client that does not read.
SEND_BUFFER_BYTES: Final = 256 * 1024
#: Descriptors that no client uses: the engine, the listener, log files, the event loop.
OWN_DESCRIPTORS: Final = 64
#: Upper bound for the limit of open descriptors, even if the system allows more.
MOST_DESCRIPTORS: Final = 65_536
_RETRY_SECONDS: Final = 5
#: When 100 connections have ended, freed memory is returned to the system after the first 2 s without
#: another end, or after 16 such intervals.
TRIM_AFTER: Final = 100
TRIM_SECONDS: Final = 2.0
TRIM_WAITS: Final = 15
#: Bytes of request bodies after which young garbage is collected. Python's own trigger counts objects, and a
#: large body is one object.
COLLECT_AFTER_BYTES: Final = 64 * 1024 * 1024
#: Seconds for which a refused connection is drained, so that the client can read the response. While 64
#: connections are drained, the next refused ones are closed without a response.
LINGER_SECONDS: Final = 2.0
MOST_LINGERING: Final = 64
#: Limit for a request's target and headers, and for the framing of a chunked body. The parser buffers these
#: bytes, copies them with each read, and has no limit of its own.
MAX_HEAD_BYTES: Final = 64 * 1024
#: Overhead of a header beside its name and value, in bytes.
_FIELD_BYTES: Final = len(": \r\n")
#: Matches a request target in absolute form, a URL (RFC 9112 §3.2.2): the host, then the path and query.
ABSOLUTE_FORM: Final = re.compile(rb"https?://(?:[^/?#@]*@)?([^/?#@]+)/?(.*)", re.IGNORECASE)
#: The first byte of a TLS handshake. No HTTP request begins with it.
TLS_HANDSHAKE: Final = b"\x16"


_LEAST: Final = sys.float_info.min
#: The limits that each variable sets. One variable covers all waits for a client that stalls.
_VARIABLES: Final = {
    "STALL_SECONDS": ("header_seconds", "body_seconds", "send_seconds"),
    "KEEP_ALIVE_SECONDS": ("keep_alive_seconds",),
}


@dataclass(frozen=True)
class Limits:
    #: The time from connecting, or the first byte of a later request, to the end of the headers.
    header_seconds: float = 20.0
    #: The longest wait between two pieces of a request's body.
    body_seconds: float = 30.0
    #: The longest time for which a client may leave its response unread.
    send_seconds: float = 30.0
    #: The longest time between two requests on a connection.
    keep_alive_seconds: float = 75.0
    #: The most open connections. The number of descriptors can lower this limit.
    max_connections: float = 10_000

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Limits:
        """Raises InvalidSetting."""
        given: dict[str, float] = {}
        for variable, names in _VARIABLES.items():
            if environment.get(variable):
                right = "a number above 0"
                limit = parse_number(environment, variable, 0, right, most=1_000_000, least=_LEAST)
                given |= dict.fromkeys(names, limit)
        return cls(**given)


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors as far as the system allows. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else MOST_DESCRIPTORS


def connections_within(limits: Limits, descriptors: int) -> int:
    """The number of connections to accept. A request can need a second descriptor, for storage."""
    return max(1, min(int(limits.max_connections), (descriptors - OWN_DESCRIPTORS) // 2))


def protocol_of(limits: Limits, max_connections: int) -> type[HttpToolsProtocol]:
    """The class that uvicorn instantiates for each connection."""
    bounds = {"limits": limits, "max_connections": max_connections, "lingering": set()}
    return type("Connection", (Connection,), bounds)


def refusal_of(version: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str] | None:
    """The status and error text for a request that is too long, or that a server must refuse (RFC 9112 §3.2,
    §6.1); else None. Names in `headers` are lower-case."""
    if len(target) + sum(len(name) + len(value) + _FIELD_BYTES for name, value in headers) > MAX_HEAD_BYTES:
        return TOO_LONG
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (version == "1.1" and not hosts):
        return 400, f"An HTTP/1.1 request has one Host header; this one has {len(hosts)}"
    codings = b", ".join(value for name, value in headers if name == b"transfer-encoding").decode("latin-1")
    if codings and version == "1.0":
        return 400, "HTTP/1.0 has no Transfer-Encoding: send HTTP/1.1, or a Content-Length"
    if codings and codings.strip().lower() != "chunked":
        return 501, f"Transfer-Encoding must be chunked alone, got {codings[:80]!r}"
    return None


TOO_LONG: Final = (
    431,
    f"A request's target and headers, or its trailers, have at most {MAX_HEAD_BYTES} bytes",
)


class FreedMemory:
    """Returns memory to the system after many connections have ended.

    The C library returns free pages only when `malloc_trim` is called. Python returns an arena of 1 MB only
    when no object in it is in use, and the attribute names in its type cache alone keep many arenas in use.
    """

    def __init__(self) -> None:
        self._ended = self._received = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Only glibc has it.

    def received(self, size: int) -> None:
        self._received += size
        if self._received >= COLLECT_AFTER_BYTES:
            self._received = 0
            gc.collect(1)

    def ended(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended += 1
        if self._ended == TRIM_AFTER:
            loop.call_later(TRIM_SECONDS, self._give_back_or_wait, loop, self._ended, TRIM_WAITS)

    def _give_back_or_wait(self, loop: asyncio.AbstractEventLoop, seen: int, waits: int) -> None:
        """Return memory if no connection has ended since, or if no waits are left."""
        if self._ended > seen and waits:
            loop.call_later(TRIM_SECONDS, self._give_back_or_wait, loop, self._ended, waits - 1)
            return
        self._ended = 0
        ctypes.pythonapi.PyType_ClearCache()
        gc.collect()
        if self._trim is not None:
            self._trim(0)


class _UntilClose(int):
    """The Content-Length of a response that ends when its connection closes: uvicorn accepts any size."""

    __hash__ = int.__hash__

    def __lt__(self, _: object) -> bool:
        return False

    def __sub__(self, _: object) -> _UntilClose:
        return self

    def __ne__(self, _: object) -> bool:
        return False


class CutsOffUnread(asyncio.Protocol):
    """A connection that is cut off if its client does not read for `send_seconds`."""

    limits: ClassVar[Limits] = Limits()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread: asyncio.TimerHandle | None = None

    @property
    def is_unread(self) -> bool:
        return self._unread is not None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()


class Connection(CutsOffUnread, HttpToolsProtocol):
    """An HTTP connection with two timers: one for a request that is still arriving, one for a response that
    the client does not read. Neither runs if a request arrives whole and its response is read at once."""

    max_connections: ClassVar[int] = 10_000
    lingering: ClassVar[set[Connection]] = set()
    freed: ClassVar[FreedMemory] = FreedMemory()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._receiving: asyncio.TimerHandle | None = None
        self._has_headers = self._has_begun = self.is_upgraded = False
        #: Bytes in the parser's buffer: received since a request, or a piece of its body, began.
        self._held_bytes = 0
        #: The status and error text if the request's headers are refused.
        self._refusal: tuple[int, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "Too many connections; try again in 5 s", f"retry-after: {_RETRY_SECONDS}\r\n")
            return
        self._receiving = self.loop.call_later(self.limits.header_seconds, self._give_up_headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lingering.discard(self)
        self._stop_receiving()
        self.resume_writing()
        super().connection_lost(exc)
        self.freed.ended(self.loop)

    def data_received(self, data: bytes) -> None:
        if self._is_ending():
            return
        if not self._has_begun and data.startswith(TLS_HANDSHAKE):
            self.logger.warning(
                "A client spoke https to this port, which speaks http: use an http:// address"
            )
            self.transport.close()
            return
        self._held_bytes += len(data)
        super().data_received(data)
        if self.is_upgraded:
            return
        if self._has_begun and self._held_bytes > MAX_HEAD_BYTES and not self._is_ending():
            self._refusal = TOO_LONG
            self.send_400_response(TOO_LONG[1])
        elif self._has_headers:
            # The next data is a piece of the body: restart the timeout.
            self._stop_receiving()
            self._receiving = self.loop.call_later(self.limits.body_seconds, self._give_up_body)
        elif self._has_begun or not self._is_in_use():
            if self._receiving is None:
                self._receiving = self.loop.call_later(self.limits.header_seconds, self._give_up_headers)
        else:
            self._stop_receiving()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse the request. uvicorn calls this, and logs one line, if the bytes are not HTTP."""
        self._stop_receiving()
        if self._has_headers and not self.cycle.response_started:
            self._hide_client()
        elif self._is_in_use():
            self.transport.close()  # A response to an earlier request is being sent.
            return
        self._refuse(*(self._refusal or (400, "This is not a valid HTTP/1.1 request; see RFC 9112")))

    def _should_upgrade(self) -> bool:
        """Refuse an upgrade for HTTP/1.0 (RFC 9110 §7.8), and while an earlier response is being sent."""
        is_possible = self.parser.get_http_version() != "1.0" and not self._is_in_use()
        return is_possible and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to a `SocketConnection`."""
        self._stop_receiving()
        self._has_begun = self._has_headers = False
        self.is_upgraded = True
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """A callback of httptools, like the next four methods."""
        self._has_begun, self._held_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailer fields: httptools calls this for trailers too (RFC 9110 §6.5.1)."""
        if not self._has_headers:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        self.freed.received(len(body))
        super().on_body(body)

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        self._refusal = refusal_of(version, self.url, self.headers)
        if self._refusal is not None:
            raise ValueError(self._refusal[1])
        if url := ABSOLUTE_FORM.fullmatch(self.url):
            self.url = b"/" + url[2]
            self.headers[:] = [(b"host", url[1]), *(pair for pair in self.headers if pair[0] != b"host")]
        super().on_headers_complete()  # Raises if the target is no path, as in a CONNECT request.
        self._has_headers = True
        if version == "1.0":
            # HTTP/1.0 has no chunked coding (RFC 9112 §6.1), and the connection is not kept alive.
            cycle: Any = self.cycle
            cycle.chunked_encoding, cycle.expected_content_length = False, _UntilClose()
            cycle.default_headers = [pair for pair in cycle.default_headers if pair[0] != b"keep-alive"]

    def on_message_complete(self) -> None:
        self._has_begun = self._has_headers = False
        super().on_message_complete()

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _is_ending(self) -> bool:
        return self in self.lingering or self.transport.is_closing()

    def _is_in_use(self) -> bool:
        """Whether a response is being sent, or the keep-alive timer runs already."""
        cycle: Any = self.cycle
        return self.timeout_keep_alive_task is not None or (cycle is not None and not cycle.response_complete)

    def _give_up_headers(self) -> None:
        if self._is_in_use():  # A response is being sent; the timer belongs to the request after it.
            self._receiving = self.loop.call_later(self.limits.header_seconds, self._give_up_headers)
        elif self._has_begun:
            seconds = self.limits.header_seconds
            self._refuse(408, f"The request's headers did not arrive within {seconds:g} s")
        else:
            self.transport.close()  # No request has begun, so none gets a response.

    def _give_up_body(self) -> None:
        if self.flow.read_paused:  # This server has paused reading.
            self._receiving = self.loop.call_later(self.limits.body_seconds, self._give_up_body)
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            seconds = self.limits.body_seconds
            self._hide_client()
            self._refuse(408, f"No more of the request's body arrived for {seconds:g} s")

    def _hide_client(self) -> None:
        """Report a disconnect to the application, which has this request already, so that the application
        sends neither a second response nor `100 Continue`."""
        cycle: Any = self.cycle
        cycle.disconnected, cycle.waiting_for_100_continue = True, False
        cycle.message_event.set()

    def _refuse(self, status: int, error: str, headers: str = "") -> None:
        """Respond to a request that has not fully arrived, and close the connection."""
        self.connections.discard(self)
        if len(self.lingering) >= MOST_LINGERING:
            self.transport.abort()
            return
        self.lingering.add(self)
        phrase = HTTPStatus(status).phrase
        body = json.dumps({"error": error})
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncache-control: {NO_STORE}\r\n"
            f"{headers}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write((head + body).encode())
        self.transport.write_eof()
        # Closing now would reset the connection if bytes are unread, and the client would miss the response.
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
