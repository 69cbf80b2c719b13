"""Reading a snapshot (extensions §2.3, §2.5), and why the latest cannot be deleted (§2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.log.records import Snapshot
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import SnapshotNeeded, SnapshotNotFound
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_known
from tidemark.service.publish_snapshot import MAX_ANSWER_BYTES
from tidemark.service.read import renew
from tidemark.service.stores import Stores

#: A redirect is followed at once; a slow client still has to get it begun.
URL_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True)
class SnapshotReading:
    """`url` in place of `data` where the blob is too large for one answer."""

    known: StreamHead
    snapshot: Snapshot
    data: bytes | None = None
    url: str | None = None


def latest_snapshot(stores: Stores, key: StreamKey) -> Snapshot:
    """Raises StreamNotFound, SnapshotNotFound."""
    return _visible(load_known(stores, key))


def read_snapshot(stores: Stores, key: StreamKey, offset: int) -> SnapshotReading:
    """Raises StreamNotFound, SnapshotNotFound. Renews a sliding expiry, as every read does."""
    known = load_known(stores, key)
    snapshot = _visible_at(known, offset)
    renew(stores, known.record, known.touched_ms, stores.clock_ms())
    if snapshot.size > MAX_ANSWER_BYTES:
        url = stores.blobs.url_to_get(snapshot.blob, URL_SECONDS, snapshot.content_type.value)
        return SnapshotReading(known, snapshot, url=url)
    return SnapshotReading(known, snapshot, data=stores.blobs.get(snapshot.blob, snapshot.size))


def delete_snapshot(stores: Stores, key: StreamKey, offset: int) -> None:
    """Never deletes any: the latest is needed, and all others are gone already.
    Raises StreamNotFound, SnapshotNotFound, SnapshotNeeded."""
    _visible_at(load_known(stores, key), offset)
    raise SnapshotNeeded


def _visible(known: StreamHead) -> Snapshot:
    if known.record.snapshot is None:
        raise SnapshotNotFound
    return known.record.snapshot


def _visible_at(known: StreamHead, offset: int) -> Snapshot:
    snapshot = _visible(known)
    if snapshot.offset != offset:
        raise SnapshotNotFound
    return snapshot
