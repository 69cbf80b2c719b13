"""Compaction: a stream keeps the last message of each key (docs/compaction.md).

Offsets never change. A read from any offset returns, in order, at least the last message of each key at or
after the offset. A superseded message may be missing once it is old enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tidemark.protocol.errors import Malformed, ProtocolError
from tidemark.protocol.header_values import parse_integer
from tidemark.protocol.messages import ContentType

MODE_HEADER: Final = "Stream-Compact"
AFTER_HEADER: Final = "Stream-Compact-After"
TOMBSTONES_HEADER: Final = "Stream-Compact-Tombstones"
KEY_HEADER: Final = "Stream-Compact-Key"
COMPACTION_HEADERS: Final = (MODE_HEADER, AFTER_HEADER, TOMBSTONES_HEADER, KEY_HEADER)
#: The only mode.
LAST_BY_KEY: Final = "last-by-key"

#: A JSON pointer (RFC 6901) without a comma, because gateways join repeated headers with one.
POINTER: Final = re.compile(r"(/([!-+\--.0-}]|~[01])*)+", re.ASCII)
MAX_POINTER: Final = 256


@dataclass(frozen=True, slots=True)
class Compaction:
    """The rule by which a stream is compacted. Messages are all kept for `after_seconds`. A message that
    deletes its key is kept for at least `tombstone_seconds` after all earlier ones of that key are gone.
    `key` is a JSON pointer (RFC 6901) to a message's key; None means the State Protocol's `type` and
    `key`."""

    after_seconds: int = 3600
    tombstone_seconds: int = 24 * 3600
    key: str | None = None

    def named(self, mode: str, after: str, tombstones: str, key: str) -> dict[str, str | int]:
        rendered: dict[str, str | int] = {
            mode: LAST_BY_KEY,
            after: self.after_seconds,
            tombstones: self.tombstone_seconds,
        }
        return rendered if self.key is None else rendered | {key: self.key}


def parse_compaction(
    mode: str | None, after: str | None, tombstones: str | None, key: str | None
) -> Compaction | None:
    """Return the rule; None without any of the headers. Raises Malformed."""
    if mode is None:
        for name, value in ((AFTER_HEADER, after), (TOMBSTONES_HEADER, tombstones), (KEY_HEADER, key)):
            if value is not None:
                raise Malformed(f"{name} needs {MODE_HEADER}: {LAST_BY_KEY}")
        return None
    if mode != LAST_BY_KEY:
        raise Malformed(f"{MODE_HEADER} must be {LAST_BY_KEY}, or be left out; got {mode[:40]!r}")
    default = Compaction()
    return Compaction(
        default.after_seconds if after is None else parse_integer(AFTER_HEADER, after),
        default.tombstone_seconds if tombstones is None else parse_integer(TOMBSTONES_HEADER, tombstones),
        None if key is None else check_pointer(KEY_HEADER, key),
    )


def check_pointer(name: str, value: str, refuse: Callable[[str], ProtocolError] = Malformed) -> str:
    """Return the JSON pointer. Raises what `refuse` makes."""
    if len(value) > MAX_POINTER or not POINTER.fullmatch(value):
        raise refuse(
            f"{name} must be a JSON pointer (RFC 6901) such as /id: at most {MAX_POINTER} characters "
            f"of ASCII, no space or comma, and ~ only as ~0 or ~1; got {value[:40]!r}"
        )
    return value


def split_pointer(pointer: str) -> list[str]:
    """Return the names in a JSON pointer; none in the pointer to the whole message."""
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


def decide_compaction(
    content_type: ContentType, requested: Compaction | None, default: Compaction | None
) -> Compaction | None:
    """Return the compaction of a new stream: its own or its bucket's default. Raises Malformed."""
    if content_type.is_json:
        return requested or default
    if requested is not None:
        raise Malformed(
            f"{MODE_HEADER} needs a stream of application/json, whose messages have keys; "
            f"this one is {content_type.essence}"
        )
    return None


@dataclass(frozen=True, slots=True)
class Horizon:
    """Messages below `offset` that delete their key may be removed: the messages that they delete have been
    gone for long enough, even for a slow reader. From `next_ms` on, the same holds below `next_offset`
    (Kafka's delete horizon, for a range instead of a batch)."""

    offset: int = 0
    next_offset: int = 0
    next_ms: int = 0

    def at(self, now_ms: int) -> Horizon:
        """Return the horizon at this time: the next one once it is due."""
        is_due = self.next_offset and now_ms >= self.next_ms
        return Horizon(self.next_offset) if is_due else self

    def after_pass(self, compacted: int, now_ms: int, tombstone_seconds: int) -> Horizon:
        """Return the horizon after a pass up to `compacted`. A waiting horizon is not postponed."""
        reached = self.at(now_ms)
        if reached.next_offset or compacted <= reached.offset:
            return reached
        return replace(reached, next_offset=compacted, next_ms=now_ms + 1000 * tombstone_seconds)


NOT_YET: Final = Horizon()
