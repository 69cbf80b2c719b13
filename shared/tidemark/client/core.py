"""The protocol's operations without I/O, clock or threads.

An operation is a generator of effects (`exchange.py`). `follow` also yields the chunks that its caller gets.
Whoever runs the generator decides what a request is made with, and whether waiting blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack
from urllib.parse import urlsplit

from tidemark.client.chunks import (
    Chunk,
    EventParser,
    check_goes_on,
    decode_base64,
    ends_whole,
    is_json,
    joined,
    tells,
    whole_characters,
)
from tidemark.client.errors import (
    MalformedReply,
    NotFound,
    StatusError,
    StreamError,
    StreamGone,
    StreamReplaced,
    is_true,
)
from tidemark.client.exchange import (
    SECONDS,
    Effect,
    Lost,
    Receive,
    Reply,
    Request,
    Retry,
    Sleep,
    Steps,
    exchange,
    not_carried_out,
    passing,
)

Live: TypeAlias = Literal["auto", "sse", "long-poll", False]
#: What can be appended: bytes as they are; text, or on a JSON stream any value, which becomes one message.
Data: TypeAlias = Any

#: A long-poll is answered, and an event stream says something, within a minute by the servers that we know.
_LIVE_SECONDS: Final = 75.0
#: An event stream that a server or a proxy does not let through: after so many without an event, long-polls.
_SILENT_EVENT_STREAMS: Final = 3
#: An entity tag of Tidemark's, of a page or of a tail, begins with the stream's incarnation.
_ETAG: Final = re.compile(r'(?:W/)?"([\w-]{16,}):\d{16}[.:"]', re.ASCII)
#: A long-poll that is answered sooner, and without news, is not asked again at once.
_WAITED_SECONDS: Final = 1.0
#: Whoever waits for a stream that is not there yet asks at least so often.
_MOST_WAITED_SECONDS: Final = 1.0
_LIVE: Final = ("auto", "sse", "long-poll", False)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """`offset` is the tail: where the next append will be."""

    offset: str
    content_type: str
    closed: bool
    ttl_seconds: int | None
    expires_at: str | None
    etag: str | None
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Receipt:
    """`offset` is the new tail. `etag` is for `if_match`, on servers that have it."""

    offset: str
    closed: bool
    etag: str | None = None


def encode_message(data: Data, content_type: str) -> bytes:
    """One message as bytes. On a JSON stream bytes are JSON already, and everything else is a value."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if is_json(content_type):
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    if isinstance(data, str):
        return data.encode()
    kind = type(data).__name__
    raise TypeError(f"a {kind} cannot be appended to a stream of {content_type!r}; bytes or str can")


def encode_body(data: Data, content_type: str) -> bytes:
    """The body of an append: bytes as they are; a value of a JSON stream in an array, which the server
    flattens by one level, so that a list stays one message."""
    message = encode_message(data, content_type)
    as_it_is = isinstance(data, bytes | bytearray | memoryview) or not is_json(content_type)
    return message if as_it_is else b"[%b]" % message


class CreateOptions(TypedDict, total=False):
    """How a stream is created. `ttl` is in seconds and begins anew with each read and write. `forked_from` is
    the URL or path of a stream on the same server."""

    ttl: int | None
    expires_at: datetime | str | None
    closed: bool
    data: Data
    forked_from: str | None
    fork_offset: str | None
    fork_sub_offset: int | None


class Protocol:
    """The operations on one stream, which are the methods of `Stream` and `AsyncStream` too. `content_type`
    is learned from the first answer that names it."""

    def __init__(self, url: str, content_type: str | None, retry: Retry) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ValueError(f"{url!r} is not the URL of a stream; one begins with http:// or https://")
        self.url: Final = url
        self.content_type = content_type
        self.retry: Final = retry

    def create(self, **given: Unpack[CreateOptions]) -> Steps[Receipt]:
        if unknown := given.keys() - CreateOptions.__annotations__.keys():
            known = ", ".join(CreateOptions.__annotations__)
            raise TypeError(f"create has no option {min(unknown)!r}; it has {known}")
        forked_from, data = given.get("forked_from"), given.get("data")
        headers = {
            "Content-Type": self.content_type,
            "Stream-TTL": given.get("ttl"),
            "Stream-Expires-At": _rfc3339(given.get("expires_at")),
            "Stream-Closed": "true" if given.get("closed") else None,
            "Stream-Forked-From": None if forked_from is None else urlsplit(forked_from).path,
            "Stream-Fork-Offset": given.get("fork_offset"),
            "Stream-Fork-Sub-Offset": given.get("fork_sub_offset"),
        }
        body = b"" if data is None else encode_body(data, self.content_type or "")
        return self._write(Request("PUT", self.url, _given(headers), body=body))

    def head(self) -> Steps[StreamInfo]:
        request = Request("HEAD", self.url)
        reply = yield from exchange(request, self.retry)
        headers = reply.headers
        ttl = headers.get("stream-ttl", "")
        self._learn(headers)
        return StreamInfo(
            offset=_next_offset(request, reply),
            content_type=headers.get("content-type", ""),
            closed=is_true(headers, "stream-closed"),
            ttl_seconds=int(ttl) if ttl.isdigit() else None,
            expires_at=headers.get("stream-expires-at"),
            etag=headers.get("etag"),
            headers=headers,
        )

    def append(
        self, data: Data, *, seq: str | None = None, if_match: str | None = None, close: bool = False
    ) -> Steps[Receipt]:
        """Append one message of a JSON stream (bytes: JSON as it is), or bytes or text of any other. With
        `seq` or `if_match` the server refuses a second copy, so a request without an answer is repeated.
        Without them it raises UnconfirmedWrite: a `producer` repeats it and writes once."""
        content_type = yield from self.known_content_type()
        headers = {
            "Content-Type": content_type,
            "Stream-Seq": seq,
            "If-Match": if_match,
            "Stream-Closed": "true" if close else None,
        }
        request = Request("POST", self.url, _given(headers), body=encode_body(data, content_type))
        twice_is_refused = seq is not None or if_match is not None
        return (yield from self._write(request, passing if twice_is_refused else not_carried_out))

    def close(self, data: Data = None) -> Steps[Receipt]:
        """Close the stream for everybody and for good, with `data` as its last message. This is how a reader
        stops a writer. Idempotent without `data` (section 5.3)."""
        if data is not None:
            return (yield from self.append(data, close=True))
        return (yield from self._write(Request("POST", self.url, {"Stream-Closed": "true"})))

    def delete(self, *, missing_ok: bool = False) -> Steps[None]:
        """Raises NotFound if there is no stream, unless that is as good. A repeat that finds nothing has
        deleted the stream the first time."""
        request = Request("DELETE", self.url)
        repeated = missing_ok

        def noticing(reply: Reply | Lost) -> bool:
            nonlocal repeated
            repeated = True
            return passing(reply)

        try:
            yield from exchange(request, self.retry, noticing)
        except (NotFound, StreamGone):
            if not repeated:
                raise

    def read(
        self, offset: str = "-1", *, live: Literal["long-poll", False] = False, cursor: str | None = None
    ) -> Steps[Chunk]:
        """One page. With `live="long-poll"` the server waits for data for as long as it likes, and the page
        may be empty."""
        check_choice("live", live, ("long-poll", False))
        chunk = yield from self._page(offset, live=live == "long-poll", cursor=cursor, forever=False)
        while not (chunk.up_to_date or ends_whole(chunk)):
            more = yield from self._page(
                chunk.offset, chunk.incarnation, live=False, cursor=None, forever=False
            )
            chunk = replace(more, data=chunk.data + more.data)
        return chunk

    def follow(
        self,
        offset: str = "-1",
        *,
        live: Live = "auto",
        gone: Literal["error", "earliest"] = "error",
        missing: Literal["error", "wait"] = "error",
        on_recreated: Literal["error", "restart"] = "error",
        cursor: str | None = None,
        incarnation: str | None = None,
    ) -> Generator[Effect | Chunk, Any, None]:
        """Everything from `offset` on, each chunk once whatever breaks, until the stream is closed. It
        catches up, waits for more by an event stream or long-polls, and reconnects for as long as it takes
        once it has had an answer. An empty chunk says that the reader has caught up or that the stream is
        closed.

        `live=False` ends at the tail. `gone="earliest"` goes on where what is retained begins, instead of
        raising StreamGone, if `offset` is older. `missing="wait"` waits for a stream that is not there yet,
        instead of raising NotFound. Raises StreamReplaced if a stream with another `incarnation` has the name
        by now; give that of the last chunk together with its offset. `on_recreated="restart"` begins that
        stream instead, from its beginning: its chunks have its `incarnation`."""
        check_choice("live", live, _LIVE)
        check_choice("gone", gone, ("error", "earliest"))
        check_choice("missing", missing, ("error", "wait"))
        check_choice("on_recreated", on_recreated, ("error", "restart"))
        place = Chunk(b"", offset, cursor=cursor, incarnation=incarnation)
        return whole_characters(self._follow_name(place, live, gone, missing, on_recreated))

    def _follow_name(
        self, place: Chunk, live: Live, gone: str, missing: str, on_recreated: str
    ) -> Generator[Effect | Chunk, Any, None]:
        """One stream after the other that has the name, as far as the caller wants that."""
        while True:
            if missing == "wait":
                yield from self._wait_for_stream()
            try:
                return (yield from self._follow(place, live, gone))
            except StreamReplaced:
                if on_recreated == "error":
                    raise
            except NotFound:
                if (missing, on_recreated) != ("wait", "restart"):
                    raise
            place = Chunk(b"", "-1")

    def _wait_for_stream(self) -> Steps[None]:
        asked = 0
        while True:
            try:
                yield from self.head()
            except NotFound:
                yield Sleep(min(self.retry.delay(asked, Lost("")), _MOST_WAITED_SECONDS))
                asked += 1
            else:
                return

    def _follow(self, place: Chunk, live: Live, gone: str) -> Generator[Effect | Chunk, Any, None]:
        chunk, silent, ever = place, 0, False
        if place.offset == "now" and live is not False:
            # There is nothing to catch up with, and no page that tells the incarnation.
            incarnation = self._same(place.incarnation, (yield from self.head()).etag)
            chunk = replace(place, up_to_date=True, incarnation=incarnation)
        while not chunk.closed:
            try:
                before = chunk
                if not chunk.up_to_date or live == "long-poll":
                    chunk = yield from self._next_page(chunk, silent, forever=ever)
                    silent = 0 if tells(chunk, before) else silent + 1
                elif live is False:
                    return
                else:
                    chunk, has_events = yield from self._try_events(chunk, live, silent, forever=ever)
                    silent = 0 if chunk is not before else silent + 1
                    if not has_events or (live == "auto" and silent >= _SILENT_EVENT_STREAMS):
                        live, silent = "long-poll", 0
                ever = True
            except StreamGone as why:
                if gone == "error" and chunk.incarnation is None:
                    raise
                head = yield from self.head()
                self._same(chunk.incarnation, head.etag)
                earliest = head.headers.get("stream-retained-offset")
                if gone == "error" or earliest is None or earliest == chunk.offset:
                    raise why from None
                chunk = Chunk(b"", earliest, incarnation=chunk.incarnation)

    def _next_page(
        self, place: Chunk, silent: int, *, forever: bool
    ) -> Generator[Effect | Chunk, Any, Chunk]:
        chunk = yield from self._page(
            place.offset,
            place.incarnation,
            silent,
            live=place.up_to_date,
            cursor=place.cursor,
            forever=forever,
        )
        if place.up_to_date:
            chunk = yield from self._last_data(chunk)
        if tells(chunk, place):
            yield chunk
        return chunk

    def _try_events(
        self, place: Chunk, live: Live, silent: int, *, forever: bool
    ) -> Generator[Effect | Chunk, Any, tuple[Chunk, bool]]:
        """The last chunk, and whether the server has event streams for this stream."""
        try:
            chunk = yield from self._events(place, forever=forever)
        except _NoEventStream as refused:
            if live == "sse":
                raise refused.reason from None
            return place, False
        if not chunk.closed and (chunk is place or not chunk.data):
            # A server that ends every event stream at once is not asked in a circle.
            yield Sleep(self.retry.delay(silent, Lost("")))
        return chunk, True

    def _page(
        self,
        offset: str,
        incarnation: str | None = None,
        silent: int = 0,
        *,
        live: bool,
        cursor: str | None,
        forever: bool,
    ) -> Steps[Chunk]:
        """`silent` answers before this one had no news. A server that does not wait is asked less and less
        often."""
        params = {"offset": offset, "live": "long-poll" if live else None, "cursor": cursor if live else None}
        request = Request(
            "GET", self.url, params=_given(params), timeout_seconds=_LIVE_SECONDS if live else SECONDS
        )
        reply = yield from exchange(request, self.retry, forever=forever)
        headers = reply.headers
        incarnation = self._same(incarnation, headers.get("etag"))
        if reply.status == 200:
            self._learn(headers)
        following = _next_offset(request, reply)
        # An empty page of a JSON stream is an empty array.
        data = b"" if reply.body.strip() == b"[]" and is_json(self.content_type or "") else reply.body
        check_goes_on(request, data, offset, following)
        closed = is_true(headers, "stream-closed")
        if live and not data and not closed and reply.seconds < _WAITED_SECONDS:
            yield Sleep(self.retry.delay(silent, reply))
        return Chunk(
            data=data,
            offset=following,
            content_type=self.content_type or "",
            up_to_date=closed or is_true(headers, "stream-up-to-date") or (following == offset and not data),
            closed=closed,
            cursor=headers.get("stream-cursor", cursor),
            incarnation=incarnation,
        )

    def _events(self, place: Chunk, *, forever: bool) -> Generator[Effect | Chunk, Any, Chunk]:
        """One event stream to its end, whatever ends it; returns the last chunk, or `place` if there was
        none. Data counts only with the control event behind it, which has its offset (section 5.8)."""
        request = self._event_stream(place)
        yield from self.known_content_type()
        try:
            reply = yield from exchange(request, self.retry, forever=forever)
        except StatusError as refused:
            if refused.status in {400, 405, 406, 415, 501}:
                raise _NoEventStream(refused) from refused
            raise
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise _NoEventStream(MalformedReply(f"{request.what}: the server sends no event stream"))
        base64 = reply.headers.get("stream-sse-data-encoding", "").lower() == "base64"
        events, pieces, last = EventParser(), list[bytes](), place
        while not last.closed and (received := (yield Receive())) and not isinstance(received, Lost):
            for name, text in events.feed(received):
                if name == "data":
                    pieces.append(decode_base64(text) if base64 else text.encode())
                elif name == "control":
                    before, last, pieces = last, self._chunk(request, pieces, text, last), []
                    last = yield from self._last_data(last)
                    if tells(last, before):
                        yield last
        return last

    def _last_data(self, chunk: Chunk) -> Steps[Chunk]:
        """If data and the close come in one append, the reference server (0.3.7) tells waiting readers of the
        close alone: a read of what is there finds the data. Tidemark, whose chunks have an incarnation, is
        not asked."""
        if not chunk.closed or chunk.data or chunk.incarnation is not None:
            return chunk
        try:
            there = yield from self._page(chunk.offset, live=False, cursor=None, forever=False)
        except (NotFound, StreamGone):
            return chunk
        return there if there.data else chunk

    def _event_stream(self, place: Chunk) -> Request:
        params = {"offset": place.offset, "live": "sse", "cursor": place.cursor}
        headers = {"Accept": "text/event-stream"}
        return Request("GET", self.url, headers, _given(params), streams=True, timeout_seconds=_LIVE_SECONDS)

    def _chunk(self, request: Request, pieces: Sequence[bytes], control: str, before: Chunk) -> Chunk:
        try:
            told = json.loads(control)
            offset = told["streamNextOffset"]
        except (ValueError, TypeError, KeyError) as wrong:
            raise MalformedReply(
                f"a control event is not JSON with streamNextOffset: {control[:200]!r}"
            ) from wrong
        closed = told.get("streamClosed") is True
        data = joined(pieces, json_array=is_json(self.content_type or ""))
        check_goes_on(request, data, before.offset, str(offset))
        return Chunk(
            data=data,
            offset=str(offset),
            content_type=self.content_type or "",
            up_to_date=closed or told.get("upToDate") is True,
            closed=closed,
            cursor=told.get("streamCursor"),
            incarnation=before.incarnation,
        )

    def _same(self, incarnation: str | None, etag: str | None) -> str | None:
        """The incarnation, which the tag may tell first. Raises StreamReplaced if it is another."""
        told = _ETAG.match(etag or "")
        if told and incarnation not in {None, told[1]}:
            raise StreamReplaced(
                f"{self.url.partition('?')[0]} was deleted and created again: what was read is of "
                "the earlier stream; begin again from offset -1"
            )
        return told[1] if told else incarnation

    def known_content_type(self) -> Steps[str]:
        if self.content_type is None:
            yield from self.head()
        return self.content_type or ""

    def _write(
        self, request: Request, may_repeat: Callable[[Reply | Lost], bool] = passing
    ) -> Steps[Receipt]:
        reply = yield from exchange(request, self.retry, may_repeat)
        if request.method == "PUT":
            self._learn(reply.headers)
        return appended(request, reply)

    def _learn(self, headers: Mapping[str, str]) -> None:
        self.content_type = headers.get("content-type") or self.content_type


class _NoEventStream(Exception):
    """The server has none for this stream."""

    def __init__(self, reason: StreamError) -> None:
        super().__init__(reason)
        self.reason: Final = reason


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def appended(request: Request, reply: Reply) -> Receipt:
    """Nothing is acknowledged by an answer without an offset: that one may come from any web server."""
    closed = is_true(reply.headers, "stream-closed")
    return Receipt(_next_offset(request, reply), closed, reply.headers.get("etag"))


def _given(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _rfc3339(moment: datetime | str | None) -> str | None:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"expires_at is {moment.isoformat()}, without a time zone; give it one, such as UTC")
    return moment.isoformat()


def _next_offset(request: Request, reply: Reply) -> str:
    offset = reply.headers.get("stream-next-offset")
    if offset is None:
        raise MalformedReply(
            f"{request.what}: {reply.status} without Stream-Next-Offset; no server of the protocol answers so"
        )
    return offset
