"""Streams that have expired and still have their item, because the janitor has not come by yet.

Every stream that can expire has an entry in the janitor's queue, due no later than its end. So a bucket's
expired streams are among the overdue entries: those due since the janitor's last round, however many streams
there are.
"""

from __future__ import annotations

from functools import partial

from tidemark.log.due import overdue
from tidemark.log.lifecycle import load_stream
from tidemark.log.read import load_last
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import DUE_SHARDS, log_pk
from tidemark.log.tails import StreamHead
from tidemark.service.load import head_from
from tidemark.service.stores import Stores


def overdue_streams(stores: Stores, bucket: str) -> list[StreamHead]:
    now_ms = stores.clock_ms()

    def load_expired(due: Due) -> StreamHead | None:
        record = load_stream(stores.table, due.key)
        if record is None or record.incarnation != due.incarnation or record.deleted:
            return None
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        head = head_from(record, last, now_ms)
        return head if head.is_expired(now_ms) else None

    shards = stores.concurrency.each(partial(overdue, stores.table, now_ms), range(DUE_SHARDS))
    entries = [
        due for shard in shards for due in shard if due.kind is DueKind.EXPIRE and due.key.bucket == bucket
    ]
    found = stores.concurrency.each(load_expired, entries)
    return [head for head in found if head is not None]
