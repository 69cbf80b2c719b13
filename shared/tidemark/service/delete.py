"""Delete (§5.4), and the same end for a stream whose time has come."""

from __future__ import annotations

from tidemark.log.append import TailMoved
from tidemark.log.lifecycle import StreamChanged, end_stream, tombstone
from tidemark.log.tails import Known
from tidemark.protocol.errors import Busy
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_known
from tidemark.service.stores import Stores

_MAX_TRIES = 40


def delete(stores: Stores, key: StreamKey) -> None:
    """Raises StreamNotFound. From then on no append to the old stream can succeed."""
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


def end(stores: Stores, known: Known, append_id: str) -> None:
    """Tombstone the stream at the tail that is known. Raises TailMoved or StreamChanged."""
    last = tombstone(known.tail, append_id, stores.clock_ms())
    end_stream(stores.table, known.record, last)
    stores.tails.forget(known.record.key)
