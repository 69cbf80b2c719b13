"""Stream-Seq (§5.2): writers agree on an order by themselves, compared byte by byte.

Tidemark's scope is the stream: one last value per stream, shared by all writers.
"""

from __future__ import annotations

from typing import Final

from tidemark.protocol.errors import Malformed, SequenceRegression
from tidemark.protocol.single_value import check_sent_once

MAX_LENGTH: Final = 256


def parse_stream_seq(value: str | None) -> str | None:
    if value is not None and (not 0 < len(value) <= MAX_LENGTH or not value.isascii()):
        raise Malformed(f"Stream-Seq must be 1 to {MAX_LENGTH} ASCII characters")
    check_sent_once("Stream-Seq", value)
    return value


def check_stream_seq(last: str | None, received: str | None) -> None:
    """Raises SequenceRegression unless `received` is absent or greater than `last`.

    Both are ASCII, so comparing characters is comparing bytes.
    """
    if last is not None and received is not None and received <= last:
        raise SequenceRegression(last, received)
