"""Listing streams (extensions §1.4) and buckets: which of them, and how many at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.bucket import check_id_text
from tidemark.protocol.errors import Malformed
from tidemark.protocol.stream_key import MAX_STREAM_ID_BYTES

MAX_LIMIT: Final = 1000

_LIMIT = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """`after` is the last id of the page before; ids sort by their bytes in UTF-8."""

    prefix: str = ""
    after: str = ""
    limit: int = MAX_LIMIT


def parse_listing(prefix: str | None, after: str | None, limit: str | None) -> ListingRequest:
    """Parse the listing of a bucket. Raises Malformed."""
    request = ListingRequest(prefix or "", after or "", _parse_limit(limit))
    check_id_text("prefix", request.prefix)
    check_id_text("after", request.after)
    return request


def parse_plain_listing(prefix: str | None, after: str | None, limit: str | None) -> ListingRequest:
    """Parse the listing of the plain surface, whose names have slashes, or of all buckets. Raises
    Malformed."""
    request = ListingRequest(prefix or "", after or "", _parse_limit(limit))
    for name, text in (("prefix", request.prefix), ("after", request.after)):
        if len(text.encode(errors="replace")) > MAX_STREAM_ID_BYTES:
            raise Malformed(f"{name} must be at most {MAX_STREAM_ID_BYTES} bytes in UTF-8")
        if not text.isprintable():
            raise Malformed(f"{name} must not contain control characters, got {text[:80]!r}")
    return request


def _parse_limit(limit: str | None) -> int:
    if limit is not None and (not _LIMIT.fullmatch(limit) or int(limit) > MAX_LIMIT):
        raise Malformed(f"limit must be an integer between 1 and {MAX_LIMIT}, got {limit[:40]!r}")
    return MAX_LIMIT if limit is None else int(limit)
