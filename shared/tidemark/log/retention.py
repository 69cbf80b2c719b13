"""Removing the start of a stream: the retained offset, the snapshot that moves it, and earlier batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.due import settle_for_good
from tidemark.log.lifecycle import at_most, if_live, shows_snapshot
from tidemark.log.read import load_last, stream_in
from tidemark.log.records import Due, Snapshot, StreamRecord
from tidemark.protocol.errors import UploadNotFound
from tidemark.protocol.offset import render_offset


@dataclass(eq=False)
class RetainedMoved(Exception):
    """Another process trimmed or ended the stream or published a snapshot; `latest` is the current record."""

    latest: StreamRecord | None


def commit_retained(table: tables.Table, record: StreamRecord, trim: Due) -> None:
    """Raise the retained offset to `trim.offset` and schedule the removal of earlier batches, in one
    transaction. Raises RetainedMoved.

    The conditions: the stream is still this incarnation; the retained offset is lower, so that a late copy of
    this write changes nothing; and the stream has no snapshot, because bootstrap needs every message after
    one.
    """
    rises = tables.AnyOf(tables.Missing(schema.RETAINED), tables.Compared(schema.RETAINED, "<", trim.offset))
    condition = tables.AllOf(if_live(record.incarnation), shows_snapshot(None), rises)
    update = tables.Update(schema.stream_key(record.key), {schema.RETAINED: {"N": str(trim.offset)}})
    try:
        table.transact([tables.Write(update, condition), tables.Write(schema.encode_due(trim))])
    except tables.TransactionRefused as refused:
        latest = stream_in(refused.existing[0])
        # The reply to this write was lost, or another process has raised the offset at least as far.
        if latest is None or latest.incarnation != record.incarnation or latest.retained < trim.offset:
            raise RetainedMoved(latest) from refused


def commit_snapshot(
    table: tables.Table, record: StreamRecord, snapshot: Snapshot, trim: Due, upload: Due | None
) -> None:
    """Replace `record.snapshot` with this snapshot, and raise the retained offset to its offset. The same
    transaction schedules the removal of superseded data and cancels the removal of the upload. Raises
    RetainedMoved, UploadNotFound."""
    writes = [_move_pointer(record, snapshot), tables.Write(schema.encode_due(trim))]
    if upload is not None:
        writes.append(settle_for_good(upload))
    try:
        table.transact(writes)
    except tables.TransactionRefused as refused:
        if not refused.failed[0]:
            raise UploadNotFound from refused
        latest = stream_in(refused.existing[0])
        # The reply to this publish may have been lost; then its own snapshot is there.
        if latest is None or not latest.shows(snapshot.blob):
            raise RetainedMoved(latest) from refused


def _move_pointer(record: StreamRecord, snapshot: Snapshot) -> tables.Write:
    """Return the write that publishes the snapshot, if the stream still has this incarnation and snapshot.
    Publishing is a use of the stream: the snapshot's time renews a sliding expiry."""
    attributes = schema.encode_snapshot(snapshot) | {schema.RETAINED: {"N": str(snapshot.offset)}}
    # Data that was trimmed meanwhile stays trimmed.
    as_seen = tables.AllOf(
        if_live(record.incarnation),
        at_most(schema.RETAINED, snapshot.offset),
        shows_snapshot(record.snapshot),
    )
    return tables.Write(tables.Update(schema.stream_key(record.key), attributes), condition=as_seen)


def batches_below(table: tables.Table, pk: str, offset: int) -> Iterator[list[schema.Item]]:
    """Yield batches that end at or before the offset, in order, up to 25 at a time.

    The last batch of the log is left out, because it has the state of the tail.
    """
    last = load_last(table, pk)
    if last is None:
        return
    attributes, end = (schema.PK, schema.SK, schema.END, schema.BLOB), render_offset(last.start)
    for items in tables.pages(table, pk, "0", render_offset(offset), attributes=attributes):
        below = [
            item for item in items if item[schema.SK]["S"] < end and int(item[schema.END]["N"]) <= offset
        ]
        for start in range(0, len(below), tables.MAX_DELETES):
            yield below[start : start + tables.MAX_DELETES]
