"""Start points: a reader asks where to begin by a number of messages or by a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidemark.protocol.errors import Malformed

MAX_LAST: Final = 10_000
_COUNT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_INSTANT: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LastMessages:
    """The offset before the last `count` messages."""

    count: int


@dataclass(frozen=True, slots=True)
class WrittenFrom:
    """The offset of the first batch that was written at or after the instant."""

    at_ms: int


def parse_start_point(last: str | None, written_from: str | None) -> LastMessages | WrittenFrom:
    """One of the two. Raises Malformed."""
    if (last is None) == (written_from is None):
        raise Malformed("Give last (a number of messages) or from (an RFC 3339 time), and not both")
    if last is not None:
        if not _COUNT.fullmatch(last) or int(last) > MAX_LAST:
            raise Malformed(f"last must be an integer between 1 and {MAX_LAST}, got {last[:40]!r}")
        return LastMessages(int(last))
    assert written_from is not None, "one of the two is given"
    return WrittenFrom(_parse_instant_ms(written_from))


def _parse_instant_ms(text: str) -> int:
    try:
        if len(text) > 40 or not _INSTANT.fullmatch(text):
            raise ValueError(text)
        return int(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Malformed(
            f"from must be an RFC 3339 time such as 2026-11-21T10:00Z, got {text[:40]!r}; "
            "in a URL a + is written %2B"
        ) from None
