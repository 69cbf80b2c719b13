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
from tidemark.log.table import Condition, Update, Write

_NONE_LEFT: Final = f"(attribute_not_exists({REFERENCES}) OR {REFERENCES} = :none)"
_IS_DELETED: Final = f"attribute_exists({DELETED_MS})"
_IS_LIVE: Final = f"attribute_not_exists({DELETED_MS})"
#: The stream is there, and is `:inc`.
IS_THIS_LIVE: Final = f"{INCARNATION} = :inc AND {_IS_LIVE}"


def retains_from(value: str) -> str:
    """The condition that the stream still retains what is at the offset `value` and behind it."""
    return f"(attribute_not_exists({RETAINED}) OR {RETAINED} <= {value})"


def shows_snapshot(snapshot: Snapshot | None) -> tuple[str, Item]:
    """The condition that the stream's latest snapshot is this one, or that it has none; and its values."""
    if snapshot is None:
        return f"attribute_not_exists({SNAPSHOT_BLOB})", {}
    return f"{SNAPSHOT_BLOB} = :shown", {":shown": {"S": snapshot.blob}}


def _of(incarnation: str, expression: str = "", **values: Item) -> Condition:
    more = {f":{name}": value for name, value in values.items()}
    return Condition(f"{INCARNATION} = :inc{expression}", {":inc": {"S": incarnation}} | more)


def end_mark(record: StreamRecord, now_ms: int, *, expired: bool = False) -> Item:
    """What stays in the place of the stream's item. No stream ends before it began, even by a clock that
    is behind the one that dated the creation."""
    mark = EndMark(max(now_ms, record.created_ms), record.incarnation, expired)
    return encode_end_mark(stream_key(record.key), mark)


def if_unreferenced(incarnation: str) -> Condition:
    """The stream item is still that of this incarnation, and no fork needs it."""
    return _of(incarnation, f" AND {_NONE_LEFT}", none={"N": "0"})


def if_live_and_unreferenced(incarnation: str) -> Condition:
    """As above, and it was not deleted while forks needed it: then its release is somebody's, which also has
    its log reclaimed."""
    return _of(incarnation, f" AND {_IS_LIVE} AND {_NONE_LEFT}", none={"N": "0"})


def add_reference(fork: Fork, made: StreamRecord) -> Write:
    """Count one fork more, the stream that is `made`; refused where the source was deleted or replaced in the
    meantime, or has let go of something: what the fork inherits may be removed, until the fork is counted."""
    one_more = Update(stream_key(fork.point.source), f"ADD {REFERENCES} :one", {":one": {"N": "1"}})
    is_same_snapshot, shown = shows_snapshot(made.snapshot)
    expression = f"{IS_THIS_LIVE} AND {retains_from(':retained')} AND {is_same_snapshot}"
    values = {":inc": {"S": fork.incarnation}, ":retained": {"N": str(made.retained)}}
    return Write(update=one_more, condition=Condition(expression, values | shown))


def drop_reference(fork: Fork, source: StreamRecord, due: Due | None) -> list[Write]:
    """Count one fork less. If the source is deleted and kept for its forks alone, `due` says to look
    whether this was the last one: the process that ends the fork does that, or else the janitor."""
    marked = _IS_DELETED if source.deleted else _IS_LIVE
    one_less = Update(stream_key(fork.point.source), f"ADD {REFERENCES} :one", {":one": {"N": "-1"}})
    writes = [Write(update=one_less, condition=_of(fork.incarnation, f" AND {marked}"))]
    if due is not None:
        writes.append(Write(encode_due(due)))
    return writes


def release_due(source: StreamRecord, fork_incarnation: str, now_ms: int) -> Due:
    """The mark keeps apart the entries of forks that end in the same millisecond."""
    return Due(DueKind.RELEASE, source.key, source.incarnation, now_ms, mark=fork_incarnation)


def mark_deleted(record: StreamRecord, now_ms: int) -> Write:
    """Soft-deleted (§4.2): forks hold it."""
    mark = Update(stream_key(record.key), f"SET {DELETED_MS} = :now", {":now": {"N": str(now_ms)}})
    return Write(
        update=mark, condition=_of(record.incarnation, f" AND {REFERENCES} > :none", none={"N": "0"})
    )


def remove_released(record: StreamRecord, now_ms: int) -> Write:
    """The item of a deleted stream that no fork needs any more becomes an end mark."""
    return Write(
        end_mark(record, now_ms),
        condition=_of(record.incarnation, f" AND {_IS_DELETED} AND {_NONE_LEFT}", none={"N": "0"}),
    )
