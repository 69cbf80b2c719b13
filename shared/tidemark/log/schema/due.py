"""Work that is due at a time: the janitor's task, its stream, and the offset below which it applies."""

from __future__ import annotations

from typing import Final

from tidemark.log.records import Due, DueKind
from tidemark.log.schema.items import BLOB, SK, Item, Key, make_key, number, shard_of
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey

KIND: Final = "kd"
DUE_BUCKET: Final = "bk"
DUE_STREAM: Final = "st"
DUE_OFFSET: Final = "of"
#: The janitor's queue is spread over this many partitions.
DUE_SHARDS: Final = 8


def due_pk(shard: int, *, packing: bool = False) -> str:
    """Packing has partitions of its own: it takes long, and nothing else waits behind it."""
    return f"due/p{shard}" if packing else f"due/{shard}"


def due_key(due: Due) -> Key:
    packing = due.kind in {DueKind.PACK, DueKind.PACKED, DueKind.REPLACED}
    # Digits only, so that an instant before 1970 sorts with the rest.
    sk = f"{render_offset(max(0, due.due_ms))}/{due.incarnation}"
    pk = due_pk(shard_of(due.incarnation, DUE_SHARDS), packing=packing)
    return make_key(pk, f"{sk}/{due.mark}" if due.mark else sk)


def encode_due(due: Due) -> Item:
    item = due_key(due) | {
        KIND: {"S": due.kind.value},
        DUE_BUCKET: {"S": due.key.bucket},
        DUE_STREAM: {"S": due.key.stream_id},
    }
    if due.offset:
        item[DUE_OFFSET] = {"N": str(due.offset)}
    if due.blob is not None:
        item[BLOB] = {"S": due.blob}
    return item


def decode_due(item: Item) -> Due:
    due_ms, incarnation, *marks = item[SK]["S"].split("/")
    return Due(
        kind=DueKind(item[KIND]["S"]),
        key=StreamKey(item[DUE_BUCKET]["S"], item[DUE_STREAM]["S"]),
        incarnation=incarnation,
        due_ms=int(due_ms),
        mark=marks[0] if marks else "",
        offset=number(item, DUE_OFFSET) or 0,
        blob=item[BLOB]["S"] if BLOB in item else None,
    )


def due_before(now_ms: int) -> str:
    """Sort keys below this one have fallen due."""
    return render_offset(now_ms + 1)
