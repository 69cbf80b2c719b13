"""Compaction: of the messages of one key, a stream keeps the last one (docs/compaction.md).

Offsets never change. A read from any offset gets, in order, at least the last message of each key at or after
it; a message that a later one of its key has superseded may be missing once it is old enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MODE_HEADER: Final = "Stream-Compact"
AFTER_HEADER: Final = "Stream-Compact-After"
TOMBSTONES_HEADER: Final = "Stream-Compact-Tombstones"
KEY_HEADER: Final = "Stream-Compact-Key"
#: The only mode.
LAST_BY_KEY: Final = "last-by-key"


@dataclass(frozen=True, slots=True)
class Compaction:
    """How a stream is compacted. Messages stay whole for `after_seconds`; one that deletes its key stays for
    at least `tombstone_seconds` once all before it of that key are gone. `key` is a JSON pointer (RFC 6901) to
    the key in a message; None means what the State Protocol says: `type` and `key`."""

    after_seconds: int = 3600
    tombstone_seconds: int = 24 * 3600
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Horizon:
    """Messages below `offset` that delete their key may go: whatever they delete has been gone for long
    enough, for a reader that was on its way then. From `next_ms` on, those below `next_offset` may as well
    (Kafka's delete horizon, of a stretch in place of a batch)."""

    offset: int = 0
    next_offset: int = 0
    next_ms: int = 0

    def at(self, now_ms: int) -> Horizon:
        """With the next one in its place, where its time has come."""
        is_due = self.next_offset and now_ms >= self.next_ms
        return Horizon(self.next_offset) if is_due else self

    def after_pass(self, compacted: int, now_ms: int, tombstone_seconds: int) -> Horizon:
        """Once all below `compacted` is compacted. One that is waited for is not put off."""
        reached = self.at(now_ms)
        if reached.next_offset or compacted <= reached.offset:
            return reached
        return replace(reached, next_offset=compacted, next_ms=now_ms + 1000 * tombstone_seconds)


NOT_YET: Final = Horizon()
