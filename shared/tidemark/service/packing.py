"""Schedules packing, by an append that crosses a boundary or closes a stream (`docs/internals/packs.md`)."""

from __future__ import annotations

from contextlib import suppress

from tidemark.log.due import schedule
from tidemark.log.records import Batch, Due, DueKind, StreamRecord
from tidemark.protocol.errors import ProtocolError
from tidemark.service.stores import Stores


def schedule_packing(stores: Stores, record: StreamRecord, batch: Batch) -> None:
    """After the batch was written: it stands whatever comes of this. An entry that is lost is made good by
    the next one, because the janitor packs all that is old enough."""
    packing = stores.packing
    if not packing.is_due(batch.start, batch.after):
        return
    due_ms = stores.clock_ms() + packing.after_ms
    mark = f"{batch.end}-closed" if batch.after.closed else str(batch.end)
    with suppress(ProtocolError):
        due = Due(DueKind.PACK, record.key, record.incarnation, due_ms, mark, batch.end)
        schedule(stores.table, due)
