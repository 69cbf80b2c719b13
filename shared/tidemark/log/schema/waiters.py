"""A process whose readers wait at a stream's tail, and the queue that wakes them."""

from __future__ import annotations

from typing import Final

from tidemark.log.records import Waiter
from tidemark.log.schema.items import SK, TTL, Item, Key, make_key, shard_of

UNTIL_MS: Final = "u"
#: Waiters are spread over this many partitions, so that those of a stream are found with one
#: query, and all of them with this many, however many streams there are.
WAIT_SHARDS: Final = 64


def wait_pk(shard: int) -> str:
    return f"wait/{shard}"


def waiters_of(incarnation: str) -> tuple[str, str, str]:
    """The partition of a stream's waiters, and the bounds of their sort keys."""
    return wait_pk(shard_of(incarnation, WAIT_SHARDS)), f"{incarnation}/", f"{incarnation}0"


def waiter_key(waiter: Waiter) -> Key:
    pk, prefix, _ = waiters_of(waiter.incarnation)
    return make_key(pk, prefix + waiter.queue_url)


def encode_waiter(waiter: Waiter) -> Item:
    return waiter_key(waiter) | {
        UNTIL_MS: {"N": str(waiter.until_ms)},
        TTL: {"N": str(-(-waiter.until_ms // 1000))},
    }


def decode_waiter(item: Item) -> Waiter:
    incarnation, queue_url = item[SK]["S"].split("/", 1)
    return Waiter(incarnation, queue_url, int(item[UNTIL_MS]["N"]))
