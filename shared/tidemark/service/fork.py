"""The origin of a new stream: empty, or a fork of another stream (§4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.log.read import read_page
from tidemark.log.records import Fork, Segment, Snapshot
from tidemark.log.tails import StreamHead
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.errors import Conflict, Malformed, StreamGone, StreamNotFound
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
from tidemark.service.load import load_head
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
    """The initial state of the fork `key`. Copies nothing, whatever the source's size: if the source begins
    with a snapshot, the fork begins with the same one.

    Raises as the table of fork creation errors says: StreamNotFound, Malformed, Conflict; and
    RetentionGone.
    """
    if point.source == key:
        raise Malformed("A stream cannot be forked from itself")
    try:
        source = load_head(stores, point.source)
    except StreamGone:
        raise Conflict("The source stream was deleted; it is kept for its present forks only") from None
    except StreamNotFound:
        raise StreamNotFound("The source stream does not exist; Stream-Forked-From must name one") from None
    record = source.record
    generation = (record.fork.generation if record.fork else 0) + 1
    check_generation(generation)
    fork_type = decide_content_type(record.content_type, content_type)
    anchor = source.tail.offset if point.offset is None else point.offset
    check_retained(anchor, record.retained)
    end = _fork_end(stores, source, anchor, point.sub_offset)
    return Origin(
        fork_type,
        decide_expiry(record.expiry, expiry),
        record.inherited(end),
        Fork(ForkPoint(point.source, anchor, point.sub_offset), record.incarnation, generation),
        record.snapshot,
        record.retained,
    )


def _fork_end(stores: Stores, source: StreamHead, anchor: int, sub_offset: int) -> int:
    """The offset at which the fork leaves its source."""
    tail = source.tail
    if anchor > tail.offset:
        raise Malformed(f"Stream-Fork-Offset {render_offset(anchor)} lies beyond the source's tail")
    if not sub_offset and anchor in {0, tail.offset}:
        return anchor
    record = source.record
    page = read_page(
        stores.table, record, anchor, known_tail=tail, recent=stores.recent, limit_bytes=0, fill=stores.fill
    )
    if not sub_offset:
        return anchor
    if not page.has_data:
        raise Malformed("Stream-Fork-Sub-Offset needs an append that follows Stream-Fork-Offset")
    batch = page.batches[0]
    return anchor + decide_sub_offset(
        record.content_type, batch.lengths, batch.appends, page.skip, sub_offset
    )
