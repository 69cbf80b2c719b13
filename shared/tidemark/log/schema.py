"""The table's schema: every kind of key and value, written and read side by side.

| item     | pk                                       | sk                                             |
| -------- | ---------------------------------------- | ---------------------------------------------- |
| bucket   | `bucket/<bucket>`                        | `.`                                            |
| stream   | `bucket/<bucket>`                        | `stream/<stream id>`                           |
| entry    | `buckets`                                | `<bucket>`                                     |
| end mark | that of the bucket, its entry or the     | the same                                       |
|          | stream that ended                        |                                                |
| batch    | `log/<bucket>/<stream id>#<incarnation>` | start offset, 16 digits; with `.` behind it: a |
|          |                                          | closed stream's tombstone                      |
| producer | `producer/<incarnation>`                 | producer id                                    |
| mail     | `mail/<incarnation>/<start offset>`      | mail id, 16 hexadecimal digits                 |
| receipt  | that of the mail that a batch took       | `.`                                            |
| due      | `due/<shard>`                            | `<due ms>/<incarnation>[/<mark>]`              |
| waiter   | `wait/<shard>`                           | `<incarnation>/<queue url>`                    |
| subscrip-| `sub/<subscription id>`                  | `.`                                            |
| tion     |                                          |                                                |
| roster   | `roster`                                 | `/<incarnation of the subscription>`           |
| entry    |                                          |                                                |
| follower | `follow/<stream id>`                     | `/<incarnation of the subscription>`           |
| link     | `link/<incarnation of the subscription>` | `/<stream id>`                                 |
| pending  | `pending/<incarnation of the             | `/<stream id>`                                 |
| mark     | subscription>`                           |                                                |
| signing  | `keys`                                   | `<created ms>/<kid>`                           |
| key      |                                          |                                                |

Who writes an item, whether it changes, and who removes it:

| item     | written by                 | changes                            | removed by                    |
| -------- | -------------------------- | ---------------------------------- | ----------------------------- |
| bucket   | the bucket's creation      | the count, as streams are created  | its deletion, while empty: an |
|          |                            | and end                            | end mark takes its place      |
| stream   | the stream's creation      | touched, by reads; the snapshot    | its deletion or expiry: an    |
|          |                            | and what is retained, by publishes;| end mark takes its place, or  |
|          |                            | forks, by their creation and end;  | the new stream of that name   |
|          |                            | deleted, where forks still need it;|                               |
|          |                            | packed, with each pack             |                               |
| entry    | the bucket's creation      | never                              | its deletion: an end mark     |
|          |                            |                                    | takes its place               |
| end mark | a deletion or an expiry    | never                              | DynamoDB, by `ttl`; a later   |
|          |                            |                                    | creation of the same name     |
| batch    | an append, a creation with | never; but a pack takes the place  | the janitor: below a snapshot,|
|          | content; a tombstone by a  | of the first of those that it      | with the whole log (the       |
|          | deletion or an expiry; a   | stands for (`docs/packs.md`)       | tombstone last), or once a    |
|          | pack by the janitor        |                                    | pack stands for it            |
| producer | the append whose batch     | epoch and sequence rise            | the janitor, with the log     |
|          | carries it no longer       |                                    |                               |
| mail     | a writer of a crowded      | never                              | DynamoDB, by `ttl`            |
|          | stream                     |                                    |                               |
| receipt  | who has committed mail     | never                              | DynamoDB, by `ttl`            |
| due      | the change that leaves     | the kind: settled by the use of an | the janitor, once it is done  |
|          | work for later             | upload, claimed by the janitor     |                               |
| waiter   | a process with readers at  | its end, while readers wait        | its process; DynamoDB, by     |
|          | the tail                   |                                    | `ttl`; the janitor            |
| subscrip-| the subscription's creation| with each step of its wake cycle;  | its deletion: an end mark     |
| tion     |                            | its version rises                  | takes its place               |
| roster   | the creation, after the    | when a stream is named one by one  | the delivery function, once   |
| entry    | subscription's item        |                                    | the subscription has ended    |
| follower | naming a stream, before    | never                              | as the roster entry; removing |
|          | its link                   |                                    | the stream by name            |
| link     | the creation, naming a     | acked, by acks; named or matched   | as the roster entry; the end  |
|          | stream, a first append     |                                    | of a stream that only matched |
| pending  | the delivery function, for | start rises                        | the delivery function, where  |
| mark     | each append that concerns  |                                    | nothing is left to process    |
|          | the subscription           |                                    |                               |
| signing  | the first creation of a    | never                              | an operator, after a rotation |
| key      | webhook; a rotation        |                                    |                               |

Attribute names are short because DynamoDB bills a write by the kilobyte of the whole item.
An attribute that says nothing (not closed, no producers) is left out.
"""

from __future__ import annotations

import logging
import zlib
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable
from typing import Any, Final

import orjson

from tidemark.log.deflate import deflate, inflate
from tidemark.log.records import (
    Batch,
    BucketRecord,
    Due,
    DueKind,
    EndMark,
    Fork,
    PendingMark,
    RosterEntry,
    Segment,
    SigningKey,
    Snapshot,
    StreamFollower,
    StreamLink,
    StreamRecord,
    SubscriptionRecord,
    Waiter,
)
from tidemark.protocol.append import Append
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.errors import Damaged
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.fork import ForkPoint
from tidemark.protocol.mail import MAIL_ID_BYTES, Mail, Mailed
from tidemark.protocol.messages import Messages
from tidemark.protocol.offset import WIDTH, render_offset
from tidemark.protocol.pack import CorruptPack, PackIndex, decode_index
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.subscription import SubscriptionConfiguration, SubscriptionKind
from tidemark.protocol.tail import Tail
from tidemark.protocol.wake_state import WakeState

Item = dict[str, Any]
"""An item in DynamoDB's own JSON: `{"pk": {"S": "…"}, …}`, binary values in base64."""

Key = dict[str, Any]

_log = logging.getLogger("tidemark")

# --- attribute names ----------------------------------------------------------------

#: Of every item.
PK: Final = "pk"
SK: Final = "sk"
#: Unix seconds from which on DynamoDB may remove the item: of an end mark or a waiter.
TTL: Final = "ttl"
#: Name in S3: of a batch, or of what a due entry is to remove.
BLOB: Final = "s"
#: Milliseconds: of a bucket or a stream.
CREATED_MS: Final = "cr"

# Of a bucket.
STREAM_COUNT: Final = "n"
CREATION_ID: Final = "i"
#: When the count changed last.
COUNTED_MS: Final = "ch"

# Of an end mark; ENDED_ID is the incarnation that ended, or the mark of a bucket's deletion.
ENDED_MS: Final = "em"
ENDED_ID: Final = "ei"

# Of a stream.
INCARNATION: Final = "inc"
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
LINEAGE: Final = "ln"  # JSON: the stretches of other logs that a fork inherits
FORK: Final = "fk"  # JSON: what it was forked from
REFERENCES: Final = "rc"  # how many forks were made of it; changed by updates alone
PACKED: Final = "pd"  # where the last pack ends; set by the transaction that makes a pack
DELETED_MS: Final = "dl"  # deleted, and kept for its forks; set by an update alone

# Of a batch; END is also a producer's.
END: Final = "e"
APPEND_ID: Final = "i"
TIME_MS: Final = "t"
DATA: Final = "b"
DEFLATED_DATA: Final = "z"
MESSAGE_LENGTHS: Final = "m"  # LEB128, where there are several
APPENDS: Final = "g"  # LEB128: messages of each append, where there are several
TOMBSTONE: Final = "x"
CLOSED: Final = "c"
CLOSED_BY: Final = "k"  # JSON: the claim that closed the stream
STREAM_SEQ: Final = "q"
PRODUCERS: Final = "p"  # JSON: the most recent producers
OVERFLOWED: Final = "o"  # some producer has an item of its own
COMMITTED_MAIL: Final = "v"  # id and size of each append in it, where they were combined
PACK_INDEX: Final = "px"  # of a pack: where its blocks lie in the object (`protocol/pack.py`)

# Of a producer, beside END.
EPOCH: Final = "ep"
SEQUENCE: Final = "sq"

# Of mail, beside END (here the number of bytes), DATA or DEFLATED_DATA, MESSAGE_LENGTHS and STREAM_SEQ.
POSTED_MS: Final = "po"
CLAIM: Final = "cl"  # JSON

# Of a due entry: what to do, to which stream, below which offset.
KIND: Final = "kd"
DUE_BUCKET: Final = "bk"
DUE_STREAM: Final = "st"
DUE_OFFSET: Final = "of"

# Of a waiter.
UNTIL_MS: Final = "u"

# Of a subscription, beside CREATED_MS and INCARNATION.
CONFIGURATION: Final = "cf"  # JSON
TOKEN_SECRET: Final = "ts"
WAKE_STATE: Final = "ws"  # JSON
ACTIVE: Final = "ac"
VERSION: Final = "ve"
WRITE_ID: Final = "wi"

# Of a roster entry; SUBSCRIPTION_ID is also a follower's.
SUBSCRIPTION_ID: Final = "su"
PATTERN: Final = "pt"
WAKE_STREAM: Final = "wk"
HAS_EXPLICIT: Final = "hx"

# Of a link; STREAM_INCARNATION and START are also a pending mark's.
EXPLICIT: Final = "ex"
ACKED: Final = "ak"
STREAM_INCARNATION: Final = "si"
START: Final = "sa"

# Of a signing key.
PUBLIC_KEY: Final = "pu"

#: Sorts after an offset and before the next one.
_BEHIND: Final = "."
#: The janitor's queue is spread over this many partitions.
DUE_SHARDS: Final = 8
#: Waiters are spread over this many partitions, so that those of a stream are found with one
#: query, and all of them with this many, however many streams there are.
WAIT_SHARDS: Final = 64
#: What a snapshot's offset is checked against: the last batch that begins at or before it.
BOUNDARY_ATTRIBUTES: Final = (SK, END, MESSAGE_LENGTHS, TOMBSTONE, APPEND_ID, TIME_MS, BLOB, PACK_INDEX)
#: What a read for the tail needs of a batch: all but the bytes.
STATE_ATTRIBUTES: Final = (
    SK,
    END,
    CLOSED,
    TOMBSTONE,
    STREAM_SEQ,
    PRODUCERS,
    OVERFLOWED,
    CLOSED_BY,
    COMMITTED_MAIL,
    APPEND_ID,
    TIME_MS,
)


def table_definition(table_name: str) -> dict[str, Any]:
    """Keyword arguments for boto3's `create_table`, as `template.yaml` declares it."""
    return {
        "TableName": table_name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": PK, "AttributeType": "S"},
            {"AttributeName": SK, "AttributeType": "S"},
        ],
        "KeySchema": [
            {"AttributeName": PK, "KeyType": "HASH"},
            {"AttributeName": SK, "KeyType": "RANGE"},
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    }


def _key(pk: str, sk: str) -> Key:
    return {PK: {"S": pk}, SK: {"S": sk}}


# --- bucket -------------------------------------------------------------------------


def bucket_pk(bucket: str) -> str:
    return f"bucket/{bucket}"


def bucket_key(bucket: str) -> Key:
    return _key(bucket_pk(bucket), ".")


def encode_bucket(record: BucketRecord) -> Item:
    return bucket_key(record.bucket) | {
        STREAM_COUNT: {"N": str(record.streams)},
        CREATED_MS: {"N": str(record.created_ms)},
        COUNTED_MS: {"N": str(record.counted_ms)},
        CREATION_ID: {"S": record.creation_id},
    }


def decode_bucket(item: Item) -> BucketRecord:
    """Of an item that is no end mark."""
    return BucketRecord(
        bucket=item[PK]["S"].removeprefix("bucket/"),
        created_ms=int(item[CREATED_MS]["N"]),
        creation_id=item[CREATION_ID]["S"],
        streams=int(item[STREAM_COUNT]["N"]),
        counted_ms=_number(item, COUNTED_MS) or 0,
    )


#: The entries of all buckets, so that one query lists them: a bucket's own item has a partition of its own.
BUCKETS_PK: Final = "buckets"


def bucket_entry_key(bucket: str) -> Key:
    return _key(BUCKETS_PK, bucket)


# --- end mark -----------------------------------------------------------------------

#: How long an end mark stays. A signed request is refused by AWS after fifteen minutes at the most
#: (`docs/design.md`), so none can be repeated that late. DynamoDB removes the mark for free.
END_MARK_KEPT_MS: Final = 24 * 60 * 60 * 1000


def encode_end_mark(key: Key, mark: EndMark) -> Item:
    return key | {
        ENDED_MS: {"N": str(mark.ended_ms)},
        ENDED_ID: {"S": mark.ended_id},
        TTL: {"N": str(-(-(mark.ended_ms + END_MARK_KEPT_MS) // 1000))},
    }


def is_end_mark(item: Item) -> bool:
    return ENDED_MS in item


def decode_end_mark(item: Item) -> EndMark:
    return EndMark(ended_ms=int(item[ENDED_MS]["N"]), ended_id=item[ENDED_ID]["S"])


# --- stream -------------------------------------------------------------------------


def stream_sk(stream_id: str) -> str:
    return f"stream/{stream_id}"


def stream_key(key: StreamKey) -> Key:
    return _key(bucket_pk(key.bucket), stream_sk(key.stream_id))


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
    return item | _encode_fork(record)


def encode_snapshot(snapshot: Snapshot) -> Item:
    """Attributes of the stream's item."""
    return {
        SNAPSHOT_OFFSET: {"N": str(snapshot.offset)},
        SNAPSHOT_BLOB: {"S": snapshot.blob},
        SNAPSHOT_CONTENT_TYPE: {"S": snapshot.content_type.value},
        SNAPSHOT_SIZE: {"N": str(snapshot.size)},
        SNAPSHOT_PUBLISHED_MS: {"N": str(snapshot.published_ms)},
    }


def decode_snapshot(item: Item) -> Snapshot | None:
    if SNAPSHOT_BLOB not in item:
        return None
    return Snapshot(
        offset=int(item[SNAPSHOT_OFFSET]["N"]),
        blob=item[SNAPSHOT_BLOB]["S"],
        content_type=parse_content_type(item[SNAPSHOT_CONTENT_TYPE]["S"]),
        size=int(item[SNAPSHOT_SIZE]["N"]),
        published_ms=int(item[SNAPSHOT_PUBLISHED_MS]["N"]),
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
    """Of an item that is no end mark."""
    rows = orjson.loads(item[LINEAGE]["S"]) if LINEAGE in item else ()
    return StreamRecord(
        key=StreamKey(item[PK]["S"].removeprefix("bucket/"), item[SK]["S"].removeprefix("stream/")),
        incarnation=item[INCARNATION]["S"],
        content_type=parse_content_type(item[CONTENT_TYPE]["S"]),
        expiry=Expiry(
            ttl_seconds=_number(item, TTL_SECONDS),
            expires_at=item[EXPIRES_AT]["S"] if EXPIRES_AT in item else None,
            expires_at_ms=_number(item, EXPIRES_AT_MS),
        ),
        created_ms=int(item[CREATED_MS]["N"]),
        touched_ms=int(item[TOUCHED_MS]["N"]),
        snapshot=decode_snapshot(item),
        retained=_number(item, RETAINED) or 0,
        packed=_number(item, PACKED) or 0,
        lineage=tuple(Segment(StreamKey(*name), incarnation, end) for *name, incarnation, end in rows),
        fork=_decode_fork(item),
        references=_number(item, REFERENCES) or 0,
        deleted=DELETED_MS in item,
    )


def _binary(data: bytes) -> dict[str, str]:
    return {"B": b64encode(data).decode()}


def _number(item: Item, name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None


# --- batch --------------------------------------------------------------------------


def log_pk(key: StreamKey, incarnation: str) -> str:
    """Names its stream, so that a change of the log says whose readers to wake."""
    return f"log/{key.bucket}/{key.stream_id}#{incarnation}"


def is_log_pk(pk: str) -> bool:
    return pk.startswith("log/")


def decode_log_pk(pk: str) -> tuple[StreamKey, str]:
    """The stream, and the incarnation, whose log it is."""
    name, _, incarnation = pk.removeprefix("log/").rpartition("#")
    bucket, _, stream_id = name.partition("/")
    return StreamKey(bucket, stream_id), incarnation


def decode_batch_start(sk: str) -> int:
    """Of a batch's or a tombstone's sort key."""
    return int(sk[:WIDTH])


def batch_sk(batch: Batch) -> str:
    return render_offset(batch.start) + (_BEHIND if batch.behind_closing else "")


def just_behind(start: int) -> str:
    """The lowest sort key after that of the batch that begins at `start`."""
    return render_offset(start) + _BEHIND


def encode_batch(pk: str, batch: Batch) -> Item:
    """No batch has a time to live of its own: forks may need it after its stream has expired."""
    after = batch.after
    item = _key(pk, batch_sk(batch)) | {
        END: {"N": str(batch.end)},
        APPEND_ID: {"S": batch.append_id},
        TIME_MS: {"N": str(batch.time_ms)},
    }
    if batch.data:
        item |= _encode_data(batch.data)
    if batch.blob is not None:
        item[BLOB] = {"S": batch.blob}
    if len(batch.lengths) > 1:
        item[MESSAGE_LENGTHS] = _binary(encode_lengths(batch.lengths))
    if len(batch.appends) > 1:
        item[APPENDS] = _binary(encode_lengths(batch.appends))
    if batch.mailed:
        item[COMMITTED_MAIL] = _binary(_encode_mailed(batch))
    if batch.tombstone:
        item[TOMBSTONE] = {"BOOL": True}
    return item | _encode_tail(after)


def _encode_data(data: bytes) -> Item:
    deflated = deflate(data)
    return {DATA: _binary(data)} if deflated is None else {DEFLATED_DATA: _binary(deflated)}


def _encode_mailed(batch: Batch) -> bytes:
    """For each append 8 bytes of its id, and its size as LEB128."""
    encoded, start = bytearray(), batch.start
    for mailed in batch.mailed:
        encoded += bytes.fromhex(mailed.mail_id) + encode_lengths([mailed.end - start])
        start = mailed.end
    return bytes(encoded)


def _decode_mailed(encoded: bytes, start: int) -> tuple[Mailed, ...]:
    mailed, at, end = [], 0, start
    while at < len(encoded):
        behind = at + MAIL_ID_BYTES
        while encoded[behind] & 0x80:
            behind += 1
        [size] = decode_lengths(encoded[at + MAIL_ID_BYTES : behind + 1])
        end += size
        mailed.append(Mailed(encoded[at : at + MAIL_ID_BYTES].hex(), end))
        at = behind + 1
    return tuple(mailed)


def encode_pack(pk: str, first: Batch, last: Batch, blob: str, index: bytes) -> Item:
    """What takes the place of the batch `first`, and stands for all up to `last`. It keeps the mark of the
    write that had the place, so that a late copy of that write recognises itself."""
    return _key(pk, batch_sk(first)) | {
        END: {"N": str(last.end)},
        APPEND_ID: {"S": first.append_id},
        TIME_MS: {"N": str(last.time_ms)},
        BLOB: {"S": blob},
        PACK_INDEX: _binary(index),
    }


#: What `_encode_tail` adds, where there is something to say.
_TAIL_ATTRIBUTES: Final = frozenset({CLOSED, STREAM_SEQ, PRODUCERS, OVERFLOWED, CLOSED_BY})


def _encode_tail(tail: Tail) -> Item:
    item: Item = {}
    if tail.closed:
        item[CLOSED] = {"BOOL": True}
    if tail.stream_seq is not None:
        item[STREAM_SEQ] = {"S": tail.stream_seq}
    if tail.producers:
        rows = [[state.producer_id, state.epoch, state.seq, state.end] for state in tail.producers]
        item[PRODUCERS] = {"S": orjson.dumps(rows).decode()}
    if tail.overflowed:
        item[OVERFLOWED] = {"BOOL": True}
    if tail.closed_by is not None:
        claim = tail.closed_by
        item[CLOSED_BY] = {"S": orjson.dumps([claim.producer_id, claim.epoch, claim.seq]).decode()}
    return item


def decode_batch(item: Item) -> Batch:
    """Raises Damaged where the bytes in the item are not as many as its offsets say.

    Of an item read without its bytes (STATE_ATTRIBUTES, BOUNDARY_ATTRIBUTES) `data` is None.
    """
    sk: str = item[SK]["S"]
    start, end = int(sk[:WIDTH]), int(item[END]["N"])
    size = end - start
    lengths: tuple[int, ...] = (size,) if size > 0 else ()
    if MESSAGE_LENGTHS in item:
        lengths = decode_lengths(a2b_base64(item[MESSAGE_LENGTHS]["B"]))
    # By position: a read decodes thousands, and names cost a seventh of that.
    return Batch(
        start,
        _decode_tail(item, end),
        item[APPEND_ID]["S"],
        int(item[TIME_MS]["N"]),
        _decode_data(item, size),
        item[BLOB]["S"] if BLOB in item else None,
        lengths,
        decode_lengths(a2b_base64(item[APPENDS]["B"])) if APPENDS in item else (),
        _decode_mailed(a2b_base64(item[COMMITTED_MAIL]["B"]), start) if COMMITTED_MAIL in item else (),
        TOMBSTONE in item,
        sk.endswith(_BEHIND),
        None,
        _decode_index(item, start, end) if PACK_INDEX in item else None,
    )


def _decode_index(item: Item, start: int, end: int) -> PackIndex:
    try:
        index = decode_index(a2b_base64(item[PACK_INDEX]["B"]))
        if (index.start, index.end) != (start, end):
            raise CorruptPack(f"the index is of {index.start} to {index.end}")
    except ValueError as fault:
        _log.error("a pack is damaged: %s at %s: %s", *_place(item), fault)
        raise Damaged from fault
    return index


def decode_state(item: Item) -> Batch:
    """A batch as an item read with STATE_ATTRIBUTES alone has it: what writers decide on. Writers
    do not need its bytes, so damaged bytes do not stop them."""
    return decode_batch({name: item[name] for name in STATE_ATTRIBUTES if name in item})


def _decode_data(item: Item, size: int) -> bytes | None:
    """None where the bytes are in a blob, or were not read."""
    try:
        if DEFLATED_DATA in item:
            return inflate(a2b_base64(item[DEFLATED_DATA]["B"]), size)
        if DATA not in item:
            return None if size else b""
        data = a2b_base64(item[DATA]["B"])
    except ValueError as fault:
        _log.error("a batch is damaged: %s at %s: %s", *_place(item), fault)
        raise Damaged from fault
    if len(data) != size:
        _log.error("a batch is damaged: %s at %s has %d bytes in place of %d", *_place(item), len(data), size)
        raise Damaged
    return data


def _place(item: Item) -> tuple[str, str]:
    return item.get(PK, {}).get("S", "?"), item[SK]["S"]


def _decode_tail(item: Item, offset: int) -> Tail:
    if _TAIL_ATTRIBUTES.isdisjoint(item):  # Most batches say nothing of these.
        return Tail(offset)
    rows = orjson.loads(item[PRODUCERS]["S"]) if PRODUCERS in item else ()
    return Tail(
        offset=offset,
        closed=CLOSED in item,
        stream_seq=item[STREAM_SEQ]["S"] if STREAM_SEQ in item else None,
        producers=tuple(ProducerState(*row) for row in rows),
        overflowed=OVERFLOWED in item,
        closed_by=Claim(*orjson.loads(item[CLOSED_BY]["S"])) if CLOSED_BY in item else None,
    )


def encode_lengths(lengths: Iterable[int]) -> bytes:
    """Message lengths as LEB128: a byte each for messages under 128 bytes."""
    encoded = bytearray()
    for length in lengths:
        left = length
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
    return bytes(encoded)


def decode_lengths(encoded: bytes) -> tuple[int, ...]:
    lengths, length, shift = [], 0, 0
    for byte in encoded:
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            lengths.append(length)
            length, shift = 0, 0
    return tuple(lengths)


# --- producer -----------------------------------------------------------------------


def producer_pk(incarnation: str) -> str:
    return f"producer/{incarnation}"


def producer_key(incarnation: str, producer_id: str) -> Key:
    return _key(producer_pk(incarnation), producer_id)


def encode_producer(incarnation: str, state: ProducerState) -> Item:
    """A producer that was pushed out of the batch."""
    return producer_key(incarnation, state.producer_id) | {
        EPOCH: {"N": str(state.epoch)},
        SEQUENCE: {"N": str(state.seq)},
        END: {"N": str(state.end)},
    }


def decode_producer(item: Item) -> ProducerState:
    return ProducerState(
        producer_id=item[SK]["S"],
        epoch=int(item[EPOCH]["N"]),
        seq=int(item[SEQUENCE]["N"]),
        end=int(item[END]["N"]),
    )


# --- mail ---------------------------------------------------------------------------

#: How long mail and receipts stay, until DynamoDB removes them for free. Nobody needs them by then. A copy of
#: one that arrives late has its time of removal, too.
MAIL_KEPT_MS: Final = 60 * 60 * 1000
#: Sorts before all mail.
_RECEIPT_SK: Final = "."
FIRST_MAIL: Final = "0"


def mail_pk(incarnation: str, box: int) -> str:
    return f"mail/{incarnation}/{render_offset(box)}"


def encode_mail(incarnation: str, mail: Mail) -> Item:
    append = mail.append
    item = _key(mail_pk(incarnation, mail.box), mail.id) | {
        END: {"N": str(len(append.messages.data))},
        POSTED_MS: {"N": str(mail.posted_ms)},
        TTL: {"N": str(-(-(mail.posted_ms + MAIL_KEPT_MS) // 1000))},
    }
    item |= _encode_data(append.messages.data)
    if len(append.messages.lengths) > 1:
        item[MESSAGE_LENGTHS] = _binary(encode_lengths(append.messages.lengths))
    if append.stream_seq is not None:
        item[STREAM_SEQ] = {"S": append.stream_seq}
    if append.claim is not None:
        claim = append.claim
        item[CLAIM] = {"S": orjson.dumps([claim.producer_id, claim.epoch, claim.seq]).decode()}
    return item


def decode_mail(item: Item) -> Mail:
    """Raises Damaged where the bytes in the item are not as many as it says."""
    _, incarnation, box = item[PK]["S"].split("/")
    data = _decode_data(item, int(item[END]["N"])) or b""
    if MESSAGE_LENGTHS in item:
        lengths = decode_lengths(a2b_base64(item[MESSAGE_LENGTHS]["B"]))
    else:
        lengths = (len(data),)
    return Mail(
        id=item[SK]["S"],
        box=int(box),
        posted_ms=int(item[POSTED_MS]["N"]),
        append=Append(
            Messages(data, lengths),
            stream_seq=item[STREAM_SEQ]["S"] if STREAM_SEQ in item else None,
            claim=Claim(*orjson.loads(item[CLAIM]["S"])) if CLAIM in item else None,
            incarnation=incarnation,
        ),
    )


def batch_key(pk: str, start: int) -> Key:
    return _key(pk, render_offset(start))


def receipt_key(incarnation: str, start: int) -> Key:
    return _key(mail_pk(incarnation, start), _RECEIPT_SK)


def encode_receipt(incarnation: str, batch: Batch) -> Item:
    """The batch without its bytes, where those can read it who have their mail in it."""
    item = encode_batch("", batch)
    state = {name: item[name] for name in STATE_ATTRIBUTES if name in item and name != SK}
    ttl = -(-(batch.time_ms + MAIL_KEPT_MS) // 1000)
    return receipt_key(incarnation, batch.start) | state | {TTL: {"N": str(ttl)}}


def decode_receipt(item: Item) -> Batch:
    start = item[PK]["S"].rpartition("/")[2]
    return decode_state(item | {SK: {"S": start}})


# --- due ----------------------------------------------------------------------------


def due_pk(shard: int, *, packing: bool = False) -> str:
    """Packing has partitions of its own: it takes long, and nothing else waits behind it."""
    return f"due/p{shard}" if packing else f"due/{shard}"


def due_key(due: Due) -> Key:
    packing = due.kind in {DueKind.PACK, DueKind.PACKED}
    # Digits only, so that an instant before 1970 sorts with the rest.
    sk = f"{render_offset(max(0, due.due_ms))}/{due.incarnation}"
    pk = due_pk(_shard(due.incarnation, DUE_SHARDS), packing=packing)
    return _key(pk, f"{sk}/{due.mark}" if due.mark else sk)


def _shard(incarnation: str, shards: int) -> int:
    return zlib.crc32(incarnation.encode()) % shards


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
        offset=_number(item, DUE_OFFSET) or 0,
        blob=item[BLOB]["S"] if BLOB in item else None,
    )


def due_before(now_ms: int) -> str:
    """Sort keys below this one have fallen due."""
    return render_offset(now_ms + 1)


# --- waiter -------------------------------------------------------------------------


def wait_pk(shard: int) -> str:
    return f"wait/{shard}"


def waiters_of(incarnation: str) -> tuple[str, str, str]:
    """Where the waiters of a stream are: the partition, and the bounds of their sort keys."""
    return wait_pk(_shard(incarnation, WAIT_SHARDS)), f"{incarnation}/", f"{incarnation}0"


def waiter_key(waiter: Waiter) -> Key:
    pk, prefix, _ = waiters_of(waiter.incarnation)
    return _key(pk, prefix + waiter.queue_url)


def encode_waiter(waiter: Waiter) -> Item:
    return waiter_key(waiter) | {
        UNTIL_MS: {"N": str(waiter.until_ms)},
        TTL: {"N": str(-(-waiter.until_ms // 1000))},
    }


def decode_waiter(item: Item) -> Waiter:
    incarnation, queue_url = item[SK]["S"].split("/", 1)
    return Waiter(incarnation, queue_url, int(item[UNTIL_MS]["N"]))


# --- subscription -------------------------------------------------------------------

#: Sort keys that begin with a slash lie between these two.
SLASH: Final = "/"
BEHIND_SLASH: Final = "0"
ROSTER_PK: Final = "roster"
SIGNING_KEYS_PK: Final = "keys"


def subscription_key(subscription_id: str) -> Key:
    return _key(f"sub/{subscription_id}", ".")


def is_subscription_pk(pk: str) -> bool:
    return pk.startswith("sub/")


def decode_subscription_pk(pk: str) -> str:
    """The subscription's id."""
    return pk.removeprefix("sub/")


def encode_subscription(record: SubscriptionRecord) -> Item:
    asked, wake = record.configuration, record.wake
    configuration = [
        asked.kind.value,
        asked.pattern,
        asked.streams,
        asked.webhook_url,
        asked.wake_stream,
        asked.lease_ttl_ms,
        asked.description,
    ]
    state = [
        wake.generation,
        wake.wake_id,
        wake.holder,
        wake.lease_until_ms,
        wake.next_attempt_ms,
        wake.attempts,
        wake.failed,
    ]
    item = subscription_key(record.subscription_id) | {
        INCARNATION: {"S": record.incarnation},
        CONFIGURATION: {"S": orjson.dumps(configuration).decode()},
        TOKEN_SECRET: {"S": record.secret},
        CREATED_MS: {"N": str(record.created_ms)},
        WAKE_STATE: {"S": orjson.dumps(state).decode()},
        VERSION: {"N": str(record.version)},
        WRITE_ID: {"S": record.write_id},
    }
    return item | ({ACTIVE: {"BOOL": True}} if record.active else {})


def decode_subscription(item: Item) -> SubscriptionRecord:
    """Of an item that is no end mark."""
    kind, pattern, streams, *rest = orjson.loads(item[CONFIGURATION]["S"])
    return SubscriptionRecord(
        subscription_id=decode_subscription_pk(item[PK]["S"]),
        incarnation=item[INCARNATION]["S"],
        configuration=SubscriptionConfiguration(SubscriptionKind(kind), pattern, tuple(streams), *rest),
        secret=item[TOKEN_SECRET]["S"],
        created_ms=int(item[CREATED_MS]["N"]),
        wake=WakeState(*orjson.loads(item[WAKE_STATE]["S"])),
        active=ACTIVE in item,
        version=int(item[VERSION]["N"]),
        write_id=item[WRITE_ID]["S"],
    )


# --- roster entry, follower ---------------------------------------------------------


def roster_key(subscription_incarnation: str) -> Key:
    return _key(ROSTER_PK, SLASH + subscription_incarnation)


def encode_roster_entry(entry: RosterEntry) -> Item:
    item = roster_key(entry.incarnation) | {SUBSCRIPTION_ID: {"S": entry.subscription_id}}
    if entry.pattern is not None:
        item[PATTERN] = {"S": entry.pattern}
    if entry.wake_stream is not None:
        item[WAKE_STREAM] = {"S": entry.wake_stream}
    if entry.has_explicit:
        item[HAS_EXPLICIT] = {"BOOL": True}
    return item


def decode_roster_entry(item: Item) -> RosterEntry:
    return RosterEntry(
        subscription_id=item[SUBSCRIPTION_ID]["S"],
        incarnation=item[SK]["S"].removeprefix(SLASH),
        pattern=item[PATTERN]["S"] if PATTERN in item else None,
        wake_stream=item[WAKE_STREAM]["S"] if WAKE_STREAM in item else None,
        has_explicit=HAS_EXPLICIT in item,
    )


def followers_pk(stream_id: str) -> str:
    """Who has named the stream; of the plain surface alone, so that the bucket need not be in it."""
    return f"follow/{stream_id}"


def follower_key(follower: StreamFollower) -> Key:
    return _key(followers_pk(follower.path), SLASH + follower.incarnation)


def encode_follower(follower: StreamFollower) -> Item:
    return follower_key(follower) | {SUBSCRIPTION_ID: {"S": follower.subscription_id}}


def decode_follower(item: Item) -> StreamFollower:
    return StreamFollower(
        path=item[PK]["S"].removeprefix("follow/"),
        subscription_id=item[SUBSCRIPTION_ID]["S"],
        incarnation=item[SK]["S"].removeprefix(SLASH),
    )


# --- link, pending mark -------------------------------------------------------------


def links_pk(subscription_incarnation: str) -> str:
    return f"link/{subscription_incarnation}"


def link_key(subscription_incarnation: str, path: str) -> Key:
    return _key(links_pk(subscription_incarnation), SLASH + path)


def encode_link(link: StreamLink) -> Item:
    item = link_key(link.subscription_incarnation, link.path) | {
        ACKED: {"N": str(link.acked)},
        STREAM_INCARNATION: {"S": link.stream_incarnation},
    }
    return item | ({EXPLICIT: {"BOOL": True}} if link.explicit else {})


def decode_link(item: Item) -> StreamLink:
    return StreamLink(
        subscription_incarnation=item[PK]["S"].removeprefix("link/"),
        path=item[SK]["S"].removeprefix(SLASH),
        explicit=EXPLICIT in item,
        acked=int(item[ACKED]["N"]),
        stream_incarnation=item[STREAM_INCARNATION]["S"],
    )


def marks_pk(subscription_incarnation: str) -> str:
    return f"pending/{subscription_incarnation}"


def mark_key(mark: PendingMark) -> Key:
    return _key(marks_pk(mark.subscription_incarnation), SLASH + mark.path)


def encode_mark(mark: PendingMark) -> Item:
    return mark_key(mark) | {
        STREAM_INCARNATION: {"S": mark.stream_incarnation},
        START: {"N": str(mark.start)},
    }


def decode_mark(item: Item) -> PendingMark:
    return PendingMark(
        subscription_incarnation=item[PK]["S"].removeprefix("pending/"),
        path=item[SK]["S"].removeprefix(SLASH),
        stream_incarnation=item[STREAM_INCARNATION]["S"],
        start=int(item[START]["N"]),
    )


# --- signing key --------------------------------------------------------------------


def encode_signing_key(key: SigningKey) -> Item:
    return _key(SIGNING_KEYS_PK, f"{render_offset(key.created_ms)}/{key.kid}") | {
        PUBLIC_KEY: {"S": key.public}
    }


def decode_signing_key(item: Item) -> SigningKey:
    created_ms, _, kid = item[SK]["S"].partition("/")
    return SigningKey(kid, item[PUBLIC_KEY]["S"], int(created_ms))
