"""Snapshots in the table: the pointer in the stream's item, and trimming what lies below."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.log.due import settle_for_good
from tidemark.log.read import load_last
from tidemark.log.records import Due, Snapshot, StreamRecord
from tidemark.log.references import is_live, retains_from, shows_snapshot
from tidemark.log.schema import (
    BLOB,
    END,
    PK,
    RETAINED,
    SK,
    Item,
    decode_batch_start,
    decode_stream,
    encode_due,
    encode_snapshot,
    is_end_mark,
    stream_key,
)
from tidemark.log.table import MAX_DELETES, AllOf, Table, TransactionRefused, Update, Write
from tidemark.protocol.errors import UploadNotFound
from tidemark.protocol.offset import render_offset


class SnapshotMoved(Exception):
    """Another process published a snapshot or ended the stream; `latest` is the stream as it is now."""

    def __init__(self, latest: StreamRecord | None) -> None:
        super().__init__("the snapshot has moved")
        self.latest = latest


def commit_snapshot(
    table: Table, record: StreamRecord, snapshot: Snapshot, trim: Due, upload: Due | None
) -> None:
    """Make the snapshot the visible one in place of `record.snapshot`, and its offset the
    earliest retained; superseded data is due for removal from then on, and the upload is no longer. All in
    one transaction. Raises SnapshotMoved, UploadNotFound.
    """
    writes = [_move_pointer(record, snapshot), Write(encode_due(trim))]
    if upload is not None:
        writes.append(settle_for_good(upload))
    try:
        table.transact(writes)
    except TransactionRefused as refused:
        if not refused.failed[0]:
            raise UploadNotFound from refused
        found = refused.existing[0]
        latest = None if found is None or is_end_mark(found) else decode_stream(found)
        # The reply to this very publish may have been lost: then its own snapshot is there.
        if latest is None or not latest.shows(snapshot.blob):
            raise SnapshotMoved(latest) from refused


def _move_pointer(record: StreamRecord, snapshot: Snapshot) -> Write:
    """The write succeeds if the stream is still this incarnation and has the snapshot that `record` has.
    Publishing is a use of the stream: it renews a sliding expiry by the snapshot's own time."""
    attributes = encode_snapshot(snapshot) | {RETAINED: {"N": str(snapshot.offset)}}
    # Data that was trimmed meanwhile stays trimmed (`log/retention.py`).
    as_seen = AllOf(
        is_live(record.incarnation), retains_from(snapshot.offset), shows_snapshot(record.snapshot)
    )
    return Write(update=Update(stream_key(record.key), attributes), condition=as_seen)


def batches_below(table: Table, pk: str, offset: int) -> Iterator[list[Item]]:
    """Batches that end at or before the offset, a few at a time, in order.

    Never the last one of the log: the state of the tail is in it.
    """
    last = load_last(table, pk)
    position, more = "0", last is not None
    while more:
        items, more = table.query(
            pk, at_least=position, at_most=render_offset(offset), attributes=(PK, SK, END, BLOB)
        )
        below = [item for item in items if last and item[SK]["S"] < render_offset(last.start)]
        below = [item for item in below if int(item[END]["N"]) <= offset]
        for start in range(0, len(below), MAX_DELETES):
            yield below[start : start + MAX_DELETES]
        if items:
            position = render_offset(decode_batch_start(items[-1][SK]["S"]) + 1)
