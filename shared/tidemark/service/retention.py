"""Retention (docs/retention.md): the offset from which a stream's limits keep messages, and trimming below an
offset.

A read below the retained offset gets 410. The janitor removes the batches an hour later, as below a snapshot.
"""

from __future__ import annotations

from tidemark.log.read import load_batch_at
from tidemark.log.records import Batch, Due, DueKind, StreamRecord
from tidemark.log.retention import RetainedMoved, commit_retained
from tidemark.log.tails import RECLAIM_AFTER_MS, StreamHead
from tidemark.protocol.errors import Busy, Conflict, RetentionGone, StreamNotFound
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import require_live
from tidemark.service.snapshots import check_snapshot_offset
from tidemark.service.start_point import first_written_from
from tidemark.service.stores import Stores


def retained_from(stores: Stores, head: StreamHead, now_ms: int) -> int:
    """The first offset that the stream's retention keeps: the end of a message, and never below the present
    retained offset. Takes at most one query if nothing is too old."""
    record, tail = head.record, head.tail.offset
    begin = record.retained
    if record.retention.seconds is not None:
        before_ms = now_ms - record.retention.seconds * 1000
        oldest_ms = written_ms_at(stores, head, begin)
        if oldest_ms is not None and oldest_ms < before_ms:
            begin = first_written_from(stores, head, before_ms)
    if record.retention.size is not None and tail - record.retention.size > begin:
        place = tail - record.retention.size
        batch = load_batch_at(stores.table, record, place, stores.fill)
        if isinstance(batch, Batch):
            begin = max(begin, batch.start, *(end for end in batch.message_ends() if end <= place))
    return begin


def written_ms_at(stores: Stores, head: StreamHead, offset: int) -> int | None:
    """The time at which the message at the offset was written; None at the tail. A message in a pack has the
    time of the last message of its block."""
    if offset >= head.tail.offset:
        return None
    batch = load_batch_at(stores.table, head.record, offset, stores.fill)
    return None if batch is None else batch.time_ms


def trim_below(stores: Stores, key: StreamKey, offset: int, incarnation: str | None = None) -> bool:
    """Retain the stream from `offset` on, the end of a message. Returns False if this was done before.

    Raises StreamNotFound, also if the stream has another `incarnation`; OffsetBeyondTail; Malformed for an
    offset inside a message; Conflict if the stream has a snapshot; Busy.
    """
    try:
        record = check_snapshot_offset(stores, key, offset)
    except RetentionGone:
        return False
    check_may_trim(record, incarnation)
    if offset == record.retained:
        return False
    due_ms = stores.clock_ms() + RECLAIM_AFTER_MS
    # An incarnation is trimmed to an offset once only, so the key of the due entry is unique.
    mark = f"to-{render_offset(offset)}"
    trim = Due(DueKind.TRIM, key, record.incarnation, due_ms, mark, offset)
    try:
        commit_retained(stores.table, record, trim)
    except RetainedMoved as moved:
        check_may_trim(require_live(moved.latest), record.incarnation)
        raise Busy from moved
    return True


def check_may_trim(record: StreamRecord, incarnation: str | None) -> None:
    """Raises StreamNotFound, Conflict."""
    if incarnation is not None and record.incarnation != incarnation:
        raise StreamNotFound
    if record.snapshot is not None:
        raise Conflict(
            f"Stream has a snapshot at {render_offset(record.snapshot.offset)}, and bootstrap needs the "
            "messages after it: publish a later snapshot instead"
        )
