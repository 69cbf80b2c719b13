"""What the janitor does for snapshots: removing what they supersede, an hour later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemark.blobs.store import bootstrap_blob_key
from tidemark.log.lifecycle import load_stream
from tidemark.log.reclaim import claim, schedule, settle
from tidemark.log.records import Due, StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.snapshots import batches_below
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.service.stores import Stores


def trim(stores: Stores, due: Due, may_go_on: Callable[[], bool]) -> bool:
    """Remove batches below the entry's offset and the blob it names. Whether it came to the end;
    if not, the rest is still due.

    An entry goes by its own offset, never by the stream's of today: what lies between the two has
    been below the retained offset for less than an hour. Forks may need what the stream itself
    does not: it waits for them. The log of a stream that has ended is reclaimed as a whole.
    """
    record = load_stream(stores.table, due.key)
    if record is not None and record.incarnation == due.incarnation:
        if record.references:
            schedule(stores.table, replace(due, due_ms=stores.clock_ms() + RECLAIM_AFTER_MS))
            settle(stores.table, due)
            return False
        if due.offset and not _trim_log(stores, record, due.offset, may_go_on):
            return False
        if due.blob is not None and not _is_visible(record, due.blob):
            stores.blobs.delete(due.blob, bootstrap_blob_key(due.blob))
    settle(stores.table, due)
    return True


def _trim_log(stores: Stores, record: StreamRecord, offset: int, may_go_on: Callable[[], bool]) -> bool:
    """A batch goes after its blob, so that a run that stops in between finds both again."""
    for items in batches_below(stores.table, log_pk(record.key, record.incarnation), offset):
        if not may_go_on():
            return False
        blobs = [item["s"]["S"] for item in items if "s" in item]
        if blobs:
            stores.blobs.delete(*blobs)
        stores.table.delete_many([{"pk": item["pk"], "sk": item["sk"]} for item in items])
    return True


def _is_visible(record: StreamRecord, blob: str) -> bool:
    return record.snapshot is not None and record.snapshot.blob == blob


def remove_upload(stores: Stores, due: Due) -> bool:
    """Remove an upload that has lapsed, unless it is being published this very moment."""
    if not claim(stores.table, due):
        return False
    assert due.blob is not None, "an upload's entry names its blob"
    stores.blobs.delete(due.blob, bootstrap_blob_key(due.blob))
    return True
