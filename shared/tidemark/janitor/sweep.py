"""The janitor: ends streams whose time has come, and gives their space back.

It works through the queue of due entries. Every step may be repeated, and a run may stop
anywhere: what is left is still due the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.blobs.store import log_prefix, snapshot_prefix
from tidemark.janitor.trim import remove_unused, trim
from tidemark.log.append import TailMoved
from tidemark.log.lifecycle import StreamChanged, load_stream
from tidemark.log.read import load_last
from tidemark.log.reclaim import due_entries, remove_log, schedule, settle
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import log_pk
from tidemark.protocol.expiry import deadline_ms
from tidemark.service.delete import end
from tidemark.service.load import head_from
from tidemark.service.release import release
from tidemark.service.stores import Stores

_log = logging.getLogger("tidemark")


@dataclass(slots=True)
class Swept:
    """What one run did."""

    expired: int = 0
    postponed: int = 0
    reclaimed: int = 0
    trimmed: int = 0
    lapsed: int = 0
    released: int = 0
    orphans: int = 0


def sweep(stores: Stores, has_time_left: Callable[[], bool] = lambda: True) -> Swept:
    """One run over all that is due, until `has_time_left` says that time is short."""
    swept = Swept()
    for due in due_entries(stores.table, stores.clock_ms()):
        if not has_time_left():
            break
        if due.kind is DueKind.RECLAIM:
            swept.reclaimed += _reclaim(stores, due)
        elif due.kind is DueKind.TRIM:
            swept.trimmed += trim(stores, due, has_time_left)
        elif due.kind in {DueKind.UPLOAD, DueKind.ORPHAN, DueKind.REMOVE}:
            removed = remove_unused(stores, due)
            swept.orphans += removed and due.blob is None
            swept.lapsed += removed and due.blob is not None
        elif due.kind is DueKind.SETTLED:
            settle(stores.table, due)
        elif due.kind is DueKind.RELEASE:
            swept.released += release(stores, due)
        else:
            _expire(stores, due, swept)
    return swept


def _reclaim(stores: Stores, due: Due) -> bool:
    """Whether there was a log that had ended. One that goes on is nobody's to remove, whatever its
    entry says."""
    if not remove_log(stores.table, due):
        _log.error("%s is not reclaimed: its log has no tombstone", due.key)
        return False
    stores.blobs.delete_prefix(log_prefix(due.incarnation))
    stores.blobs.delete_prefix(snapshot_prefix(due.incarnation))
    settle(stores.table, due)
    return True


def _expire(stores: Stores, due: Due, swept: Swept) -> None:
    """End the stream, or look again when its window, renewed meanwhile, is over."""
    now_ms = stores.clock_ms()
    record = load_stream(stores.table, due.key)
    if record is not None and record.incarnation == due.incarnation and not record.deleted:
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        known = head_from(record, last, now_ms)
        if not known.is_expired(now_ms):
            _postpone(stores, due, deadline_ms(record.expiry, known.touched_ms))
            swept.postponed += 1
            return
        try:
            end(stores, known, stores.new_id())
        except (TailMoved, StreamChanged):
            return  # Something came first; the entry is still due.
        swept.expired += 1
    settle(stores.table, due)


def _postpone(stores: Stores, due: Due, deadline: int | None) -> None:
    assert deadline is not None, "only a stream that can expire is due"
    schedule(stores.table, Due(due.kind, due.key, due.incarnation, deadline))
    settle(stores.table, due)
