"""Creating and ending streams: the writes that touch a stream's item and its log together."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.log.append import TailMoved, batch_item, check_landed
from tidemark.log.buckets import count_streams
from tidemark.log.records import Batch, Due, DueKind, StreamRecord
from tidemark.log.references import add_reference, if_unreferenced, mark_deleted
from tidemark.log.schema import (
    decode_stream,
    encode_due,
    encode_stream,
    stream_key,
)
from tidemark.log.table import (
    IF_ABSENT,
    ConditionFailed,
    Table,
    TransactionRefused,
    Write,
)
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.protocol.errors import BucketNotFound
from tidemark.protocol.expiry import deadline_ms
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail


class StreamExists(Exception):
    """A stream is there already, and it is not the one being created."""

    def __init__(self, existing: StreamRecord) -> None:
        super().__init__("stream exists")
        self.existing = existing


class StreamChanged(Exception):
    """The stream was deleted or re-created in the meantime: look again."""


def load_stream(table: Table, key: StreamKey) -> StreamRecord | None:
    item = table.get(stream_key(key))
    return decode_stream(item) if item else None


def create_stream(table: Table, record: StreamRecord, first: Batch | None) -> None:
    """Make the stream and its first batch, together, and count it in its bucket. Raises
    StreamExists, BucketNotFound, and for a fork StreamChanged when its source is not as it was.

    A stream without content, expiry, source or bucket is one conditional write.
    """
    counted = count_streams(record.key.bucket, +1)
    extra = [*counted, *_creation_extras(record, first)]
    try:
        if extra:
            table.transact([Write(encode_stream(record), condition=IF_ABSENT), *extra])
        else:
            table.put(encode_stream(record), IF_ABSENT)
    except ConditionFailed as refused:
        _check_created(record, refused.existing)
    except TransactionRefused as refused:
        if counted and refused.failed[1]:
            raise BucketNotFound from refused
        if not refused.failed[0]:
            raise StreamChanged from refused
        _check_created(record, refused.existing[0])


def _creation_extras(record: StreamRecord, first: Batch | None) -> list[Write]:
    extras = [] if first is None else [Write(batch_item(record, first))]
    deadline = deadline_ms(record.expiry, record.created_ms)
    if deadline is not None:
        due = Due(DueKind.EXPIRE, record.key, record.incarnation, deadline)
        extras.append(Write(encode_due(due)))
    if record.fork is not None:
        extras.append(add_reference(record.fork))
    return extras


def _check_created(record: StreamRecord, existing: dict[str, object] | None) -> None:
    """The reply to our own creation may have been lost: then we meet ourselves."""
    assert existing is not None, "a refused creation names the stream that is there"
    found = decode_stream(existing)
    if found.incarnation != record.incarnation:
        raise StreamExists(found)


def tombstone(tail: Tail, append_id: str, now_ms: int) -> Batch:
    """Takes the next writer's place, so that no append follows a deletion."""
    after = Tail(offset=tail.offset, closed=True)
    return Batch(tail.offset, after, append_id, now_ms, tombstone=True, behind_closing=tail.closed)


def end_stream(table: Table, record: StreamRecord, last: Batch, release: Sequence[Write] = ()) -> None:
    """Delete or expire: tombstone the log, remove the item, count it out of its bucket, ask
    for the space back, and let go of the stream it was forked from (`log/references.py`).

    A stream that forks were made of keeps its item and its log, and is marked as deleted.
    Raises TailMoved when an append came first, StreamChanged when anything else did.
    """
    counted = count_streams(record.key.bucket, -1)
    if record.references:
        _end(table, last, record, [mark_deleted(record, last.time_ms), *counted])
    else:
        unreferenced = if_unreferenced(record.incarnation)
        gone = Write(delete=stream_key(record.key), condition=unreferenced)
        _end(table, last, record, [gone, *counted, reclaim(record, last.time_ms), *release])


def replace_stream(
    table: Table,
    expired: StreamRecord,
    last: Batch,
    record: StreamRecord,
    first: Batch | None,
    *,
    release: Sequence[Write] = (),
) -> None:
    """Create a stream where an expired one still has its item: its bucket counts no more and
    no fewer. Raises as `end_stream`."""
    fresh = Write(encode_stream(record), condition=if_unreferenced(expired.incarnation))
    extras = _creation_extras(record, first)
    _end(table, last, expired, [fresh, reclaim(expired, last.time_ms), *release, *extras])


def reclaim(record: StreamRecord, now_ms: int) -> Write:
    due = Due(DueKind.RECLAIM, record.key, record.incarnation, now_ms + RECLAIM_AFTER_MS)
    return Write(encode_due(due))


def _end(table: Table, last: Batch, record: StreamRecord, writes: Sequence[Write]) -> None:
    try:
        table.transact([Write(batch_item(record, last), condition=IF_ABSENT), *writes])
    except TransactionRefused as refused:
        if not refused.failed[0]:
            raise StreamChanged from refused
        try:
            check_landed(last, refused.existing[0])
        except TailMoved as moved:
            if moved.winner.tombstone:
                raise StreamChanged from moved
            raise
