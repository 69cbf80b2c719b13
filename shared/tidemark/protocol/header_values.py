"""Integers in headers: decimal, canonical, and exact in JavaScript (§5.1, §5.2.1)."""

from __future__ import annotations

import re
from typing import Final

from tidemark.protocol.errors import Malformed

#: The largest integer that JavaScript represents exactly.
MAX_SAFE_INTEGER: Final = 2**53 - 1

_CANONICAL = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


def parse_integer(name: str, value: str) -> int:
    """Parse a non-negative integer without sign, leading zeros, point or exponent. Raises Malformed with the
    name of the header or parameter."""
    if not _CANONICAL.fullmatch(value) or int(value) > MAX_SAFE_INTEGER:
        form = f"an integer between 0 and {MAX_SAFE_INTEGER} in plain decimal digits"
        raise Malformed(f"{name} must be {form}, got {value[:40]!r}")
    return int(value)
