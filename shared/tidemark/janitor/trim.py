"""Removes the batches and the blob that a snapshot supersedes, an hour later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from tidemark.blobs.store import bootstrap_blob_key, log_prefix
from tidemark.log.due import claim, schedule, settle
from tidemark.log.lifecycle import load_stream
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import BLOB, PK, SK, log_pk
from tidemark.log.snapshots import batches_below
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.service.stores import Stores

_log = logging.getLogger("tidemark")


def trim(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> bool:
    """Remove batches below the entry's offset and the blob it names. Whether it came to the end;
    if not, the rest is still due.

    An entry is carried out with its own offset, not the stream's current one: data between the two has been
    below the retained offset for less than an hour. Forks may need what the stream itself does not: it waits
    for them. The log of a stream that has ended is reclaimed as a whole.
    """
    record = load_stream(stores.table, due.key)
    if record is not None and record.incarnation == due.incarnation:
        if record.references:
            schedule(stores.table, replace(due, due_ms=stores.clock_ms() + RECLAIM_AFTER_MS))
            settle(stores.table, due)
            return False
        if due.offset > record.retained:
            # The pointer and this entry are one transaction. Retained data stays, whatever an entry says.
            _log.error(
                "%s is not trimmed below %d: it is retained from %d on", due.key, due.offset, record.retained
            )
            return False
        if due.offset and not trim_batches(stores, due, has_time_left):
            return False
        if due.blob is not None and not record.shows(due.blob):
            stores.blobs.delete(due.blob, bootstrap_blob_key(due.blob))
    settle(stores.table, due)
    return True


def trim_batches(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> bool:
    """Remove the batches below the entry's offset. Returns whether there was time for all. A batch is removed
    after its blob, so that a run that stops in between finds both again."""
    for items in batches_below(stores.table, log_pk(due.key, due.incarnation), due.offset):
        if not has_time_left():
            return False
        blobs = [item[BLOB]["S"] for item in items if BLOB in item]
        if blobs:
            stores.blobs.delete(*blobs)
        stores.table.delete_many([{PK: item[PK], SK: item[SK]} for item in items])
    return True


def remove_unused(stores: Stores, due: Due) -> bool:
    """Remove an upload that was not published, or the body of a stream that was not created. Returns whether
    it was removed.

    The entry is claimed first: from then on the publish or the creation that is still under way is
    refused. The claim proves that the blob will not be used; the stream alone would only show that it is not
    used now. A run that stops in between finds its claim again.
    """
    record = load_stream(stores.table, due.key)
    is_used = record is not None and record.incarnation == due.incarnation
    if is_used and due.blob is not None:
        # A fork may have inherited it. The stream's objects in S3 are removed when its log is reclaimed.
        assert record is not None
        is_used = record.shows(due.blob) or record.references > 0
    is_claimed = due.kind is DueKind.REMOVE or (not is_used and claim(stores.table, due))
    if is_claimed and not is_used:
        if due.blob is None:
            stores.blobs.delete_prefix(log_prefix(due.incarnation))
        else:
            stores.blobs.delete(due.blob, bootstrap_blob_key(due.blob))
    settle(stores.table, due)
    return is_claimed and not is_used
