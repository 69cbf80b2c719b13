"""Delete (§5.4), and the same end for a stream whose time has come."""

from __future__ import annotations

from contextlib import suppress

from tidemark.log.append import TailMoved
from tidemark.log.lifecycle import StreamChanged, end_stream, tombstone
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import Busy, ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_known
from tidemark.service.release import release, release_writes
from tidemark.service.stores import Stores

_MAX_TRIES = 40


def delete(stores: Stores, key: StreamKey) -> None:
    """Raises StreamNotFound or StreamGone. From then on no append to the old stream can succeed."""
    append_id = stores.new_id()
    known = load_known(stores, key)
    for tries in range(_MAX_TRIES):
        try:
            return end(stores, known, append_id)
        except (TailMoved, StreamChanged):
            if tries:
                stores.pause(tries)
            known = load_known(stores, key)
    raise Busy


def end(stores: Stores, known: StreamHead, append_id: str) -> None:
    """Tombstone the stream at the tail that is known, and take along the stream it was
    forked from if that was only waiting for it. Raises TailMoved or StreamChanged."""
    now_ms = stores.clock_ms()
    last = tombstone(known.tail, append_id, now_ms)
    writes, due = ([], None) if known.record.references else release_writes(stores, known.record, now_ms)
    end_stream(stores.table, known.record, last, writes)
    stores.tails.forget(known.record.key)
    # The stream has ended, whatever becomes of this: the janitor does what is left.
    with suppress(ProtocolError):
        release(stores, due)
