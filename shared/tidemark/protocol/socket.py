"""The messages of a socket, which carries wake-ups and small data: JSON in text frames
(`docs/reference/socket.md`).

A client names streams by their paths. The server says where the tail of each is, now and whenever it moves,
with the bytes up to it if they fit the frame. A plain read gets what does not. Nothing here is of the
specification: it is an extension of ours.
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
#: API Gateway takes no larger frame.
MAX_FRAME_BYTES: Final = 32 * 1024
#: A client sends half of that, so that the answer, which repeats the names, fits a frame too.
MAX_SENT_BYTES: Final = 16 * 1024
#: A client sends it to keep a silent socket open, and to learn whether the socket is alive. API Gateway
#: answers it itself, and starts no function.
PING: Final = '{"action":"ping"}'
#: The answer to a ping and to an `unwatch`. A client that expects none finds no message in it.
NOTHING: Final = "[]"
#: The streams that one message may name: each is looked up before the answer.
MAX_NAMED: Final = 100
#: The streams that one socket may watch at once.
MAX_WATCHED: Final = 1000
#: A watch lasts this long at most; a client repeats it before.
MAX_LEASE_SECONDS: Final = 3600
_NO_ROOM: Final = {"error": "The reasons do not fit this answer; name fewer streams in a message"}

Message = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Frame:
    """A client's frame. `watch` and `unwatch` are paths of streams. `data`: their data are wanted."""

    watch: tuple[str, ...] = ()
    unwatch: tuple[str, ...] = ()
    token: str | None = None
    data: bool = False


def parse_frame(text: str) -> Frame:
    """Members of other names are ignored. Raises Malformed."""
    if len(text.encode(errors="replace")) > MAX_SENT_BYTES:
        raise Malformed(f"A message must have at most {MAX_SENT_BYTES} bytes; send several")
    try:
        sent = orjson.loads(text)
    except ValueError as error:  # Half a character in a str raises one as well.
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
    """Renders the fewest frames that name all streams and ask for data, for a client to send."""
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
    """The parts of as few frames as hold them in order, with a comma behind each."""
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
    """Parses a server's frame: one message, or an array of them. Raises Malformed."""
    try:
        sent = orjson.loads(text)
    except ValueError as error:
        raise Malformed(f"The server's message is not JSON: {error}") from None
    messages = sent if isinstance(sent, list) else [sent]
    if not all(isinstance(message, dict) for message in messages):
        raise Malformed("The server's message is not a JSON object")
    return messages


def decide_lease_seconds(expiry: Expiry, used_ms: int, now_ms: int, token_until_ms: int | None) -> int:
    """Limits a watch by the client's token, and by the moment at which a waiting reader must renew the
    stream's window or notice its end (§5.1). A repeated watch does both."""
    ends_ms = [now_ms + MAX_LEASE_SECONDS * 1000]
    ends_ms += [end for end in (renew_waiting_at_ms(expiry, used_ms), token_until_ms) if end is not None]
    return max(1, ceil((min(ends_ms) - now_ms) / 1000))


def tail_message(name: str, tail: Tail, lease_seconds: int | None = None) -> Message:
    """Tells the stream's tail. With a lease it answers a watch. After `closed` the watch is over."""
    message: Message = {"stream": name, "offset": render_offset(tail.offset)}
    if tail.closed:
        return message | {"closed": True}
    return message if lease_seconds is None else message | {"seconds": lease_seconds}


class News(NamedTuple):
    """The stored bytes from `start` to the tail, and their checksum as a page has it."""

    incarnation: str
    start: int
    stored: bytes
    crc: int | None


class RenderedNews(NamedTuple):
    """The members of a message that carries data, and their size as JSON: the same for all who watch."""

    members: Message
    size: int


def render_news(tail: Tail, content_type: ContentType, news: News) -> RenderedNews | None:
    """The data before the tail, as a read has them; None if they fit no frame."""
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
    """Tells the tail, with the data before it if they are known and fit the frame. A client that has read to
    `from` needs no read."""
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
    """The watch did not begin, or it is over: what a read of the stream would be refused with."""
    return {"stream": name, "status": status, "error": error}


def check_watched(count: int) -> None:
    """Raises Malformed."""
    if count > MAX_WATCHED:
        raise Malformed(f"A socket watches at most {MAX_WATCHED} streams; open another one")


def refusal_message(error: ProtocolError) -> Message:
    """About a whole frame, of which nothing was done."""
    return {"status": error.status, "error": error.message}


def render_answer(messages: list[Message]) -> str:
    """In one text, which is one frame: a route of API Gateway has one response."""
    answer = _one_or_array(list(map(orjson.dumps, messages)))
    if len(answer.encode()) > MAX_FRAME_BYTES:
        short = [message | _NO_ROOM if "error" in message else message for message in messages]
        answer = _one_or_array(list(map(orjson.dumps, short)))
    return answer


def render_messages(messages: Iterable[Message]) -> list[str]:
    """Renders the fewest frames that hold the messages."""
    return list(map(_one_or_array, _fit(map(orjson.dumps, messages), len, MAX_FRAME_BYTES - len("[]"))))


def _one_or_array(messages: list[bytes]) -> str:
    """One message is an object, several are an array."""
    return (messages[0] if len(messages) == 1 else b"[" + b",".join(messages) + b"]").decode()
