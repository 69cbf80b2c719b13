"""The item that takes the place of a bucket, its entry, a stream or a subscription that has ended."""

from __future__ import annotations

from typing import Final

from tidemark.log.records import EndMark
from tidemark.log.schema.items import TTL, Item, Key

ENDED_MS: Final = "em"
#: The incarnation that ended, or the mark of a bucket's deletion.
ENDED_ID: Final = "ei"
EXPIRED: Final = "ex"

#: How long an end mark stays. A signed request is refused by AWS after fifteen minutes at the most
#: (`docs/design.md`), so none can be repeated that late. DynamoDB removes the mark for free.
END_MARK_KEPT_MS: Final = 24 * 60 * 60 * 1000


def encode_end_mark(key: Key, mark: EndMark) -> Item:
    item = key | {
        ENDED_MS: {"N": str(mark.ended_ms)},
        ENDED_ID: {"S": mark.ended_id},
        TTL: {"N": str(-(-(mark.ended_ms + END_MARK_KEPT_MS) // 1000))},
    }
    return item | {EXPIRED: {"BOOL": True}} if mark.expired else item


def is_end_mark(item: Item) -> bool:
    return ENDED_MS in item


def decode_end_mark(item: Item) -> EndMark:
    return EndMark(ended_ms=int(item[ENDED_MS]["N"]), ended_id=item[ENDED_ID]["S"], expired=EXPIRED in item)
