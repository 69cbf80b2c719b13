"""Reference counts: a stream knows how many forks live on its data.

A count changes in the transaction that creates or ends the fork, so it is right after
any crash. A stream that is deleted while it is referenced stays, marked, until its last
fork is gone; then it is released in turn.
"""

from __future__ import annotations

from typing import Final

from tidemark.log.records import Due, DueKind, EndMark, Fork, Snapshot, StreamRecord
from tidemark.log.schema import (
    DELETED_MS,
    INCARNATION,
    REFERENCES,
    RETAINED,
    SNAPSHOT_BLOB,
    Item,
    encode_due,
    encode_end_mark,
    stream_key,
)
from tidemark.log.table import AllOf, AnyOf, Compared, Condition, Missing, Present, Update, Write, equals

_NONE_LEFT: Final = AnyOf(Missing(REFERENCES), equals(REFERENCES, 0))
_IS_DELETED: Final = Present(DELETED_MS)
_IS_LIVE: Final = Missing(DELETED_MS)


def is_live(incarnation: str) -> Condition:
    """The stream is there, and is this one."""
    return AllOf(equals(INCARNATION, incarnation), _IS_LIVE)


def retains_from(offset: int) -> Condition:
    """The stream still retains what is at the offset and behind it."""
    return AnyOf(Missing(RETAINED), Compared(RETAINED, "<=", offset))


def shows_snapshot(snapshot: Snapshot | None) -> Condition:
    """The stream's latest snapshot is this one, or it has none."""
    return Missing(SNAPSHOT_BLOB) if snapshot is None else equals(SNAPSHOT_BLOB, snapshot.blob)


def end_mark(record: StreamRecord, now_ms: int, *, expired: bool = False) -> Item:
    """The end mark that replaces the stream's item. No stream ends before it began, even by a clock that is
    behind the one that dated the creation."""
    mark = EndMark(max(now_ms, record.created_ms), record.incarnation, expired)
    return encode_end_mark(stream_key(record.key), mark)


def if_unreferenced(incarnation: str) -> Condition:
    """The stream item is still that of this incarnation, and no fork needs it."""
    return AllOf(equals(INCARNATION, incarnation), _NONE_LEFT)


def if_live_and_unreferenced(incarnation: str) -> Condition:
    """As above, and it was not deleted while forks needed it: then its release is somebody's, which also has
    its log reclaimed."""
    return AllOf(is_live(incarnation), _NONE_LEFT)


def add_reference(fork: Fork, made: StreamRecord) -> Write:
    """Count one fork more, the stream that is `made`; refused if the source was deleted, replaced or trimmed
    in the meantime: until the fork is counted, the data that it inherits may be removed."""
    one_more = Update(stream_key(fork.point.source), adds={REFERENCES: 1})
    as_seen = AllOf(is_live(fork.incarnation), retains_from(made.retained), shows_snapshot(made.snapshot))
    return Write(update=one_more, condition=as_seen)


def drop_reference(fork: Fork, source: StreamRecord, due: Due | None) -> list[Write]:
    """Count one fork less. If the source is deleted and kept for its forks alone, `due` says to look
    whether this was the last one: the process that ends the fork does that, or else the janitor."""
    marked = _IS_DELETED if source.deleted else _IS_LIVE
    one_less = Update(stream_key(fork.point.source), adds={REFERENCES: -1})
    writes = [Write(update=one_less, condition=AllOf(equals(INCARNATION, fork.incarnation), marked))]
    if due is not None:
        writes.append(Write(encode_due(due)))
    return writes


def release_due(source: StreamRecord, fork_incarnation: str, now_ms: int) -> Due:
    """The mark keeps apart the entries of forks that end in the same millisecond."""
    return Due(DueKind.RELEASE, source.key, source.incarnation, now_ms, mark=fork_incarnation)


def mark_deleted(record: StreamRecord, now_ms: int) -> Write:
    """Soft-deleted (§4.2): forks hold it."""
    mark = Update(stream_key(record.key), {DELETED_MS: {"N": str(now_ms)}})
    is_held = AllOf(equals(INCARNATION, record.incarnation), Compared(REFERENCES, ">", 0))
    return Write(update=mark, condition=is_held)


def remove_released(record: StreamRecord, now_ms: int) -> Write:
    """The item of a deleted stream that no fork needs any more becomes an end mark."""
    is_left = AllOf(equals(INCARNATION, record.incarnation), _IS_DELETED, _NONE_LEFT)
    return Write(end_mark(record, now_ms), condition=is_left)
