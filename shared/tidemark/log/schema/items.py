"""The form of an item, its key, and the attributes that several kinds share."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any, Final

import orjson

from tidemark.protocol.compaction import Compaction
from tidemark.protocol.retention import FOREVER, Retention

Item = dict[str, Any]
"""An item in DynamoDB's own JSON: `{"pk": {"S": "…"}, …}`, binary values in base64."""

Key = dict[str, Any]

#: The key of every item.
PK: Final = "pk"
SK: Final = "sk"
#: Unix seconds from which on DynamoDB may remove the item: of an end mark, a waiter, mail and a receipt.
TTL: Final = "ttl"
#: Name in S3: of a batch, or of what a due entry is to remove.
BLOB: Final = "s"
#: Milliseconds: of a bucket, a stream and a subscription.
CREATED_MS: Final = "cr"
#: Of a stream and a subscription: tells it from earlier ones of the same name.
INCARNATION: Final = "inc"
#: Of a stream, and of a bucket for its streams: how long messages are kept, and how many bytes of them.
RETAIN_SECONDS: Final = "rs"
RETAIN_BYTES: Final = "rb"
#: Of the same: the seconds before and after which messages and tombstones may go, and the pointer to the key.
COMPACTION: Final = "cp"  # JSON
#: The offset at which a batch ends, or a producer's last append; the number of bytes of mail.
END: Final = "e"
#: Of the format's item: the least `FORMAT_EPOCH` of a release that may use this table.
LEAST_EPOCH: Final = "fe"
#: The storage format that this release reads. A release whose items an earlier one would misread increments
#: it. 1: packs. 2: packs with gaps.
FORMAT_EPOCH: Final = 2
#: The epoch that stored data needs: without compaction, and once a stream or a bucket is to be compacted.
PLAIN_EPOCH: Final = 1
COMPACTED_EPOCH: Final = 2


def table_definition(table_name: str) -> dict[str, Any]:
    """Keyword arguments for boto3's `create_table`, as `template.yaml` declares it."""
    return {
        "TableName": table_name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": PK, "AttributeType": "S"},
            {"AttributeName": SK, "AttributeType": "S"},
        ],
        "KeySchema": [{"AttributeName": PK, "KeyType": "HASH"}, {"AttributeName": SK, "KeyType": "RANGE"}],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    }


def make_key(pk: str, sk: str) -> Key:
    return {PK: {"S": pk}, SK: {"S": sk}}


FORMAT_KEY: Final[Key] = make_key("format", ".")


def encode_format(epoch: int) -> Item:
    return FORMAT_KEY | {LEAST_EPOCH: {"N": str(epoch)}}


def decode_format(item: Item | None) -> int:
    """The least epoch that may use the table. A table without the item was used by earlier releases only."""
    return (number(item, LEAST_EPOCH) if item else None) or 0


def binary(data: bytes) -> dict[str, str]:
    return {"B": b64encode(data).decode()}


def number(item: Item, name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None


def encode_retention(retention: Retention) -> Item:
    return {name: {"N": str(limit)} for name, limit in retention.named(RETAIN_SECONDS, RETAIN_BYTES).items()}


def decode_retention(item: Item) -> Retention:
    if RETAIN_SECONDS in item or RETAIN_BYTES in item:
        return Retention(number(item, RETAIN_SECONDS), number(item, RETAIN_BYTES))
    return FOREVER


def encode_compaction(compaction: Compaction | None) -> Item:
    if compaction is None:
        return {}
    row = [compaction.after_seconds, compaction.tombstone_seconds, compaction.key]
    return {COMPACTION: {"S": orjson.dumps(row).decode()}}


def decode_compaction(item: Item) -> Compaction | None:
    return Compaction(*orjson.loads(item[COMPACTION]["S"])) if COMPACTION in item else None


def shard_of(incarnation: str, shards: int) -> int:
    return zlib.crc32(incarnation.encode()) % shards
