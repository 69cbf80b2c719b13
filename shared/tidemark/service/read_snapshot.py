"""Reading a snapshot (extensions §2.3, §2.5), and why the latest cannot be deleted (§2.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.log.records import Snapshot
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import SnapshotNeeded, SnapshotNotFound
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.publish_snapshot import MAX_ANSWER_BYTES
from tidemark.service.read import renew
from tidemark.service.stores import Stores

#: A client follows a redirect at once; a slow one still has to begin within this time.
URL_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True)
class SnapshotReading:
    """`url` in place of `data` where the blob is too large for one answer."""

    head: StreamHead
    snapshot: Snapshot
    data: bytes | None = None
    url: str | None = None


def latest_snapshot(stores: Stores, key: StreamKey) -> Snapshot:
    """Raises StreamNotFound, SnapshotNotFound."""
    snapshot = load_head(stores, key).record.snapshot
    if snapshot is None:
        raise SnapshotNotFound
    return snapshot


def read_snapshot(stores: Stores, key: StreamKey, offset: int) -> SnapshotReading:
    """Raises StreamNotFound, SnapshotNotFound. Renews a sliding expiry, as every read does."""
    head = load_head(stores, key)
    snapshot = _snapshot_at(head, offset)
    renew(stores, head.record, head.touched_ms, stores.clock_ms())
    if snapshot.size > MAX_ANSWER_BYTES:
        url = stores.blobs.url_to_get(snapshot.blob, URL_SECONDS, snapshot.content_type.value)
        return SnapshotReading(head, snapshot, url=url)
    return SnapshotReading(head, snapshot, data=stores.snapshot_blob(snapshot))


def delete_snapshot(stores: Stores, key: StreamKey, offset: int) -> None:
    """Never deletes any: the latest is needed, and all others are gone already.
    Raises StreamNotFound, SnapshotNotFound, SnapshotNeeded."""
    _snapshot_at(load_head(stores, key), offset)
    raise SnapshotNeeded


def _snapshot_at(head: StreamHead, offset: int) -> Snapshot:
    snapshot = head.record.snapshot
    if snapshot is None or snapshot.offset != offset:
        raise SnapshotNotFound
    return snapshot
