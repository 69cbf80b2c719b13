"""Content types (§9), and the messages of a body.

Content types are matched by type and subtype alone, in any case, without parameters. Messages are the data
that one append adds to a stream, with the end of each message (§9.1).

A stream of JSON stores every message exactly as it was sent, each followed by a comma, so that a read joins
stored bytes into an array without parsing them again. Every other content type stores the body as it is: one
append, one message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidemark.protocol.errors import Malformed

DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"
MAX_LENGTH: Final = 255

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"({_TOKEN}/{_TOKEN})[ \t]*(;[\x20-\x7e\t]*)?", re.ASCII)


#: Types that a browser shows without running scripts in them, or only downloads.
_INERT: Final = re.compile(
    r"(?!.*\+xml$)((image|audio|video)/.+|text/(plain|csv|markdown)"
    r"|application/(.+\+json|json|x-ndjson|jsonl|octet-stream))"
)


@dataclass(frozen=True, slots=True)
class ContentType:
    """A media type as it was sent, and the essence by which two of them match."""

    value: str
    essence: str

    @property
    def is_json(self) -> bool:
        return self.essence == JSON

    @property
    def is_text(self) -> bool:
        """Whether SSE carries it as text; everything else travels as base64 (§5.8)."""
        return self.is_json or self.essence.startswith("text/")

    @property
    def is_active(self) -> bool:
        """Whether a browser might run scripts of it."""
        return _INERT.fullmatch(self.essence) is None

    @property
    def served(self) -> str:
        """The Content-Type of a read's response: JSON mode is exactly `application/json` (§9.1.5)."""
        return JSON if self.is_json else self.value


def parse_content_type(header: str) -> ContentType:
    """Raises Malformed if the header is not `type/subtype[; parameters]`."""
    value = header.strip()
    match = _MEDIA_TYPE.fullmatch(value) if len(value) <= MAX_LENGTH else None
    if match is None:
        raise Malformed(f"Content-Type must look like type/subtype, got {value[:80]!r}")
    return ContentType(value, match[1].lower())


#: The end of each message is stored beside the messages, in an item of at most 400 KB.
MAX_MESSAGES: Final = 250_000


@dataclass(frozen=True, slots=True)
class StoredBody:
    """Bytes that are in S3 already, by the name of their object, and their CRC-32."""

    blob: str
    crc: int


class Messages(NamedTuple):
    """Bytes as they are stored, and the stored length of each message in them. If they are in S3 already,
    `data` is empty."""

    data: bytes
    lengths: tuple[int, ...]
    stored: StoredBody | None = None

    @property
    def size(self) -> int:
        return sum(self.lengths)


NOTHING: Final = Messages(b"", ())


def parse_messages(content_type: ContentType, body: bytes) -> Messages:
    """Raises Malformed for a JSON stream's body that is not JSON, TooManyMessages."""
    if not body:
        return NOTHING
    if not content_type.is_json:
        return Messages(body, (len(body),))
    # msgspec is imported with the first body of JSON: many functions never see one.
    from tidemark.protocol.json_text import check_value, split_array

    if body.lstrip(b" \t\n\r").startswith(b"["):
        texts = split_array(body, MAX_MESSAGES)  # An array is flattened by one level (§9.1.2).
    else:
        texts = [check_value(body)]
    return Messages(b",".join((*texts, b"")), tuple([len(text) + 1 for text in texts]))


def render_body(content_type: ContentType, *stored: bytes) -> bytes:
    """Stored bytes, cut at message ends, as a read answers them (§9.1.5). Each copy of a large page costs as
    much as reading it, so there is one."""
    *before, last = list(filter(None, stored)) or [b""]
    if not content_type.is_json:
        return b"".join((*before, last))
    return b"".join((b"[", *before, memoryview(last)[:-1], b"]"))
