"""When the messages of a page were appended (an extension).

A read's response has no room for it: a page may hold the appends of tens of thousands of writers. So clients
that want the times request them, by the offset of the page. No other request pays for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tidemark.log.read import Page
from tidemark.log.records import Batch
from tidemark.log.schema import BOUNDARY_ATTRIBUTES
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import last_used_ms
from tidemark.service.read import load_page, refuse_tombstone
from tidemark.service.stores import Stores


@dataclass(slots=True)
class AppendTimes:
    """The writes of [start, end), in order: when each was made, how many messages it has there, and how many
    of the stream's bytes. A write is an append, or several that were committed together."""

    incarnation: str
    start: int
    end: int
    crc: int | None
    times_ms: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def load_times(stores: Stores, key: StreamKey, start: int) -> AppendTimes:
    """The times of the page that a read at `start` returns. Raises as `read`.

    The calls are those of the read, for the same items without their bytes. Bodies in S3 are not fetched; of
    packs the blocks are, because they have the times. It does not renew a sliding expiry.
    """
    now_ms = stores.clock_ms()
    record, page = load_page(stores, key, start, now_ms, {"attributes": BOUNDARY_ATTRIBUTES})
    last_used_ms(stores, record, page.last.time_ms if page.last else 0, now_ms)
    refuse_tombstone(stores, record, page)
    found = AppendTimes(record.incarnation, page.start, page.end, page.crc)
    for time_ms, messages, size in _writes_of(page):
        found.times_ms.append(time_ms)
        found.messages.append(messages)
        found.sizes.append(size)
    return found


def _writes_of(page: Page) -> Iterator[tuple[int, int, int]]:
    """Time, messages and bytes of each, without what lies before the page, and without a closure."""
    skip = page.skip
    for batch in page.batches:
        for time_ms, lengths in _lengths_of(batch):
            size = sum(lengths)
            if size > skip:
                left = len(lengths)
                for length in lengths:
                    if length > skip:
                        break
                    left, skip, size = left - 1, skip - length, size - length
                yield time_ms, left, size - skip
                skip = 0
            else:
                skip -= size


def _lengths_of(batch: Batch) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The time of each write in it, and the lengths of its messages. A fork may have a part of the batch."""
    if batch.times is None:
        yield batch.time_ms, batch.lengths
        return
    lengths = iter(batch.lengths)
    for count, time_ms in zip(batch.times.messages, batch.times.times_ms, strict=True):
        yield time_ms, tuple(islice(lengths, count))
