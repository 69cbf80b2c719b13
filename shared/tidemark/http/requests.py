"""Parses headers, query and path into the values of the protocol's rules."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidemark.protocol import caching, messages, offset
from tidemark.protocol.caching import parse_if_match
from tidemark.protocol.compaction import COMPACTION_HEADERS, Compaction, parse_compaction
from tidemark.protocol.create import ForkPoint, parse_fork_offset, parse_sub_offset
from tidemark.protocol.errors import Malformed, PayloadTooLarge, UnsupportedEncoding
from tidemark.protocol.expiry import AGE_HEADER, SIZE_HEADER, Retention, parse_expiry, parse_retention
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.protocol.offset import PageStart, ReadFrom
from tidemark.protocol.producer import parse_claim, parse_stream_seq
from tidemark.protocol.sse import EVENT_ID
from tidemark.protocol.stream_key import RESERVED_SEGMENT, StreamKey, parse_bucket_stream, parse_plain_path
from tidemark.protocol.where import MessageFilter, parse_filter
from tidemark.service.append import AppendRequest
from tidemark.service.create import CreateRequest
from tidemark.service.start_point import parse_last

Respond = Callable[[Request], Awaitable[Response]]
Guard = Callable[[Respond, Request], Awaitable[Response]]
"""Responds itself, or passes the request on and may change the response."""

#: The scope key of a request's StreamKey.
STREAM: Final = "tidemark.stream"
#: The scope key of the received bytes of the body; only for writes, on a server or container.
RECEIVED: Final = "tidemark.received"
#: The scope key of the function that releases the memory reserved for a large body, before the response.
GIVE_BACK: Final = "tidemark.give_back"
#: The scope key of a checked request's grants.
ACCESS: Final = "tidemark.access"
#: The scope key of an append that found no stream and creates one.
CREATES: Final = "tidemark.creates"
STREAM_ROOT: Final = "/v1/stream/"
#: Scope keys in which `behind_edge` stores the request's path and host, as the edge reports them.
EDGE_PATH: Final = "tidemark.edge_path"
EDGE_HOST: Final = "tidemark.edge_host"
#: The second root is an alias, which `@durable-streams/proxy` uses.
STREAM_ROOTS: Final = (STREAM_ROOT, "/v1/streams/")
#: The root of the durable proxy.
PROXY_ROOT: Final = "/v1/proxy"
#: The roots of subscriptions (§6).
SUBSCRIPTION_ROOTS: Final = tuple(f"{root}{RESERVED_SEGMENT}/" for root in STREAM_ROOTS)

_CONDITIONS: Final = frozenset({b"if-match", b"if-none-match"})
FORK_HEADERS: Final = ("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset")
PRODUCER_HEADERS: Final = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
#: Headers that set retention and compaction of a stream, or of the streams of a bucket.
SETTING_HEADERS: Final = (AGE_HEADER, SIZE_HEADER, *COMPACTION_HEADERS)
#: The largest body on every platform: as base64 in its event it must fit a Lambda request of 6 MB.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
#: A body that is too large is read up to this size, so that the client can read the response.
DRAIN_BYTES: Final = 32 * 1024 * 1024

#: A content type whose commas are all in quoted parameters (RFC 9110 §5.6.4).
_ONE_TYPE: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*+")*+')
_FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})

#: Characters that need no percent-encoding in a URL's path (RFC 3986 §3.3).
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;="


class Live(Enum):
    LONG_POLL = "long-poll"
    SSE = "sse"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A parsed read: a catch-up read if `live` is None, backwards with `last`."""

    read_from: ReadFrom
    live: Live | None
    cursor: int | None
    if_none_match: str | None
    last: int | None = None
    where: MessageFilter | None = None


def header(request: Request, name: str) -> str | None:
    """A header's value, without spaces and tabs around it. Repeated headers are joined, as gateways do."""
    key = name.lower().encode()
    values = [value.decode("latin-1").strip(" \t") for each, value in request.scope["headers"] if each == key]
    return ", ".join(values) if values else None


def single_header(request: Request, name: str) -> str | None:
    """The value of a header that must occur once. Raises Malformed for a repeated header. Behind API Gateway
    repeats look like one value with a comma, which the header's own parser must refuse."""
    key = name.lower().encode()
    values = [value for each, value in request.scope["headers"] if each == key]
    if len(values) > 1:
        raise Malformed(f"{name} must be sent once; it was sent {len(values)} times")
    return values[0].decode("latin-1").strip(" \t") if values else None


def plain_name(path: str) -> str | None:
    """The path below the root of the plain surface; None for a path elsewhere."""
    return next((path.removeprefix(root) for root in STREAM_ROOTS if path.startswith(root)), None)


def check_each_given_once(request: Request) -> None:
    """Raises Malformed if a query parameter is given twice."""
    for name in request.query_params:
        single(request, name)


def request_path(scope: Mapping[str, Any]) -> tuple[str, bool]:
    """The request's path, and whether percent-encoding is still in it.

    The edge passes the path that it received. A function URL passes the path as it was sent. An HTTP API
    decodes the path twice, and cuts it at a decoded question mark (`tests/stack/events.py: decode_path`).
    """
    if EDGE_PATH in scope:
        return str(scope[EDGE_PATH]), True
    event = scope.get("aws.event")
    if event is None:
        raw: bytes = scope["raw_path"]
        try:
            return raw.partition(b"?")[0].decode(), True
        except UnicodeDecodeError:
            raise Malformed("Stream name must be percent-encoded UTF-8") from None
    domain = str(event["requestContext"].get("domainName", ""))
    return str(event["rawPath"]), ".lambda-url." in domain


def handshake_request(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The scope of the GET by which a client opens a WebSocket (RFC 6455 §4.1)."""
    return {**scope, "type": "http", "method": "GET"}


def url_path(request: Request) -> str:
    """The request's path, percent-encoded as in a URL."""
    path, encoded = request_path(request.scope)
    return quote(path, safe=_PATH_CHARACTERS + ("%" if encoded else ""))


def is_closing(request: Request) -> bool:
    """Whether `Stream-Closed` is `true`, in any case; any other value counts as absent (§4.1)."""
    values = (single_header(request, "Stream-Closed") or "").lower().split(",")
    if len(values) > 1 and "true" in (value.strip() for value in values):
        raise Malformed("Stream-Closed must be sent once, as true")
    return values == ["true"]


def parse_body_type(request: Request, name: str = "Content-Type") -> ContentType | None:
    """Parse Content-Type, or a header of that form. Raises Malformed, also for a comma outside of quotes: two
    types that a gateway joined."""
    value = single_header(request, name)
    if value and "," in value and not _ONE_TYPE.fullmatch(value):
        raise Malformed(f"{name} must be sent once, as type/subtype; got {value[:80]!r}")
    return parse_content_type(value) if value else None


async def read_body(request: Request) -> bytes:
    """Read the whole body. Raises UnsupportedEncoding, PayloadTooLarge."""
    coding = single_header(request, "Content-Encoding") or "identity"
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            chunks.append(chunk)
        elif size > DRAIN_BYTES:
            break
    if size > MAX_BODY_BYTES:
        raise PayloadTooLarge(MAX_BODY_BYTES)
    if size and coding.lower() != "identity":
        raise UnsupportedEncoding(coding)
    return b"".join(chunks)


async def parse_create(request: Request) -> CreateRequest:
    fork = parse_fork(request)
    body_type = parse_body_type(request)
    if body_type is None and fork is None:
        body_type = parse_content_type(messages.DEFAULT)
    return replace(parse_new_stream(request, body_type), body=await read_body(request), fork=fork)


def parse_first_append(request: Request, append: AppendRequest) -> CreateRequest | None:
    """Parse the stream that this append creates if it is missing (an extension); None without Stream-Create.
    Raises Malformed."""
    if single_header(request, "Stream-Create") is None:
        return None
    if parse_fork(request) is not None:
        raise Malformed("Stream-Create cannot make a fork: send Stream-Forked-From with PUT")
    content_type = parse_body_type(request, "Stream-Create") or parse_body_type(request)
    if content_type is None:
        raise Malformed("Stream-Create is empty and Content-Type is missing: one must be the stream's type")
    return replace(parse_new_stream(request, content_type), first=append)


def parse_new_stream(request: Request, body_type: ContentType | None) -> CreateRequest:
    """Parse the settings of a new stream of this type. Raises Malformed."""
    if body_type is not None and body_type.essence in _FORMS:
        raise Malformed(
            f"{body_type.essence} is a form's type, not a stream's; "
            "add a header such as Content-Type: text/plain (curl -d sends a form's type by default)"
        )
    retention, compaction = parse_settings(request)
    return CreateRequest(
        content_type=body_type,
        expiry=parse_expiry(
            single_header(request, "Stream-TTL"), single_header(request, "Stream-Expires-At")
        ),
        closed=is_closing(request),
        retention=retention,
        compaction=compaction,
    )


def parse_settings(request: Request) -> tuple[Retention, Compaction | None]:
    """Parse retention and compaction of a stream, or of the streams of a bucket. Raises Malformed."""
    age, size, *compaction = map(partial(single_header, request), SETTING_HEADERS)
    return parse_retention(age, size), parse_compaction(*compaction)


def parse_fork(request: Request) -> ForkPoint | None:
    """Parse the three fork headers (§4.2). Raises Malformed for the other two without the source."""
    source, offset_token, sub_offset = map(partial(single_header, request), FORK_HEADERS)
    if source is None:
        if offset_token is not None or sub_offset is not None:
            raise Malformed("Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    key = parse_stream_path("Stream-Forked-From", source)
    return ForkPoint(key, parse_fork_offset(offset_token), parse_sub_offset(sub_offset))


def parse_stream_path(name: str, path: str) -> StreamKey:
    """Parse the path of a stream on this server, the value of the header or parameter `name`. Raises
    Malformed, and StreamNotFound for a reserved name."""
    key = None
    if path.startswith("/") and "?" not in path and "#" not in path:
        plain = plain_name(path)
        if plain is not None:
            return parse_plain_path(plain, encoded=True)
        key = parse_bucket_stream(path.removeprefix("/"), encoded=True)
    if key is None:
        raise Malformed(f"{name} must be a stream's path such as {STREAM_ROOT}name, got {path[:80]!r}")
    return key


def parse_stream_parameter(path: str | None) -> StreamKey:
    if path is None:
        raise Malformed(f"stream is missing: give the stream's path, such as stream={STREAM_ROOT}name")
    return parse_stream_path("stream", path)


def parse_page_start(token: str) -> PageStart:
    """Parse the offset at which a page begins, which is not the tail. Raises Malformed."""
    start = offset.parse_read_from(token)
    if start is None or start == offset.NOW:
        raise Malformed(f"offset must be -1, or a Stream-Next-Offset of this server, got {token!r:.80}")
    return start


async def parse_append(request: Request) -> AppendRequest:
    claim = parse_claim(*map(partial(single_header, request), PRODUCER_HEADERS))
    stream_seq = parse_stream_seq(single_header(request, "Stream-Seq"))
    if_match = None
    if [name for name, _ in request.scope["headers"] if name in _CONDITIONS]:  # Faster than two searches.
        if_match = parse_if_match(header(request, "If-Match"), header(request, "If-None-Match"))
    body = await read_body(request)
    # A close without a body ignores the content type, which some clients always send (§5.2).
    body_type = parse_body_type(request) if body else None
    return AppendRequest(body_type, body, is_closing(request), stream_seq, claim, if_match)


def parse_read(request: Request) -> ReadRequest:
    mode, token, cursor, last = (single(request, name) for name in ("live", "offset", "cursor", "last"))
    if event_id := EVENT_ID.fullmatch(token or ""):
        token, cursor = event_id[1], event_id[2] or cursor
    try:
        live = Live(mode) if mode is not None else None
    except ValueError:
        raise Malformed(f"live must be long-poll or sse, got {mode!r:.80}") from None
    if live is not None and token is None:
        raise Malformed(f"live={live.value} needs an offset: -1, now, or a Stream-Next-Offset")
    read_from = offset.parse_read_from(token)
    if read_from is None:
        raise Malformed(
            f"offset must be -1, now, or a Stream-Next-Offset that this server gave, got {token!r:.80}"
        )
    if last is not None and (live is not None or read_from == offset.EARLIEST):
        raise Malformed(
            "last counts back from offset: now, or a Stream-Start-Offset that this server gave; "
            "and last takes no live"
        )
    parse = caching.parse_cursor if live else caching.known_cursor
    conditions = request.query_params.getlist("where")
    return ReadRequest(
        read_from=read_from,
        live=live,
        cursor=parse(cursor),
        if_none_match=header(request, "If-None-Match"),
        last=None if last is None else parse_last(last),
        where=parse_filter(conditions) if conditions else None,
    )


def last_event_id(request: Request) -> str | None:
    """The id of the last event that a browser's EventSource has received, which it sends when it reconnects
    (HTML, server-sent events). Raises Malformed."""
    value = header(request, "Last-Event-ID")
    if value and not EVENT_ID.fullmatch(value):
        raise Malformed(f"Last-Event-ID must be the id of an event of this stream, got {value!r:.80}")
    return value or None


def single(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise Malformed(f"{name} must be given once")
    return values[0] if values else None
