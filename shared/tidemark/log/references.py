"""Reference counts: a stream knows how many forks live on its data.

A count changes in the very transaction that makes or ends the fork, so it is right after
any crash. A stream that is deleted while it is referenced stays, marked, until its last
fork is gone; then it is released in turn.
"""

from __future__ import annotations

from typing import Final

from tidemark.log.records import Due, DueKind, Fork, StreamRecord
from tidemark.log.schema import Item, encode_due, stream_key
from tidemark.log.table import Condition, Update, Write

_NONE_LEFT: Final = "(attribute_not_exists(rc) OR rc = :none)"


def _of(incarnation: str, expression: str = "", **values: Item) -> Condition:
    more = {f":{name}": value for name, value in values.items()}
    return Condition(f"inc = :inc{expression}", {":inc": {"S": incarnation}} | more)


def if_unreferenced(incarnation: str) -> Condition:
    """The stream item is still that of this incarnation, and no fork needs it."""
    return _of(incarnation, f" AND {_NONE_LEFT}", none={"N": "0"})


def add_reference(fork: Fork) -> Write:
    """One fork more, unless the source was deleted or replaced in the meantime."""
    one_more = Update(stream_key(fork.point.source), "ADD rc :one", {":one": {"N": "1"}})
    return Write(update=one_more, condition=_of(fork.incarnation, " AND attribute_not_exists(dl)"))


def drop_reference(fork: Fork, source: StreamRecord, now_ms: int) -> list[Write]:
    """One fork less. If the source only lived on for its forks, somebody has to look
    whether this was the last: whoever ends the fork, or else the janitor."""
    marked = "attribute_exists(dl)" if source.deleted else "attribute_not_exists(dl)"
    one_less = Update(stream_key(fork.point.source), "ADD rc :one", {":one": {"N": "-1"}})
    writes = [Write(update=one_less, condition=_of(fork.incarnation, f" AND {marked}"))]
    if source.deleted:
        writes.append(Write(encode_due(release_due(source, now_ms))))
    return writes


def release_due(source: StreamRecord, now_ms: int) -> Due:
    return Due(DueKind.RELEASE, source.key, source.incarnation, now_ms)


def mark_deleted(record: StreamRecord, now_ms: int) -> Write:
    """Soft-deleted (§4.2): forks hold it."""
    mark = Update(stream_key(record.key), "SET dl = :now", {":now": {"N": str(now_ms)}})
    return Write(update=mark, condition=_of(record.incarnation, " AND rc > :none", none={"N": "0"}))


def remove_released(record: StreamRecord) -> Write:
    """The item of a deleted stream that no fork needs any more."""
    return Write(
        delete=stream_key(record.key),
        condition=_of(record.incarnation, f" AND attribute_exists(dl) AND {_NONE_LEFT}", none={"N": "0"}),
    )
