"""Content types (§9), and the messages of a body.

Content types match by type and subtype alone, in any case, without parameters. Messages are the data of one
append, with the end of each message (§9.1).

A JSON stream stores every message exactly as sent, each followed by a comma, so that a read joins stored
bytes into an array without parsing. Any other stream stores the body unchanged: one append is one message.
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


#: Types that a browser shows without running scripts, or only downloads.
_INERT: Final = re.compile(
    r"(?!.*\+xml$)((image|audio|video)/.+|text/(plain|csv|markdown)"
    r"|application/(.+\+json|json|x-ndjson|jsonl|octet-stream))"
)


@dataclass(frozen=True, slots=True)
class ContentType:
    """A media type as sent, and the essence by which two types match."""

    value: str
    essence: str

    @property
    def is_json(self) -> bool:
        return self.essence == JSON

    @property
    def is_text(self) -> bool:
        """Whether SSE carries the data as text; other types are sent as base64 (§5.8)."""
        return self.is_json or self.essence.startswith("text/")

    @property
    def is_active(self) -> bool:
        """Whether a browser might run scripts in the data."""
        return _INERT.fullmatch(self.essence) is None

    @property
    def served(self) -> str:
        """The Content-Type of a read's response: in JSON mode exactly `application/json` (§9.1.5)."""
        return JSON if self.is_json else self.value


def parse_content_type(header: str) -> ContentType:
    """Return the type. Raises Malformed if the header is not `type/subtype[; parameters]`."""
    value = header.strip()
    match = _MEDIA_TYPE.fullmatch(value) if len(value) <= MAX_LENGTH else None
    if match is None:
        raise Malformed(f"Content type must look like type/subtype, got {value[:80]!r}")
    return ContentType(value, match[1].lower())


#: The end of each message is stored with the messages, in an item of at most 400 KB.
MAX_MESSAGES: Final = 250_000


@dataclass(frozen=True, slots=True)
class StoredBody:
    """Bytes that are already in S3: the name of their object, and their CRC-32."""

    blob: str
    crc: int


class Messages(NamedTuple):
    """Stored bytes, and the stored length of each message. `data` is empty if the bytes are already in S3."""

    data: bytes
    lengths: tuple[int, ...]
    stored: StoredBody | None = None

    @property
    def size(self) -> int:
        return sum(self.lengths)


NOTHING: Final = Messages(b"", ())


def parse_messages(content_type: ContentType, body: bytes) -> Messages:
    """Return the messages of a body. Raises Malformed for invalid JSON, and TooManyMessages."""
    if not body:
        return NOTHING
    if not content_type.is_json:
        return Messages(body, (len(body),))
    # msgspec is imported with the first JSON body, because many functions never see one.
    from tidemark.protocol.json_text import check_value, split_array

    if body.lstrip(b" \t\n\r").startswith(b"["):
        texts = split_array(body, MAX_MESSAGES)  # Arrays are flattened by one level (§9.1.2).
    else:
        texts = [check_value(body)]
    return Messages(b",".join((*texts, b"")), tuple([len(text) + 1 for text in texts]))


def render_body(content_type: ContentType, *stored: bytes) -> bytes:
    """Return stored bytes, cut at message ends, in the form of a read's response (§9.1.5). They are copied
    once, because each copy of a large page costs as much as reading it."""
    *before, last = list(filter(None, stored)) or [b""]
    if not content_type.is_json:
        return b"".join((*before, last))
    return b"".join((b"[", *before, memoryview(last)[:-1], b"]"))
