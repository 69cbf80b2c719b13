"""Offsets (§8): a byte position, written as 16 digits so that strings sort as numbers do."""

from __future__ import annotations

import re
from typing import Final, Literal

WIDTH: Final = 16
MAX_OFFSET: Final = 10**WIDTH - 1
NOW: Final = "now"
EARLIEST: Final = "-1"

#: The start of a read: a byte position, the earliest retained offset, or the tail at the time of the read.
ReadFrom = int | Literal["-1", "now"]
#: The start of a page: as of a read, but not the tail.
PageStart = int | Literal["-1"]

_TOKEN = re.compile(r"[0-9]{16}", re.ASCII)


def render_offset(position: int) -> str:
    return f"{position:0{WIDTH}d}"


def parse_token(token: str) -> int | None:
    """Return the position of an offset token, or None if it is not one of ours."""
    return int(token) if _TOKEN.fullmatch(token) else None


def parse_read_from(value: str | None) -> ReadFrom | None:
    """Return the start of a read, or None if the value is malformed.

    A missing value and `-1` mean the earliest offset, `now` the tail (§8, sentinel values).
    """
    if value is None or value == EARLIEST:
        return EARLIEST
    if value == NOW:
        return NOW
    return parse_token(value)
