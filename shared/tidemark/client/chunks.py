"""Chunks of data for readers: whole characters, and the parser of server-sent events."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from codecs import getincrementaldecoder
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tidemark.client.errors import MalformedReply
from tidemark.client.exchange import Effect, Request, Steps


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream. `offset` is where the next read begins; `closed` marks the end of a closed stream.
    A stream that is deleted and created again has another `incarnation` (Tidemark only). `start` is where a
    chunk of `history` begins. `cut` is why the answer of a proxied call ended early."""

    data: bytes
    offset: str
    content_type: str = ""
    up_to_date: bool = False
    closed: bool = False
    cursor: str | None = None
    incarnation: str | None = None
    start: str | None = None
    cut: str | None = None

    def has_news(self, before: Chunk) -> bool:
        """Whether the chunk has data or a new state of the stream."""
        news = self.closed or self.offset != before.offset or self.up_to_date != before.up_to_date
        return bool(self.data) or news

    @property
    def text(self) -> str:
        """Return the text. `follow` yields whole characters; `read` may split the last one at the tail."""
        return self.data.decode(errors="replace")

    @property
    def messages(self) -> list[Any]:
        """The messages of a JSON stream. Raises TypeError for any other stream."""
        if self.content_type and not is_json(self.content_type):
            raise TypeError(
                f"messages are of JSON streams; this one is {self.content_type}: use text or data"
            )
        if not self.data.strip():
            return []
        try:
            messages = json.loads(self.data)
        except (ValueError, RecursionError) as wrong:
            raise MalformedReply(f"what was read up to {self.offset} is not JSON: {wrong}") from wrong
        return messages if isinstance(messages, list) else [messages]


def is_json(content_type: str | None) -> bool:
    return (content_type or "").partition(";")[0].strip().lower() == "application/json"


def check_goes_on(request: Request, data: bytes, asked: str, following: str) -> None:
    """Raises MalformedReply for data whose next offset would make the reader loop."""
    if data and following == asked:
        raise MalformedReply(
            f"{request.what}: {len(data)} bytes at offset {asked}, and {asked} again as the next offset; "
            "look for a cache or proxy in front of the server that answers for another offset"
        )


def ends_whole(chunk: Chunk) -> bool:
    """Whether text ends behind a whole character: an append may split a character."""
    return not _begun_character(chunk)


def _begun_character(chunk: Chunk) -> bytes:
    if not chunk.content_type.startswith("text/"):
        return b""
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(chunk.data[-4:])
    return decoder.getstate()[0]


#: The effects and chunks of `follow`.
Followed: TypeAlias = Generator[Effect | Chunk, Any, None]


def next_chunk(steps: Followed) -> Steps[Chunk | None]:
    """Take the steps up to the next chunk. Return None at the end."""
    result = None
    while True:
        try:
            effect = steps.send(result)
        except StopIteration:
            return None
        if isinstance(effect, Chunk):
            return effect
        result = yield effect


def whole_characters(steps: Followed) -> Followed:
    """Yield the same steps, but hold text that ends inside a character until the next chunk, so that a later
    reader can decode from each yielded offset. For Tidemark's chunks only the split character is held."""
    held: Chunk | None = None
    while (chunk := (yield from next_chunk(steps))) is not None:
        # A proxy may remove the ETag with the incarnation.
        if held is not None and held.incarnation in {None, chunk.incarnation}:
            chunk = replace(chunk, data=held.data + chunk.data)
        held = None if chunk.closed or ends_whole(chunk) else chunk
        if held is None:
            yield chunk
        elif held.incarnation and held.offset.isdecimal():  # Tidemark's offsets count bytes.
            half = _begun_character(held)
            if whole := held.data.removesuffix(half):
                offset = f"{int(held.offset) - len(half):0{len(held.offset)}}"
                yield replace(held, data=whole, offset=offset, up_to_date=False)
            held = replace(held, data=half)


class EventParser:
    """Parses server-sent events (HTML, 9.2.6) from pieces of bytes. Only CR, LF and CRLF end a line."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._after_cr = False
        self._name, self._data = "", list[str]()

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """Return the names and data of the events that end in this piece."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if len(lines) == 1:
            self._begun.append(piece)
            return []
        lines[0] = b"".join(self._begun) + lines[0]
        self._begun = [lines.pop()]
        return [event for line in lines if (event := self._line(line.decode(errors="replace")))]

    def _line(self, line: str) -> tuple[str, str] | None:
        if not line:
            event = (self._name or "message", "\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        name, _, value = line.removeprefix("\ufeff").partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        return None


def decode_base64(text: str) -> bytes:
    """Decode base64, which may have line breaks (section 5.8)."""
    try:
        return b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except binascii.Error as wrong:
        raise MalformedReply(f"a data event is not base64: {wrong}") from wrong


def chunk_of_event(
    request: Request, texts: Sequence[str], control: str, before: Chunk, content_type: str, *, base64: bool
) -> Chunk:
    """Return the chunk of a control event, and of the data events before it."""
    try:
        event = json.loads(control)
        offset = str(event["streamNextOffset"])
    except (ValueError, TypeError, KeyError, RecursionError) as wrong:
        raise MalformedReply(
            f"a control event is not JSON with streamNextOffset: {control[:200]!r}"
        ) from wrong
    closed = event.get("streamClosed") is True
    pieces = [decode_base64(text) if base64 else text.encode() for text in texts]
    data = _joined(pieces, json_array=is_json(content_type))
    check_goes_on(request, data, before.offset, offset)
    return Chunk(
        data=data,
        offset=offset,
        content_type=content_type,
        up_to_date=closed or event.get("upToDate") is True,
        closed=closed,
        cursor=event.get("streamCursor"),
        incarnation=before.incarnation,
        cut=event.get("upstreamError"),
    )


def _joined(pieces: Sequence[bytes], *, json_array: bool) -> bytes:
    """Join the data events before a control event; JSON arrays become one array."""
    if not json_array:
        return b"".join(pieces)
    if len(pieces) == 1:
        return b"" if pieces[0].strip() == b"[]" else pieces[0]
    inside = (piece.strip().removeprefix(b"[").removesuffix(b"]").strip() for piece in pieces)
    return b"[%b]" % b",".join(filter(None, inside)) if pieces else b""
