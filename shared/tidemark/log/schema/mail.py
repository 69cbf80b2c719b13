"""Mail of a crowded stream (an append for another writer to commit), and its receipt. Mail has the attributes
END, DATA or DEFLATED_DATA or BLOB, MESSAGE_LENGTHS and STREAM_SEQ, in the form of a batch."""

from __future__ import annotations

from binascii import a2b_base64
from typing import Any, Final

import orjson

from tidemark.log.combining import Mail
from tidemark.log.records import Batch, Entry
from tidemark.log.schema import batches
from tidemark.log.schema.items import BLOB, END, PK, SK, TTL, Item, Key, make_key
from tidemark.protocol.append import Append
from tidemark.protocol.messages import Messages, StoredBody
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import Claim, ProducerState

#: The number is part of a box's key, so that a release finds only mail and receipts that it can read: writers
#: with different formats race and do not combine. Increment it with every change of `encode_mail`. 1 (not in
#: the key): bodies of any size are in the item. 2: pointers to S3, and producers looked up.
MAIL_FORMAT: Final = 2

POSTED_MS: Final = "po"
CHECKSUM: Final = "c"  # CRC-32 of bytes that are in S3 already
CLAIM: Final = "cl"  # JSON: id, epoch, seq, and the looked-up state of the producer

#: Milliseconds until DynamoDB removes mail and receipts for free. A late copy has the same time of removal.
MAIL_KEPT_MS: Final = 60 * 60 * 1000
#: Sorts before all mail.
_RECEIPT_SK: Final = "."
FIRST_MAIL: Final = "0"


def mail_pk(incarnation: str, box: int) -> str:
    return f"mail/{MAIL_FORMAT}/{incarnation}/{render_offset(box)}"


def encode_mail(incarnation: str, mail: Mail) -> Item:
    append = mail.append
    item = make_key(mail_pk(incarnation, mail.box), mail.id) | {
        END: {"N": str(append.messages.size)},
        POSTED_MS: {"N": str(mail.posted_ms)},
        TTL: {"N": str(-(-(mail.posted_ms + MAIL_KEPT_MS) // 1000))},
    }
    if stored := append.messages.stored:
        item |= {BLOB: {"S": stored.blob}, CHECKSUM: {"N": str(stored.crc)}}
    else:
        item |= batches.encode_data(append.messages.data)
    if len(append.messages.lengths) > 1:
        item[batches.MESSAGE_LENGTHS] = batches.binary(batches.encode_lengths(append.messages.lengths))
    if append.stream_seq is not None:
        item[batches.STREAM_SEQ] = {"S": append.stream_seq}
    if append.claim is not None:
        claim = append.claim
        row: list[Any] = [claim.producer_id, claim.epoch, claim.seq]
        if claim.producer_id in mail.looked_up:
            state = mail.looked_up[claim.producer_id]
            row.append([state.epoch, state.seq, state.end] if state else None)
        item[CLAIM] = {"S": orjson.dumps(row).decode()}
    return item


def decode_mail(item: Item) -> Mail:
    """Return the mail. Raises Damaged if the size of its bytes is wrong."""
    incarnation, box = item[PK]["S"].split("/")[-2:]
    size, stored = int(item[END]["N"]), None
    if BLOB in item:
        stored = StoredBody(item[BLOB]["S"], int(item[CHECKSUM]["N"]))
    data = b"" if stored else batches.decode_data(item, size) or b""
    lengths: tuple[int, ...] = (size,)
    if batches.MESSAGE_LENGTHS in item:
        lengths = batches.decode_lengths(a2b_base64(item[batches.MESSAGE_LENGTHS]["B"]))
    claim, looked_up = None, dict[str, ProducerState | None]()
    if CLAIM in item:
        row = orjson.loads(item[CLAIM]["S"])
        claim = Claim(*row[:3])
        for known in row[3:]:
            looked_up[claim.producer_id] = ProducerState(claim.producer_id, *known) if known else None
    return Mail(
        id=item[SK]["S"],
        box=int(box),
        posted_ms=int(item[POSTED_MS]["N"]),
        append=Append(
            Messages(data, lengths, stored),
            stream_seq=item[batches.STREAM_SEQ]["S"] if batches.STREAM_SEQ in item else None,
            claim=claim,
            incarnation=incarnation,
        ),
        looked_up=looked_up,
    )


def receipt_key(incarnation: str, start: int) -> Key:
    return make_key(mail_pk(incarnation, start), _RECEIPT_SK)


def encode_receipt(incarnation: str, batch: Batch) -> Item:
    """Return the batch without its bytes, as an item that the writers of its mail can read."""
    item = batches.encode_batch("", batch)
    state = {name: item[name] for name in batches.STATE_ATTRIBUTES if name in item and name != SK}
    ttl = -(-(batch.time_ms + MAIL_KEPT_MS) // 1000)
    return receipt_key(incarnation, batch.start) | state | {TTL: {"N": str(ttl)}}


def decode_receipt(item: Item) -> Entry:
    start = item[PK]["S"].rpartition("/")[2]
    return batches.decode_state(item | {SK: {"S": start}})
