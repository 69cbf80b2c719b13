"""Bootstrap (extensions §3): the snapshot and what came after it, in one answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidemark.blobs import Stored, bootstrap_blob_key
from tidemark.log.read import load_stream
from tidemark.log.records import Snapshot, StreamRecord
from tidemark.protocol.messages import DEFAULT
from tidemark.protocol.snapshot import Part, part_bytes
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import last_used_ms, require_live
from tidemark.service.read import Reading, read_record, renew
from tidemark.service.snapshots import MAX_ANSWER_BYTES, URL_SECONDS
from tidemark.service.stores import Stores

#: Making and rendering this many parts takes a few milliseconds at most.
FEW_PARTS: Final = 1_000
#: A snapshot or a message of the largest size still fits, with the multipart syntax around it.
_LIMIT_BYTES: Final = MAX_ANSWER_BYTES + 64 * 1024


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """All of it as of one version of the stream's item: that names the snapshot and where the
    updates begin. `url` in place of the parts where the snapshot is too large for an answer."""

    snapshot: Snapshot | None
    next_offset: int
    up_to_date: bool
    closed: bool
    parts: tuple[Part, ...] = ()
    url: str | None = None


def bootstrap(stores: Stores, key: StreamKey) -> Bootstrap:
    """Raises StreamNotFound. Renews a sliding expiry, as every read does."""
    record = require_live(load_stream(stores.table, key))
    snapshot = record.snapshot
    if snapshot is None:
        return _with_updates(stores, record, Part(DEFAULT, b""), read_record(stores, record, record.retained))
    if snapshot.size > MAX_ANSWER_BYTES:
        # The object that was made when it was published: the snapshot, and no update.
        renew(stores, record, last_used_ms(stores, record, 0), stores.clock_ms())
        known = Stored(snapshot.size, crc=snapshot.bootstrap_crc)
        url = stores.blobs.url_to_get(bootstrap_blob_key(snapshot.blob), URL_SECONDS, known=known)
        return Bootstrap(snapshot, snapshot.offset, up_to_date=False, closed=False, url=url)
    blob, reading = stores.concurrency.pair(
        lambda: stores.snapshot_blob(snapshot),
        lambda: read_record(stores, record, snapshot.offset, MAX_ANSWER_BYTES - snapshot.size),
    )
    return _with_updates(stores, record, Part(snapshot.content_type.value, blob), reading)


def _with_updates(stores: Stores, record: StreamRecord, first: Part, reading: Reading) -> Bootstrap:
    """Beside the event loop where there are many messages."""
    call = partial(add_updates, record, first, reading)
    is_long = sum(len(batch.lengths) for batch in reading.page.batches) > FEW_PARTS
    return stores.concurrency.compute(call) if is_long else call()


def add_updates(record: StreamRecord, first: Part, reading: Reading) -> Bootstrap:
    """Add as many updates as fit: cut at the end of a message, and the reader goes on from there."""
    content_type, page = record.content_type.served, reading.page
    parts, next_offset = [first], page.start
    left_bytes = _LIMIT_BYTES - part_bytes(first.content_type, len(first.body))
    for end, message in messages(reading):
        left_bytes -= part_bytes(content_type, len(message))
        if left_bytes < 0:
            break
        parts.append(Part(content_type, message))
        next_offset = end
    complete = next_offset == page.end
    return Bootstrap(
        record.snapshot,
        next_offset,
        up_to_date=complete and page.up_to_date,
        closed=complete and page.closed,
        parts=tuple(parts),
    )


def messages(reading: Reading) -> Iterator[tuple[int, bytes]]:
    """The messages of a page, each with the offset of its end; JSON as it was sent."""
    page, is_json = reading.page, reading.record.content_type.is_json
    for batch in page.batches:
        position, data = batch.start, batch.data or b""
        for length in batch.lengths:
            begin, position = position, position + length
            if begin >= page.start:
                stored = data[begin - batch.start : position - batch.start]
                yield position, stored[:-1] if is_json else stored
