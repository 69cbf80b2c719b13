"""Reading a stream, without I/O, clock or threads: one page, or everything from an offset on.

An operation is a generator of effects (`exchange.py`). `follow` also yields chunks, for its caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from tidemark.client import errors
from tidemark.client.chunks import (
    Chunk,
    EventParser,
    check_goes_on,
    decode_base64,
    ends_whole,
    has_news,
    is_json,
    joined,
    whole_characters,
)
from tidemark.client.exchange import (
    Effect,
    Lost,
    Receive,
    Reply,
    Request,
    Retry,
    Sleep,
    Steps,
    Wait,
    exchange,
    passing,
)

Live: TypeAlias = Literal["auto", "socket", "sse", "long-poll", False]

#: Known servers answer a long-poll, and send an event, within 30 s.
_WAIT_SECONDS: Final = 45.0
#: Timeout of the first byte of an event stream. A slower one is buffered to its end by a proxy.
_FIRST_BYTE_SECONDS: Final = 5.0
#: Event streams without an event before `follow` changes to long-polls: a server or proxy may block them.
_SILENT_EVENT_STREAMS: Final = 3
#: An ETag of Tidemark, for a page or a tail, begins with the stream's incarnation.
_ETAG: Final = re.compile(r'(?:W/)?"([\w-]{16,}):\d{16}[.:"]', re.ASCII)
#: After a long-poll that ends sooner and without news, the client pauses before the next one.
_WAITED_SECONDS: Final = 1.0
#: Longest pause between requests for a stream that does not exist yet.
_MOST_WAITED_SECONDS: Final = 1.0
_LIVE: Final = get_args(Live)


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


class ReadOperations:
    """The operations that read one stream. The first answer with a Content-Type sets `content_type`."""

    def __init__(self, url: str, content_type: str | None, retry: Retry) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ValueError(f"{url!r} is not the URL of a stream; one begins with http:// or https://")
        self.url: Final = url
        self.content_type = content_type
        self.retry: Final = retry

    def head(self) -> Steps[StreamInfo]:
        """Return the stream's tail (`offset`), content type, lifetime and ETag, and whether it is closed.
        Raises NotFound, NotAllowed, or StreamGone for a stream that was deleted but has forks; after the last
        retry Unreachable, Unavailable or TooManyRequests."""
        return self._head(forever=False)

    def _head(self, *, forever: bool) -> Steps[StreamInfo]:
        request = Request("HEAD", self.url)
        reply = yield from exchange(request, self.retry, forever=forever)
        headers = reply.headers
        ttl = headers.get("stream-ttl", "")
        self._learn(headers)
        return StreamInfo(
            offset=next_offset(request, reply),
            content_type=headers.get("content-type", ""),
            closed=errors.is_true(headers, "stream-closed"),
            ttl_seconds=int(ttl) if ttl.isdecimal() else None,
            expires_at=headers.get("stream-expires-at"),
            etag=headers.get("etag"),
            headers=headers,
        )

    def known_content_type(self) -> Steps[str]:
        if self.content_type is None:
            yield from self.head()
        return self.content_type or ""

    def read(
        self, offset: str = "-1", *, live: Literal["long-poll", False] = False, cursor: str | None = None
    ) -> Steps[Chunk]:
        """Read one page. With `live="long-poll"` the server waits for data until its own timeout, and
        the page may be empty."""
        _check_choice("live", live, ("long-poll", False))
        chunk = yield from self._page(Chunk(b"", offset, cursor=cursor), live=live == "long-poll")
        while not (chunk.up_to_date or ends_whole(chunk)):
            more = yield from self._page(chunk, live=False)
            chunk = replace(more, data=chunk.data + more.data)
        return chunk

    def history(
        self,
        before: str = "now",
        *,
        last: int = 50,
        cursor: str | None = None,
        incarnation: str | None = None,
    ) -> Steps[Chunk]:
        """Read one page of the `last` messages before an offset, or before the tail (Tidemark only). Pass the
        page's `start` as `before` to read the older page, and its `offset` to `follow` to go on behind the
        newest message. The page has fewer messages if they are large, none if no message is older. Pass
        `cursor` and `incarnation` to both calls: they raise StreamReplaced if the stream was created anew."""
        params = given_values({"offset": before, "last": last, "cursor": cursor})
        request = Request("GET", self.url, params=params)
        try:
            reply = yield from exchange(request, self.retry)
        except errors.StreamGone:
            self._same(incarnation, (yield from self.head()).etag)
            raise
        start = reply.headers.get("stream-start-offset")
        if start is None:
            raise errors.MalformedReply(
                f"{request.what}: no Stream-Start-Offset; only Tidemark reads backwards"
            )
        incarnation = self._same(incarnation, reply.headers.get("etag"))
        self._learn(reply.headers)
        offset = next_offset(request, reply)
        return Chunk(
            b"" if start == offset else reply.body,
            offset,
            self.content_type or "",
            closed=errors.is_true(reply.headers, "stream-closed"),
            cursor=reply.headers.get("stream-cursor", cursor),
            incarnation=incarnation,
            start=start,
        )

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
        whole_text: bool = True,
    ) -> Generator[Effect | Chunk, Any, None]:
        """Yield each chunk from `offset` on exactly once, until the stream is closed. `follow` reads to the
        tail and waits for more. After the first answer it retries without limit. An empty chunk means that
        the reader is at the tail or that the stream is closed.

        `live="auto"` waits by the server's socket, which all streams share, or else by an event stream or
        long-polls. `live="socket"` waits by the socket or long-polls, also with a `client` of your own.
        `live=False` ends at the tail. `gone="earliest"` goes on at the earliest retained offset if `offset`
        is older, instead of raising StreamGone. `missing="wait"` waits until the stream exists, instead of
        raising NotFound. Raises StreamReplaced if the stream was deleted and created again, which shows in
        its `incarnation`: pass the last chunk's `incarnation` with its offset. `on_recreated="restart"` reads
        the new stream from its beginning instead.
        A split character is held until its other bytes arrive, unless `whole_text=False`."""
        _check_choice("live", live, _LIVE)
        _check_choice("gone", gone, ("error", "earliest"))
        _check_choice("missing", missing, ("error", "wait"))
        _check_choice("on_recreated", on_recreated, ("error", "restart"))
        place = Chunk(b"", offset, cursor=cursor, incarnation=incarnation)
        steps = self._follow_name(place, live, gone, missing, on_recreated)
        return whole_characters(steps) if whole_text else steps

    def _follow_name(
        self, place: Chunk, live: Live, gone: str, missing: str, on_recreated: str
    ) -> Generator[Effect | Chunk, Any, None]:
        """Follow the stream and, if the caller wants that, each later stream of the same name."""
        ever = False
        while True:
            if missing == "wait":
                yield from self._wait_for_stream(forever=ever)
            try:
                return (yield from self._follow(place, live, gone, ever=ever or missing == "wait"))
            except errors.StreamReplaced:
                if on_recreated == "error":
                    raise
            except errors.NotFound:
                if (missing, on_recreated) != ("wait", "restart"):
                    raise
            place, ever = Chunk(b"", "-1"), True

    def _wait_for_stream(self, *, forever: bool) -> Steps[None]:
        asked = 0
        while True:
            try:
                yield from self._head(forever=forever or asked > 0)
            except errors.NotFound:
                yield Sleep(min(self.retry.delay(asked, Lost("")), _MOST_WAITED_SECONDS))
                asked += 1
            else:
                return

    def _follow(
        self, place: Chunk, live: Live, gone: str, *, ever: bool
    ) -> Generator[Effect | Chunk, Any, None]:
        chunk, silent, by_socket, probes = place, 0, live in {"auto", "socket"}, live == "auto"
        end = Chunk(b"", "")  # Holds the last bytes of the pages, for a split character.
        if place.offset == "now" and live is not False:
            # Find the tail first: a reconnect then skips nothing that is written meanwhile.
            head, ever = (yield from self._head(forever=ever)), True
            incarnation = self._same(place.incarnation, head.etag)
            chunk = replace(
                place,
                offset=head.offset,
                content_type=head.content_type,
                up_to_date=True,
                closed=head.closed,
                incarnation=incarnation,
            )
            yield chunk
        while not chunk.closed:
            try:
                before = chunk
                waits = by_socket and chunk.up_to_date
                reply = waits and (yield Wait(self.url, chunk.offset, insists=live == "socket"))
                is_answered, page = bool(reply), reply if isinstance(reply, Reply) else None
                # The second half of a split character cannot be read from an event stream.
                by_pages = live in {"socket", "long-poll"} or (live is not False and not ends_whole(end))
                if is_answered or not chunk.up_to_date or by_pages:
                    polls = chunk.up_to_date and not is_answered
                    chunk = yield from self._next_page(chunk, silent, page, polls=polls, forever=ever)
                    end = replace(chunk, data=(end.data + chunk.data)[-4:])
                    silent = 0 if is_answered or has_news(chunk, before) else silent + 1
                elif live is False:
                    return
                else:
                    events = self._try_events(chunk, live, silent, probes=probes, forever=ever)
                    chunk, has_events = yield from events
                    probes = probes and chunk is before
                    silent = 0 if chunk is not before else silent + 1
                    if not has_events or (live == "auto" and silent >= _SILENT_EVENT_STREAMS):
                        live, silent = "long-poll", 0
                ever = True
            except errors.StreamGone as why:
                if gone == "error" and chunk.incarnation is None:
                    raise
                head = yield from self._head(forever=True)
                self._same(chunk.incarnation, head.etag)
                earliest = head.headers.get("stream-retained-offset")
                if gone == "error" or earliest is None or earliest == chunk.offset:
                    raise why from None
                chunk = Chunk(b"", earliest, incarnation=chunk.incarnation)
        if chunk.cut:
            raise errors.AnswerCut(f"{self.url.partition('?')[0]}: the answer is not whole: {chunk.cut}")

    def _next_page(
        self, place: Chunk, silent: int, reply: Reply | None, *, polls: bool, forever: bool
    ) -> Generator[Effect | Chunk, Any, Chunk]:
        chunk = yield from self._page(place, silent, reply, live=polls, forever=forever)
        if polls:
            chunk = yield from self._last_data(chunk)
        if has_news(chunk, place):
            yield chunk
        return chunk

    def _try_events(
        self, place: Chunk, live: Live, silent: int, *, probes: bool, forever: bool
    ) -> Generator[Effect | Chunk, Any, tuple[Chunk, bool]]:
        """Read one event stream. Return the last chunk, and whether the server sends event streams."""
        try:
            chunk = yield from self._events(place, probes=probes, forever=forever)
        except _NoEventStream as refused:
            if live == "sse":
                raise refused.reason from None
            return place, False
        if not chunk.closed and (chunk is place or not chunk.data):
            # A server may end every event stream at once: pause before the next.
            yield Sleep(self.retry.delay(silent, Lost("")))
        return chunk, True

    def _page(
        self, place: Chunk, silent: int = 0, reply: Reply | None = None, *, live: bool, forever: bool = False
    ) -> Steps[Chunk]:
        """Read the page behind `place`, or use the page `reply` that came by the socket. `silent` counts the
        previous answers without news: if the server does not wait, the pauses grow."""
        params = {"offset": place.offset, "cursor": place.cursor} | ({"live": "long-poll"} if live else {})
        wait_seconds = _WAIT_SECONDS if live else 0.0
        request = Request("GET", self.url, params=given_values(params), wait_seconds=wait_seconds)
        reply = reply or (yield from exchange(request, self.retry, forever=forever))
        headers = reply.headers
        incarnation = self._same(place.incarnation, headers.get("etag"))
        if reply.status == 200:
            self._learn(headers)
        following = next_offset(request, reply)
        # An empty page of a JSON stream is an empty array.
        data = b"" if reply.body.strip() == b"[]" and is_json(self.content_type) else reply.body
        check_goes_on(request, data, place.offset, following)
        closed = errors.is_true(headers, "stream-closed")
        if live and not data and not closed and reply.seconds < _WAITED_SECONDS:
            yield Sleep(self.retry.delay(silent, reply))
        return Chunk(
            data=data,
            offset=following,
            content_type=self.content_type or "",
            up_to_date=closed
            or errors.is_true(headers, "stream-up-to-date")
            or (following == place.offset and not data),
            closed=closed,
            cursor=headers.get("stream-cursor", place.cursor),
            incarnation=incarnation,
            cut=headers.get("upstream-error"),
        )

    def _events(self, place: Chunk, *, probes: bool, forever: bool) -> Generator[Effect | Chunk, Any, Chunk]:
        """Read one event stream until it ends or breaks. Return the last chunk, or `place` if there was none.
        Data counts only with the control event behind it, which has the offset (section 5.8)."""
        request = self._event_stream(place, _FIRST_BYTE_SECONDS if probes else inf)
        yield from self.known_content_type()
        reply = yield from self._opened(request, probes=probes, forever=forever)
        self._same(place.incarnation, reply.headers.get("etag"))
        base64 = reply.headers.get("stream-sse-data-encoding", "").lower() == "base64"
        events, pieces, last, size = EventParser(), list[bytes](), place, 0
        received: bytes | Lost = b""
        while not last.closed and (received := (yield Receive())) and not isinstance(received, Lost):
            size += len(received)
            request.check_size(size)
            for name, text in events.feed(received):
                if name == "data":
                    pieces.append(decode_base64(text) if base64 else text.encode())
                elif name == "control":
                    before, last, pieces, size = last, self._chunk(request, pieces, text, last), [], 0
                    last = yield from self._last_data(last)
                    if has_news(last, before):
                        yield last
        if probes and last is place and not (size or _is_on_time(received)):
            raise _NoEventStream(errors.MalformedReply(f"{request.what}: nothing came of the event stream"))
        return last

    def _opened(self, request: Request, *, probes: bool, forever: bool) -> Steps[Reply]:
        """Open an event stream and return its status and headers. Raises _NoEventStream."""
        may_repeat = _is_on_time if probes else passing
        try:
            reply = yield from exchange(request, self.retry, may_repeat, forever=forever)
        except errors.Unreachable as held:
            if probes and held.is_late:
                raise _NoEventStream(held) from held
            raise
        except errors.StatusError as refused:
            if refused.status in {400, 405, 406, 415, 501}:
                raise _NoEventStream(refused) from refused
            raise
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise _NoEventStream(errors.MalformedReply(f"{request.what}: the server sends no event stream"))
        return reply

    def _last_data(self, chunk: Chunk) -> Steps[Chunk]:
        """Read the data of an append that also closes the stream: the reference server (0.3.7) sends waiting
        readers only the close. Chunks with an incarnation come from Tidemark, which sends both."""
        if not chunk.closed or chunk.data or chunk.incarnation is not None:
            return chunk
        try:
            there = yield from self._page(chunk, live=False)
        except (errors.NotFound, errors.StreamGone):
            return chunk
        return there if there.data else chunk

    def _event_stream(self, place: Chunk, max_seconds: float) -> Request:
        return Request(
            "GET",
            self.url,
            {"Accept": "text/event-stream"},
            given_values({"offset": place.offset, "live": "sse", "cursor": place.cursor}),
            streams=True,
            wait_seconds=_WAIT_SECONDS,
            max_seconds=max_seconds,
        )

    def _chunk(self, request: Request, pieces: Sequence[bytes], control: str, before: Chunk) -> Chunk:
        try:
            event = json.loads(control)
            offset = event["streamNextOffset"]
        except (ValueError, TypeError, KeyError, RecursionError) as wrong:
            raise errors.MalformedReply(
                f"a control event is not JSON with streamNextOffset: {control[:200]!r}"
            ) from wrong
        closed = event.get("streamClosed") is True
        data = joined(pieces, json_array=is_json(self.content_type))
        check_goes_on(request, data, before.offset, str(offset))
        return Chunk(
            data=data,
            offset=str(offset),
            content_type=self.content_type or "",
            up_to_date=closed or event.get("upToDate") is True,
            closed=closed,
            cursor=event.get("streamCursor"),
            incarnation=before.incarnation,
            cut=event.get("upstreamError"),
        )

    def _same(self, incarnation: str | None, etag: str | None) -> str | None:
        """Return the incarnation, from the ETag if it has one. Raises StreamReplaced if it has changed."""
        tag = _ETAG.match(etag or "")
        if tag and incarnation not in {None, tag[1]}:
            raise errors.StreamReplaced(
                f"{self.url.partition('?')[0]} was deleted and created again: what was read is of "
                "the earlier stream; begin again from offset -1"
            )
        return tag[1] if tag else incarnation

    def _learn(self, headers: Mapping[str, str]) -> None:
        # The answer of a proxied call is bytes. Text of the upstream comes in whole characters.
        upstream = headers.get("upstream-content-type", "")
        own = headers.get("content-type") or self.content_type
        self.content_type = upstream if upstream.startswith("text/") else own


class _NoEventStream(Exception):
    """The server has no event stream for this stream, or a proxy buffers it."""

    def __init__(self, reason: errors.StreamError) -> None:
        super().__init__(reason)
        self.reason: Final = reason


def _is_on_time(reply: Reply | Lost | bytes) -> bool:
    return not (isinstance(reply, Lost) and reply.is_late)


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def given_values(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def next_offset(request: Request, reply: Reply) -> str:
    offset = reply.headers.get("stream-next-offset")
    if offset is None:
        raise errors.MalformedReply(
            f"{request.what}: {reply.status} without Stream-Next-Offset; no server of the protocol answers so"
        )
    return offset
