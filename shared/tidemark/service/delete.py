"""Delete (§5.4), and the end of an expired stream, which is the same."""

from __future__ import annotations

from contextlib import suppress

from tidemark.log import lifecycle
from tidemark.log.append import TailMoved
from tidemark.log.due import settle
from tidemark.log.read import load_incarnation, load_stream
from tidemark.log.records import Due, DueKind, StreamRecord
from tidemark.log.table import TransactionRefused, Write
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import Busy, ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.stores import Stores


def release_writes(stores: Stores, record: StreamRecord, now_ms: int) -> tuple[list[Write], Due | None]:
    """The writes to the source when the fork `record` ends, and the due entry for checking the source."""
    source = None if record.fork is None else load_stream(stores.table, record.fork.point.source)
    if record.fork is None or source is None or source.incarnation != record.fork.incarnation:
        return [], None
    due = None
    if source.deleted:
        # The mark separates forks that end in the same millisecond.
        due = Due(DueKind.RELEASE, source.key, source.incarnation, now_ms, mark=record.incarnation)
    return lifecycle.drop_reference(record.fork, source, due), due


def remove_unreferenced(stores: Stores, record: StreamRecord) -> Due | None:
    """Remove a deleted stream that no fork needs any more. Its name is then free.

    Returns the due entry for checking its own source. Raises StreamChanged if another process has removed the
    stream, or has changed its source just now.
    """
    now_ms = stores.clock_ms()
    writes, due = release_writes(stores, record, now_ms)
    try:
        stores.table.transact(
            [lifecycle.remove_released(record, now_ms), lifecycle.reclaim(record, now_ms), *writes]
        )
    except TransactionRefused as refused:
        raise lifecycle.StreamChanged from refused
    return due


def release_unreferenced(stores: Stores, due: Due | None) -> int:
    """Remove a deleted stream whose last fork is gone, and go on with its own source.

    Returns the number of removed streams. Safe to repeat, and safe to leave to the janitor.
    """
    removed = 0
    while due is not None:
        next_due, record = None, load_incarnation(stores.table, due)
        if record is not None and record.deleted and not record.references:
            try:
                next_due = remove_unreferenced(stores, record)
            except lifecycle.StreamChanged:
                return removed  # The entry is still due.
            removed += 1
        settle(stores.table, due)
        due = next_due
    return removed


def try_release(stores: Stores, due: Due | None) -> None:
    """Release now if possible. If this fails, the janitor does it later: the request has succeeded anyway."""
    with suppress(ProtocolError):
        release_unreferenced(stores, due)


_MAX_TRIES = 40


def delete(stores: Stores, key: StreamKey) -> None:
    """Delete the stream: no later append to it can succeed. Raises StreamNotFound or SoftDeleted."""
    append_id = stores.new_id()
    head = load_head(stores, key)
    for tries in range(_MAX_TRIES):
        try:
            return end(stores, head, append_id)
        except (TailMoved, lifecycle.StreamChanged):
            if tries:
                stores.pause(tries)
            head = load_head(stores, key)
    raise Busy


def end(stores: Stores, head: StreamHead, append_id: str) -> None:
    """Write a tombstone at the tail. Also remove the source stream if it was kept only for this fork. Raises
    TailMoved or StreamChanged."""
    now_ms = stores.clock_ms()
    record = head.record
    last = lifecycle.tombstone(head.tail, append_id, now_ms)
    writes, due = ([], None) if record.references else release_writes(stores, record, now_ms)
    lifecycle.end_stream(stores.table, record, last, writes, expired=head.is_expired(now_ms))
    stores.tails.forget(record.key)
    try_release(stores, due)
