"""The messages of a WebSocket, which carries wake-ups and small data: JSON in text frames
(`docs/reference/socket.md`).

A client names streams by their paths. The server sends the tail of each, now and whenever it moves, with the
new bytes if they fit the frame. The client reads larger data over HTTP. Sockets are our extension.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from tidemark.protocol.caching import decide_catch_up_cursor, render_etag
from tidemark.protocol.errors import Malformed, ProtocolError
from tidemark.protocol.expiry import Expiry, renew_waiting_at_ms
from tidemark.protocol.messages import ContentType, render_body
from tidemark.protocol.offset import render_offset
from tidemark.protocol.tail import Tail

PATH: Final = "/v1/socket"
#: API Gateway accepts no larger frame.
MAX_FRAME_BYTES: Final = 32 * 1024
#: A client sends at most half of that, so that the answer, which repeats the names, fits a frame too.
MAX_SENT_BYTES: Final = 16 * 1024
#: A client sends this to keep a silent socket open, and to check whether the socket is alive. API Gateway
#: answers by itself and starts no function.
PING: Final = '{"action":"ping"}'
#: The answer to a ping and to an `unwatch`: without messages, so that a client may ignore it.
NOTHING: Final = "[]"
#: The streams that one message may name; each is looked up before the answer.
MAX_NAMED: Final = 100
#: The streams that one socket may watch at once.
MAX_WATCHED: Final = 1000
#: The longest lease of a watch, in seconds; a client renews it earlier.
MAX_LEASE_SECONDS: Final = 3600
_NO_ROOM: Final = {"error": "The reasons do not fit this answer; name fewer streams in a message"}

Message = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Frame:
    """A client's frame. `watch` and `unwatch` are paths of streams. `data`: the client wants their data."""

    watch: tuple[str, ...] = ()
    unwatch: tuple[str, ...] = ()
    token: str | None = None
    data: bool = False


def parse_frame(text: str) -> Frame:
    """Parse a client's frame. Members of other names are ignored. Raises Malformed."""
    if len(text.encode(errors="replace")) > MAX_SENT_BYTES:
        raise Malformed(f"A message must have at most {MAX_SENT_BYTES} bytes; send several")
    try:
        sent = orjson.loads(text)
    except ValueError as error:  # A lone surrogate in a str raises ValueError too.
        raise Malformed(f"A message must be JSON, such as {_EXAMPLE}: {error}") from None
    if not isinstance(sent, dict):
        raise Malformed(f"A message must be a JSON object, such as {_EXAMPLE}")
    token = sent.get("token")
    if not isinstance(token, str | None):
        raise Malformed("token must be a string")
    data = sent.get("data", False)
    if not isinstance(data, bool):
        raise Malformed("data must be true or false")
    frame = Frame(_names(sent, "watch"), _names(sent, "unwatch"), token, data)
    if len(frame.watch) + len(frame.unwatch) > MAX_NAMED:
        raise Malformed(f"A message may name at most {MAX_NAMED} streams; send more in further messages")
    return frame


_EXAMPLE: Final = '{"watch": ["/v1/stream/a"]}'


def _names(sent: Mapping[str, Any], member: str) -> tuple[str, ...]:
    names = sent.get(member, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Malformed(f'{member} must be a list of paths of streams, such as ["/v1/stream/a"]')
    return tuple(dict.fromkeys(names))


def render_watches(names: Iterable[str], token: str | None) -> list[str]:
    """Return the fewest frames that watch all streams and request data, for a client to send."""
    return _render_names("watch", names, {"data": True} | ({} if token is None else {"token": token}))


def render_unwatches(names: Iterable[str]) -> list[str]:
    return _render_names("unwatch", names, {})


def _render_names(member: str, names: Iterable[str], others: Message) -> list[str]:
    room_bytes = MAX_SENT_BYTES - len(orjson.dumps({member: [], **others}))
    frames = _fit(names, lambda name: len(orjson.dumps(name)), room_bytes, MAX_NAMED)
    return [orjson.dumps({member: named, **others}).decode() for named in frames]


def _fit(
    parts: Iterable[_T], size_of: Callable[[_T], int], room_bytes: int, most: float = inf
) -> list[list[_T]]:
    """Split the parts, in order, into the fewest frames that hold them, with a comma after each."""
    frames: list[list[_T]] = []
    left = 0
    for part in parts:
        size = size_of(part) + 1
        if not frames or size > left or len(frames[-1]) == most:
            frames.append([])
            left = room_bytes
        frames[-1].append(part)
        left -= size
    return frames


def parse_messages(text: str | bytes) -> list[Message]:
    """Parse a server's frame: one message, or an array of messages. Raises Malformed."""
    try:
        sent = orjson.loads(text)
    except ValueError as error:
        raise Malformed(f"The server's message is not JSON: {error}") from None
    messages = sent if isinstance(sent, list) else [sent]
    if not all(isinstance(message, dict) for message in messages):
        raise Malformed("The server's message is not a JSON object")
    return messages


def decide_lease_seconds(expiry: Expiry, used_ms: int, now_ms: int, token_until_ms: int | None) -> int:
    """Limit the lease of a watch by the client's token, and by the time at which a waiting reader must renew
    the stream's window or notice its end (§5.1). A repeated watch does both."""
    ends_ms = [now_ms + MAX_LEASE_SECONDS * 1000]
    ends_ms += [end for end in (renew_waiting_at_ms(expiry, used_ms), token_until_ms) if end is not None]
    return max(1, ceil((min(ends_ms) - now_ms) / 1000))


def tail_message(name: str, tail: Tail, lease_seconds: int | None = None) -> Message:
    """Return the message with the tail. With a lease it answers a watch. After `closed` the watch is over."""
    message: Message = {"stream": name, "offset": render_offset(tail.offset)}
    if tail.closed:
        return message | {"closed": True}
    return message if lease_seconds is None else message | {"seconds": lease_seconds}


class News(NamedTuple):
    """The stored bytes from `start` to the tail, and their checksum in the form of a page's."""

    incarnation: str
    start: int
    stored: bytes
    crc: int | None


class RenderedNews(NamedTuple):
    """The members of a message with data, and their size as JSON: equal for all watchers."""

    members: Message
    size: int


def render_news(tail: Tail, content_type: ContentType, news: News) -> RenderedNews | None:
    """Render the data before the tail as a read does; None if it does not fit a frame."""
    if len(news.stored) > MAX_FRAME_BYTES:
        return None
    body = render_body(content_type, news.stored) if news.stored else b""
    members = {
        "from": render_offset(news.start),
        "type": content_type.served,
        "cursor": decide_catch_up_cursor(None, news.incarnation),
        "etag": render_etag(news.incarnation, news.start, tail.offset, closed=tail.closed, crc=news.crc),
        **_as_text(body),
    }
    return RenderedNews(members, len(orjson.dumps(members)))


def news_message(name: str, tail: Tail, news: RenderedNews | None) -> Message:
    """Return the message with the tail, and with the data before it if that is known and fits the frame. A
    client that has read up to `from` needs no read."""
    message = tail_message(name, tail)
    if news is None or len(orjson.dumps(message)) + news.size + len("[]") >= MAX_FRAME_BYTES:
        return message
    return message | news.members


def _as_text(body: bytes) -> Message:
    try:
        return {"data": body.decode()}
    except UnicodeDecodeError:
        return {"data": b64encode(body).decode(), "encoding": "base64"}


def error_message(name: str, status: int, error: str) -> Message:
    """Return the message of a watch that did not begin or has ended, with the error that a read would get."""
    return {"stream": name, "status": status, "error": error}


def check_watched(count: int) -> None:
    """Check the number of watched streams. Raises Malformed."""
    if count > MAX_WATCHED:
        raise Malformed(f"A socket watches at most {MAX_WATCHED} streams; open another one")


def refusal_message(error: ProtocolError) -> Message:
    """Return the message that refuses a whole frame, of which nothing was done."""
    return {"status": error.status, "error": error.message}


def render_answer(messages: list[Message]) -> str:
    """Return all messages as one frame, because a route of API Gateway has one response."""
    answer = _one_or_array(list(map(orjson.dumps, messages)))
    if len(answer.encode()) > MAX_FRAME_BYTES:
        short = [message | _NO_ROOM if "error" in message else message for message in messages]
        answer = _one_or_array(list(map(orjson.dumps, short)))
    return answer


def render_messages(messages: Iterable[Message]) -> list[str]:
    """Return the fewest frames that hold the messages."""
    return list(map(_one_or_array, _fit(map(orjson.dumps, messages), len, MAX_FRAME_BYTES - len("[]"))))


def _one_or_array(messages: list[bytes]) -> str:
    return (messages[0] if len(messages) == 1 else b"[" + b",".join(messages) + b"]").decode()
