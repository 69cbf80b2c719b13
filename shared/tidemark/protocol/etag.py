"""Entity tags: of a page (§10.1), and of a stream's tail, which `If-Match` takes (an extension)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.errors import Malformed, PreconditionFailed
from tidemark.protocol.offset import render_offset

_ENTITY_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_ENTITY_TAGS: Final = re.compile(rf"{_ENTITY_TAG}(?:[ \t]*,[ \t]*{_ENTITY_TAG})*")


def render_etag(incarnation: str, start: int, end: int, *, closed: bool, crc: int | None = None) -> str:
    """Closing adds `:c`, so that a 304 never hides it. `crc` tells apart the histories of a stream that was
    put back to an older state. It stands beside the start, where older releases of Spark's source ignore it.
    """
    history = "" if crc is None else f".{crc:08x}"
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(start)}{history}:{render_offset(end)}{suffix}"'


def etag_matches(if_none_match: str | None, etag: str) -> bool:
    """Weak comparison over a list, as RFC 9110 §13.1.2 asks for GET."""
    if if_none_match is None:
        return False
    if if_none_match.strip() == "*":
        return True
    candidates = (candidate.strip() for candidate in if_none_match.split(","))
    return any(candidate.removeprefix("W/") == etag for candidate in candidates)


def render_tail_etag(incarnation: str, tail: int, *, closed: bool) -> str:
    """Changes with every append and with closing. It is not the tag of any page."""
    suffix = ":c" if closed else ""
    return f'"{incarnation}:{render_offset(tail)}{suffix}"'


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The condition of an append: `*`, or the tags of the tails that it may follow."""

    tags: frozenset[str] | None

    def check(self, incarnation: str, tail: int, *, closed: bool) -> None:
        """Compares strongly (RFC 9110 §13.1.1). Raises PreconditionFailed."""
        etag = render_tail_etag(incarnation, tail, closed=closed)
        if self.tags is not None and etag not in self.tags:
            raise PreconditionFailed(etag, tail)


def parse_if_match(value: str | None) -> IfMatch | None:
    """Raises Malformed for what is neither `*` nor a list of entity tags."""
    if value is None:
        return None
    if value == "*":
        return IfMatch(None)
    if not _ENTITY_TAGS.fullmatch(value):
        raise Malformed(
            f"If-Match must be *, or the ETag of HEAD or of an append, quotes included; got {value[:80]!r}"
        )
    return IfMatch(frozenset(re.findall(_ENTITY_TAG, value)))
