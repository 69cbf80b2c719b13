"""Reading a stream, without I/O, clock or threads: one page, or everything from an offset on.

An operation is a generator of effects (`exchange.py`). `follow` also yields chunks, for its caller.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from tidemark.client import errors
from tidemark.client.chunks import (
    Chunk,
    EventParser,
    Followed,
    check_goes_on,
    chunk_of_event,
    ends_whole,
    is_json,
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

#: The conditions of a filtered read.
Conditions: TypeAlias = str | Sequence[str]
Live: TypeAlias = Literal["auto", "socket", "sse", "long-poll", False]

#: Known servers answer a long-poll, and send an event, within 30 s.
_WAIT_SECONDS: Final = 45.0
#: Timeout of the first byte of an event stream. A slower one is buffered to its end by a proxy.
_FIRST_BYTE_SECONDS: Final = 5.0
#: Statuses of servers, or proxies, that have no event streams.
_NO_EVENT_STREAM: Final = {400, 405, 406, 415, 501}
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
        return self.find(forever=False)

    def find(self, *, forever: bool) -> Steps[StreamInfo]:
        request = Request("HEAD", self.url)
        reply = yield from exchange(request, self.retry, forever=forever)
        headers = reply.headers
        ttl = headers.get("stream-ttl", "")
        self.learn(headers)
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
        self,
        offset: str = "-1",
        *,
        live: Literal["long-poll", False] = False,
        cursor: str | None = None,
        where: Conditions = (),
    ) -> Steps[Chunk]:
        """Read one page. With `live="long-poll"` the server waits for data until its own timeout, and
        the page may be empty. `where`: only messages that meet these conditions, such as `/type:eq:"order"`
        (JSON streams, Tidemark only)."""
        _check_choice("live", live, ("long-poll", False))
        place = Chunk(b"", offset, cursor=cursor)
        chunk = yield from self.page(place, live=live == "long-poll", where=where)
        while not (chunk.up_to_date or ends_whole(chunk)):
            more = yield from self.page(chunk, live=False)
            chunk = replace(more, data=chunk.data + more.data)
        return chunk

    def history(
        self,
        before: str = "now",
        *,
        last: int = 50,
        cursor: str | None = None,
        incarnation: str | None = None,
        where: Conditions = (),
    ) -> Steps[Chunk]:
        """Read one page of the `last` messages before an offset, or before the tail (Tidemark only). Pass the
        page's `start` as `before` to read the older page, and its `offset` to `follow` to go on behind the
        newest message. The page has fewer messages if they are large, none if no message is older. Pass
        `cursor` and `incarnation` to both calls: they raise StreamReplaced if the stream was created anew.
        `where` leaves out those of the `last` messages that do not match."""
        params = given_values({"offset": before, "last": last, "cursor": cursor})
        request = Request("GET", self.url, params=params | _where(where))
        try:
            reply = yield from exchange(request, self.retry)
        except errors.StreamGone:
            self.same(incarnation, (yield from self.head()).etag)
            raise
        start = reply.headers.get("stream-start-offset")
        if start is None:
            raise errors.MalformedReply(
                f"{request.what}: no Stream-Start-Offset; only Tidemark reads backwards"
            )
        page = self._chunk_of(request, reply, Chunk(b"", "", cursor=cursor, incarnation=incarnation))
        return replace(page, data=b"" if start == page.offset else page.data, start=start, up_to_date=False)

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
        where: Conditions = (),
    ) -> Followed:
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
        A split character is held until its other bytes arrive, unless `whole_text=False`.
        `where`: as in `read`. An empty chunk can also mean that the messages before its offset do not match.
        The socket does not filter: `live="auto"` waits by event streams or long-polls."""
        _check_choice("live", live, _LIVE)
        _check_choice("gone", gone, ("error", "earliest"))
        _check_choice("missing", missing, ("error", "wait"))
        _check_choice("on_recreated", on_recreated, ("error", "restart"))
        if where and live == "socket":
            raise ValueError("live='socket' has no where: choose another")
        place = Chunk(b"", offset, cursor=cursor, incarnation=incarnation)
        steps = self._follow_name(place, live, gone, missing, on_recreated, where=where)
        return whole_characters(steps) if whole_text else steps

    def _follow_name(
        self, place: Chunk, live: Live, gone: str, missing: str, on_recreated: str, *, where: Conditions
    ) -> Followed:
        """Follow the stream and, if the caller wants that, each later stream of the same name."""
        ever = False
        while True:
            try:
                if missing == "wait":
                    yield from self._wait_for_stream(forever=ever)
                    ever = True
                return (yield from _Follower(self, place, live, gone, where, ever=ever).chunks())
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
                yield from self.find(forever=forever or asked > 0)
            except errors.NotFound:
                yield Sleep(min(self.retry.delay(asked, Lost("")), _MOST_WAITED_SECONDS))
                asked += 1
            else:
                return

    def page(
        self,
        place: Chunk,
        silent: int = 0,
        reply: Reply | None = None,
        *,
        live: bool,
        forever: bool = False,
        where: Conditions = (),
    ) -> Steps[Chunk]:
        """Read the page behind `place`, or use the page `reply` that came by the socket. `silent` counts the
        previous answers without news: if the server does not wait, the pauses grow."""
        params = {"offset": place.offset, "cursor": place.cursor} | ({"live": "long-poll"} if live else {})
        wait_seconds = _WAIT_SECONDS if live else 0.0
        query = given_values(params) | _where(where)
        request = Request("GET", self.url, params=query, wait_seconds=wait_seconds)
        reply = reply or (yield from exchange(request, self.retry, forever=forever))
        page = self._chunk_of(request, reply, place)
        if live and not page.data and not page.closed and reply.seconds < _WAITED_SECONDS:
            yield Sleep(self.retry.delay(silent, reply))
        return page

    def _chunk_of(self, request: Request, reply: Reply, place: Chunk) -> Chunk:
        """Return the page in a reply."""
        headers = reply.headers
        incarnation = self.same(place.incarnation, headers.get("etag"))
        if reply.status == 200:
            self.learn(headers)
        following = next_offset(request, reply)
        # An empty page of a JSON stream is an empty array.
        data = b"" if reply.body.strip() == b"[]" and is_json(self.content_type) else reply.body
        check_goes_on(request, data, place.offset, following)
        closed = errors.is_true(headers, "stream-closed")
        is_at_tail = errors.is_true(headers, "stream-up-to-date") or (following == place.offset and not data)
        return Chunk(
            data=data,
            offset=following,
            content_type=self.content_type or "",
            up_to_date=closed or is_at_tail,
            closed=closed,
            cursor=headers.get("stream-cursor", place.cursor),
            incarnation=incarnation,
            cut=headers.get("upstream-error"),
        )

    def same(self, incarnation: str | None, etag: str | None) -> str | None:
        """Return the incarnation, from the ETag if it has one. Raises StreamReplaced if it has changed."""
        tag = _ETAG.match(etag or "")
        if tag and incarnation not in {None, tag[1]}:
            raise errors.StreamReplaced(
                f"{self.url.partition('?')[0]} was deleted and created again: what was read is of "
                "the earlier stream; begin again from offset -1"
            )
        return tag[1] if tag else incarnation

    def learn(self, headers: Mapping[str, str]) -> None:
        # The answer of a proxied call is bytes. Text of the upstream comes in whole characters.
        upstream = headers.get("upstream-content-type", "")
        own = headers.get("content-type") or self.content_type
        self.content_type = upstream if upstream.startswith("text/") else own


class _Follower:
    """One call of `follow`: the last chunk, and how the reader waits for the next one."""

    def __init__(
        self, stream: ReadOperations, place: Chunk, live: Live, gone: str, where: Conditions, *, ever: bool
    ) -> None:
        self.stream, self.chunk, self.live, self.gone = stream, place, live, gone
        self.where = where
        self.by_socket, self.probes = live in {"auto", "socket"} and not where, live == "auto"
        #: A request was answered: then retries have no end.
        self.ever = ever
        #: The number of answers without news since the last news.
        self.silent = 0
        #: The last bytes of the pages, for a split character.
        self.end = Chunk(b"", "")

    def chunks(self) -> Followed:
        if self.chunk.offset == "now" and self.live is not False:
            # Find the tail first: a reconnect then skips nothing that is written meanwhile.
            head = yield from self.stream.find(forever=self.ever)
            self.chunk = replace(
                self.chunk,
                offset=head.offset,
                content_type=head.content_type,
                up_to_date=True,
                closed=head.closed,
                incarnation=self.stream.same(self.chunk.incarnation, head.etag),
            )
            self.ever = True
            yield self.chunk
        while not self.chunk.closed:
            try:
                if not (yield from self.advance()):
                    return
            except errors.StreamGone as why:
                yield from self.skip_to_retained(why)
            self.ever = True
        if self.chunk.cut:
            what = self.stream.url.partition("?")[0]
            raise errors.AnswerCut(f"{what}: the answer is not whole: {self.chunk.cut}")

    def advance(self) -> Generator[Effect | Chunk, Any, bool]:
        """Read a page, or wait for news. Return whether the reader goes on."""
        at_tail, insists = self.chunk.up_to_date, self.live == "socket"
        told = (
            at_tail and self.by_socket and (yield Wait(self.stream.url, self.chunk.offset, insists=insists))
        )
        # The second half of a split character cannot be read from an event stream.
        by_pages = insists or self.live == "long-poll" or not ends_whole(self.end)
        if told or not at_tail or (by_pages and self.live):
            yield from self.read_page(told=told)
        elif self.live:
            yield from self.read_events()
        return bool(self.live) or not at_tail

    def skip_to_retained(self, why: errors.StreamGone) -> Steps[None]:
        """Go to the earliest retained offset, or raise the error."""
        if self.gone == "error" and self.chunk.incarnation is None:
            raise why
        head = yield from self.stream.find(forever=True)
        self.stream.same(self.chunk.incarnation, head.etag)
        earliest = head.headers.get("stream-retained-offset")
        if self.gone == "error" or earliest is None or earliest == self.chunk.offset:
            raise why from None
        self.chunk = Chunk(b"", earliest, incarnation=self.chunk.incarnation)

    def read_page(self, *, told: bool | Reply) -> Followed:
        """Read one page, by a long-poll at the tail. `told`: the socket told of news, or had the page."""
        before, polls = self.chunk, self.chunk.up_to_date and not told
        page = told if isinstance(told, Reply) else None
        chunk = yield from self.stream.page(
            before, self.silent, page, live=polls, forever=self.ever, where=self.where
        )
        if polls:
            chunk = yield from self.last_data(chunk)
        self.chunk, self.end = chunk, replace(chunk, data=(self.end.data + chunk.data)[-4:])
        self.silent = 0 if told or chunk.has_news(before) else self.silent + 1
        if chunk.has_news(before):
            yield chunk

    def read_events(self) -> Followed:
        """Read one event stream. Change to long-polls if the server, or a proxy, has none."""
        before, opened = self.chunk, (yield from self.opened())
        if opened is None or not (yield from self.events(*opened)):
            self.live, self.silent = "long-poll", 0
            return
        if not self.chunk.closed and (self.chunk is before or not self.chunk.data):
            # A server may end every event stream at once: pause before the next.
            yield Sleep(self.stream.retry.delay(self.silent, Lost("")))
        self.silent = 0 if self.chunk is not before else self.silent + 1
        self.probes = self.probes and self.chunk is before
        if self.live == "auto" and self.silent >= _SILENT_EVENT_STREAMS:
            self.live, self.silent = "long-poll", 0

    def opened(self) -> Steps[tuple[Request, Reply] | None]:
        """Open an event stream and return its status and headers. None if long-polls may work instead."""
        params = {"offset": self.chunk.offset, "live": "sse", "cursor": self.chunk.cursor}
        headers = {"Accept": "text/event-stream"}
        query = given_values(params) | _where(self.where)
        request = Request("GET", self.stream.url, headers, query, streams=True)
        request = replace(request, wait_seconds=_WAIT_SECONDS)
        if self.probes:
            request = replace(request, max_seconds=_FIRST_BYTE_SECONDS)
        yield from self.stream.known_content_type()
        may_repeat = _is_on_time if self.probes else passing
        try:
            reply = yield from exchange(request, self.stream.retry, may_repeat, forever=self.ever)
        except (errors.Unreachable, errors.StatusError) as refused:
            has_none = isinstance(refused, errors.StatusError) and refused.status in _NO_EVENT_STREAM
            is_held = self.probes and isinstance(refused, errors.Unreachable) and refused.is_late
            if self.live == "sse" or not (has_none or is_held):
                raise
            return None
        if reply.headers.get("content-type", "").startswith("text/event-stream"):
            return request, reply
        if self.live == "sse":
            raise errors.MalformedReply(f"{request.what}: the server sends no event stream")
        return None

    def events(self, request: Request, reply: Reply) -> Generator[Effect | Chunk, Any, bool]:
        """Read one event stream until it ends or breaks. Data counts only with the control event behind it,
        which has the offset (section 5.8). Return False if a proxy seems to hold the events back."""
        begun, stream = self.chunk, self.stream
        stream.same(begun.incarnation, reply.headers.get("etag"))
        base64 = reply.headers.get("stream-sse-data-encoding", "").lower() == "base64"
        events, texts, size = EventParser(), list[str](), 0
        received: bytes | Lost = b""
        while not self.chunk.closed and (received := (yield Receive())) and not isinstance(received, Lost):
            size += len(received)
            request.check_size(size)
            for name, text in events.feed(received):
                if name == "data":
                    texts.append(text)
                elif name == "control":
                    before = self.chunk
                    kind = stream.content_type or ""
                    chunk = chunk_of_event(request, texts, text, before, kind, base64=base64)
                    self.chunk, texts, size = (yield from self.last_data(chunk)), [], 0
                    if self.chunk.has_news(before):
                        yield self.chunk
        return not self.probes or self.chunk is not begun or size > 0 or _is_on_time(received)

    def last_data(self, chunk: Chunk) -> Steps[Chunk]:
        """Read the data of an append that also closes the stream: the reference server (0.3.7) sends waiting
        readers only the close. Chunks with an incarnation come from Tidemark, which sends both."""
        if not chunk.closed or chunk.data or chunk.incarnation is not None:
            return chunk
        try:
            there = yield from self.stream.page(chunk, live=False)
        except (errors.NotFound, errors.StreamGone):
            return chunk
        return there if there.data else chunk


def _is_on_time(reply: Reply | Lost | bytes) -> bool:
    return not (isinstance(reply, Lost) and reply.is_late)


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def _where(conditions: Conditions) -> dict[str, str | list[str]]:
    listed = [conditions] if isinstance(conditions, str) else [*conditions]
    return {"where": listed} if listed else {}


def given_values(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def next_offset(request: Request, reply: Reply) -> str:
    offset = reply.headers.get("stream-next-offset")
    if offset is None:
        raise errors.MalformedReply(
            f"{request.what}: {reply.status} without Stream-Next-Offset; no server of the protocol answers so"
        )
    return offset
