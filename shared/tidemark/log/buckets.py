"""Buckets in the table: an item with a count, in one partition with the streams.

The count changes in the very transaction that makes or ends a stream, so it is right after
any crash, and a bucket that is deleted while it is zero has nothing in it.
"""

from __future__ import annotations

from typing import Final

from tidemark.log.records import BucketRecord, StreamRecord
from tidemark.log.schema import (
    bucket_key,
    bucket_pk,
    decode_bucket,
    decode_stream,
    encode_bucket,
    stream_sk,
)
from tidemark.log.table import IF_ABSENT, Condition, ConditionFailed, Table, Update, Write
from tidemark.protocol.bucket import LAST_CHARACTER, MAX_KEY_BYTES
from tidemark.protocol.errors import BucketExists, BucketNotEmpty, BucketNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET

_IF_THERE: Final = Condition("attribute_exists(sk)")
_IF_EMPTY: Final = Condition("attribute_exists(sk) AND n = :none", {":none": {"N": "0"}})
#: As many as fit an id: no id with the same beginning sorts behind that many.
_LAST: Final = LAST_CHARACTER * (MAX_KEY_BYTES // len(LAST_CHARACTER.encode()) + 1)


def create_bucket(table: Table, record: BucketRecord) -> None:
    """Raises BucketExists. A creation whose reply was lost meets itself, and has landed."""
    try:
        table.put(encode_bucket(record), IF_ABSENT)
    except ConditionFailed as refused:
        existing = refused.existing
        if existing is None or decode_bucket(existing).creation_id != record.creation_id:
            raise BucketExists from refused


def load_bucket(table: Table, bucket: str) -> BucketRecord:
    """Raises BucketNotFound."""
    item = table.get(bucket_key(bucket))
    if item is None:
        raise BucketNotFound
    return decode_bucket(item)


def delete_bucket(table: Table, bucket: str) -> None:
    """Raises BucketNotEmpty, BucketNotFound."""
    try:
        table.delete(bucket_key(bucket), _IF_EMPTY)
    except ConditionFailed as refused:
        raise (BucketNotEmpty if refused.existing else BucketNotFound) from refused


def count_streams(bucket: str, change: int) -> list[Write]:
    """Part of the transaction that makes or ends a stream: refused where the bucket is not
    there. The plain surface has no bucket, and counts nothing."""
    if bucket == PLAIN_BUCKET:
        return []
    update = Update(bucket_key(bucket), "ADD n :change", {":change": {"N": str(change)}})
    return [Write(update=update, condition=_IF_THERE)]


def list_records(
    table: Table, bucket: str, prefix: str, after: str, limit: int
) -> tuple[list[StreamRecord], bool]:
    """Up to `limit` streams in the order of their ids' bytes, and whether there may be more."""
    first, last = max(prefix, after), prefix + _LAST
    if first > last:
        return [], False
    items, more = table.query(
        bucket_pk(bucket),
        at_least=stream_sk(first),
        at_most=stream_sk(last),
        # One more than asked for: the first may be the one that is to be left out.
        limit=limit + 1,
    )
    found = map(decode_stream, items)
    records = [record for record in found if record.key.stream_id != after]
    return records[:limit], more or len(records) > limit
