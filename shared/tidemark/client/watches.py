"""The streams that a client watches on one socket (`docs/reference/socket.md`), without I/O, clock, threads.

A reader of a stream calls `wait`, and is woken once. The driver reports changes of the connection, and sends
the `frames`. To repeat a watch, after a lost connection or before the lease ends, this module wakes a reader,
which calls `wait` again with a fresh token.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from tidemark.client.chunks import decode_base64
from tidemark.client.errors import MalformedReply
from tidemark.client.exchange import Reply
from tidemark.protocol.errors import Malformed
from tidemark.protocol.socket import MAX_SENT_BYTES, PING, parse_messages, render_unwatches, render_watches

#: Timeout of the answer to a watch; then the connection is closed.
ANSWER_SECONDS: Final = 30.0
#: Idle time before a ping in any case: API Gateway closes idle connections after 10 min.
SILENT_SECONDS: Final = 480.0
#: Idle time before the client sends a ping, if the server answers pings.
QUIET_SECONDS: Final = 60.0
#: Timeout of the answer to a ping; then the connection counts as dead.
PONG_SECONDS: Final = 10.0
#: Part of its lease after which a watch is repeated.
_RENEWED_AFTER: Final = 0.8
#: Age from which a lost connection resets the back-off.
_STEADY_SECONDS: Final = 60.0
#: Tries to reopen a lost socket before its readers wait by event streams or long-polls.
_TRIES: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 300.0
#: Overhead of a frame beside a name and the token, in bytes.
_AROUND_BYTES: Final = 100
#: Limit of pages kept for one reader; a page has at most 32 KiB.
_MOST_PAGES: Final = 64


class Woken(Enum):
    """Why a reader was woken. READ: the stream may have moved or ended, so read. AGAIN: repeat the watch.
    ELSEWHERE: the socket does not work now, so wait by an event stream or long-polls for a while."""

    READ = auto()
    AGAIN = auto()
    ELSEWHERE = auto()


@dataclass(eq=False, slots=True)
class SocketReader:
    """A reader of a stream. `offset` is the end of the data read, `tail` the latest offset received.
    `pages` holds the pages that came with messages, keyed by the offset where each begins."""

    name: str
    offset: str = ""
    tail: str = ""
    pages: dict[str, Reply] = field(default_factory=dict)
    #: A message has come since the reader was woken.
    has_news: bool = False
    #: The stream may have ended, wherever its tail is.
    must_read: bool = False
    woken: Woken = Woken.AGAIN
    #: Set while the reader waits.
    wake: Callable[[Woken], None] | None = None

    def end_wait(self, why: Woken) -> None:
        if self.wake is not None:
            wake, self.wake, self.woken, self.has_news = self.wake, None, why, False
            self.must_read = self.must_read and why is not Woken.READ
            wake(why)

    def learn_tail(self, tail: str, *, is_answer: bool) -> None:
        """Wake the reader if `tail` is news. Messages overtake each other: only a later offset is news. The
        answer to a watch is the tail itself, which moves back if a stream is restored."""
        self.tail, self.has_news = max(self.tail, tail), True
        if self.tail > self.offset or (is_answer and tail != self.offset):
            self.end_wait(Woken.READ)

    def keep(self, start: str, page: Reply) -> None:
        if len(self.pages) >= _MOST_PAGES:  # A reader this far behind reads larger pages.
            self.pages.clear()
        self.pages[start] = page

    def take(self, offset: str) -> Reply | None:
        """Return the page behind `offset`, if a message had that page."""
        page = self.pages.pop(offset, None)
        self.pages = {start: each for start, each in self.pages.items() if start > offset}
        return page

    def learn_end(self) -> None:
        self.must_read = self.has_news = True
        self.end_wait(Woken.READ)


@dataclass(eq=False, slots=True)
class _StreamWatch:
    """`until`: the deadline of the answer if `is_asked`, otherwise the time to repeat the watch."""

    readers: list[SocketReader] = field(default_factory=list)
    is_asked: bool = False
    #: The server may have the watch.
    is_sent: bool = False
    until: float = -math.inf
    #: The latest tail received, for readers that join later: a wake-up can overtake the answer to a watch.
    tail: str = ""
    #: The server ended or refused the watch.
    is_over: bool = False
    #: A frame failed, perhaps this watch's. If no answer comes by `until`, the watch is repeated.
    is_failed: bool = False
    failures: int = 0

    def end(self, *, is_over: bool) -> None:
        self.is_asked = self.is_sent = self.is_failed = False
        self.until, self.is_over = -math.inf, is_over
        self.tail = ""

    @property
    def waiting(self) -> SocketReader | None:
        return next((reader for reader in self.readers if reader.wake is not None), None)


class Watches:
    def __init__(self, *, quiet_seconds: float = QUIET_SECONDS, pong_seconds: float = PONG_SECONDS) -> None:
        self._quiet_seconds, self._pong_seconds = quiet_seconds, pong_seconds
        self._watches: dict[str, _StreamWatch] = {}
        #: To be sent: the streams to watch, with their tokens, and the streams to unwatch.
        self._asks: dict[str, str | None] = {}
        self._unwatches: list[str] = []
        #: The earliest time to open a connection.
        self.connect_at = -math.inf
        #: The driver must close the connection.
        self.is_broken = False
        #: A gateway opens connections but passes no messages on: the socket counts as absent.
        self.is_silent = False
        self._has_heard = False
        self._opened_at: float | None = None
        #: When the client last sent a frame.
        self._heard_at = -math.inf
        #: When the next ping is due, and when the answer to a ping times out.
        self._ping_at, self._dead_at = math.inf, math.inf
        #: Empty answers beyond those to `unwatch`. Older servers do not answer a ping.
        self._pongs = 0
        self._answers_pings = False
        self._has_worked = False
        self._failures = 0

    @property
    def is_used(self) -> bool:
        return bool(self._watches)

    @property
    def needs_connection(self) -> bool:
        return bool(self._asks)

    def join(self, name: str) -> SocketReader:
        watch = self._watches.setdefault(name, _StreamWatch())
        watch.readers.append(SocketReader(name, tail=watch.tail))
        return watch.readers[-1]

    def leave(self, reader: SocketReader) -> None:
        reader.wake = None
        watch = self._watches[reader.name]
        watch.readers.remove(reader)
        if watch.readers:
            return
        del self._watches[reader.name]
        self._asks.pop(reader.name, None)
        if watch.is_sent:
            self._unwatches.append(reader.name)

    def wait(
        self, reader: SocketReader, offset: str, token: str | None, now: float, wake: Callable[[Woken], None]
    ) -> None:
        """Wait for data behind `offset`. `wake` is called once, perhaps before this returns."""
        watch = self._watches[reader.name]
        found_nothing = reader.woken is Woken.READ and not reader.has_news and offset == reader.offset
        if found_nothing:
            # A read's offset replaces the offset of earlier messages.
            reader.tail = offset
        reader.offset, reader.wake = offset, wake
        if not self._can_ask(reader.name, token, now) or (found_nothing and watch.is_over):
            reader.end_wait(Woken.ELSEWHERE)
            return
        # A new reader repeats the watch: the messages of other readers may be older than its read.
        if not watch.is_asked and (watch.until <= now or reader.woken is Woken.AGAIN):
            watch.is_asked, watch.until = True, math.inf
            self._asks[reader.name] = token
        if reader.must_read or reader.tail > offset:
            reader.end_wait(Woken.READ)

    def _can_ask(self, name: str, token: str | None, now: float) -> bool:
        fits = len(name) + len(token or "") + _AROUND_BYTES <= MAX_SENT_BYTES
        return fits and (self._opened_at is not None or self._has_worked or now >= self.connect_at)

    def opened(self, now: float) -> None:
        self._opened_at = self._heard_at = self._ping_at = now
        self._dead_at, self._pongs = math.inf, 0
        self.is_broken = self._answers_pings = self._has_heard = False

    def doubt(self, now: float) -> None:
        """The machine may have slept."""
        self._ping_at = now
        if self._answers_pings:
            self._dead_at = now + self._pong_seconds / 2

    def lost(self, now: float) -> None:
        """The connection has ended, or none could be opened."""
        if self.is_silent:
            self.absent()
            return
        if self._opened_at is not None and now - self._opened_at >= _STEADY_SECONDS:
            self._failures = 0
        self.connect_at = now + _pause_seconds(self._failures)
        self._failures += 1
        self._has_worked = self._has_worked and self._failures <= _TRIES
        self._end_all(Woken.AGAIN if self._has_worked else Woken.ELSEWHERE)

    def closed(self) -> None:
        """The driver has closed the connection, because no reader is left."""
        self._end_all(Woken.AGAIN)

    def absent(self) -> None:
        """The server has no socket."""
        self.connect_at, self._has_worked = math.inf, False
        self._end_all(Woken.ELSEWHERE)

    def _end_all(self, why: Woken) -> None:
        self._opened_at = None
        self._asks.clear()
        self._unwatches.clear()
        for watch in self._watches.values():
            watch.end(is_over=False)
            for reader in watch.readers:
                reader.end_wait(why)

    def frames(self, now: float) -> list[str]:
        """Return the frames to send now."""
        by_token: dict[str | None, list[str]] = defaultdict(list)
        for name, token in self._asks.items():
            by_token[token].append(name)
            watch = self._watches[name]
            watch.is_asked, watch.is_sent, watch.until = True, True, now + ANSWER_SECONDS
        frames = render_unwatches(self._unwatches)
        self._pongs -= len(frames)
        for token, names in by_token.items():
            frames += render_watches(names, token)
        self._asks.clear()
        self._unwatches.clear()
        if now >= self._ping_at or (not frames and now - self._heard_at >= SILENT_SECONDS):
            frames.insert(0, PING)
            self._ping_at = math.inf
            if self._answers_pings:
                self._dead_at = min(self._dead_at, now + self._pong_seconds)
        if frames:
            self._heard_at = now
        return frames

    def next_at(self) -> float:
        """Return the latest time for the next calls of `tick` and `frames`."""
        ends = [
            watch.until
            for watch in self._watches.values()
            if watch.is_asked or (watch.until > -math.inf and watch.waiting)
        ]
        return min([self._heard_at + SILENT_SECONDS, self._ping_at, self._dead_at, *ends])

    def tick(self, now: float) -> None:
        self.is_broken = self.is_broken or now >= self._dead_at
        for watch in self._watches.values():
            if watch.until > now or watch.until == -math.inf:
                continue
            if watch.is_asked and not watch.is_failed:
                self.is_broken = True
                if not self._has_heard:
                    self.is_silent, self._has_worked = not self._has_worked, False
                continue
            watch.is_asked = watch.is_failed = False
            if (reader := watch.waiting) is not None:
                # If this reader does not come back, another one is woken.
                watch.until = now + ANSWER_SECONDS
                reader.end_wait(Woken.AGAIN)

    def received(self, text: str | bytes, now: float) -> None:
        try:
            messages = parse_messages(text)
        except Malformed:
            messages = [{}]
        self._has_heard = True
        self._pongs += not messages
        self._answers_pings = self._answers_pings or self._pongs > 0
        self._ping_at = now + self._quiet_seconds if self._answers_pings else math.inf
        self._dead_at = math.inf
        for message in messages:
            self._take(message, now)

    def _take(self, message: dict[str, Any], now: float) -> None:
        match message:
            case {"stream": str(name), "offset": str(tail)}:
                is_closed, seconds = message.get("closed") is True, message.get("seconds")
                if (page := _page_of(message)) is not None and name in self._watches:
                    for reader in self._watches[name].readers:
                        reader.keep(message["from"], page)
                self._learn_tail(name, tail, None if is_closed else seconds, now, is_closed=is_closed)
            case {"stream": str(name), "status": int(status)}:
                self._refuse(name, status)
            case {"status": int(), "error": str()}:
                for name, watch in self._watches.items():
                    if watch.is_asked and watch.until < math.inf:
                        self._refuse(name, 400)
            case {"message": str()}:
                self._fail(now)
                return
            case _:  # An unknown message may concern any watch.
                self.is_broken = True
                return
        self._has_worked = True

    def _fail(self, now: float) -> None:
        """Handle an error of API Gateway: some frame did not reach the server, and the error names none."""
        unanswered = {
            name: watch
            for name, watch in self._watches.items()
            if watch.is_asked and watch.until < math.inf and not watch.is_failed
        }
        failures = 1 + max((watch.failures for watch in unanswered.values()), default=0)
        again_at = now + _pause_seconds(failures + 1)
        for name, watch in unanswered.items():
            watch.is_failed, watch.failures, watch.until = True, failures, again_at
            if failures > _TRIES:
                self._refuse(name, 503)

    def _learn_tail(self, name: str, tail: str, seconds: Any, now: float, *, is_closed: bool) -> None:
        watch = self._watches.get(name)
        if watch is None:
            return  # The last reader has left.
        is_answer = isinstance(seconds, int | float)
        if is_answer:
            held_seconds = max(1.0, seconds) * _RENEWED_AFTER
            # Answers overtake each other too, so the earlier deadline holds.
            earlier = math.inf if watch.is_asked else watch.until
            watch.is_asked, watch.until = False, min(earlier, now + held_seconds)
            watch.is_failed, watch.failures = False, 0
            watch.is_over = watch.until == -math.inf
        elif is_closed:
            watch.end(is_over=True)
        watch.tail = max(watch.tail, tail)
        for reader in list(watch.readers):
            if is_closed:
                reader.learn_end()
            else:
                reader.learn_tail(tail, is_answer=is_answer)

    def _refuse(self, name: str, status: int) -> None:
        """End the watch. The readers read, and the read raises the error. After 400, 429 and 5xx, which
        concern the frame or the server and not the stream, they wait by other means."""
        watch = self._watches.get(name)
        if watch is None:
            return
        watch.end(is_over=True)
        for reader in list(watch.readers):
            if status in {400, 429} or status >= 500:
                reader.end_wait(Woken.ELSEWHERE)
            else:
                reader.learn_end()


def _page_of(message: dict[str, Any]) -> Reply | None:
    """Return the data of a message as the reply to a read. None if the message has no data, or data that this
    client cannot decode."""
    match message:
        case {"from": str(), "offset": str(end), "type": str(kind), "etag": str(etag), "data": str(data)}:
            headers = {"stream-next-offset": end, "content-type": kind, "etag": etag}
        case _:
            return None
    try:
        body = decode_base64(data) if message.get("encoding") == "base64" else data.encode()
    except MalformedReply:
        return None
    if message.get("closed") is True:
        headers["stream-closed"] = "true"
    elif message["from"] == end:
        return None  # Would look like a read at the tail, although more data exists.
    return Reply(200, headers | {"stream-up-to-date": "true"}, body)


def _pause_seconds(failures: int) -> float:
    """Return the back-off, which grows with each failure. Jitter keeps clients from reconnecting together."""
    pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 16))
    return pause * random.uniform(0.5, 1.5)
