"""Snapshots (extensions §2): publish, upload, read; and bootstrap (§3): the snapshot and the later messages
in one response.

A publish checks the offset, stores the whole blob, and moves the pointer in the stream's item. Appends write
to the log alone, so a publish does not delay them. A snapshot that is too large for a request is uploaded to
S3 and then published by its name; this is an extension of Tidemark, which other clients can ignore. The
latest snapshot cannot be deleted (§2.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidemark.blobs import Composition, Stored, bootstrap_blob_key, snapshot_blob_key
from tidemark.log.due import schedule, schedule_once
from tidemark.log.pack_format import fast_zlib
from tidemark.log.read import load_batch_at, load_stream
from tidemark.log.records import Due, DueKind, Snapshot, StreamRecord, Tombstone
from tidemark.log.retention import RetainedMoved, commit_snapshot
from tidemark.log.tails import RECLAIM_AFTER_MS, StreamHead
from tidemark.protocol import errors
from tidemark.protocol import snapshot as rules
from tidemark.protocol.messages import DEFAULT, ContentType
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import ended_error, last_used_ms, load_head, require_live
from tidemark.service.read import Reading, read_record, renew
from tidemark.service.stores import Stores

#: Most bytes of a response: in base64 they must fit a Lambda response of 6 MB.
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_MAX_TRIES: Final = 20
MANY_MESSAGES: Final = 10_000


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """`body` is the blob, or empty if `upload` names a blob that is in S3 already."""

    offset: int
    content_type: ContentType
    body: bytes = b""
    upload: rules.UploadId | None = None


def publish_snapshot(stores: Stores, key: StreamKey, request: PublishRequest) -> Snapshot:
    """Raises, in this order: StreamNotFound, RetentionGone, OffsetBeyondTail, Malformed for an
    offset between messages' ends, Conflict for a compacted stream, UploadNotFound; Busy.

    The blob is complete before it is visible: if the process dies on the way, the old snapshot stays. Of two
    concurrent publishes the higher offset wins, and at the same offset the later publish.
    """
    record = check_publishable(stores, key, request.offset)
    mark = request.upload.mark if request.upload else stores.new_id()
    blob = snapshot_blob_key(record.incarnation, request.offset, mark)
    if record.snapshot is not None and record.snapshot.blob == blob:
        return record.snapshot  # The upload was published before.
    stored, bootstrap_crc = _store_blob(stores, blob, request)
    snapshot = Snapshot(
        request.offset,
        blob,
        request.content_type,
        stored.size,
        stores.clock_ms(),
        stored.crc,
        stored.etag,
        bootstrap_crc,
    )
    upload = upload_due(record, blob, request.upload) if request.upload else None
    try:
        _commit(stores, record, snapshot, upload)
    except errors.ProtocolError:
        if upload is None:
            # The blob is not visible. Remove it later: if the reply was lost, the blob may be visible.
            due_ms = stores.clock_ms() + RECLAIM_AFTER_MS
            due = Due(DueKind.TRIM, record.key, record.incarnation, due_ms, f"{mark}-discarded", blob=blob)
            with suppress(errors.ProtocolError):  # The client must get the publish's own error.
                schedule(stores.table, due)
        raise
    return snapshot


def check_publishable(stores: Stores, key: StreamKey, offset: int) -> StreamRecord:
    """Return the stream if a snapshot may be published at `offset`. Raises as `publish_snapshot`."""
    record = check_snapshot_offset(stores, key, offset)
    if record.compaction is not None:
        raise errors.Conflict(
            "A compacted stream takes no snapshot: it keeps the last message of each key, so read it from "
            "its beginning instead"
        )
    return record


def check_snapshot_offset(stores: Stores, key: StreamKey, offset: int) -> StreamRecord:
    """Return the stream if a message ends at `offset`, or ended there before a compaction. Raises as
    `publish_snapshot`."""
    record = require_live(load_stream(stores.table, key))
    if offset < record.retained:  # The batches there may be partly removed.
        last_used_ms(stores, record, 0)
        rules.check_retained(offset, record.retained)
    batch = load_batch_at(stores.table, record, offset, stores.fill, or_before=True)
    last_used_ms(stores, record, batch.time_ms if batch else 0)
    if batch is None:
        rules.check_boundary(offset, [record.base])
    elif isinstance(batch, Tombstone):
        raise ended_error(stores, record)
    elif batch.gaps is None or batch.messages_before(offset) is None:

        def check() -> None:
            rules.check_boundary(offset, [batch.start, *batch.message_ends()])

        # A search in a full batch takes ten milliseconds.
        stores.concurrency.compute(check) if len(batch.lengths) > MANY_MESSAGES else check()
    return record


def _store_blob(stores: Stores, blob: str, request: PublishRequest) -> tuple[Stored, int | None]:
    """Store the blob. Returns its size, checksum and ETag, and the checksum of its bootstrap response."""
    if request.upload is None:
        stores.blobs.put(blob, request.body)
        return Stored(len(request.body), crc=fast_zlib().crc32(request.body)), None
    # The janitor removes an upload that has lapsed.
    if stores.clock_ms() >= request.upload.lapses_ms:
        raise errors.UploadNotFound
    stored = stores.blobs.stored(blob)
    if stored is None:
        raise errors.UploadNotFound
    if stored.size > rules.MAX_UPLOAD_BYTES:
        raise errors.PayloadTooLarge(rules.MAX_UPLOAD_BYTES)
    if stored.size > MAX_ANSWER_BYTES:
        return stored, _compose_bootstrap(stores, blob, stored, request)
    if stored.crc is None:
        stored = replace(stored, crc=fast_zlib().crc32(stores.blobs.get(blob, stored.size)))
    return stored, None


def _compose_bootstrap(stores: Stores, blob: str, stored: Stored, request: PublishRequest) -> int | None:
    """Compose the bootstrap response as an S3 object, because it is too large for a Lambda response.

    The random boundary is chosen after the blob is complete, so that no client can put the boundary into the
    blob. S3 copies the blob, which this process never reads.
    """
    content_type, offset = request.content_type.value, render_offset(request.offset)
    boundary = rules.choose_boundary([rules.Part(content_type, stores.new_id().encode())])
    headers = {"Stream-Snapshot-Offset": offset, "Stream-Next-Offset": offset}
    return stores.blobs.compose(
        bootstrap_blob_key(blob),
        Composition(
            content_type=f"multipart/mixed; boundary={boundary}",
            before=rules.open_part(boundary, content_type, headers),
            source=blob,
            size=stored.size,
            after=rules.close_parts(boundary),
            etag=stored.etag,
        ),
    )


def _commit(stores: Stores, record: StreamRecord, snapshot: Snapshot, upload: Due | None) -> None:
    """Replace the current snapshot, unless it is a later one.

    Superseded data is removed when no reader can still use it, and no writer can hold a tail below the
    snapshot (`docs/buckets-and-snapshots.md`).
    """
    mark = snapshot.blob.rpartition("/")[2]
    for tries in range(_MAX_TRIES):
        before, due_ms = record.snapshot, stores.clock_ms() + RECLAIM_AFTER_MS
        superseded = None
        if before is not None and f"/{record.incarnation}/" in before.blob:  # Not inherited by a fork.
            superseded = before.blob
        trim = Due(DueKind.TRIM, record.key, record.incarnation, due_ms, mark, snapshot.offset, superseded)
        try:
            return commit_snapshot(stores.table, record, snapshot, trim, upload)
        except RetainedMoved as moved:
            if moved.latest is not None and moved.latest.incarnation != record.incarnation:
                raise errors.StreamNotFound from moved
            record = require_live(moved.latest)
            rules.check_retained(snapshot.offset, record.retained)
            stores.pause(tries)
    raise errors.Busy


def upload_due(record: StreamRecord, blob: str, upload: rules.UploadId) -> Due:
    """The due entry that removes an upload when it lapses. A publish settles the entry, and the janitor
    claims the entry before it removes anything: the first of the two gets the blob."""
    return Due(DueKind.UPLOAD, record.key, record.incarnation, upload.lapses_ms, upload.mark, blob=blob)


#: Seconds within which an upload must begin.
UPLOAD_SECONDS: Final = 60 * 60
#: Milliseconds within which an upload must be published.
LAPSES_AFTER_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Upload:
    id: rules.UploadId
    url: str
    url_expires_ms: int


def begin_upload(stores: Stores, key: StreamKey, offset: int) -> Upload:
    """Return a URL for one upload of the blob of a snapshot at `offset`. Raises as `publish_snapshot`."""
    record = check_publishable(stores, key, offset)
    now_ms = stores.clock_ms()
    upload = rules.UploadId(now_ms + LAPSES_AFTER_MS, stores.new_id())
    blob = snapshot_blob_key(record.incarnation, offset, upload.mark)
    schedule_once(stores.table, upload_due(record, blob, upload))
    return Upload(upload, stores.blobs.url_to_put(blob, UPLOAD_SECONDS), now_ms + UPLOAD_SECONDS * 1000)


#: Lifetime of a redirect's URL, in seconds. A client must begin the download within this time.
URL_SECONDS: Final = 15 * 60


@dataclass(frozen=True, slots=True)
class SnapshotReading:
    """`url` replaces `data` if the blob is too large for a response."""

    head: StreamHead
    snapshot: Snapshot
    data: bytes | None = None
    url: str | None = None


def latest_snapshot(stores: Stores, key: StreamKey) -> Snapshot:
    """Raises StreamNotFound, SnapshotNotFound."""
    snapshot = load_head(stores, key).record.snapshot
    if snapshot is None:
        raise errors.SnapshotNotFound
    return snapshot


def read_snapshot(stores: Stores, key: StreamKey, offset: int) -> SnapshotReading:
    """Read the snapshot at `offset`. Renews a sliding expiry, as every read does. Raises StreamNotFound,
    SnapshotNotFound."""
    head = load_head(stores, key)
    snapshot = _snapshot_at(head, offset)
    renew(stores, head.record, head.touched_ms, stores.clock_ms())
    if snapshot.size > MAX_ANSWER_BYTES:
        known = Stored(snapshot.size, snapshot.etag, snapshot.crc)
        url = stores.blobs.url_to_get(snapshot.blob, URL_SECONDS, snapshot.content_type.value, known)
        return SnapshotReading(head, snapshot, url=url)
    return SnapshotReading(head, snapshot, data=stores.snapshot_blob(snapshot))


def delete_snapshot(stores: Stores, key: StreamKey, offset: int) -> None:
    """Refuse the deletion: the latest snapshot is needed, and earlier ones no longer exist. Raises
    StreamNotFound, SnapshotNotFound, SnapshotNeeded."""
    _snapshot_at(load_head(stores, key), offset)
    raise errors.SnapshotNeeded


def _snapshot_at(head: StreamHead, offset: int) -> Snapshot:
    snapshot = head.record.snapshot
    if snapshot is None or snapshot.offset != offset:
        raise errors.SnapshotNotFound
    return snapshot


#: Parts that may be made and rendered on the event loop: this takes a few milliseconds at most.
FEW_PARTS: Final = 1_000
#: Most bytes of a multipart response: the largest snapshot or message fits, with the multipart syntax.
_LIMIT_BYTES: Final = MAX_ANSWER_BYTES + 64 * 1024


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A bootstrap response, from one version of the stream's item, which names the snapshot and the offset of
    the updates. `url` replaces `parts` if the snapshot is too large for a response."""

    snapshot: Snapshot | None
    next_offset: int
    up_to_date: bool
    closed: bool
    parts: tuple[rules.Part, ...] = ()
    url: str | None = None


def bootstrap(stores: Stores, key: StreamKey) -> Bootstrap:
    """Read the snapshot and the updates after it. Renews a sliding expiry, as every read does. Raises
    StreamNotFound."""
    record = require_live(load_stream(stores.table, key))
    snapshot = record.snapshot
    if snapshot is None:
        return _with_updates(
            stores, record, rules.Part(DEFAULT, b""), read_record(stores, record, record.retained)
        )
    if snapshot.size > MAX_ANSWER_BYTES:
        # The object that the publish composed has the snapshot and no updates.
        renew(stores, record, last_used_ms(stores, record, 0), stores.clock_ms())
        known = Stored(snapshot.size, crc=snapshot.bootstrap_crc)
        url = stores.blobs.url_to_get(bootstrap_blob_key(snapshot.blob), URL_SECONDS, known=known)
        return Bootstrap(snapshot, snapshot.offset, up_to_date=False, closed=False, url=url)
    blob, reading = stores.concurrency.pair(
        lambda: stores.snapshot_blob(snapshot),
        lambda: read_record(stores, record, snapshot.offset, MAX_ANSWER_BYTES - snapshot.size),
    )
    return _with_updates(stores, record, rules.Part(snapshot.content_type.value, blob), reading)


def _with_updates(stores: Stores, record: StreamRecord, first: rules.Part, reading: Reading) -> Bootstrap:
    """Add updates, outside the event loop if there are many messages."""
    call = partial(add_updates, record, first, reading)
    is_long = sum(len(batch.lengths) for batch in reading.page.batches) > FEW_PARTS
    return stores.concurrency.compute(call) if is_long else call()


def add_updates(record: StreamRecord, first: rules.Part, reading: Reading) -> Bootstrap:
    """Add the updates that fit, whole messages only. The reader goes on after them."""
    content_type, page = record.content_type.served, reading.page
    parts, next_offset = [first], page.start
    left_bytes = _LIMIT_BYTES - rules.part_bytes(first.content_type, len(first.body))
    for end, message in messages(reading):
        left_bytes -= rules.part_bytes(content_type, len(message))
        if left_bytes < 0:
            break
        parts.append(rules.Part(content_type, message))
        next_offset = end
    complete = next_offset == page.end
    return Bootstrap(
        record.snapshot,
        next_offset,
        up_to_date=complete and page.up_to_date,
        closed=complete and page.closed,
        parts=tuple(parts),
    )


def messages(reading: Reading) -> Iterator[tuple[int, bytes]]:
    """The messages of a page, each with its end offset. JSON messages are as they were sent."""
    page, is_json = reading.page, reading.record.content_type.is_json
    for batch in page.batches:
        behind, data = 0, batch.data or b""
        for length, end in zip(batch.lengths, batch.message_ends(), strict=True):
            begin, behind = behind, behind + length
            if end - length >= page.start:
                stored = data[begin:behind]
                yield end, stored[:-1] if is_json else stored
