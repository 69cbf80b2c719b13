"""The janitor: ends streams whose time has come, and gives their space back.

It works through the queue of due entries. Every step may be repeated, and a run may stop anywhere: the rest
is still due the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tidemark.janitor.merge import remove_object
from tidemark.janitor.pack import pack, remove_replaced
from tidemark.janitor.reclaim import reclaim
from tidemark.janitor.retain import retain
from tidemark.janitor.trim import remove_unused, trim
from tidemark.log.append import TailMoved
from tidemark.log.due import due_entries, schedule, settle
from tidemark.log.lifecycle import StreamChanged, load_stream
from tidemark.log.read import load_last
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import log_pk
from tidemark.observability.metrics import PROCESS, ROUNDS_CUT_SHORT
from tidemark.protocol.expiry import deadline_ms
from tidemark.service.delete import end
from tidemark.service.load import head_from
from tidemark.service.release import release
from tidemark.service.stores import Stores


@dataclass(slots=True)
class Swept:
    """Counts of what one run did. `cut_short` is 1 if time ran out: more may be due. `lag_ms` is how long the
    oldest entry of packing had been due."""

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
    """A run under way: its stores, whether it has time left, and its counts so far."""

    stores: Stores
    has_time_left: Callable[[], bool]
    swept: Swept


class SweepPart(Enum):
    """The two parts of the queue. Packing takes long, so nothing else waits behind it; a deployment has a
    function for it."""

    REMOVALS = False
    PACKS = True


def sweep(
    stores: Stores,
    has_time_left: Callable[[], bool] = lambda: True,
    parts: Sequence[SweepPart] = tuple(SweepPart),
) -> Swept:
    """One run over all that is due in these parts, until `has_time_left` says that time is short."""
    run = Sweep(stores, has_time_left, Swept())
    for part in parts:
        now_ms = stores.clock_ms()
        for due in due_entries(stores.table, now_ms, packing=part is SweepPart.PACKS):
            if part is SweepPart.PACKS:
                run.swept.lag_ms = max(run.swept.lag_ms, now_ms - due.due_ms)
            if not has_time_left():
                break
            STEPS[due.kind](run, due)
    if not has_time_left():
        run.swept.cut_short = 1
        PROCESS.add(ROUNDS_CUT_SHORT)
    return run.swept


def expire_stream(run: Sweep, due: Due) -> None:
    """End the stream, or look again when its window, renewed meanwhile, is over."""
    stores = run.stores
    now_ms = stores.clock_ms()
    record = load_stream(stores.table, due.key)
    if record is not None and record.incarnation == due.incarnation and not record.deleted:
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        head = head_from(record, last, now_ms)
        if not head.is_expired(now_ms):
            deadline = deadline_ms(record.expiry, head.touched_ms)
            assert deadline is not None, "only a stream that can expire is due"
            schedule(stores.table, replace(due, due_ms=deadline))
            settle(stores.table, due)
            run.swept.postponed += 1
            return
        try:
            end(stores, head, stores.new_id())
        except (TailMoved, StreamChanged):
            return  # Something came first; the entry is still due.
        run.swept.expired += 1
    settle(stores.table, due)


def reclaim_log(run: Sweep, due: Due) -> None:
    run.swept.reclaimed += reclaim(run.stores, due)


def let_go(run: Sweep, due: Due) -> None:
    run.swept.let_go += retain(run.stores, due)


def trim_log(run: Sweep, due: Due) -> None:
    run.swept.trimmed += trim(run.stores, due, run.has_time_left)


def remove_unused_blob(run: Sweep, due: Due) -> None:
    """An upload names its blob; the body of a stream that never came to be lies under its incarnation."""
    removed = remove_unused(run.stores, due)
    run.swept.orphans += removed and due.blob is None
    run.swept.lapsed += removed and due.blob is not None


def release_source(run: Sweep, due: Due) -> None:
    run.swept.released += release(run.stores, due)


def pack_batches(run: Sweep, due: Due) -> None:
    run.swept.packed += pack(run.stores, due, run.has_time_left)


def remove_packed(run: Sweep, due: Due) -> None:
    remove_replaced(run.stores, due, run.has_time_left)


def remove_replaced_object(run: Sweep, due: Due) -> None:
    run.swept.replaced += remove_object(run.stores, due)


def forget_settled(run: Sweep, due: Due) -> None:
    settle(run.stores.table, due)


STEPS: Final[dict[DueKind, Callable[[Sweep, Due], None]]] = {
    DueKind.EXPIRE: expire_stream,
    DueKind.RECLAIM: reclaim_log,
    DueKind.TRIM: trim_log,
    DueKind.RETAIN: let_go,
    DueKind.UPLOAD: remove_unused_blob,
    DueKind.ORPHAN: remove_unused_blob,
    DueKind.REMOVE: remove_unused_blob,
    DueKind.RELEASE: release_source,
    DueKind.PACK: pack_batches,
    DueKind.PACKED: remove_packed,
    DueKind.REPLACED: remove_replaced_object,
    DueKind.SETTLED: forget_settled,
}
