"""multipart/mixed (RFC 2046 §5.1): bytes in parts, none of them changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Final

_LINE_END: Final = b"\r\n"
_BOUNDARY_LENGTH: Final = len("tidemark-") + 32


@dataclass(frozen=True, slots=True)
class Part:
    content_type: str
    body: bytes


def choose_boundary(parts: Sequence[Part]) -> str:
    """A boundary that occurs in no part.

    It is a digest of all parts: nobody can write a message that contains the digest of itself. It
    is searched for in every part all the same, and another one is taken if it is found.
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
    """The bytes before a part's body."""
    lines = [f"--{boundary}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "".join(f"{line}\r\n" for line in lines).encode() + _LINE_END


def close_parts(boundary: str) -> bytes:
    """The bytes after the last part's body."""
    return _LINE_END + f"--{boundary}--\r\n".encode()


def part_bytes(content_type: str, size: int) -> int:
    """How many bytes a part with a body of `size` bytes takes."""
    return len(open_part("x" * _BOUNDARY_LENGTH, content_type)) + size + len(_LINE_END)
