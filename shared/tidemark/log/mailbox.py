"""The boxes of a stream: appends that any writer may commit (`log/combining.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tidemark.log.combining import MAX_APPENDS, Mail
from tidemark.log.records import Batch, Entry, StreamRecord
from tidemark.log.schema import (
    FIRST_MAIL,
    batch_key,
    decode_mail,
    decode_receipt,
    decode_state,
    encode_mail,
    encode_receipt,
    log_pk,
    mail_pk,
    receipt_key,
)
from tidemark.log.table import Table
from tidemark.protocol.errors import Damaged

#: The most mail that one query of a box returns; the rest goes into the next batch, or into another box.
MAX_FOUND: Final = MAX_APPENDS


def post(table: Table, record: StreamRecord, mail: Mail) -> None:
    """No condition is needed: a copy that arrives late is the same mail in the same box."""
    table.put(encode_mail(record.incarnation, mail))


def collect(table: Table, record: StreamRecord, box: int) -> Sequence[Mail]:
    """Mail that is damaged is left out: its writer finds that nobody commits it, and does so itself."""
    items, _ = table.query(mail_pk(record.incarnation, box), at_least=FIRST_MAIL, limit=MAX_FOUND)
    mails = []
    for item in items:
        with suppress(Damaged):
            mails.append(decode_mail(item))
    return mails


def put_receipt(table: Table, record: StreamRecord, batch: Batch) -> None:
    """Tell the writers of mail at this batch's offset its outcome. Only the batch's own writer may do so."""
    table.put(encode_receipt(record.incarnation, batch))


def find_receipt(table: Table, record: StreamRecord, start: int) -> Entry | None:
    item = table.get(receipt_key(record.incarnation, start))
    return decode_receipt(item) if item else None


def find_entry(table: Table, record: StreamRecord, start: int) -> Entry | None:
    """What is at this offset, without its bytes."""
    item = table.get(batch_key(log_pk(record.key, record.incarnation), start))
    return decode_state(item) if item else None
