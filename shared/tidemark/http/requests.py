"""Parses requests: headers, query and path become the values that the protocol's rules take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request

from tidemark.protocol import caching, messages, offset
from tidemark.protocol.caching import parse_if_match
from tidemark.protocol.compaction import COMPACTION_HEADERS, Compaction, parse_compaction
from tidemark.protocol.create import ForkPoint, parse_fork_offset, parse_sub_offset
from tidemark.protocol.errors import Malformed, PayloadTooLarge, UnsupportedEncoding
from tidemark.protocol.expiry import parse_expiry
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.protocol.offset import ReadFrom
from tidemark.protocol.producer import parse_claim, parse_stream_seq
from tidemark.protocol.retention import AGE_HEADER, SIZE_HEADER, Retention, parse_retention
from tidemark.protocol.sse import EVENT_ID
from tidemark.protocol.stream_key import RESERVED_SEGMENT, StreamKey, parse_bucket_stream, parse_plain_path
from tidemark.service.append import AppendRequest
from tidemark.service.create import CreateRequest
from tidemark.service.start_point import parse_last

#: In the scope of a request: the key of the stream that it is about.
STREAM: Final = "tidemark.stream"
#: How many bytes of the body have come; for requests that write, on a server of one's own.
RECEIVED: Final = "tidemark.received"
#: The function by which a handler gives back the room of its large body, before the response.
GIVE_BACK: Final = "tidemark.give_back"
#: The scope key of a checked request's grants.
ACCESS: Final = "tidemark.access"
STREAM_ROOT: Final = "/v1/stream/"
#: Scope keys in which `BehindEdge` stores the request's path and host, as the edge reports them.
EDGE_PATH: Final = "tidemark.edge_path"
EDGE_HOST: Final = "tidemark.edge_host"
#: The second is an alias: `@durable-streams/proxy` uses it.
STREAM_ROOTS: Final = (STREAM_ROOT, "/v1/streams/")
#: The durable proxy.
PROXY_ROOT: Final = "/v1/proxy"
#: Below these are subscriptions (§6).
SUBSCRIPTION_ROOTS: Final = tuple(f"{root}{RESERVED_SEGMENT}/" for root in STREAM_ROOTS)

FORK_HEADERS: Final = ("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset")
PRODUCER_HEADERS: Final = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
#: They set what is kept of a stream, or of the streams of a bucket.
SETTING_HEADERS: Final = (AGE_HEADER, SIZE_HEADER, *COMPACTION_HEADERS)
#: One size everywhere: in base64 inside its event it must fit a Lambda request of 6 MB.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
#: A body that is too large is read up to this size, so that the client gets to read the response.
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
    """`live` None is a catch-up read; with `last`, backwards."""

    read_from: ReadFrom
    live: Live | None
    cursor: int | None
    if_none_match: str | None
    last: int | None = None


def header(request: Request, name: str) -> str | None:
    """A header's value, without the spaces and tabs around it; repeats are joined, as gateways do."""
    key = name.lower().encode()
    values = [value.decode("latin-1").strip(" \t") for each, value in request.scope["headers"] if each == key]
    return ", ".join(values) if values else None


def single_header(request: Request, name: str) -> str | None:
    """The value of a header that has only one. Raises Malformed for a repeat that can be seen: behind
    API Gateway it looks like one value with a comma in it, which the header's own form must refuse."""
    key = name.lower().encode()
    values = [value for each, value in request.scope["headers"] if each == key]
    if len(values) > 1:
        raise Malformed(f"{name} must be sent once; it was sent {len(values)} times")
    return values[0].decode("latin-1").strip(" \t") if values else None


def plain_name(path: str) -> str | None:
    """The path below the root of the plain surface; None for a path elsewhere."""
    return next((path.removeprefix(root) for root in STREAM_ROOTS if path.startswith(root)), None)


def check_each_given_once(request: Request) -> None:
    """Raises Malformed if a parameter of the query is given twice, which means nothing."""
    for name in request.query_params:
        single(request, name)


def request_path(scope: Mapping[str, Any]) -> tuple[str, bool]:
    """The request's path, and whether percent-encoding is still in it.

    The edge says which path it received. A function URL hands on the path as it was sent. An HTTP API decodes
    it first, twice, and cuts it at a question mark that appears (`tests/stack/events.py: decode_path`).
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
    """The request's path as it stands in a URL, however much of it was decoded on the way."""
    path, encoded = request_path(request.scope)
    return quote(path, safe=_PATH_CHARACTERS + ("%" if encoded else ""))


def is_closing(request: Request) -> bool:
    """§4.1: only `true`, in any case; any other value counts as absent."""
    values = (single_header(request, "Stream-Closed") or "").lower().split(",")
    if len(values) > 1 and "true" in (value.strip() for value in values):
        raise Malformed("Stream-Closed must be sent once, as true")
    return values == ["true"]


def parse_body_type(request: Request) -> ContentType | None:
    """Raises Malformed, also for two types that a gateway joined: a comma belongs in quotes only."""
    value = single_header(request, "Content-Type")
    if value and "," in value and not _ONE_TYPE.fullmatch(value):
        raise Malformed(f"Content-Type must be sent once, as type/subtype; got {value[:80]!r}")
    return parse_content_type(value) if value else None


async def read_body(request: Request) -> bytes:
    """Raises UnsupportedEncoding and PayloadTooLarge before anything is written."""
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
    if body_type is not None and body_type.essence in _FORMS:
        raise Malformed(
            f"{body_type.essence} is a form's type, not a stream's; "
            "add a header such as Content-Type: text/plain (curl -d sends a form's type unless it is told)"
        )
    retention, compaction = parse_settings(request)
    return CreateRequest(
        content_type=body_type,
        expiry=parse_expiry(
            single_header(request, "Stream-TTL"), single_header(request, "Stream-Expires-At")
        ),
        closed=is_closing(request),
        body=await read_body(request),
        fork=fork,
        retention=retention,
        compaction=compaction,
    )


def parse_settings(request: Request) -> tuple[Retention, Compaction | None]:
    """What is kept of a stream, or of the streams of a bucket. Raises Malformed."""
    age, size, *compaction = map(partial(single_header, request), SETTING_HEADERS)
    return parse_retention(age, size), parse_compaction(*compaction)


def parse_fork(request: Request) -> ForkPoint | None:
    """The three fork headers (§4.2); the other two mean nothing without the source."""
    source, offset_token, sub_offset = map(partial(single_header, request), FORK_HEADERS)
    if source is None:
        if offset_token is not None or sub_offset is not None:
            raise Malformed("Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    key = parse_stream_path("Stream-Forked-From", source)
    return ForkPoint(key, parse_fork_offset(offset_token), parse_sub_offset(sub_offset))


def parse_stream_path(name: str, path: str) -> StreamKey:
    """The stream at the path of a URL on this server, which the header or parameter `name` gives. Raises
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


async def parse_append(request: Request) -> AppendRequest:
    claim = parse_claim(*map(partial(single_header, request), PRODUCER_HEADERS))
    stream_seq = parse_stream_seq(single_header(request, "Stream-Seq"))
    if_match = parse_if_match(header(request, "If-Match"))
    body = await read_body(request)
    # A close without a body ignores whatever type a client attaches by habit (§5.2).
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
            "last is of the messages before offset: now, or a Stream-Start-Offset that this server gave; "
            "and it goes without live"
        )
    parse = caching.parse_cursor if live else caching.known_cursor
    return ReadRequest(
        read_from=read_from,
        live=live,
        cursor=parse(cursor),
        if_none_match=header(request, "If-None-Match"),
        last=None if last is None else parse_last(last),
    )


def last_event_id(request: Request) -> str | None:
    """The id of the last event that a browser's EventSource saw, as it says when it connects again (HTML,
    server-sent events). Raises Malformed."""
    value = header(request, "Last-Event-ID")
    if value and not EVENT_ID.fullmatch(value):
        raise Malformed(f"Last-Event-ID must be the id of an event of this stream, got {value!r:.80}")
    return value or None


def single(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise Malformed(f"{name} must be given once")
    return values[0] if values else None
