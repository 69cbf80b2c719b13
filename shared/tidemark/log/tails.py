"""The tails this process knows: what lets a warm append write without reading first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tidemark.log.records import StreamRecord
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

#: A tail learned longer ago is not used. With RECLAIM_AFTER_MS, no write can be sent to a
#: place that once held a batch: this is the second half of the proof that appends are
#: never lost (the first is the conditional write).
MAX_AGE_MS: Final = 5 * 60 * 1000

#: Tombstones and the batches before them stay at least this long (`log/reclaim.py`).
RECLAIM_AFTER_MS: Final = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A stream and its tail, as they were at `learned_ms`.

    `written_ms` is the time of the last batch; a sliding expiry counts from there too.
    """

    record: StreamRecord
    tail: Tail
    written_ms: int
    learned_ms: int

    @property
    def touched_ms(self) -> int:
        return max(self.record.used_ms, self.written_ms)

    def is_expired(self, now_ms: int) -> bool:
        return is_expired(self.record.expiry, self.touched_ms, now_ms)


class TailCache:
    """The most recently used tails, safe to share between threads."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._known: OrderedDict[StreamKey, StreamHead] = OrderedDict()
        self._lock = Lock()

    def get(self, key: StreamKey, now_ms: int) -> StreamHead | None:
        """What is known of the stream, unless it was learned too long ago."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return None
            if not 0 <= now_ms - known.learned_ms < MAX_AGE_MS:
                del self._known[key]
                return None
            self._known.move_to_end(key)
            return known

    def learn(self, known: StreamHead) -> None:
        """Keep what was learned, unless a later tail of the same log is known already."""
        key = known.record.key
        with self._lock:
            older = self._known.get(key)
            if older is None or not _is_ahead(older, known):
                self._known[key] = known
                self._known.move_to_end(key)
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)

    def forget(self, key: StreamKey) -> None:
        with self._lock:
            self._known.pop(key, None)


def _is_ahead(one: StreamHead, other: StreamHead) -> bool:
    same_log = one.record.incarnation == other.record.incarnation
    return same_log and (one.tail.offset, one.tail.closed) > (other.tail.offset, other.tail.closed)
