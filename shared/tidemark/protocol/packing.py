"""When old batches are packed (`docs/internals/packs.md`). It takes offsets and times, and no call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.protocol.pack import BLOCK_BYTES
from tidemark.protocol.tail import Tail

_KILOBYTE: Final = 1024
_HOUR_MS: Final = 60 * 60 * 1000
#: The table can be restored to any moment of the last 35 days, and then names the packs of that moment.
KEEP_REPLACED_MS: Final = 36 * 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Packing:
    """Batches are packed once they are `after_ms` old. An append that crosses a multiple of `every_bytes`
    schedules the janitor. A pack takes about `pack_bytes`, and less only if no more is expected soon; it pays
    from `min_batches` or `min_bytes` on. The object of a pack that a larger one has replaced stays for
    `keep_replaced_ms`."""

    after_ms: int
    every_bytes: int = 256 * _KILOBYTE
    pack_bytes: int = 8 * _KILOBYTE * _KILOBYTE
    min_batches: int = 64
    min_bytes: int = 256 * _KILOBYTE
    block_bytes: int = BLOCK_BYTES
    keep_replaced_ms: int = KEEP_REPLACED_MS

    @classmethod
    def after_seconds(cls, seconds: float) -> Packing:
        """With 0, every append has the janitor look, and any two batches are packed: for tests and
        demonstrations."""
        if seconds == 0:
            return cls(0, every_bytes=1, min_batches=2, keep_replaced_ms=_HOUR_MS)
        return cls(round(seconds * 1000))

    def is_due(self, start: int, after: Tail) -> bool:
        """Whether a batch that begins at `start` and leaves the stream as `after` schedules a look. A batch
        has a byte at least, so a closed stream of fewer than `min_batches` bytes never pays."""
        if after.closed:
            return after.offset >= self.min_batches
        return start // self.every_bytes != after.offset // self.every_bytes

    def pays(self, batches: int, data_bytes: int) -> bool:
        """Each batch that is removed costs a write: that is earned back by what storage and reads cost less.
        One batch alone stays as it is."""
        return batches > 1 and (batches >= self.min_batches or data_bytes >= self.min_bytes)

    def takes_in(self, data_bytes: int, before_bytes: int) -> bool:
        """Whether a new pack of `data_bytes` takes in the one of `before_bytes` right before it.

        It does where that one is at most twice as large. So each remaining small pack is more than twice as
        large as the next, which keeps them few; and rewritten bytes are in a pack that is larger by half at
        least, so no byte is written often. A pack of half the size stays as it is.
        """
        return (
            before_bytes <= 2 * data_bytes
            and 2 * before_bytes < self.pack_bytes
            and 2 * (data_bytes + before_bytes) <= 3 * self.pack_bytes
        )

    def has_waited(self, oldest_ms: int, now_ms: int) -> bool:
        """Whether batches are packed although the pack is small, so that a stream with slow but steady writes
        is packed too."""
        return now_ms - oldest_ms >= 24 * self.after_ms

    def next_look_ms(self, oldest_ms: int, now_ms: int) -> int:
        """When to look again for more: after twice the time that the oldest batch has waited by now."""
        return now_ms + max(self.after_ms, now_ms - oldest_ms)
