"""A stream's item: its configuration, its expiry, its snapshot, and the logs that a fork inherits."""

from __future__ import annotations

from typing import Final

import orjson

from tidemark.log.records import Fork, Segment, Snapshot, StreamRecord
from tidemark.log.schema.buckets import bucket_pk
from tidemark.log.schema.items import (
    CREATED_MS,
    INCARNATION,
    PK,
    SK,
    Item,
    Key,
    decode_retention,
    encode_retention,
    make_key,
    number,
)
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.fork import ForkPoint
from tidemark.protocol.stream_key import StreamKey

CONTENT_TYPE: Final = "ct"
TOUCHED_MS: Final = "to"
TTL_SECONDS: Final = "tt"
EXPIRES_AT: Final = "xa"  # as it was written
EXPIRES_AT_MS: Final = "xm"
RETAINED: Final = "er"  # the earliest offset that may be read
SNAPSHOT_OFFSET: Final = "so"
SNAPSHOT_BLOB: Final = "sb"
SNAPSHOT_CONTENT_TYPE: Final = "sc"
SNAPSHOT_SIZE: Final = "sz"
SNAPSHOT_PUBLISHED_MS: Final = "sp"
SNAPSHOT_CRC: Final = (
    "sh"  # CRC-32 and the last part of the blob's name: a release without it leaves it as it was
)
LINEAGE: Final = "ln"  # JSON: the stretches of other logs that a fork inherits
FORK: Final = "fk"  # JSON: its source
REFERENCES: Final = "rc"  # how many forks were made of it; changed by updates alone
PACKED: Final = "pd"  # where the last pack ends; set by the transaction that makes a pack
DELETED_MS: Final = "dl"  # deleted, and kept for its forks; set by an update alone


def stream_sk(stream_id: str) -> str:
    return f"stream/{stream_id}"


def stream_key(key: StreamKey) -> Key:
    return make_key(bucket_pk(key.bucket), stream_sk(key.stream_id))


def encode_stream(record: StreamRecord) -> Item:
    item = stream_key(record.key) | {
        INCARNATION: {"S": record.incarnation},
        CONTENT_TYPE: {"S": record.content_type.value},
        CREATED_MS: {"N": str(record.created_ms)},
        TOUCHED_MS: {"N": str(record.touched_ms)},
    }
    if record.expiry.ttl_seconds is not None:
        item[TTL_SECONDS] = {"N": str(record.expiry.ttl_seconds)}
    if record.expiry.expires_at is not None:
        item[EXPIRES_AT] = {"S": record.expiry.expires_at}
        item[EXPIRES_AT_MS] = {"N": str(record.expiry.expires_at_ms)}
    if record.retained:
        item[RETAINED] = {"N": str(record.retained)}
    if record.packed:
        item[PACKED] = {"N": str(record.packed)}
    if record.snapshot is not None:
        item |= encode_snapshot(record.snapshot)
    return item | encode_retention(record.retention) | _encode_fork(record)


def encode_snapshot(snapshot: Snapshot) -> Item:
    """Attributes of the stream's item."""
    mark = snapshot.blob.rpartition("/")[2]
    return ({} if snapshot.crc is None else {SNAPSHOT_CRC: {"S": f"{snapshot.crc:08x} {mark}"}}) | {
        SNAPSHOT_OFFSET: {"N": str(snapshot.offset)},
        SNAPSHOT_BLOB: {"S": snapshot.blob},
        SNAPSHOT_CONTENT_TYPE: {"S": snapshot.content_type.value},
        SNAPSHOT_SIZE: {"N": str(snapshot.size)},
        SNAPSHOT_PUBLISHED_MS: {"N": str(snapshot.published_ms)},
    }


def decode_snapshot(item: Item) -> Snapshot | None:
    if SNAPSHOT_BLOB not in item:
        return None
    crc, _, mark = item.get(SNAPSHOT_CRC, {}).get("S", "").partition(" ")
    is_of_blob = crc and item[SNAPSHOT_BLOB]["S"].rpartition("/")[2] == mark
    return Snapshot(
        offset=int(item[SNAPSHOT_OFFSET]["N"]),
        blob=item[SNAPSHOT_BLOB]["S"],
        content_type=parse_content_type(item[SNAPSHOT_CONTENT_TYPE]["S"]),
        size=int(item[SNAPSHOT_SIZE]["N"]),
        published_ms=int(item[SNAPSHOT_PUBLISHED_MS]["N"]),
        crc=int(crc, 16) if is_of_blob else None,
    )


def _encode_fork(record: StreamRecord) -> Item:
    item: Item = {}
    if record.lineage:
        rows = [[s.key.bucket, s.key.stream_id, s.incarnation, s.end] for s in record.lineage]
        item[LINEAGE] = {"S": orjson.dumps(rows).decode()}
    if record.fork is not None:
        fork, point = record.fork, record.fork.point
        row = [point.source.bucket, point.source.stream_id, point.offset, point.sub_offset]
        item[FORK] = {"S": orjson.dumps([*row, fork.incarnation, fork.generation]).decode()}
    return item


def _decode_fork(item: Item) -> Fork | None:
    if FORK not in item:
        return None
    bucket, stream_id, offset, sub_offset, incarnation, generation = orjson.loads(item[FORK]["S"])
    return Fork(ForkPoint(StreamKey(bucket, stream_id), offset, sub_offset), incarnation, generation)


def decode_stream(item: Item) -> StreamRecord:
    """The item must not be an end mark."""
    rows = orjson.loads(item[LINEAGE]["S"]) if LINEAGE in item else ()
    return StreamRecord(
        key=StreamKey(item[PK]["S"].removeprefix("bucket/"), item[SK]["S"].removeprefix("stream/")),
        incarnation=item[INCARNATION]["S"],
        content_type=parse_content_type(item[CONTENT_TYPE]["S"]),
        expiry=Expiry(
            ttl_seconds=number(item, TTL_SECONDS),
            expires_at=item[EXPIRES_AT]["S"] if EXPIRES_AT in item else None,
            expires_at_ms=number(item, EXPIRES_AT_MS),
        ),
        created_ms=int(item[CREATED_MS]["N"]),
        touched_ms=int(item[TOUCHED_MS]["N"]),
        snapshot=decode_snapshot(item),
        retained=number(item, RETAINED) or 0,
        packed=number(item, PACKED) or 0,
        retention=decode_retention(item),
        lineage=tuple(Segment(StreamKey(*name), incarnation, end) for *name, incarnation, end in rows),
        fork=_decode_fork(item),
        references=number(item, REFERENCES) or 0,
        deleted=DELETED_MS in item,
    )
