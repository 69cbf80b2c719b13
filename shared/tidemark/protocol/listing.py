"""Listing a bucket (extensions §1.4): which streams, and how many at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.bucket import check_id_text
from tidemark.protocol.errors import Malformed

MAX_LIMIT: Final = 1000

_LIMIT = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """`after` is the last id of the page before; ids sort by their bytes in UTF-8."""

    prefix: str = ""
    after: str = ""
    limit: int = MAX_LIMIT


def parse_listing(prefix: str | None, after: str | None, limit: str | None) -> ListingRequest:
    """Raises Malformed."""
    if limit is not None and (not _LIMIT.fullmatch(limit) or int(limit) > MAX_LIMIT):
        raise Malformed(f"limit must be an integer between 1 and {MAX_LIMIT}, got {limit[:40]!r}")
    request = ListingRequest(prefix or "", after or "", MAX_LIMIT if limit is None else int(limit))
    check_id_text("prefix", request.prefix)
    check_id_text("after", request.after)
    return request
