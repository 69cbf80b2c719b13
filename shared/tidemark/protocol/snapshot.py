"""Snapshots (extensions §2): the offsets at which a snapshot may be taken, and the retained data after it.
Bootstrap (§3) sends both as multipart/mixed (RFC 2046 §5.1): bytes in parts, each unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Final

from tidemark.protocol.errors import Malformed, OffsetBeyondTail, RetentionGone
from tidemark.protocol.offset import WIDTH, parse_token, render_offset

_LINE_END: Final = b"\r\n"
_BOUNDARY_LENGTH: Final = len("tidemark-") + 32


@dataclass(frozen=True, slots=True)
class Part:
    content_type: str
    body: bytes


def choose_boundary(parts: Sequence[Part]) -> str:
    """Return a boundary that occurs in no part.

    The boundary is a digest of all parts, and no message can contain the digest of itself. Every part is
    searched all the same, and another boundary is tried if one contains it.
    """
    for attempt in count():
        boundary = f"tidemark-{_digest(parts, attempt)}"
        needle = boundary.encode()
        if not any(needle in part.body or boundary in part.content_type for part in parts):
            return boundary
    raise AssertionError("unreachable")


def _digest(parts: Iterable[Part], attempt: int) -> str:
    digest = blake2b(str(attempt).encode(), digest_size=16)
    for part in parts:
        digest.update(part.body)
        digest.update(part.content_type.encode())
    return digest.hexdigest()


def render_multipart(parts: Iterable[Part], boundary: str) -> bytes:
    pieces: list[bytes] = []
    for part in parts:
        pieces += (open_part(boundary, part.content_type), part.body, _LINE_END)
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces)


def open_part(boundary: str, content_type: str, headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"--{boundary}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "".join(f"{line}\r\n" for line in lines).encode() + _LINE_END


def close_parts(boundary: str) -> bytes:
    return _LINE_END + f"--{boundary}--\r\n".encode()


def part_bytes(content_type: str, size: int) -> int:
    return len(open_part("x" * _BOUNDARY_LENGTH, content_type)) + size + len(_LINE_END)


#: S3's limit for one PUT.
MAX_UPLOAD_BYTES: Final = 5 * 1024**3

_UPLOAD_ID = re.compile(r"([0-9]{16})-([A-Za-z0-9_-]{1,64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class UploadId:
    """Names an upload, with the time when it expires unless published."""

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
    """Return the offset in a path: a Stream-Next-Offset, not a sentinel. Raises Malformed."""
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


def check_boundary(offset: int, boundaries: Sequence[int]) -> None:
    """Check that a snapshot's offset is the end of a message or the start of the first one.

    `boundaries` belong to the last batch that begins at or before the offset: its start, and the ends of its
    messages. An offset after its end is beyond the tail. Raises OffsetBeyondTail, Malformed.
    """
    if offset > boundaries[-1]:
        raise OffsetBeyondTail(boundaries[-1])
    if offset not in boundaries:
        raise Malformed(f"Snapshot offset {render_offset(offset)} is not the end of a message")
