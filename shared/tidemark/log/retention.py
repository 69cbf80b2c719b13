"""Letting go of the beginning of a stream: the offset in the stream's item from which it is retained, the
snapshot that moves it, and the batches that lie below.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.due import settle_for_good
from tidemark.log.lifecycle import if_live, retains_from, shows_snapshot
from tidemark.log.read import load_last, stream_in
from tidemark.log.records import Due, Snapshot, StreamRecord
from tidemark.protocol.errors import UploadNotFound
from tidemark.protocol.offset import render_offset


class RetainedMoved(Exception):
    """Another process trimmed the stream, published a snapshot or ended it; `latest` is the stream as it is
    now."""

    def __init__(self, latest: StreamRecord | None) -> None:
        super().__init__("what is retained has moved")
        self.latest = latest


def commit_retained(table: tables.Table, record: StreamRecord, trim: Due) -> None:
    """Retain the stream from `trim.offset` on, and have the batches below it removed, in one transaction.
    Raises RetainedMoved.

    The conditions: the stream is still this incarnation; the retained offset is lower, so that a late copy of
    this write changes nothing; and the stream has no snapshot, because bootstrap needs every message behind
    one.
    """
    rises = tables.AnyOf(tables.Missing(schema.RETAINED), tables.Compared(schema.RETAINED, "<", trim.offset))
    condition = tables.AllOf(if_live(record.incarnation), shows_snapshot(None), rises)
    update = tables.Update(schema.stream_key(record.key), {schema.RETAINED: {"N": str(trim.offset)}})
    try:
        table.transact(
            [tables.Write(update=update, condition=condition), tables.Write(schema.encode_due(trim))]
        )
    except tables.TransactionRefused as refused:
        latest = stream_in(refused.existing[0])
        # The reply to this very write may have been lost, or another process went at least as far.
        if latest is None or latest.incarnation != record.incarnation or latest.retained < trim.offset:
            raise RetainedMoved(latest) from refused


def commit_snapshot(
    table: tables.Table, record: StreamRecord, snapshot: Snapshot, trim: Due, upload: Due | None
) -> None:
    """Make the snapshot the visible one in place of `record.snapshot`, and its offset the
    earliest retained; superseded data is due for removal from then on, and the upload is no longer. All in
    one transaction. Raises RetainedMoved, UploadNotFound.
    """
    writes = [_move_pointer(record, snapshot), tables.Write(schema.encode_due(trim))]
    if upload is not None:
        writes.append(settle_for_good(upload))
    try:
        table.transact(writes)
    except tables.TransactionRefused as refused:
        if not refused.failed[0]:
            raise UploadNotFound from refused
        latest = stream_in(refused.existing[0])
        # The reply to this very publish may have been lost: then its own snapshot is there.
        if latest is None or not latest.shows(snapshot.blob):
            raise RetainedMoved(latest) from refused


def _move_pointer(record: StreamRecord, snapshot: Snapshot) -> tables.Write:
    """The write succeeds if the stream is still this incarnation and has the snapshot that `record` has.
    Publishing is a use of the stream: it renews a sliding expiry by the snapshot's own time."""
    attributes = schema.encode_snapshot(snapshot) | {schema.RETAINED: {"N": str(snapshot.offset)}}
    # Data that was trimmed meanwhile stays trimmed (`log/retention.py`).
    as_seen = tables.AllOf(
        if_live(record.incarnation), retains_from(snapshot.offset), shows_snapshot(record.snapshot)
    )
    return tables.Write(update=tables.Update(schema.stream_key(record.key), attributes), condition=as_seen)


def batches_below(table: tables.Table, pk: str, offset: int) -> Iterator[list[schema.Item]]:
    """Batches that end at or before the offset, a few at a time, in order.

    Never the last one of the log: the state of the tail is in it.
    """
    last = load_last(table, pk)
    position, more = "0", last is not None
    while more:
        items, more = table.query(
            pk,
            at_least=position,
            at_most=render_offset(offset),
            attributes=(schema.PK, schema.SK, schema.END, schema.BLOB),
        )
        below = [item for item in items if last and item[schema.SK]["S"] < render_offset(last.start)]
        below = [item for item in below if int(item[schema.END]["N"]) <= offset]
        for start in range(0, len(below), tables.MAX_DELETES):
            yield below[start : start + tables.MAX_DELETES]
        if items:
            position = render_offset(schema.decode_batch_start(items[-1][schema.SK]["S"]) + 1)
