"""Items of buckets and streams: their own, their end marks, and producers, due work and waiters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import orjson

from tidemark.log import records
from tidemark.log.schema import items
from tidemark.protocol.compaction import NOT_YET, Horizon
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import Damaged, Malformed
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey

_log: Final = logging.getLogger("tidemark")

ENDED_MS: Final = "em"
#: The incarnation that ended, or the id of a bucket's deletion.
ENDED_ID: Final = "ei"
EXPIRED: Final = "ex"

#: Milliseconds for which an end mark stays. AWS refuses a signed request after at most 15 minutes
#: (`docs/design.md`), so no late copy can follow. DynamoDB removes the mark for free.
END_MARK_KEPT_MS: Final = 24 * 60 * 60 * 1000


def encode_end_mark(key: items.Key, mark: records.EndMark) -> items.Item:
    item = key | {
        ENDED_MS: {"N": str(mark.ended_ms)},
        ENDED_ID: {"S": mark.ended_id},
        items.TTL: {"N": str(-(-(mark.ended_ms + END_MARK_KEPT_MS) // 1000))},
    }
    return item | {EXPIRED: {"BOOL": True}} if mark.expired else item


def is_end_mark(item: items.Item) -> bool:
    return ENDED_MS in item


def decode_end_mark(item: items.Item) -> records.EndMark:
    return records.EndMark(
        ended_ms=int(item[ENDED_MS]["N"]), ended_id=item[ENDED_ID]["S"], expired=EXPIRED in item
    )


STREAM_COUNT: Final = "n"
CREATION_ID: Final = "i"
#: The last change of the count.
COUNTED_MS: Final = "ch"


_BUCKET: Final = "bucket/"
_STREAM: Final = "stream/"


def bucket_pk(bucket: str) -> str:
    return _BUCKET + bucket


def bucket_key(bucket: str) -> items.Key:
    return items.make_key(bucket_pk(bucket), ".")


def encode_bucket(record: records.BucketRecord) -> items.Item:
    item = bucket_key(record.bucket) | {
        STREAM_COUNT: {"N": str(record.streams)},
        items.CREATED_MS: {"N": str(record.created_ms)},
        COUNTED_MS: {"N": str(record.counted_ms)},
        CREATION_ID: {"S": record.creation_id},
    }
    return item | items.encode_retention(record.retention) | items.encode_compaction(record.compaction)


def decode_bucket(item: items.Item) -> records.BucketRecord:
    """The item must not be an end mark."""
    return records.BucketRecord(
        bucket=item[items.PK]["S"].removeprefix(_BUCKET),
        created_ms=int(item[items.CREATED_MS]["N"]),
        creation_id=item[CREATION_ID]["S"],
        streams=int(item[STREAM_COUNT]["N"]),
        counted_ms=items.number(item, COUNTED_MS) or 0,
        retention=items.decode_retention(item),
        compaction=items.decode_compaction(item),
    )


#: The entries of all buckets, so that one query lists them: a bucket's own item is in a partition of its own.
BUCKETS_PK: Final = "buckets"


def bucket_entry_key(bucket: str) -> items.Key:
    return items.make_key(BUCKETS_PK, bucket)


CONTENT_TYPE: Final = "ct"
TOUCHED_MS: Final = "to"
TTL_SECONDS: Final = "tt"
EXPIRES_AT: Final = "xa"  # as it was written
EXPIRES_AT_MS: Final = "xm"
RETAINED: Final = "er"  # the earliest readable offset
SNAPSHOT_OFFSET: Final = "so"
SNAPSHOT_BLOB: Final = "sb"
SNAPSHOT_CONTENT_TYPE: Final = "sc"
SNAPSHOT_SIZE: Final = "sz"
SNAPSHOT_PUBLISHED_MS: Final = "sp"
# The value ends with the last part of the blob's name, so that a stale one is recognized: a release that does
# not know the attribute leaves it unchanged.
SNAPSHOT_CRC: Final = "sh"
SNAPSHOT_ETAG: Final = "se"
SNAPSHOT_BOOTSTRAP_CRC: Final = "sx"
LINEAGE: Final = "ln"  # JSON: the inherited ranges of other logs
FORK: Final = "fk"  # JSON: its source
REFERENCES: Final = "rc"  # the number of forks; changed only by updates
PACKED: Final = "pd"  # the end of the last pack; set by the transaction that makes a pack
PACKS_MADE: Final = "pn"  # the number of packs ever made; a pack is refused if another came first
COMPACTED: Final = "cd"  # below this offset superseded messages may be missing; set by compaction
HORIZON: Final = "ho"  # JSON: of the messages that delete their key
DELETED_MS: Final = "dl"  # deleted, and kept for its forks; set only by an update


def stream_sk(stream_id: str) -> str:
    return _STREAM + stream_id


def stream_key(key: StreamKey) -> items.Key:
    return {items.PK: {"S": _BUCKET + key.bucket}, items.SK: {"S": _STREAM + key.stream_id}}


def stream_of(item: items.Item) -> StreamKey | None:
    """Return the stream if this is its own item."""
    pk, sk = item[items.PK]["S"], item[items.SK]["S"]
    if not (pk.startswith(_BUCKET) and sk.startswith(_STREAM)):
        return None
    return StreamKey(pk.removeprefix(_BUCKET), sk.removeprefix(_STREAM))


def encode_stream(record: records.StreamRecord) -> items.Item:
    item = stream_key(record.key) | {
        items.INCARNATION: {"S": record.incarnation},
        CONTENT_TYPE: {"S": record.content_type.value},
        items.CREATED_MS: {"N": str(record.created_ms)},
        TOUCHED_MS: {"N": str(record.touched_ms)},
    }
    if record.expiry.ttl_seconds is not None:
        item[TTL_SECONDS] = {"N": str(record.expiry.ttl_seconds)}
    if record.expiry.expires_at is not None:
        item[EXPIRES_AT] = {"S": record.expiry.expires_at}
        item[EXPIRES_AT_MS] = {"N": str(record.expiry.expires_at_ms)}
    numbers = {
        RETAINED: record.retained,
        PACKED: record.packed,
        PACKS_MADE: record.packs_made,
        COMPACTED: record.compacted,
    }
    item |= {name: {"N": str(value)} for name, value in numbers.items() if value}
    if record.snapshot is not None:
        item |= encode_snapshot(record.snapshot)
    settings = items.encode_retention(record.retention) | items.encode_compaction(record.compaction)
    return item | settings | _encode_fork(record)


def encode_horizon(horizon: Horizon) -> items.Item:
    """An attribute of the stream's item."""
    row = [horizon.offset, horizon.next_offset, horizon.next_ms]
    return {HORIZON: {"S": orjson.dumps(row).decode()}}


def encode_snapshot(snapshot: records.Snapshot) -> items.Item:
    """Attributes of the stream's item."""
    mark = snapshot.blob.rpartition("/")[2]
    known = {
        SNAPSHOT_CRC: None if snapshot.crc is None else f"{snapshot.crc:08x}",
        SNAPSHOT_ETAG: snapshot.etag,
        SNAPSHOT_BOOTSTRAP_CRC: None if snapshot.bootstrap_crc is None else f"{snapshot.bootstrap_crc:08x}",
    }
    return {name: {"S": f"{value} {mark}"} for name, value in known.items() if value is not None} | {
        SNAPSHOT_OFFSET: {"N": str(snapshot.offset)},
        SNAPSHOT_BLOB: {"S": snapshot.blob},
        SNAPSHOT_CONTENT_TYPE: {"S": snapshot.content_type.value},
        SNAPSHOT_SIZE: {"N": str(snapshot.size)},
        SNAPSHOT_PUBLISHED_MS: {"N": str(snapshot.published_ms)},
    }


def _decode_snapshot(item: items.Item) -> records.Snapshot:
    known = {
        name: value
        for name in (SNAPSHOT_CRC, SNAPSHOT_ETAG, SNAPSHOT_BOOTSTRAP_CRC)
        for value, _, mark in [item.get(name, {}).get("S", "").rpartition(" ")]
        if value and mark == item[SNAPSHOT_BLOB]["S"].rpartition("/")[2]
    }
    crc, bootstrap_crc = known.get(SNAPSHOT_CRC), known.get(SNAPSHOT_BOOTSTRAP_CRC)
    return records.Snapshot(
        offset=int(item[SNAPSHOT_OFFSET]["N"]),
        blob=item[SNAPSHOT_BLOB]["S"],
        content_type=parse_content_type(item[SNAPSHOT_CONTENT_TYPE]["S"]),
        size=int(item[SNAPSHOT_SIZE]["N"]),
        published_ms=int(item[SNAPSHOT_PUBLISHED_MS]["N"]),
        crc=None if crc is None else int(crc, 16),
        etag=known.get(SNAPSHOT_ETAG),
        bootstrap_crc=None if bootstrap_crc is None else int(bootstrap_crc, 16),
    )


def _encode_fork(record: records.StreamRecord) -> items.Item:
    item: items.Item = {}
    if record.lineage:
        rows = [[s.key.bucket, s.key.stream_id, s.incarnation, s.end] for s in record.lineage]
        item[LINEAGE] = {"S": orjson.dumps(rows).decode()}
    if record.fork is not None:
        fork, point = record.fork, record.fork.point
        row = [point.source.bucket, point.source.stream_id, point.offset, point.sub_offset]
        item[FORK] = {"S": orjson.dumps([*row, fork.incarnation, fork.generation]).decode()}
    return item


def _decode_fork(item: items.Item) -> records.Fork:
    bucket, stream_id, offset, sub_offset, incarnation, generation = orjson.loads(item[FORK]["S"])
    return records.Fork(ForkPoint(StreamKey(bucket, stream_id), offset, sub_offset), incarnation, generation)


def decode_stream(item: items.Item) -> records.StreamRecord:
    """The item must not be an end mark. Raises Damaged."""
    try:
        rows = orjson.loads(item[LINEAGE]["S"]) if LINEAGE in item else ()
        return records.StreamRecord(
            key=StreamKey(
                item[items.PK]["S"].removeprefix(_BUCKET), item[items.SK]["S"].removeprefix(_STREAM)
            ),
            incarnation=item[items.INCARNATION]["S"],
            content_type=parse_content_type(item[CONTENT_TYPE]["S"]),
            expiry=Expiry(
                ttl_seconds=items.number(item, TTL_SECONDS),
                expires_at=item[EXPIRES_AT]["S"] if EXPIRES_AT in item else None,
                expires_at_ms=items.number(item, EXPIRES_AT_MS),
            ),
            created_ms=int(item[items.CREATED_MS]["N"]),
            touched_ms=int(item[TOUCHED_MS]["N"]),
            snapshot=_decode_snapshot(item) if SNAPSHOT_BLOB in item else None,
            retained=items.number(item, RETAINED) or 0,
            packed=items.number(item, PACKED) or 0,
            packs_made=items.number(item, PACKS_MADE) or 0,
            retention=items.decode_retention(item),
            compaction=items.decode_compaction(item),
            compacted=items.number(item, COMPACTED) or 0,
            horizon=Horizon(*orjson.loads(item[HORIZON]["S"])) if HORIZON in item else NOT_YET,
            lineage=tuple(
                records.Segment(StreamKey(*name), incarnation, end) for *name, incarnation, end in rows
            ),
            fork=_decode_fork(item) if FORK in item else None,
            references=items.number(item, REFERENCES) or 0,
            deleted=DELETED_MS in item,
        )
    except (KeyError, Malformed, TypeError, ValueError) as fault:
        _log.error("a stream's item is damaged: %s %s: %r", item.get(items.PK), item.get(items.SK), fault)
        raise Damaged from fault


EPOCH: Final = "ep"
SEQUENCE: Final = "sq"


def producer_pk(incarnation: str) -> str:
    return f"producer/{incarnation}"


def producer_key(incarnation: str, producer_id: str) -> items.Key:
    return items.make_key(producer_pk(incarnation), producer_id)


def encode_producer(incarnation: str, state: ProducerState) -> items.Item:
    """Encode a producer that no longer fits the batch."""
    return producer_key(incarnation, state.producer_id) | {
        EPOCH: {"N": str(state.epoch)},
        SEQUENCE: {"N": str(state.seq)},
        items.END: {"N": str(state.end)},
    }


def decode_producer(item: items.Item) -> ProducerState:
    return ProducerState(
        producer_id=item[items.SK]["S"],
        epoch=int(item[EPOCH]["N"]),
        seq=int(item[SEQUENCE]["N"]),
        end=int(item[items.END]["N"]),
    )


KIND: Final = "kd"
DUE_BUCKET: Final = "bk"
DUE_STREAM: Final = "st"
DUE_OFFSET: Final = "of"
#: The number of partitions of the janitor's queue.
DUE_SHARDS: Final = 8


def due_pk(shard: int, *, packing: bool = False) -> str:
    """Return the queue's partition. Packing has its own, because it would delay other work."""
    return f"due/p{shard}" if packing else f"due/{shard}"


def due_key(due: records.Due) -> items.Key:
    packing = due.kind in {records.DueKind.PACK, records.DueKind.PACKED, records.DueKind.REPLACED}
    # Digits only, so that times before 1970 sort correctly.
    sk = f"{render_offset(max(0, due.due_ms))}/{due.incarnation}"
    pk = due_pk(items.shard_of(due.incarnation, DUE_SHARDS), packing=packing)
    return items.make_key(pk, f"{sk}/{due.mark}" if due.mark else sk)


def encode_due(due: records.Due) -> items.Item:
    item = due_key(due) | {
        KIND: {"S": due.kind.value},
        DUE_BUCKET: {"S": due.key.bucket},
        DUE_STREAM: {"S": due.key.stream_id},
    }
    if due.offset:
        item[DUE_OFFSET] = {"N": str(due.offset)}
    if due.blob is not None:
        item[items.BLOB] = {"S": due.blob}
    return item


def decode_due(item: items.Item) -> records.Due:
    due_ms, incarnation, *marks = item[items.SK]["S"].split("/")
    return records.Due(
        kind=records.DueKind(item[KIND]["S"]),
        key=StreamKey(item[DUE_BUCKET]["S"], item[DUE_STREAM]["S"]),
        incarnation=incarnation,
        due_ms=int(due_ms),
        mark=marks[0] if marks else "",
        offset=items.number(item, DUE_OFFSET) or 0,
        blob=item[items.BLOB]["S"] if items.BLOB in item else None,
    )


def due_before(now_ms: int) -> str:
    """Return the sort key below which all entries are due."""
    return render_offset(now_ms + 1)


UNTIL_MS: Final = "u"
POLLS: Final = "po"
# A connection's waiter has the client's name for the stream, and the time of its subscription.
CALLED: Final = "nm"
ASKED_MS: Final = "am"
# A connection has the streams that it subscribes to, and the number of writes of that list.
ASKED_FOR: Final = "af"
REVISION: Final = "rv"
#: The number of partitions for waiters. One query finds the waiters of a stream, and 64 queries find all
#: waiters, for any number of streams.
WAIT_SHARDS: Final = 64


def wait_pk(shard: int) -> str:
    return f"wait/{shard}"


def waiters_of(incarnation: str) -> tuple[str, str, str]:
    """Return the partition of a stream's waiters and the bounds of their sort keys. Connections sort first,
    where releases without sockets do not look."""
    return wait_pk(items.shard_of(incarnation, WAIT_SHARDS)), f"{incarnation}.", f"{incarnation}0"


def waiter_key(waiter: records.Waiter) -> items.Key:
    """Return the key of a waiter: one for each connection and stream, whatever name the client uses."""
    pk, connections, _ = waiters_of(waiter.incarnation)
    if waiter.name is None:
        return items.make_key(pk, f"{waiter.incarnation}/{waiter.address}")
    return items.make_key(pk, f"{connections}{waiter.address}/")


def encode_waiter(waiter: records.Waiter) -> items.Item:
    item = waiter_key(waiter) | {
        UNTIL_MS: {"N": str(waiter.until_ms)},
        items.TTL: {"N": str(-(-waiter.until_ms // 1000))},
    }
    if waiter.name is None:
        return item | {POLLS: {"BOOL": True}} if waiter.polls else item
    item |= {CALLED: {"S": waiter.name}, ASKED_MS: {"N": str(waiter.asked_ms)}}
    return item if waiter.content_type is None else item | {CONTENT_TYPE: {"S": waiter.content_type.value}}


def decode_waiter(item: items.Item) -> records.Waiter:
    sk, until_ms = item[items.SK]["S"], int(item[UNTIL_MS]["N"])
    if CALLED not in item:
        incarnation, address = sk.split("/", 1)
        return records.Waiter(incarnation, address, until_ms, polls=POLLS in item)
    incarnation, connection_id = sk.rpartition("/")[0].split(".", 1)
    asked_ms = int(item[ASKED_MS]["N"])
    content_type = parse_content_type(item[CONTENT_TYPE]["S"]) if CONTENT_TYPE in item else None
    return records.Waiter(incarnation, connection_id, until_ms, item[CALLED]["S"], asked_ms, content_type)


def connection_key(connection_id: str) -> items.Key:
    """Return the key of a connection, which sorts before all waiters of the partition (from `-` on)."""
    return items.make_key(wait_pk(items.shard_of(connection_id, WAIT_SHARDS)), f"+{connection_id}")


def mark_of(key: StreamKey) -> str:
    """Return a hash in place of a stream's name, because a thousand names would not fit an item."""
    return blake2b(f"{key.bucket}/{key.stream_id}".encode(), digest_size=8).hexdigest()


def encode_asked_for(
    connection_id: str, incarnations: Mapping[str, str], revision: int, ttl_seconds: int
) -> items.Item:
    """Encode the incarnations, with the streams' hashes as keys."""
    return connection_key(connection_id) | {
        ASKED_FOR: {"S": orjson.dumps(incarnations).decode()},
        REVISION: {"N": str(revision)},
        items.TTL: {"N": str(ttl_seconds)},
    }


def decode_asked_for(item: items.Item | None) -> tuple[dict[str, str], int]:
    return (orjson.loads(item[ASKED_FOR]["S"]), int(item[REVISION]["N"])) if item else ({}, 0)
