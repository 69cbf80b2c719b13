"""Messages: the data that one append adds to a stream, and the end of each message (§9.1).

A stream of JSON stores every message exactly as it was sent, each followed by a comma, so
that a read joins stored bytes into an array without parsing them again. Every other
content type stores the body as it is: one append, one message.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

import orjson

from tidemark.protocol.content_type import ContentType
from tidemark.protocol.errors import TooManyMessages
from tidemark.protocol.json_text import MAX_DEPTH, check_value, split_array

#: The end of each message is stored beside the messages, in an item of at most 400 KB.
MAX_MESSAGES: Final = 250_000

#: A text of this size or less is checked in C in one go: at worst that takes a few milliseconds.
_SMALL_BYTES: Final = 16 * 1024

_WHITESPACE: Final = b" \t\n\r"


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
    if body.lstrip(_WHITESPACE).startswith(b"["):
        # An array is flattened by one level (§9.1.2).
        texts = list(islice(split_array(body), MAX_MESSAGES + 1))
        if len(texts) > MAX_MESSAGES:
            raise TooManyMessages(MAX_MESSAGES)
    else:
        texts = [body.strip(_WHITESPACE) if _is_small_and_valid(body) else check_value(body)]
    return Messages(b",".join((*texts, b"")), tuple([len(text) + 1 for text in texts]))


def _is_small_and_valid(body: bytes) -> bool:
    """Whether a parser in C accepts the text. It refuses more than JSON's grammar does, so its refusal
    counts for nothing; and it is not asked where it would allow more levels than `json_text`."""
    if len(body) > _SMALL_BYTES or body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        return False
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def render_body(content_type: ContentType, stored: bytes) -> bytes:
    """Stored bytes, cut at message ends, as a read answers them (§9.1.5)."""
    if not content_type.is_json:
        return stored
    return b"[" + stored[:-1] + b"]"
