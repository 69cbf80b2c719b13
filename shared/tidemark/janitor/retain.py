"""Streams with a limit to what they keep: a look at each from time to time (docs/retention.md)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tidemark.log.due import schedule, settle
from tidemark.log.lifecycle import load_stream, next_look_ms
from tidemark.log.read import load_last
from tidemark.log.records import Due
from tidemark.log.schema import log_pk
from tidemark.protocol.errors import StreamGone, StreamNotFound
from tidemark.service.load import head_from
from tidemark.service.retain import retained_from, written_ms_at
from tidemark.service.stores import Stores
from tidemark.service.trim import trim_below


def retain(stores: Stores, due: Due) -> bool:
    """Trim the stream to its retention limits, and schedule the next look. Returns whether anything was
    trimmed.

    A stream that has ended, or has a snapshot, needs no look: publishing a snapshot trims the data below it.
    """
    record, now_ms = load_stream(stores.table, due.key), stores.clock_ms()
    if (
        record is None
        or record.incarnation != due.incarnation
        or record.deleted
        or record.snapshot is not None
        or not record.retention.is_limited
    ):
        settle(stores.table, due)
        return False
    head = head_from(record, load_last(stores.table, log_pk(record.key, record.incarnation)), now_ms)
    begin, trimmed = retained_from(stores, head, now_ms), False
    if begin > record.retained:
        with suppress(StreamNotFound, StreamGone):  # It has ended meanwhile: the next look finds that.
            trimmed = trim_below(stores, due.key, begin, due.incarnation)
    oldest_ms = written_ms_at(stores, head, begin)
    look_ms = next_look_ms(record, now_ms, oldest_ms, head.written_ms)
    schedule(stores.table, replace(due, due_ms=look_ms))
    settle(stores.table, due)
    return trimmed
