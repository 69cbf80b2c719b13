"""Trimming: removes a stream's messages below an offset (docs/retention.md).

Readers below it get 410 from then on. The janitor removes the batches an hour later, as it does below a
snapshot.
"""

from __future__ import annotations

from tidemark.log.records import Due, DueKind, StreamRecord
from tidemark.log.retention import RetainedMoved, commit_retained
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.protocol.errors import Busy, Conflict, RetentionGone, StreamNotFound
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import require_live
from tidemark.service.publish_snapshot import check_snapshot_offset
from tidemark.service.stores import Stores


def trim_below(stores: Stores, key: StreamKey, offset: int, incarnation: str | None = None) -> bool:
    """Retain the stream from `offset` on, the end of a message. Returns False if nothing was retained below
    it.

    Raises StreamNotFound, also where the stream is not the `incarnation` that is meant; OffsetBeyondTail;
    Malformed for an offset between messages' ends; Conflict where the stream has a snapshot; Busy.
    """
    try:
        record = check_snapshot_offset(stores, key, offset)
    except RetentionGone:
        return False
    check_may_trim(record, incarnation)
    if offset == record.retained:
        return False
    due_ms = stores.clock_ms() + RECLAIM_AFTER_MS
    # No two trims of an incarnation go to the same offset, so no key of an entry is used twice.
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
            f"Stream has a snapshot at {render_offset(record.snapshot.offset)}, and bootstrap needs what "
            "comes behind it: publish a later snapshot instead"
        )
