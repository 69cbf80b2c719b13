"""Letting go of the beginning of a stream: the offset in the stream's item from which it is retained."""

from __future__ import annotations

from tidemark.log.records import Due, StreamRecord
from tidemark.log.references import is_live, shows_snapshot
from tidemark.log.schema import (
    RETAINED,
    decode_stream,
    encode_due,
    is_end_mark,
    stream_key,
)
from tidemark.log.table import AllOf, AnyOf, Compared, Missing, Table, TransactionRefused, Update, Write


class RetainedMoved(Exception):
    """A snapshot was published, or the stream has ended; `latest` is the stream as it is now."""

    def __init__(self, latest: StreamRecord | None) -> None:
        super().__init__("what is retained has moved")
        self.latest = latest


def commit_retained(table: Table, record: StreamRecord, trim: Due) -> None:
    """Retain the stream from `trim.offset` on, and have the batches below it removed, in one transaction.
    Raises RetainedMoved.

    The conditions: the stream is still this incarnation; the retained offset is lower, so that a late copy of
    this write changes nothing; and the stream has no snapshot, because bootstrap needs every message behind
    one.
    """
    rises = AnyOf(Missing(RETAINED), Compared(RETAINED, "<", trim.offset))
    condition = AllOf(is_live(record.incarnation), shows_snapshot(None), rises)
    update = Update(stream_key(record.key), {RETAINED: {"N": str(trim.offset)}})
    try:
        table.transact([Write(update=update, condition=condition), Write(encode_due(trim))])
    except TransactionRefused as refused:
        found = refused.existing[0]
        latest = None if found is None or is_end_mark(found) else decode_stream(found)
        # The reply to this very write may have been lost, or another process went at least as far.
        if latest is None or latest.incarnation != record.incarnation or latest.retained < trim.offset:
            raise RetainedMoved(latest) from refused
