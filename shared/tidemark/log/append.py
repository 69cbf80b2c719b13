"""Writing to the log: one conditional write takes the key at the tail."""

from __future__ import annotations

from collections.abc import Collection

from tidemark.log.records import Batch, Entry, StreamRecord, Tombstone
from tidemark.log.schema import (
    EPOCH,
    SEQUENCE,
    decode_state,
    encode_batch,
    encode_producer,
    log_pk,
)
from tidemark.log.table import (
    IF_ABSENT,
    AllOf,
    AnyOf,
    Compared,
    ConditionFailed,
    Table,
    TransactionRefused,
    Write,
    equals,
)
from tidemark.protocol.producer import ProducerState


class TailMoved(Exception):
    """Another entry has the key; `winner` carries the state to decide on next."""

    def __init__(self, winner: Entry) -> None:
        super().__init__(f"the tail has moved to {winner.end}")
        self.winner = winner


def put_batch(
    table: Table, record: StreamRecord, batch: Batch, pushed_out: Collection[ProducerState] = ()
) -> None:
    """Write `batch` at its start, if nothing is there yet. Raises TailMoved.

    Producers that the batch no longer carries go to their own items in the same
    transaction, so that their state is always in exactly one place.

    A write whose reply was lost is sent again, and then finds its own item: the append id tells
    that it has landed.
    """
    item = encode_batch(log_pk(record.key, record.incarnation), batch)
    try:
        if pushed_out:
            states = [put_producer(record.incarnation, state) for state in pushed_out]
            table.transact([Write(item, condition=IF_ABSENT), *states])
        else:
            table.put(item, IF_ABSENT)
    except ConditionFailed as refused:
        check_landed(batch, refused.existing)
    except TransactionRefused as refused:
        check_landed(batch, refused.existing[0])


def put_producer(incarnation: str, state: ProducerState) -> Write:
    """Part of a transaction. A producer's epoch and sequence only ever rise, so a write that lands
    late finds that its own state is no longer ahead, and changes nothing."""
    is_ahead = AnyOf(
        IF_ABSENT,
        Compared(EPOCH, "<", state.epoch),
        AllOf(equals(EPOCH, state.epoch), Compared(SEQUENCE, "<", state.seq)),
    )
    return Write(encode_producer(incarnation, state), condition=is_ahead)


def check_landed(entry: Batch | Tombstone, existing: dict[str, object] | None) -> None:
    """Raises TailMoved unless the item that is in the way is the entry itself."""
    assert existing is not None, "a refused write names the item that is there"
    winner = decode_state(existing)
    if winner.append_id != entry.append_id:
        raise TailMoved(winner)
