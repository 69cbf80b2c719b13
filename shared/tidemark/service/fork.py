"""Where a new stream comes from: out of nothing, or from another stream (§4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.log.read import read_page
from tidemark.log.records import Fork, Segment, Snapshot
from tidemark.log.tails import StreamHead
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.errors import Conflict, Malformed, SourceNotFound, StreamGone, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.fork import (
    ForkPoint,
    check_generation,
    decide_content_type,
    decide_expiry,
    decide_sub_offset,
)
from tidemark.protocol.offset import render_offset
from tidemark.protocol.snapshot import check_retained
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_known
from tidemark.service.stores import Stores


@dataclass(frozen=True, slots=True)
class Origin:
    content_type: ContentType
    expiry: Expiry
    lineage: tuple[Segment, ...] = ()
    fork: Fork | None = None
    snapshot: Snapshot | None = None
    retained: int = 0


def fork_origin(
    stores: Stores,
    key: StreamKey,
    point: ForkPoint,
    content_type: ContentType | None,
    expiry: Expiry,
) -> Origin:
    """What the fork `key` begins with. Copies nothing, whatever the source's size: where the
    source begins with a snapshot, the fork begins with the same one.

    Raises as the table of fork creation errors says: StreamNotFound, Malformed, Conflict; and
    RetentionGone.
    """
    if point.source == key:
        raise Malformed("A stream cannot be forked from itself")
    source = _load_source(stores, point.source)
    record = source.record
    generation = (record.fork.generation if record.fork else 0) + 1
    check_generation(generation)
    fork_type = decide_content_type(record.content_type, content_type)
    anchor = source.tail.offset if point.offset is None else point.offset
    check_retained(anchor, record.retained)
    end = _resolve(stores, source, anchor, point.sub_offset)
    asked = ForkPoint(point.source, anchor, point.sub_offset)
    fork = Fork(asked, record.incarnation, generation)
    return Origin(
        fork_type,
        decide_expiry(record.expiry, expiry),
        record.inherited(end),
        fork,
        record.snapshot,
        record.retained,
    )


def _load_source(stores: Stores, key: StreamKey) -> StreamHead:
    try:
        return load_known(stores, key)
    except StreamGone:
        raise Conflict("The source stream was deleted; it lives on for its present forks only") from None
    except StreamNotFound:
        raise SourceNotFound from None


def _resolve(stores: Stores, source: StreamHead, anchor: int, sub_offset: int) -> int:
    """The offset at which the fork leaves its source."""
    tail = source.tail
    if anchor > tail.offset:
        raise Malformed(f"Stream-Fork-Offset {render_offset(anchor)} lies beyond the source's tail")
    if not sub_offset and anchor in {0, tail.offset}:
        return anchor
    record = source.record
    page = read_page(stores.table, record, anchor, known_tail=tail, recent=stores.recent, limit_bytes=0)
    if not sub_offset:
        return anchor
    if not page.has_data:
        raise Malformed("Stream-Fork-Sub-Offset needs an append that follows Stream-Fork-Offset")
    batch = page.batches[0]
    return anchor + decide_sub_offset(
        record.content_type, batch.lengths, batch.appends, page.skip, sub_offset
    )
