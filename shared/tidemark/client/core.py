"""The protocol's operations without I/O, clock or threads.

An operation is a generator of effects (`exchange.py`); the operations that read are in `reading.py`. The
driver chooses the HTTP client, and whether waiting blocks.
"""

from __future__ import annotations

import json
import typing
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import partial
from hashlib import sha256
from os import getpid
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid4

import orjson

from tidemark.client import errors
from tidemark.client.chunks import is_json
from tidemark.client.exchange import (
    Lost,
    Reply,
    Request,
    Retry,
    Steps,
    exchange,
    may_have_been_written,
    passing,
)
from tidemark.client.reading import ReadOperations, given_values, next_offset
from tidemark.protocol.errors import Malformed
from tidemark.protocol.json_text import check_value


class _DataclassLike(typing.Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _TypedDictLike(typing.Protocol):
    """A TypedDict is no Mapping[str, Json] for type checkers."""

    __required_keys__: ClassVar[frozenset[str]]


_Encoded: TypeAlias = date | time | UUID | Enum | _DataclassLike | _TypedDictLike
#: A value that becomes one message of a JSON stream.
Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | _Encoded | None"
#: Data to append: bytes or text, or on a JSON stream a value.
Data: TypeAlias = "Json | bytes | bytearray | memoryview"
if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVarWithDefault

    #: Data that a stream takes: any object if it has a function `default`.
    DataT = _TypeVarWithDefault("DataT", default=Data)
else:  # Python 3.11 has no TypeVar with a default.
    DataT = TypeVar("DataT")

#: Converts a value that JSON does not support.
Default: TypeAlias = Callable[[Any], Any]

#: The server waits this long for an upstream's headers, and AWS 25 s. A call fails after 60 s without them.
_UPSTREAM_SECONDS: Final = 61.0
_CALL_SECONDS: Final = 55.0
STREAM_ROOT: Final = "/v1/stream/"
SUBSCRIPTIONS: Final = f"{STREAM_ROOT}__ds/subscriptions"
#: A larger snapshot is uploaded to the object store, and then published.
_DIRECT_BYTES: Final = 4 * 1024 * 1024
_SNAPSHOT_BYTES: Final = 5 * 1024**3
#: The key of an SDK whose upstream's key the server has, as in `/v1/proxy.js`.
_UNUSED: Final = {"unused", "Bearer unused"}
#: The request to the durable proxy has its own.
_OWN_HEADERS: Final = {"accept-encoding", "authorization", "content-length", "host", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class Receipt:
    """`offset` is the new tail. `etag` is for `if_match`, on servers that support conditional writes."""

    offset: str
    closed: bool
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedSnapshot:
    """The state of a stream in a bucket after all messages before `offset`."""

    offset: str
    content_type: str
    data: bytes


def _plain_value(default: Default | None, value: object) -> Any:
    """Return a JSON value for a value that Python's encoder refuses. orjson formats dates and UUIDs, but not
    the whole message, because it writes NaN as null."""
    if isinstance(value, date | time | UUID):
        return orjson.loads(orjson.dumps(value))
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if default is None:
        kind = type(value).__name__
        raise TypeError(f"JSON has no {kind}; give the stream a function for it, such as default=str")
    return default(value)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message of a shared subscription. `offset`, behind the message, names it: as the id of a producer it
    makes an append happen once. `count` is above 1 if the message was given before."""

    data: Any
    offset: str
    count: int

    @classmethod
    def of(cls, taken: Mapping[str, Any]) -> Delivery:
        is_base64 = taken.get("encoding") == "base64"
        data = b64decode(taken["data"]) if is_base64 else taken["data"]
        return cls(data, taken["offset"], taken["delivery"])


class StreamSettings(TypedDict, total=False):
    """Settings of a new stream. `ttl`, in seconds, restarts with each read and write (sliding expiry).
    `retain_seconds` and `retain_bytes` let the server remove older messages. `compact` keeps the last message
    of each key of a JSON stream: True is the key of the State Protocol, a JSON pointer such as `/id` is
    another (these three: Tidemark only)."""

    ttl: int | timedelta | None
    expires_at: datetime | str | None
    retain_seconds: int | timedelta | None
    retain_bytes: int | None
    compact: bool | str | None


#: Whether an append creates a missing stream, and its settings.
Create: TypeAlias = bool | StreamSettings


class CreateOptions(StreamSettings, total=False):
    """Options of `create`. `forked_from` is the URL or path of a stream on the same server."""

    closed: bool
    forked_from: str | None
    fork_offset: str | None
    fork_sub_offset: int | None


class Protocol(ReadOperations, Generic[DataT]):
    """All operations on one stream: the methods of `Stream` and `AsyncStream`."""

    def __init__(
        self, url: str, content_type: str | None, retry: Retry, default: Default | None = None
    ) -> None:
        super().__init__(url, content_type, retry)
        self.default: Final = default
        self._json = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=partial(_plain_value, default)
        )

    def encode_message(self, data: Any) -> bytes:
        """Return one message as bytes. On a JSON stream bytes are JSON already, and other data is a value.
        Raises ValueError for a message that would make the server refuse its batch."""
        is_bytes = isinstance(data, bytes | bytearray | memoryview)
        if is_json(self.content_type):
            # Only lone surrogates have no UTF-8 form. They occur only in strings, as \ud83d there.
            text = bytes(data) if is_bytes else self._json.encode(data).encode(errors="backslashreplace")
            try:
                return check_value(text)
            except Malformed as wrong:
                fault = f"a message of a JSON stream must be one JSON value: {wrong.message}"
                raise ValueError(fault) from None
        if is_bytes:
            return bytes(data)
        if isinstance(data, str):
            return data.encode()
        kind = type(data).__name__
        of = f"a stream of {self.content_type or ''!r}"
        raise TypeError(f"a {kind} cannot be appended to {of}; bytes or str can")

    def encode_body(self, data: Any) -> bytes:
        """Return the body of an append. A JSON message is put into an array, because the server flattens one
        level: a list stays one message."""
        message = self.encode_message(data)
        return b"[%b]" % message if is_json(self.content_type) else message

    def create(self, data: DataT | None = None, **given: Unpack[CreateOptions]) -> Steps[Receipt]:
        forked_from = given.get("forked_from")
        headers = {
            "Content-Type": self.content_type,
            **_setting_headers(given, CreateOptions.__annotations__),
            "Stream-Closed": "true" if given.get("closed") else None,
            "Stream-Forked-From": None if forked_from is None else urlsplit(forked_from).path,
            "Stream-Fork-Offset": given.get("fork_offset"),
            "Stream-Fork-Sub-Offset": given.get("fork_sub_offset"),
        }
        body = b"" if data is None else self.encode_body(data)
        return self._write(Request("PUT", self.url, given_values(headers), body=body))

    def creation(self, create: Create) -> dict[str, str]:
        """Return the headers of an append that creates a missing stream; none if `create` is False."""
        if create is False:
            return {}
        if self.content_type is None:
            raise ValueError(f"create needs the content type of {self.url}: give it as content_type")
        given: StreamSettings = {} if create is True else create
        settings = _setting_headers(given, StreamSettings.__annotations__)
        return given_values({"Stream-Create": self.content_type, **settings})

    def append(
        self,
        data: DataT,
        *,
        seq: str | None = None,
        if_match: str | None = None,
        close: bool = False,
        create: Create = False,
    ) -> Steps[Receipt]:
        """Append one message of a JSON stream (bytes: its JSON), or bytes or text to any other stream. With
        `seq` or `if_match` the server refuses a second copy, so a request without an answer is retried.
        Raises UnconfirmedWrite for a lost request without them, or if the retry is refused. To write exactly
        once, use `producer`. `create`: True or settings create a missing stream (Tidemark only)."""
        creation = self.creation(create)
        content_type = yield from self.known_content_type()
        headers = {
            "Content-Type": content_type,
            "Stream-Seq": seq,
            "If-Match": if_match,
            "Stream-Closed": "true" if close else None,
        }
        headers |= creation
        request = Request("POST", self.url, given_values(headers), body=self.encode_body(data))
        twice_is_refused, may_be_written = seq is not None or if_match is not None, False

        def may_repeat(reply: Reply | Lost) -> bool:
            nonlocal may_be_written
            may_be_written |= may_have_been_written(reply)
            return twice_is_refused or not may_be_written

        try:
            return (yield from self._write(request, may_repeat))
        except errors.StatusError as refused:
            if refused.status not in {409, 412} or not may_be_written:
                raise
            unknown = f"{refused}; an earlier try, whose answer was lost, may have been carried out"
            raise errors.UnconfirmedWrite(unknown) from refused

    def close(self, data: DataT | None = None) -> Steps[Receipt]:
        """Close the stream for all writers, forever, with `data` as its last message. A reader can stop a
        writer by closing the stream. Idempotent without `data` (section 5.3)."""
        if data is not None:
            return (yield from self.append(data, close=True))
        return (yield from self._write(Request("POST", self.url, {"Stream-Closed": "true"})))

    def snapshot(self, offset: str | None = None) -> Steps[PublishedSnapshot]:
        """Return the latest snapshot of a stream in a bucket, or the one at `offset`. Raises NotFound."""
        if offset is None:
            latest = (yield from self.head()).headers.get("stream-snapshot-offset", "-1")
            offset = None if latest == "-1" else latest
        url = f"{self.url}/snapshot{f'/{offset}' if offset else ''}"
        reply = yield from exchange(Request("GET", url, max_bytes=_SNAPSHOT_BYTES), self.retry)
        return PublishedSnapshot(offset or "-1", reply.headers.get("content-type", ""), reply.body)

    def publish_snapshot(
        self, data: bytes, *, offset: str, content_type: str = "application/octet-stream"
    ) -> Steps[None]:
        """Publish a snapshot that covers all messages before `offset`; they cannot be read any more."""
        url, headers = f"{self.url}/snapshot/{offset}", {"Content-Type": content_type}
        if len(data) > _DIRECT_BYTES:
            place = json.loads((yield from exchange(Request("POST", f"{url}/upload"), self.retry)).body)
            upload = Request(place["method"], place["url"], place["headers"], body=data, anonymous=True)
            yield from exchange(upload, self.retry)
            headers, data = headers | {"Snapshot-Upload": place["upload"]}, b""
        yield from exchange(Request("PUT", url, headers, body=data), self.retry)

    def delete(self, *, missing_ok: bool = False) -> Steps[None]:
        """Delete the stream. Raises NotFound if no stream exists, unless `missing_ok`. A retry that finds no
        stream is a success: the first try deleted the stream."""
        request = Request("DELETE", self.url)
        repeated = missing_ok

        def noticing(reply: Reply | Lost) -> bool:
            nonlocal repeated
            repeated = True
            return passing(reply)

        try:
            yield from exchange(request, self.retry, noticing)
        except (errors.NotFound, errors.StreamGone):
            if not repeated:
                raise

    def take(self, subscription: str, settled: Mapping[str, Sequence[str]], **asked: float) -> Steps[Any]:
        """Settle messages of a shared subscription; take others if any are asked for."""
        root, is_plain, _ = self.url.partition(STREAM_ROOT)
        if not is_plain:
            raise ValueError(f"{self.url} is no stream of the plain surface, and has no subscriptions")
        url = f"{root}{subscription_path(subscription)}/{'take' if asked else 'done'}"
        headers = {"Content-Type": "application/json"}
        body = json.dumps({"worker": f"python-{getpid()}", **settled, **asked}).encode()
        waits = asked.get("wait_seconds", 0.0)
        reply = yield from exchange(Request("POST", url, headers, body=body, wait_seconds=waits), self.retry)
        try:
            return orjson.loads(reply.body)
        except ValueError as wrong:
            raise errors.MalformedReply(f"POST {url}: the answer is not JSON") from wrong

    def _write(
        self, request: Request, may_repeat: Callable[[Reply | Lost], bool] = passing
    ) -> Steps[Receipt]:
        reply = yield from exchange(request, self.retry, may_repeat)
        if request.method == "PUT":
            self.learn(reply.headers)
        # A 2xx without an offset acknowledges nothing: any web server may send one.
        closed = errors.is_true(reply.headers, "stream-closed")
        return Receipt(next_offset(request, reply), closed, reply.headers.get("etag"))


def _setting_headers(given: StreamSettings, known: Collection[str]) -> dict[str, str | int | None]:
    if unknown := given.keys() - known:
        raise TypeError(f"create has no option {min(unknown)!r}; it has {', '.join(known)}")
    compact = given.get("compact")
    return {
        "Stream-TTL": _whole_seconds(given.get("ttl")),
        "Stream-Expires-At": _rfc3339(given.get("expires_at")),
        "Stream-Retain-Seconds": _whole_seconds(given.get("retain_seconds")),
        "Stream-Retain-Bytes": given.get("retain_bytes"),
        "Stream-Compact": "last-by-key" if compact else None,
        "Stream-Compact-Key": compact if isinstance(compact, str) else None,
    }


def _whole_seconds(given: int | timedelta | None) -> int | None:
    if not isinstance(given, timedelta):
        return given
    if given % timedelta(seconds=1):
        raise ValueError(f"{given} has a part of a second; a stream's settings are in whole seconds")
    return given // timedelta(seconds=1)


def _rfc3339(moment: datetime | str | None) -> str | None:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"expires_at is {moment.isoformat()}, without a time zone; give it one, such as UTC")
    return moment.isoformat()


def call_by_proxy(url: str, request: Any, body: bytes, key: str | None) -> Steps[tuple[str, str]]:
    """Send a request of httpx by the durable proxy of the server at `url`. Return the signed URL of the
    upstream's answer, and its content type. `key` is hashed together with the request: one key is enough for
    a program. Raises StatusError, with the upstream's own status if the upstream refuses."""
    place, call = f"{url.rstrip('/')}/v1/proxy", f"{request.method} {request.url}"
    unique = f"{key or uuid4().hex}\0{call}\0".encode() + body
    sent = {"idempotency-key": sha256(unique).hexdigest()}
    sent |= {"upstream-url": str(request.url), "upstream-method": request.method}
    for name, value in request.headers.items():
        if name.lower() == "authorization" and value not in _UNUSED:
            sent["upstream-authorization"] = value
        elif name.lower() not in _OWN_HEADERS and value not in _UNUSED:
            sent[name.lower()] = value
    proxied = Request("POST", place, sent, body=body, wait_seconds=_UPSTREAM_SECONDS)
    try:
        reply = yield from exchange(proxied, Retry(), _may_call_again)
    except errors.StatusError as refused:
        status = refused.headers.get("upstream-status", "")
        if not status.isdecimal():
            raise
        raise errors.refusal(call.partition("?")[0], int(status), refused.headers, refused.body, {}) from None
    try:
        signed, content_type = urlsplit(reply.headers["location"]), reply.headers["upstream-content-type"]
    except KeyError as missing:
        raise errors.MalformedReply(f"{proxied.what}: {reply.status} without {missing}") from None
    # The server may not know its own address behind a gateway.
    return f"{place}/{signed.path.rpartition('/')[2]}?{signed.query}", content_type


def _may_call_again(reply: Reply | Lost) -> bool:
    """Whether a retry finds the same call: not after a failure of the call, also by its time limit."""
    if isinstance(reply, Lost):
        return True
    has_failed = "upstream-status" in reply.headers or b"UPSTREAM_ERROR" in reply.body
    return not has_failed and not (reply.status == 504 and reply.seconds > _CALL_SECONDS)


def subscription_path(subscription_id: str) -> str:
    return f"{SUBSCRIPTIONS}/{quote(subscription_id, safe='')}"
