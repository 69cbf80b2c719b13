"""A batch's item, read for its messages alone.

`log/schema.py` decodes an item into records with all that a writer must know; of that, a bulk
read needs few attributes, and needs them at several hundred thousand rows a second. That the
two agree is tested.
"""

from __future__ import annotations

from binascii import a2b_base64
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import orjson

from tidemark.log.schema import decode_lengths
from tidemark.protocol.offset import WIDTH

Item = dict[str, Any]

#: Enough of an item to know where its messages end.
BOUNDARY_ATTRIBUTES: Final = ("sk", "e", "m", "x")


def item_start(item: Item) -> int:
    return int(item["sk"]["S"][:WIDTH])


def item_end(item: Item) -> int:
    return int(item["e"]["N"])


def message_ends(item: Item) -> list[int]:
    """Offsets, the first message's end first; the last is the item's own end."""
    start, end = item_start(item), item_end(item)
    if "m" not in item:
        return [end] if end > start else []
    return list(accumulate(decode_lengths(a2b_base64(item["m"]["B"])), initial=start))[1:]


@dataclass(frozen=True, slots=True)
class Producer:
    """Whose append a message was the last of."""

    producer_id: str
    epoch: int
    seq: int


def producers_by_end(item: Item) -> dict[int, Producer]:
    """Of the appends in this item, as far as is known: every item carries its stream's recent
    producers with the end of the last append of each, and most of those ended earlier."""
    start = item_start(item)
    rows = orjson.loads(item["p"]["S"]) if "p" in item else ()
    return {end: Producer(name, epoch, seq) for name, epoch, seq, end in rows if end > start}
