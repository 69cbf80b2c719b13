"""The table's schema: every kind of key and value, written and read side by side.

| item     | pk                                       | sk                               |
| -------- | ---------------------------------------- | -------------------------------- |
| bucket   | `bucket/<bucket>`                        | `.`                              |
| stream   | `bucket/<bucket>`                        | `stream/<stream id>`             |
| batch    | `log/<bucket>/<stream id>#<incarnation>` | start offset, 16 digits, or with |
|          |                                          | `.`: a closed stream's tombstone |
| producer | `producer/<incarnation>`                 | producer id                      |
| due      | `due/<shard>`                            | `<due ms>/<incarnation>[/<mark>]`|
| waiter   | `wait/<shard>`                           | `<incarnation>/<queue url>`      |
| end mark | that of the bucket or stream that ended  | the same                         |

Attribute names are short because DynamoDB bills a write by the kilobyte of the whole item.
An attribute that says nothing (not closed, no producers) is left out.
"""

from __future__ import annotations

import logging
import zlib
from base64 import b64decode, b64encode
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
    Segment,
    Snapshot,
    StreamRecord,
    Waiter,
)
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.errors import Damaged
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.fork import ForkPoint
from tidemark.protocol.offset import WIDTH, render_offset
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

Item = dict[str, Any]
"""An item in DynamoDB's own JSON: `{"pk": {"S": "…"}, …}`, binary values in base64."""

Key = dict[str, Any]

_log = logging.getLogger("tidemark")

#: Sorts after an offset and before the next one.
_BEHIND: Final = "."
#: The janitor's queue is spread over this many partitions.
DUE_SHARDS: Final = 8
#: Waiters are spread over this many partitions, so that those of a stream are found with one
#: query, and all of them with this many, however many streams there are.
WAIT_SHARDS: Final = 64
#: What a snapshot's offset is checked against: the last batch that begins at or before it.
BOUNDARY_ATTRIBUTES: Final = ("sk", "e", "m", "x", "i", "t")
#: What a read for the tail needs of a batch: all but the bytes.
STATE_ATTRIBUTES: Final = ("sk", "e", "c", "x", "q", "p", "o", "k", "i", "t")


def table_definition(table_name: str) -> dict[str, Any]:
    """Keyword arguments for boto3's `create_table`, as `template.yaml` declares it."""
    return {
        "TableName": table_name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
        ],
        "KeySchema": [
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    }


def _key(pk: str, sk: str) -> Key:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


# --- bucket -------------------------------------------------------------------------


def bucket_pk(bucket: str) -> str:
    return f"bucket/{bucket}"


def bucket_key(bucket: str) -> Key:
    return _key(bucket_pk(bucket), ".")


def encode_bucket(record: BucketRecord) -> Item:
    """`n` stream count, `cr` created, `i` creation id."""
    return bucket_key(record.bucket) | {
        "n": {"N": str(record.streams)},
        "cr": {"N": str(record.created_ms)},
        "i": {"S": record.creation_id},
    }


def decode_bucket(item: Item) -> BucketRecord:
    """Of an item that is no end mark."""
    return BucketRecord(
        bucket=item["pk"]["S"].removeprefix("bucket/"),
        created_ms=int(item["cr"]["N"]),
        creation_id=item["i"]["S"],
        streams=int(item["n"]["N"]),
    )


# --- end mark -----------------------------------------------------------------------

#: How long an end mark stays. A signed request is refused by AWS after fifteen minutes at the most
#: (`docs/design.md`), so none can be repeated that late. DynamoDB removes the mark for nothing.
END_MARK_KEPT_MS: Final = 24 * 60 * 60 * 1000


def encode_end_mark(key: Key, mark: EndMark) -> Item:
    """`em` when it ended, `ei` what ended, `ttl` in whole seconds."""
    return key | {
        "em": {"N": str(mark.ended_ms)},
        "ei": {"S": mark.ended_id},
        "ttl": {"N": str(-(-(mark.ended_ms + END_MARK_KEPT_MS) // 1000))},
    }


def is_end_mark(item: Item) -> bool:
    return "em" in item


def decode_end_mark(item: Item) -> EndMark:
    return EndMark(ended_ms=int(item["em"]["N"]), ended_id=item["ei"]["S"])


# --- stream -------------------------------------------------------------------------


def stream_sk(stream_id: str) -> str:
    return f"stream/{stream_id}"


def stream_key(key: StreamKey) -> Key:
    return _key(bucket_pk(key.bucket), stream_sk(key.stream_id))


def encode_stream(record: StreamRecord) -> Item:
    """`inc` incarnation, `ct` content type, `cr` created, `to` touched, `tt` ttl seconds,
    `xa` expires-at as written, `xm` the same in milliseconds."""
    item = stream_key(record.key) | {
        "inc": {"S": record.incarnation},
        "ct": {"S": record.content_type.value},
        "cr": {"N": str(record.created_ms)},
        "to": {"N": str(record.touched_ms)},
    }
    if record.expiry.ttl_seconds is not None:
        item["tt"] = {"N": str(record.expiry.ttl_seconds)}
    if record.expiry.expires_at is not None:
        item["xa"] = {"S": record.expiry.expires_at}
        item["xm"] = {"N": str(record.expiry.expires_at_ms)}
    if record.retained:
        item["er"] = {"N": str(record.retained)}
    if record.snapshot is not None:
        item |= encode_snapshot(record.snapshot)
    return item | _encode_fork(record)


def encode_snapshot(snapshot: Snapshot) -> Item:
    """Attributes of the stream's item: `so` offset, `sb` blob, `sc` content type, `sz` size,
    `sp` published. Beside them `er`, the earliest offset that is retained."""
    return {
        "so": {"N": str(snapshot.offset)},
        "sb": {"S": snapshot.blob},
        "sc": {"S": snapshot.content_type.value},
        "sz": {"N": str(snapshot.size)},
        "sp": {"N": str(snapshot.published_ms)},
    }


def decode_snapshot(item: Item) -> Snapshot | None:
    if "sb" not in item:
        return None
    return Snapshot(
        offset=int(item["so"]["N"]),
        blob=item["sb"]["S"],
        content_type=parse_content_type(item["sc"]["S"]),
        size=int(item["sz"]["N"]),
        published_ms=int(item["sp"]["N"]),
    )


def _encode_fork(record: StreamRecord) -> Item:
    """`ln` lineage, `fk` what it was forked from; `rc` and `dl` change by updates alone."""
    item: Item = {}
    if record.lineage:
        rows = [[s.key.bucket, s.key.stream_id, s.incarnation, s.end] for s in record.lineage]
        item["ln"] = {"S": orjson.dumps(rows).decode()}
    if record.fork is not None:
        fork, point = record.fork, record.fork.point
        row = [point.source.bucket, point.source.stream_id, point.offset, point.sub_offset]
        item["fk"] = {"S": orjson.dumps([*row, fork.incarnation, fork.generation]).decode()}
    return item


def _decode_lineage(item: Item) -> tuple[Segment, ...]:
    rows = orjson.loads(item["ln"]["S"]) if "ln" in item else ()
    return tuple(Segment(StreamKey(*name), incarnation, end) for *name, incarnation, end in rows)


def _decode_fork(item: Item) -> Fork | None:
    if "fk" not in item:
        return None
    bucket, stream_id, offset, sub_offset, incarnation, generation = orjson.loads(item["fk"]["S"])
    return Fork(ForkPoint(StreamKey(bucket, stream_id), offset, sub_offset), incarnation, generation)


def decode_stream(item: Item) -> StreamRecord:
    """Of an item that is no end mark."""
    return StreamRecord(
        key=StreamKey(item["pk"]["S"].removeprefix("bucket/"), item["sk"]["S"].removeprefix("stream/")),
        incarnation=item["inc"]["S"],
        content_type=parse_content_type(item["ct"]["S"]),
        expiry=Expiry(
            ttl_seconds=_number(item, "tt"),
            expires_at=item["xa"]["S"] if "xa" in item else None,
            expires_at_ms=_number(item, "xm"),
        ),
        created_ms=int(item["cr"]["N"]),
        touched_ms=int(item["to"]["N"]),
        snapshot=decode_snapshot(item),
        retained=_number(item, "er") or 0,
        lineage=_decode_lineage(item),
        fork=_decode_fork(item),
        references=_number(item, "rc") or 0,
        deleted="dl" in item,
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
    """`e` end, `i` append id, `t` time, `b` bytes or `z` bytes deflated or `s` blob, `m`
    message lengths where there are several, `g` messages of each append where there are several, `c` closed,
    `k` closed by, `x` tombstone, `q` Stream-Seq, `p` recent producers, `o` overflowed.

    No batch has a time to live of its own: forks may need it after its stream has expired.
    """
    after = batch.after
    item = _key(pk, batch_sk(batch)) | {
        "e": {"N": str(batch.end)},
        "i": {"S": batch.append_id},
        "t": {"N": str(batch.time_ms)},
    }
    if batch.data:
        item |= _encode_data(batch.data)
    if batch.blob is not None:
        item["s"] = {"S": batch.blob}
    if len(batch.lengths) > 1:
        item["m"] = _binary(encode_lengths(batch.lengths))
    if len(batch.appends) > 1:
        item["g"] = _binary(encode_lengths(batch.appends))
    if batch.tombstone:
        item["x"] = {"BOOL": True}
    return item | _encode_tail(after)


def _encode_data(data: bytes) -> Item:
    deflated = deflate(data)
    return {"b": _binary(data)} if deflated is None else {"z": _binary(deflated)}


def _encode_tail(tail: Tail) -> Item:
    item: Item = {}
    if tail.closed:
        item["c"] = {"BOOL": True}
    if tail.stream_seq is not None:
        item["q"] = {"S": tail.stream_seq}
    if tail.producers:
        item["p"] = {"S": _encode_producers(tail.producers)}
    if tail.overflowed:
        item["o"] = {"BOOL": True}
    if tail.closed_by is not None:
        claim = tail.closed_by
        item["k"] = {"S": orjson.dumps([claim.producer_id, claim.epoch, claim.seq]).decode()}
    return item


def decode_batch(item: Item) -> Batch:
    """Raises Damaged where the bytes in the item are not as many as its offsets say.

    Of an item read without its bytes (STATE_ATTRIBUTES, BOUNDARY_ATTRIBUTES) `data` is None.
    """
    sk: str = item["sk"]["S"]
    start, end = decode_batch_start(sk), int(item["e"]["N"])
    return Batch(
        start=start,
        after=_decode_tail(item, end),
        append_id=item["i"]["S"],
        time_ms=int(item["t"]["N"]),
        data=_decode_data(item, end - start),
        blob=item["s"]["S"] if "s" in item else None,
        lengths=_decode_batch_lengths(item, end - start),
        appends=decode_lengths(b64decode(item["g"]["B"])) if "g" in item else (),
        tombstone="x" in item,
        behind_closing=sk.endswith(_BEHIND),
    )


def decode_state(item: Item) -> Batch:
    """A batch as an item read with STATE_ATTRIBUTES alone has it: what writers decide on. It is no
    matter to them whether its bytes are well."""
    return decode_batch({name: item[name] for name in STATE_ATTRIBUTES if name in item})


def _decode_data(item: Item, size: int) -> bytes | None:
    """None where the bytes are in a blob, or were not read."""
    try:
        if "z" in item:
            return inflate(b64decode(item["z"]["B"]), size)
        if "b" not in item:
            return None if size else b""
        data = b64decode(item["b"]["B"])
    except ValueError as fault:
        _log.error("a batch is damaged: %s at %s: %s", *_place(item), fault)
        raise Damaged from fault
    if len(data) != size:
        _log.error("a batch is damaged: %s at %s has %d bytes in place of %d", *_place(item), len(data), size)
        raise Damaged
    return data


def _place(item: Item) -> tuple[str, str]:
    return item.get("pk", {}).get("S", "?"), item["sk"]["S"]


def _decode_tail(item: Item, offset: int) -> Tail:
    return Tail(
        offset=offset,
        closed="c" in item,
        stream_seq=item["q"]["S"] if "q" in item else None,
        producers=_decode_producers(item["p"]["S"]) if "p" in item else (),
        overflowed="o" in item,
        closed_by=Claim(*orjson.loads(item["k"]["S"])) if "k" in item else None,
    )


def _decode_batch_lengths(item: Item, size: int) -> tuple[int, ...]:
    if "m" in item:
        return decode_lengths(b64decode(item["m"]["B"]))
    return (size,) if size else ()


def _encode_producers(producers: Iterable[ProducerState]) -> str:
    rows = [[state.producer_id, state.epoch, state.seq, state.end] for state in producers]
    return orjson.dumps(rows).decode()


def _decode_producers(text: str) -> tuple[ProducerState, ...]:
    return tuple(ProducerState(*row) for row in orjson.loads(text))


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


def producer_key(incarnation: str, producer_id: str) -> Key:
    return _key(f"producer/{incarnation}", producer_id)


def encode_producer(incarnation: str, state: ProducerState) -> Item:
    """A producer pushed out of the batch: `ep` epoch, `sq` sequence, `e` end."""
    return producer_key(incarnation, state.producer_id) | {
        "ep": {"N": str(state.epoch)},
        "sq": {"N": str(state.seq)},
        "e": {"N": str(state.end)},
    }


def decode_producer(item: Item) -> ProducerState:
    return ProducerState(
        producer_id=item["sk"]["S"],
        epoch=int(item["ep"]["N"]),
        seq=int(item["sq"]["N"]),
        end=int(item["e"]["N"]),
    )


# --- due ----------------------------------------------------------------------------


def due_pk(shard: int) -> str:
    return f"due/{shard}"


def due_key(due: Due) -> Key:
    shard = _shard(due.incarnation, DUE_SHARDS)
    # Digits only, so that an instant before 1970 sorts with the rest.
    sk = f"{render_offset(max(0, due.due_ms))}/{due.incarnation}"
    return _key(due_pk(shard), f"{sk}/{due.mark}" if due.mark else sk)


def _shard(incarnation: str, shards: int) -> int:
    return zlib.crc32(incarnation.encode()) % shards


def encode_due(due: Due) -> Item:
    """`kd` what to do, `bk` and `st` the stream it is to be done to, `of` below which
    offset, `s` with which blob."""
    item = due_key(due) | {
        "kd": {"S": due.kind.value},
        "bk": {"S": due.key.bucket},
        "st": {"S": due.key.stream_id},
    }
    if due.offset:
        item["of"] = {"N": str(due.offset)}
    if due.blob is not None:
        item["s"] = {"S": due.blob}
    return item


def decode_due(item: Item) -> Due:
    due_ms, incarnation, *marks = item["sk"]["S"].split("/")
    return Due(
        kind=DueKind(item["kd"]["S"]),
        key=StreamKey(item["bk"]["S"], item["st"]["S"]),
        incarnation=incarnation,
        due_ms=int(due_ms),
        mark=marks[0] if marks else "",
        offset=_number(item, "of") or 0,
        blob=item["s"]["S"] if "s" in item else None,
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
    """`u` when it lapses, `ttl` the same in whole seconds: DynamoDB removes it for nothing."""
    return waiter_key(waiter) | {
        "u": {"N": str(waiter.until_ms)},
        "ttl": {"N": str(-(-waiter.until_ms // 1000))},
    }


def decode_waiter(item: Item) -> Waiter:
    incarnation, queue_url = item["sk"]["S"].split("/", 1)
    return Waiter(incarnation, queue_url, int(item["u"]["N"]))
