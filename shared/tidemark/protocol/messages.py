"""Messages: what one append adds to a stream, and where each message ends (§9.1).

A stream of JSON stores every message exactly as it was sent, each followed by a comma, so
that a read joins stored bytes into an array without parsing them again. Every other
content type stores the body as it is: one append, one message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

import orjson

from tidemark.protocol.content_type import ContentType
from tidemark.protocol.errors import Malformed, TooManyMessages

#: Where each message ends is kept beside the messages, in an item of 400 KB.
MAX_MESSAGES: Final = 250_000

_WHITESPACE: Final = b" \t\n\r"
_SKIP: Final = re.compile(r"[ \t\n\r,]*")
#: Scans one value in C and tells where it ends. What the numbers are does not matter, and
#: `len` keeps a number of ten thousand digits from being computed.
_SCAN = json.JSONDecoder(parse_int=len, parse_float=len, strict=False).raw_decode


@dataclass(frozen=True, slots=True)
class Messages:
    """Bytes as they are stored, and the stored length of each message in them."""

    data: bytes
    lengths: tuple[int, ...]


NOTHING: Final = Messages(b"", ())


def parse_messages(content_type: ContentType, body: bytes) -> Messages:
    """Raises Malformed for a JSON stream's body that is not JSON, TooManyMessages."""
    if not body:
        return NOTHING
    if not content_type.is_json:
        return Messages(body, (len(body),))
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as fault:
        raise Malformed(f"Invalid JSON: {fault}") from None
    texts = _split_json(body)
    return Messages(
        b"".join(text + b"," for text in texts),
        tuple(len(text) + 1 for text in texts),
    )


def _split_json(body: bytes) -> list[bytes]:
    """The messages of a valid JSON text: an array is flattened by one level (§9.1.2)."""
    if not body.lstrip(_WHITESPACE).startswith(b"["):
        return [body.strip(_WHITESPACE)]
    text = body.decode()
    messages: list[bytes] = []
    position = _after_blank(text, text.index("[") + 1)
    while text[position] != "]":
        try:
            _, end = _SCAN(text, position)
        except RecursionError:
            raise Malformed("Invalid JSON: nested too deeply") from None
        messages.append(text[position:end].encode())
        if len(messages) > MAX_MESSAGES:
            raise TooManyMessages(MAX_MESSAGES)
        position = _after_blank(text, end)
    return messages


def _after_blank(text: str, position: int) -> int:
    blank = _SKIP.match(text, position)
    return blank.end() if blank else position


def render_body(content_type: ContentType, stored: bytes) -> bytes:
    """Stored bytes, cut at message ends, as a read answers them (§9.1.5)."""
    if not content_type.is_json:
        return stored
    return b"[" + stored[:-1] + b"]"
