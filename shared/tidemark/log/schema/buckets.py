"""Items of a bucket: its own, and its entry in the list of all buckets."""

from __future__ import annotations

from typing import Final

from tidemark.log.records import BucketRecord
from tidemark.log.schema.items import (
    CREATED_MS,
    PK,
    Item,
    Key,
    decode_retention,
    encode_retention,
    make_key,
    number,
)

STREAM_COUNT: Final = "n"
CREATION_ID: Final = "i"
#: When the count changed last.
COUNTED_MS: Final = "ch"


def bucket_pk(bucket: str) -> str:
    return f"bucket/{bucket}"


def bucket_key(bucket: str) -> Key:
    return make_key(bucket_pk(bucket), ".")


def encode_bucket(record: BucketRecord) -> Item:
    item = bucket_key(record.bucket) | {
        STREAM_COUNT: {"N": str(record.streams)},
        CREATED_MS: {"N": str(record.created_ms)},
        COUNTED_MS: {"N": str(record.counted_ms)},
        CREATION_ID: {"S": record.creation_id},
    }
    return item | encode_retention(record.retention)


def decode_bucket(item: Item) -> BucketRecord:
    """The item must not be an end mark."""
    return BucketRecord(
        bucket=item[PK]["S"].removeprefix("bucket/"),
        created_ms=int(item[CREATED_MS]["N"]),
        creation_id=item[CREATION_ID]["S"],
        streams=int(item[STREAM_COUNT]["N"]),
        counted_ms=number(item, COUNTED_MS) or 0,
        retention=decode_retention(item),
    )


#: The entries of all buckets, so that one query lists them: a bucket's own item has a partition of its own.
BUCKETS_PK: Final = "buckets"


def bucket_entry_key(bucket: str) -> Key:
    return make_key(BUCKETS_PK, bucket)
