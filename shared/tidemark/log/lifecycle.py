"""Create and end streams: the writes that change a stream's item and its log together.

A stream counts the forks that need its data. The transaction that creates or ends a fork also changes this
count, so it is right after any crash. A deleted stream with forks stays, marked as deleted, until its last
fork ends. Then the stream is released in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.append import TailMoved, check_landed
from tidemark.log.buckets import DatedTooEarly, check_counted, count_created, count_streams
from tidemark.log.due import settle_for_good
from tidemark.log.records import Batch, Due, DueKind, EndMark, Fork, Snapshot, StreamRecord, Tombstone
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.protocol.errors import OutcomeUnknown
from tidemark.protocol.expiry import deadline_ms
from tidemark.protocol.tail import Tail

#: No fork needs the stream.
NONE_LEFT: Final = tables.AnyOf(tables.Missing(schema.REFERENCES), tables.equals(schema.REFERENCES, 0))
_IS_DELETED: Final = tables.Present(schema.DELETED_MS)
_IS_LIVE: Final = tables.Missing(schema.DELETED_MS)


def if_live(incarnation: str) -> tables.Condition:
    return tables.AllOf(tables.equals(schema.INCARNATION, incarnation), _IS_LIVE)


def at_most(name: str, offset: int) -> tables.Condition:
    """The stream's offset, `RETAINED` or `COMPACTED`, is not beyond this one."""
    return tables.AnyOf(tables.Missing(name), tables.Compared(name, "<=", offset))


def shows_snapshot(snapshot: Snapshot | None) -> tables.Condition:
    """The stream's latest snapshot is this one, or it has none."""
    return (
        tables.Missing(schema.SNAPSHOT_BLOB)
        if snapshot is None
        else tables.equals(schema.SNAPSHOT_BLOB, snapshot.blob)
    )


def end_mark(record: StreamRecord, now_ms: int, *, expired: bool = False) -> schema.Item:
    """Return the end mark that replaces the stream's item. Its time is never before the creation, even if
    this clock is behind the clock that dated the creation."""
    mark = EndMark(max(now_ms, record.created_ms), record.incarnation, expired)
    return schema.encode_end_mark(schema.stream_key(record.key), mark)


def if_unreferenced(incarnation: str) -> tables.Condition:
    """The stream item has this incarnation, and no fork needs the stream."""
    return tables.AllOf(tables.equals(schema.INCARNATION, incarnation), NONE_LEFT)


def add_reference(fork: Fork, made: StreamRecord) -> tables.Write:
    """Return the write that counts a new fork, the stream `made`. The write is refused if the source was
    deleted, replaced, trimmed or compacted since, because inherited data may be removed before the fork is
    counted."""
    one_more = tables.Update(schema.stream_key(fork.point.source), adds={schema.REFERENCES: 1})
    as_seen = tables.AllOf(
        if_live(fork.incarnation),
        at_most(schema.RETAINED, made.retained),
        at_most(schema.COMPACTED, made.compacted),
        shows_snapshot(made.snapshot),
    )
    return tables.Write(one_more, condition=as_seen)


def drop_reference(fork: Fork, source: StreamRecord, due: Due | None) -> list[tables.Write]:
    """Return the writes that count one fork less. `due` is set if the source is deleted and kept only for its
    forks: it schedules a check whether this fork was the last. The process that ends the fork makes the
    check, or else the janitor."""
    marked = _IS_DELETED if source.deleted else _IS_LIVE
    one_less = tables.Update(schema.stream_key(fork.point.source), adds={schema.REFERENCES: -1})
    as_seen = tables.AllOf(tables.equals(schema.INCARNATION, fork.incarnation), marked)
    writes = [tables.Write(one_less, as_seen)]
    if due is not None:
        writes.append(tables.Write(schema.encode_due(due)))
    return writes


def mark_deleted(record: StreamRecord, now_ms: int) -> tables.Write:
    """Mark a stream as deleted while forks still need it (§4.2)."""
    mark = tables.Update(schema.stream_key(record.key), {schema.DELETED_MS: {"N": str(now_ms)}})
    is_held = tables.AllOf(
        tables.equals(schema.INCARNATION, record.incarnation), tables.Compared(schema.REFERENCES, ">", 0)
    )
    return tables.Write(mark, condition=is_held)


def remove_released(record: StreamRecord, now_ms: int) -> tables.Write:
    """Return the write of an end mark over the item of a deleted stream without forks."""
    is_left = tables.AllOf(tables.equals(schema.INCARNATION, record.incarnation), _IS_DELETED, NONE_LEFT)
    return tables.Write(end_mark(record, now_ms), condition=is_left)


@dataclass(eq=False)
class StreamExists(Exception):
    """Another stream has this name already."""

    existing: StreamRecord


class StreamChanged(Exception):
    """The stream was deleted or re-created in the meantime: read it again."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A stream to be created: its item, its first batch if it begins with content or closed, and the
    janitor's entry for a body already in S3."""

    record: StreamRecord
    first: Batch | None = None
    orphan: Due | None = None


def put_stream(table: tables.Table, creation: Creation) -> None:
    """Create the stream with its first batch, and count it in its bucket. Raises StreamExists, DatedTooEarly,
    BucketNotFound and OutcomeUnknown; BucketHasDefaults for a stream that lacks a setting of its bucket; and
    StreamChanged if a fork's source has changed or the janitor has claimed the body in S3.

    A stream without content, expiry, source or bucket is one conditional write. The condition also refuses a
    late copy of a creation after the stream was deleted, because the end mark is younger.
    """
    record = creation.record
    free = tables.if_never_or_ended_before(record.created_ms)
    counted = count_created(record)
    extra = [*counted, *_creation_extras(creation)]
    try:
        if extra:
            table.transact([tables.Write(schema.encode_stream(record), condition=free), *extra])
        else:
            table.put(schema.encode_stream(record), free)
    except tables.ConditionFailed as refused:
        _check_created(record, refused.existing, maybe_landed=refused.maybe_landed)
    except tables.TransactionRefused as refused:
        if refused.failed[0]:
            _check_created(record, refused.existing[0], maybe_landed=refused.maybe_landed)
        else:
            if counted:
                check_counted(refused, 1)
            raise StreamChanged from refused


def _creation_extras(creation: Creation) -> list[tables.Write]:
    record = creation.record
    pk, first = schema.log_pk(record.key, record.incarnation), creation.first
    extras = [] if first is None else [tables.Write(schema.encode_batch(pk, first))]
    deadline = deadline_ms(record.expiry, record.created_ms)
    if deadline is not None:
        due = Due(DueKind.EXPIRE, record.key, record.incarnation, deadline)
        extras.append(tables.Write(schema.encode_due(due)))
    if record.retention.is_limited:
        look_ms = next_look_ms(record, record.created_ms, None, record.created_ms)
        look = Due(DueKind.RETAIN, record.key, record.incarnation, look_ms, "retain")
        extras.append(tables.Write(schema.encode_due(look)))
    if record.fork is not None:
        extras.append(add_reference(record.fork, record))
    if creation.orphan is not None:
        extras.append(settle_for_good(creation.orphan))
    return extras


def next_look_ms(record: StreamRecord, now_ms: int, oldest_ms: int | None, written_ms: int) -> int:
    """Return the time of the janitor's next retention check, with a phase that spreads the streams."""
    phase_ms = crc32(record.incarnation.encode()) % 3_600_000
    return record.retention.next_look_ms(now_ms, oldest_ms, written_ms, phase_ms)


def _check_created(record: StreamRecord, existing: dict[str, object] | None, *, maybe_landed: bool) -> None:
    """Check the item that a refused creation found. Return if it is the stream of this creation, or that
    stream's end mark: the reply to an earlier try was lost. Raises StreamExists or DatedTooEarly for
    another stream, and OutcomeUnknown if this creation may have succeeded before the other one."""
    assert existing is not None, "a refused creation returns the existing item"
    if schema.is_end_mark(existing):
        mark = schema.decode_end_mark(existing)
        if mark.ended_id == record.incarnation:
            return
        if maybe_landed:
            raise OutcomeUnknown
        raise DatedTooEarly(mark.ended_ms)
    found = schema.decode_stream(existing)
    if found.incarnation == record.incarnation:
        return
    if maybe_landed and found.created_ms >= record.created_ms:
        raise OutcomeUnknown
    raise StreamExists(found)


def tombstone(tail: Tail, append_id: str, now_ms: int) -> Tombstone:
    """Return the last entry of a log. It takes the key of the next write, so no append follows."""
    return Tombstone(tail.offset, Tail(tail.offset, closed=True), append_id, now_ms, tail.closed)


def end_stream(
    table: tables.Table,
    record: StreamRecord,
    last: Tombstone,
    release: Sequence[tables.Write] = (),
    *,
    expired: bool = False,
) -> None:
    """Delete or expire a stream: write the tombstone and the end mark, lower the bucket's count, schedule the
    removal of its data, and release its fork source (`log/lifecycle.py`).

    A stream with forks keeps its item and its log and is marked as deleted. Raises TailMoved if an append
    came first, StreamChanged after any other change.
    """
    counted = count_streams(record.key.bucket, -1, last.time_ms)
    if record.references:
        _end(table, last, record, [mark_deleted(record, last.time_ms), *counted])
    else:
        unreferenced = if_unreferenced(record.incarnation)
        ended = tables.Write(end_mark(record, last.time_ms, expired=expired), condition=unreferenced)
        _end(table, last, record, [ended, *counted, reclaim(record, last.time_ms), *release])


def replace_stream(
    table: tables.Table,
    expired: StreamRecord,
    last: Tombstone,
    creation: Creation,
    *,
    release: Sequence[tables.Write] = (),
) -> None:
    """Create a stream in place of an expired one with an item; the bucket's count stays. Raises as
    `end_stream`."""
    fresh = tables.Write(
        schema.encode_stream(creation.record), condition=if_unreferenced(expired.incarnation)
    )
    extras = _creation_extras(creation)
    _end(table, last, expired, [fresh, reclaim(expired, last.time_ms), *release, *extras])


def bury(table: tables.Table, record: StreamRecord, now_ms: int) -> None:
    """Write an end mark over the item of a stream whose log has ended. Only a late write leaves such an item:
    by a version without end marks, or by a process with a clock far ahead. Raises StreamChanged for a changed
    item."""
    # A stream that was deleted while it had forks is ended by its release, which also reclaims its log.
    is_free = tables.AllOf(if_live(record.incarnation), NONE_LEFT)
    ended = tables.Write(end_mark(record, now_ms), condition=is_free)
    try:
        table.transact([ended, *count_streams(record.key.bucket, -1, now_ms)])
    except tables.TransactionRefused as refused:
        raise StreamChanged from refused


def reclaim(record: StreamRecord, now_ms: int) -> tables.Write:
    due = Due(DueKind.RECLAIM, record.key, record.incarnation, now_ms + RECLAIM_AFTER_MS)
    return tables.Write(schema.encode_due(due))


def _end(table: tables.Table, last: Tombstone, record: StreamRecord, writes: Sequence[tables.Write]) -> None:
    try:
        pk = schema.log_pk(record.key, record.incarnation)
        table.transact([tables.Write(schema.encode_tombstone(pk, last), condition=tables.IF_ABSENT), *writes])
    except tables.TransactionRefused as refused:
        if not refused.failed[0]:
            raise StreamChanged from refused
        try:
            check_landed(last, refused.existing[0])
        except TailMoved as moved:
            if isinstance(moved.winner, Tombstone):
                raise StreamChanged from moved
            raise
