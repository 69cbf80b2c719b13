"""The janitor: ends expired streams and frees their storage.

A run works through the due entries. Every step may be repeated, and a run may stop anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tidemark.blobs import bootstrap_blob_key, log_prefix, snapshot_prefix
from tidemark.janitor.pack import pack_stream
from tidemark.janitor.replace import remove_object, remove_replaced
from tidemark.log.append import TailMoved
from tidemark.log.due import claim_entry, due_entries, schedule, settle
from tidemark.log.lifecycle import StreamChanged, next_look_ms
from tidemark.log.read import load_incarnation, load_last
from tidemark.log.records import Batch, Due, DueKind
from tidemark.log.retention import batches_below
from tidemark.log.schema import BLOB, PK, SK, entry_sk, log_pk, producer_pk
from tidemark.log.table import Table, pages, remove_items
from tidemark.log.tails import RECLAIM_AFTER_MS
from tidemark.observability.metrics import PROCESS, ROUNDS_CUT_SHORT
from tidemark.protocol.errors import BlobUnreadable, Conflict, Damaged, SoftDeleted, StreamNotFound
from tidemark.service.delete import end, release_unreferenced
from tidemark.service.load import load_due_head
from tidemark.service.retention import retained_from, trim_below, written_ms_at
from tidemark.service.stores import Stores

_log = logging.getLogger("tidemark")


@dataclass(slots=True)
class Swept:
    """Counts of one run. `cut_short` is 1 if time ran out and more may be due. `lag_ms` is the time for which
    the oldest packing entry has been due."""

    expired: int = 0
    postponed: int = 0
    reclaimed: int = 0
    trimmed: int = 0
    lapsed: int = 0
    released: int = 0
    orphans: int = 0
    packed: int = 0
    let_go: int = 0
    replaced: int = 0
    lag_ms: int = 0
    cut_short: int = 0


@dataclass(slots=True)
class Sweep:
    """A run in progress: its stores, its time limit, and its counts so far."""

    stores: Stores
    has_time_left: Callable[[], bool]
    swept: Swept


def sweep(
    stores: Stores,
    has_time_left: Callable[[], bool] = lambda: True,
    *,
    removes: bool = True,
    packs: bool = True,
) -> Swept:
    """Process all due entries, first removals and then packing, until `has_time_left` returns False. A
    deployment has a separate function for packing, because packing takes long."""
    run = Sweep(stores, has_time_left, Swept())
    for is_packing in [False] * removes + [True] * packs:
        now_ms = stores.clock_ms()
        for due in due_entries(stores.table, now_ms, packing=is_packing):
            if is_packing:
                run.swept.lag_ms = max(run.swept.lag_ms, now_ms - due.due_ms)
            if not has_time_left():
                break
            with suppress(Damaged):
                # The damage is logged. The entry stays due, and the run continues with the others.
                if STEPS[due.kind](run, due):
                    settle(stores.table, due)
    if not has_time_left():
        run.swept.cut_short = 1
        PROCESS.add(ROUNDS_CUT_SHORT)
    return run.swept


# Each step returns whether the entry is done and can be settled.


def expire(run: Sweep, due: Due) -> bool:
    """End the stream. If its expiry was renewed meanwhile, schedule the next check for the new deadline."""
    stores, head = run.stores, load_due_head(run.stores, due)
    if head is None:
        return True
    if not head.is_expired(head.learned_ms):
        assert head.ends_ms is not None, "only a stream that can expire is due"
        schedule(stores.table, replace(due, due_ms=head.ends_ms))
        run.swept.postponed += 1
        return True
    try:
        end(stores, head, stores.new_id())
    except (TailMoved, StreamChanged):
        return False  # Another write came first.
    run.swept.expired += 1
    return True


def trim(run: Sweep, due: Due) -> bool:
    """Remove the batches below the entry's offset, and the blob that the entry names.

    The limit is the entry's own offset and not the stream's current one, because data between the two has
    been below the retained offset for less than an hour. The entry waits while the stream has forks, which
    may need the data. The log of an ended stream is removed as a whole.
    """
    stores, record = run.stores, load_incarnation(run.stores.table, due)
    if record is not None:
        if record.references:
            # An entry without a blob, below the retained offset, is settled: the latest one covers it.
            if due.blob is not None or due.offset >= record.retained:
                schedule(stores.table, replace(due, due_ms=stores.clock_ms() + RECLAIM_AFTER_MS))
            return True
        if due.offset > record.retained:
            # One transaction wrote the retained offset and this entry. Retained data always stays.
            _log.error(
                "%s is not trimmed below %d: it is retained from %d on", due.key, due.offset, record.retained
            )
            return False
        if due.offset and not trim_batches(stores, due, run.has_time_left):
            return False
        if due.blob is not None and not record.shows(due.blob):
            stores.blobs.delete(due.blob, bootstrap_blob_key(due.blob))
    run.swept.trimmed += 1
    return True


def trim_batches(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> bool:
    """Remove the batches below the entry's offset. Returns whether time was enough. A batch is removed after
    its blob, so that a run that stops in between finds both again."""
    for items in batches_below(stores.table, log_pk(due.key, due.incarnation), due.offset):
        if not has_time_left():
            return False
        blobs = [item[BLOB]["S"] for item in items if BLOB in item]
        if blobs:
            stores.blobs.delete(*blobs)
        remove_items(stores.table, items)
    return True


def remove_unused(run: Sweep, due: Due) -> bool:
    """Remove an upload that was not published (its entry names the blob), or the body of a stream that was
    not created.

    The entry is claimed first, so that a publish or creation in progress is refused. The claim proves that
    the blob will never be used; the stream's item would prove only that the blob is not used now. A run that
    stops in between finds its claim again.
    """
    stores, record = run.stores, load_incarnation(run.stores.table, due)
    # A fork may have inherited the blob. The stream's objects in S3 are removed with its log.
    is_used = record is not None and (due.blob is None or record.shows(due.blob) or record.references > 0)
    is_claimed = due.kind is DueKind.REMOVE or (not is_used and claim_entry(stores.table, due))
    if is_claimed and not is_used:
        if due.blob is None:
            stores.blobs.delete_prefix(log_prefix(due.incarnation))
            run.swept.orphans += 1
        else:
            stores.blobs.delete(due.blob, bootstrap_blob_key(due.blob))
            run.swept.lapsed += 1
    return True


def reclaim_log(run: Sweep, due: Due) -> bool:
    """Remove the log, and then its objects in S3. A log that has not ended stays, whatever its entry asks."""
    if not remove_log(run.stores.table, due):
        _log.error("%s is not reclaimed: its log has no tombstone", due.key)
        return False
    run.stores.blobs.delete_prefix(log_prefix(due.incarnation))
    run.stores.blobs.delete_prefix(snapshot_prefix(due.incarnation))
    run.swept.reclaimed += 1
    return True


def remove_log(table: Table, due: Due) -> bool:
    """Remove every batch and producer of an incarnation, and its tombstone last, because a tombstone or an
    empty log proves that the stream has ended. Returns False if the log has not ended. Safe to repeat."""
    pk = log_pk(due.key, due.incarnation)
    last = load_last(table, pk)
    if isinstance(last, Batch):
        return False
    below = entry_sk(last) if last else "~"
    for partition, stop in ((pk, below), (producer_pk(due.incarnation), "~")):
        for found in pages(table, partition, " ", stop, attributes=(PK, SK), limit=1000):
            remove_items(table, [key for key in found if key[SK]["S"] != stop])
    if last is not None:
        table.delete({PK: {"S": pk}, SK: {"S": below}})
    return True


def retain(run: Sweep, due: Due) -> bool:
    """Trim the stream to its retention limits, and schedule the next look.

    An ended stream or one with a snapshot needs no look: publishing a snapshot trims the data below it.
    """
    stores, head = run.stores, load_due_head(run.stores, due)
    if head is None or head.record.snapshot is not None or not head.record.retention.is_limited:
        return True
    now_ms = head.learned_ms
    try:
        begin = retained_from(stores, head, now_ms)
        if begin > head.record.retained:
            # The stream has ended meanwhile or has a snapshot: the next look handles both.
            with suppress(StreamNotFound, SoftDeleted, Conflict):
                run.swept.let_go += trim_below(stores, due.key, begin, due.incarnation)
        oldest_ms = written_ms_at(stores, head, begin)
    except BlobUnreadable:
        return False  # A pack's object is missing: the run continues.
    look_ms = next_look_ms(head.record, now_ms, oldest_ms, head.written_ms)
    schedule(stores.table, replace(due, due_ms=look_ms))
    return True


# These steps settle their entries themselves.


def release_source(run: Sweep, due: Due) -> bool:
    run.swept.released += release_unreferenced(run.stores, due)
    return False


def pack_batches(run: Sweep, due: Due) -> bool:
    run.swept.packed += pack_stream(run.stores, due, run.has_time_left)
    return False


def remove_packed(run: Sweep, due: Due) -> bool:
    remove_replaced(run.stores, due, run.has_time_left)
    return False


def remove_replaced_object(run: Sweep, due: Due) -> bool:
    run.swept.replaced += remove_object(run.stores, due)
    return False


STEPS: Final[dict[DueKind, Callable[[Sweep, Due], bool]]] = {
    DueKind.EXPIRE: expire,
    DueKind.RECLAIM: reclaim_log,
    DueKind.TRIM: trim,
    DueKind.RETAIN: retain,
    DueKind.UPLOAD: remove_unused,
    DueKind.ORPHAN: remove_unused,
    DueKind.REMOVE: remove_unused,
    DueKind.RELEASE: release_source,
    DueKind.PACK: pack_batches,
    DueKind.PACKED: remove_packed,
    DueKind.REPLACED: remove_replaced_object,
    DueKind.SETTLED: lambda _run, _due: True,
}
