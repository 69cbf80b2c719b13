"""Snapshots (extensions §2): the offsets at which one may be taken, and the retained data after that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tidemark.protocol.errors import Malformed, OffsetBeyondTail, RetentionGone
from tidemark.protocol.offset import WIDTH, parse_token, render_offset

#: S3's limit for one PUT.
MAX_UPLOAD_BYTES: Final = 5 * 1024**3

_UPLOAD_ID = re.compile(r"([0-9]{16})-([A-Za-z0-9_-]{1,64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class UploadId:
    """Names an upload, and says when it expires unless it is published."""

    lapses_ms: int
    mark: str

    def __str__(self) -> str:
        return f"{self.lapses_ms:0{WIDTH}d}-{self.mark}"


def parse_upload_id(value: str | None) -> UploadId | None:
    """Raises Malformed."""
    if value is None:
        return None
    match = _UPLOAD_ID.fullmatch(value)
    if match is None:
        raise Malformed("Snapshot-Upload must be the id that this server gave for the upload")
    return UploadId(int(match[1]), match[2])


def parse_snapshot_offset(token: str) -> int:
    """The offset in a path: a Stream-Next-Offset, not a sentinel. Raises Malformed."""
    offset = parse_token(token)
    if offset is None:
        raise Malformed(
            f"Snapshot offset must be a Stream-Next-Offset that this server gave, got {token!r:.80}"
        )
    return offset


def check_retained(offset: int, retained: int) -> None:
    """Raises RetentionGone."""
    if offset < retained:
        raise RetentionGone(retained)


def check_boundary(offset: int, start: int, lengths: Sequence[int]) -> None:
    """A snapshot may be taken where a message ends, and before the first one.

    `start` and `lengths` are those of the last batch that begins at or before the offset:
    where that ends before the offset, the stream does. Raises OffsetBeyondTail, Malformed.
    """
    end = start + sum(lengths)
    if offset > end:
        raise OffsetBeyondTail(end)
    if offset not in accumulate(lengths, initial=start):
        raise Malformed(f"Snapshot offset {render_offset(offset)} is not the end of a message")
