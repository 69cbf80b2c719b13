"""Append to the log: one conditional write takes the key at the tail. On a crowded stream, writers first post
their appends as mail, and any writer may commit the mail (`log/combining.py`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.combining import MAX_APPENDS, Mail
from tidemark.log.records import Batch, Entry, StreamRecord, Tombstone
from tidemark.protocol.errors import Damaged
from tidemark.protocol.producer import ProducerState


class TailMoved(Exception):
    """Another entry has the key. `winner` carries the state for the next decision."""

    def __init__(self, winner: Entry) -> None:
        super().__init__(f"the tail has moved to {winner.end}")
        self.winner = winner


def put_batch(
    table: tables.Table, record: StreamRecord, batch: Batch, pushed_out: Collection[ProducerState] = ()
) -> None:
    """Write `batch` at its start offset if no entry has that key yet. Raises TailMoved.

    Producers that the batch no longer carries move to items of their own in the same transaction, so that
    their state is always in exactly one place.

    A write whose reply was lost is sent again and then finds its own item: the append id proves that the
    first one was written.
    """
    item = schema.encode_batch(schema.log_pk(record.key, record.incarnation), batch)
    try:
        if pushed_out:
            states = [put_producer(record.incarnation, state) for state in pushed_out]
            table.transact([tables.Write(item, condition=tables.IF_ABSENT), *states])
        else:
            table.put(item, tables.IF_ABSENT)
    except tables.ConditionFailed as refused:
        check_landed(batch, refused.existing)
    except tables.TransactionRefused as refused:
        check_landed(batch, refused.existing[0])


def put_producer(incarnation: str, state: ProducerState) -> tables.Write:
    """Return the write of a producer's state, for a transaction. Epoch and sequence of a producer only rise,
    so a late copy of the write is refused and changes nothing."""
    is_ahead = tables.AnyOf(
        tables.IF_ABSENT,
        tables.Compared(schema.EPOCH, "<", state.epoch),
        tables.AllOf(
            tables.equals(schema.EPOCH, state.epoch), tables.Compared(schema.SEQUENCE, "<", state.seq)
        ),
    )
    return tables.Write(schema.encode_producer(incarnation, state), condition=is_ahead)


def check_landed(entry: Batch | Tombstone, existing: dict[str, object] | None) -> None:
    """Raise TailMoved unless the existing item is the entry itself."""
    assert existing is not None, "a refused write returns the existing item"
    winner = schema.decode_state(existing)
    if winner.append_id != entry.append_id:
        raise TailMoved(winner)


def collect(table: tables.Table, record: StreamRecord, box: int) -> Sequence[Mail]:
    """Return the mail in a box, as much as one batch has: other mail goes into the next batch or another box.
    Leaves out damaged mail, which its writer finds uncommitted and commits."""
    pk = schema.mail_pk(record.incarnation, box)
    items, _ = table.query(pk, at_least=schema.FIRST_MAIL, limit=MAX_APPENDS)
    mails = []
    for item in items:
        with suppress(Damaged):
            mails.append(schema.decode_mail(item))
    return mails


def find_receipt(table: tables.Table, record: StreamRecord, start: int) -> Entry | None:
    item = table.get(schema.receipt_key(record.incarnation, start))
    return schema.decode_receipt(item) if item else None


def find_entry(table: tables.Table, record: StreamRecord, start: int) -> Entry | None:
    """Return the entry at this offset, without its bytes."""
    item = table.get(schema.batch_key(schema.log_pk(record.key, record.incarnation), start))
    return schema.decode_state(item) if item else None
