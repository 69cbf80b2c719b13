"""Content types (§9): matched by type and subtype alone, in any case, without parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
    match = _MEDIA_TYPE.fullmatch(value)
    if match is None or len(value) > MAX_LENGTH:
        raise Malformed(f"Content-Type must look like type/subtype, got {value[:80]!r}")
    return ContentType(value, match[1].lower())
