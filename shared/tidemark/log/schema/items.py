"""The form of an item, its key, and the attributes that several kinds share."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from tidemark.protocol.compaction import Compaction
from tidemark.protocol.expiry import FOREVER, Retention

Item = dict[str, Any]
"""An item in DynamoDB's own JSON: `{"pk": {"S": "…"}, …}`, binary values in base64."""

Key = dict[str, Any]

#: The key of every item.
PK: Final = "pk"
SK: Final = "sk"
#: Unix seconds after which DynamoDB may remove the item: an end mark, a waiter, mail or a receipt.
TTL: Final = "ttl"
#: Name in S3: the body of a batch, or the object that a due entry removes.
BLOB: Final = "s"
#: Unix milliseconds: the creation of a bucket, a stream or a subscription.
CREATED_MS: Final = "cr"
#: Identifies one life of a stream or a subscription among others of the same name.
INCARNATION: Final = "inc"
#: Retention of a stream, or a bucket's default for its streams: by age in seconds, and by size in bytes.
RETAIN_SECONDS: Final = "rs"
RETAIN_BYTES: Final = "rb"
#: Of the same: seconds before messages and tombstones are removed, and the pointer to the key.
COMPACTION: Final = "cp"  # JSON
#: The end offset of a batch or of a producer's last append; the size of mail in bytes.
END: Final = "e"
#: Of the format's item: the lowest `FORMAT_EPOCH` of a release that may use this table.
LEAST_EPOCH: Final = "fe"
#: The storage format of this release. Increment it if earlier ones would misread items. 1: packs. 2: packs
#: with gaps.
FORMAT_EPOCH: Final = 2
#: The epoch that stored data needs: without compaction, and once a stream or a bucket has compaction.
PLAIN_EPOCH: Final = 1
COMPACTED_EPOCH: Final = 2


def table_definition(table_name: str) -> dict[str, Any]:
    """Return the keyword arguments of boto3's `create_table`, as in `template.yaml`."""
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


class ItemWrite(NamedTuple):
    """A record of the table's stream: the key of an item, and `INSERT`, `MODIFY` or `REMOVE`."""

    event: str
    pk: str
    sk: str


def decode_write(record: Mapping[str, Any]) -> ItemWrite:
    """Raises KeyError or TypeError if the mapping is not a record of the table."""
    keys = record["dynamodb"]["Keys"]
    return ItemWrite(record["eventName"], keys[PK]["S"], keys[SK]["S"])


FORMAT_KEY: Final[Key] = make_key("format", ".")


def encode_format(epoch: int) -> Item:
    return FORMAT_KEY | {LEAST_EPOCH: {"N": str(epoch)}}


def decode_format(item: Item | None) -> int:
    """Return the lowest epoch that may use the table. Earlier releases wrote no such item."""
    return (number(item, LEAST_EPOCH) if item else None) or 0


#: Partitions of the tokens that `tidemark token` has signed, and of those that it has revoked.
TOKENS_PK: Final = "tokens"
REVOKED_PK: Final = "revoked"
#: Seconds for which an item stays after the token's expiry: more than the leeway for clocks.
_KEPT_SECONDS: Final = 60
_SUBJECT: Final = "sj"
_SCOPES: Final = "sc"


class IssuedToken(NamedTuple):
    """A signed token, without the token itself."""

    id: str
    subject: str
    scopes: str
    expires_at_ms: int


def encode_token(pk: str, token: IssuedToken) -> Item:
    # The slash: a sort key is not empty, and begins with a known character.
    key, ttl = make_key(pk, f"/{token.id}"), str(token.expires_at_ms // 1000 + _KEPT_SECONDS)
    return key | {TTL: {"N": ttl}, _SUBJECT: {"S": token.subject}, _SCOPES: {"S": token.scopes}}


def decode_token(item: Item) -> IssuedToken:
    expires_at_ms = 1000 * (int(item[TTL]["N"]) - _KEPT_SECONDS)
    return IssuedToken(item[SK]["S"][1:], item[_SUBJECT]["S"], item[_SCOPES]["S"], expires_at_ms)


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
