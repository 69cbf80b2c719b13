"""Entity tags (§10.1): a response is named by incarnation, range, and whether it ends the stream."""

from __future__ import annotations

from tidemark.protocol.offset import render_offset


def render_etag(incarnation: str, start: int, end: int, *, closed: bool) -> str:
    """Closing adds `:c`, so that a 304 never hides it."""
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(start)}:{render_offset(end)}{suffix}"'


def etag_matches(if_none_match: str | None, etag: str) -> bool:
    """Weak comparison over a list, as RFC 9110 §13.1.2 asks for GET."""
    if if_none_match is None:
        return False
    if if_none_match.strip() == "*":
        return True
    candidates = (candidate.strip() for candidate in if_none_match.split(","))
    return any(candidate.removeprefix("W/") == etag for candidate in candidates)
