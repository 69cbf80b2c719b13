"""Delete (§5.4), and the same end for a stream whose time has come."""

from __future__ import annotations

from tidemark.log.append import TailMoved
from tidemark.log.lifecycle import StreamChanged, end_stream, tombstone
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import Busy
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.release import release_writes, try_release
from tidemark.service.stores import Stores

_MAX_TRIES = 40


def delete(stores: Stores, key: StreamKey) -> None:
    """Raises StreamNotFound or StreamGone. From then on no append to the old stream can succeed."""
    append_id = stores.new_id()
    head = load_head(stores, key)
    for tries in range(_MAX_TRIES):
        try:
            return end(stores, head, append_id)
        except (TailMoved, StreamChanged):
            if tries:
                stores.pause(tries)
            head = load_head(stores, key)
    raise Busy


def end(stores: Stores, head: StreamHead, append_id: str) -> None:
    """Tombstone the stream at its tail, and remove the stream it was forked from if that was kept only
    for this fork. Raises TailMoved or StreamChanged."""
    now_ms = stores.clock_ms()
    record = head.record
    last = tombstone(head.tail, append_id, now_ms)
    writes, due = ([], None) if record.references else release_writes(stores, record, now_ms)
    end_stream(stores.table, record, last, writes, expired=head.is_expired(now_ms))
    stores.tails.forget(record.key)
    try_release(stores, due)
