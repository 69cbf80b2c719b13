"""Snapshots (extensions §2): publish, upload, read; and bootstrap (§3): the snapshot and what came after it,
in one answer.

A publish checks, stores the blob whole, and moves the pointer. Appends are not held up: they touch the log
alone, and a publish the stream's item. A snapshot that is too large for one request is uploaded straight to
S3 and then published by name: an extension of ours, which other clients can ignore. The latest snapshot
cannot be deleted (§2.6).
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

#: The most bytes of one response: their base64 must fit a Lambda response of 6 MB.
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
_MAX_TRIES: Final = 20
MANY_MESSAGES: Final = 10_000


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The body is the blob; it is empty if `upload` names a blob that is in S3 already."""

    offset: int
    content_type: ContentType
    body: bytes = b""
    upload: rules.UploadId | None = None


def publish_snapshot(stores: Stores, key: StreamKey, request: PublishRequest) -> Snapshot:
    """Raises, in this order: StreamNotFound, RetentionGone, OffsetBeyondTail, Malformed for an
    offset between messages' ends, Conflict for a compacted stream, UploadNotFound; Busy.

    The blob is complete before it is visible: a process that dies on the way leaves the old snapshot as it
    was. If two publish at once, the higher offset stays; at the same offset, the later publish.
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
            # The blob never became visible. It goes later, because a lost reply may hide that it did.
            due_ms = stores.clock_ms() + RECLAIM_AFTER_MS
            due = Due(DueKind.TRIM, record.key, record.incarnation, due_ms, f"{mark}-discarded", blob=blob)
            with suppress(errors.ProtocolError):  # The client must get the publish's own error.
                schedule(stores.table, due)
        raise
    return snapshot


def check_publishable(stores: Stores, key: StreamKey, offset: int) -> StreamRecord:
    """The stream, if a snapshot may be published there. Raises as `publish_snapshot`."""
    record = check_snapshot_offset(stores, key, offset)
    if record.compaction is not None:
        raise errors.Conflict(
            "A compacted stream takes no snapshot: it keeps the last message of each key, so read it from "
            "its beginning instead"
        )
    return record


def check_snapshot_offset(stores: Stores, key: StreamKey, offset: int) -> StreamRecord:
    """The stream, if a message ends there, or did before it was compacted. Raises as `publish_snapshot`."""
    record = require_live(load_stream(stores.table, key))
    if offset < record.retained:  # What lies there may be half removed.
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

        # Searching the most messages takes ten milliseconds.
        stores.concurrency.compute(check) if len(batch.lengths) > MANY_MESSAGES else check()
    return record


def _store_blob(stores: Stores, blob: str, request: PublishRequest) -> tuple[Stored, int | None]:
    """The blob, with what tells its bytes from others, and the checksum of its bootstrap response."""
    if request.upload is None:
        stores.blobs.put(blob, request.body)
        return Stored(len(request.body), crc=fast_zlib().crc32(request.body)), None
    # From then on the janitor removes the upload.
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
    """The answer to bootstrap, as an object: it is too large for us to give.

    Its boundary is chosen at random and after the blob was complete, so that no blob can have
    been made to contain it; S3 copies the blob, and nobody here reads it.
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
    """Take the place of whatever snapshot is there by now, unless that is a later one.

    Superseded data is removed once no reader can be on it any more, and no writer can hold a tail below the
    snapshot (`docs/buckets-and-snapshots.md`).
    """
    mark = snapshot.blob.rpartition("/")[2]
    for tries in range(_MAX_TRIES):
        before, due_ms = record.snapshot, stores.clock_ms() + RECLAIM_AFTER_MS
        superseded = before.blob if before is not None and record.owns(before.blob) else None
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
    """The entry that removes an upload when it lapses. Publishing settles it, and the janitor claims
    it before it removes anything: the first of the two has the blob."""
    return Due(DueKind.UPLOAD, record.key, record.incarnation, upload.lapses_ms, upload.mark, blob=blob)


#: An upload must begin within this time,
UPLOAD_SECONDS: Final = 60 * 60
#: and be published within this one.
LAPSES_AFTER_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Upload:
    id: rules.UploadId
    url: str
    url_expires_ms: int


def begin_upload(stores: Stores, key: StreamKey, offset: int) -> Upload:
    """A URL to upload the blob of a snapshot at `offset` to, once. Raises as `publish_snapshot`."""
    record = check_publishable(stores, key, offset)
    now_ms = stores.clock_ms()
    upload = rules.UploadId(now_ms + LAPSES_AFTER_MS, stores.new_id())
    blob = snapshot_blob_key(record.incarnation, offset, upload.mark)
    schedule_once(stores.table, upload_due(record, blob, upload))
    return Upload(upload, stores.blobs.url_to_put(blob, UPLOAD_SECONDS), now_ms + UPLOAD_SECONDS * 1000)


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
        raise errors.SnapshotNotFound
    return snapshot


def read_snapshot(stores: Stores, key: StreamKey, offset: int) -> SnapshotReading:
    """Raises StreamNotFound, SnapshotNotFound. Renews a sliding expiry, as every read does."""
    head = load_head(stores, key)
    snapshot = _snapshot_at(head, offset)
    renew(stores, head.record, head.touched_ms, stores.clock_ms())
    if snapshot.size > MAX_ANSWER_BYTES:
        known = Stored(snapshot.size, snapshot.etag, snapshot.crc)
        url = stores.blobs.url_to_get(snapshot.blob, URL_SECONDS, snapshot.content_type.value, known)
        return SnapshotReading(head, snapshot, url=url)
    return SnapshotReading(head, snapshot, data=stores.snapshot_blob(snapshot))


def delete_snapshot(stores: Stores, key: StreamKey, offset: int) -> None:
    """Never deletes any: the latest is needed, and all others are gone already.
    Raises StreamNotFound, SnapshotNotFound, SnapshotNeeded."""
    _snapshot_at(load_head(stores, key), offset)
    raise errors.SnapshotNeeded


def _snapshot_at(head: StreamHead, offset: int) -> Snapshot:
    snapshot = head.record.snapshot
    if snapshot is None or snapshot.offset != offset:
        raise errors.SnapshotNotFound
    return snapshot


#: Making and rendering this many parts takes a few milliseconds at most.
FEW_PARTS: Final = 1_000
#: A snapshot or a message of the largest size still fits, with the multipart syntax around it.
_LIMIT_BYTES: Final = MAX_ANSWER_BYTES + 64 * 1024


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """All of it as of one version of the stream's item: that names the snapshot and where the
    updates begin. `url` in place of the parts where the snapshot is too large for an answer."""

    snapshot: Snapshot | None
    next_offset: int
    up_to_date: bool
    closed: bool
    parts: tuple[rules.Part, ...] = ()
    url: str | None = None


def bootstrap(stores: Stores, key: StreamKey) -> Bootstrap:
    """Raises StreamNotFound. Renews a sliding expiry, as every read does."""
    record = require_live(load_stream(stores.table, key))
    snapshot = record.snapshot
    if snapshot is None:
        return _with_updates(
            stores, record, rules.Part(DEFAULT, b""), read_record(stores, record, record.retained)
        )
    if snapshot.size > MAX_ANSWER_BYTES:
        # The object that was made when it was published: the snapshot, and no update.
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
    """Beside the event loop where there are many messages."""
    call = partial(add_updates, record, first, reading)
    is_long = sum(len(batch.lengths) for batch in reading.page.batches) > FEW_PARTS
    return stores.concurrency.compute(call) if is_long else call()


def add_updates(record: StreamRecord, first: rules.Part, reading: Reading) -> Bootstrap:
    """Add as many updates as fit: cut at the end of a message, and the reader goes on from there."""
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
    """The messages of a page, each with the offset of its end; JSON as it was sent."""
    page, is_json = reading.page, reading.record.content_type.is_json
    for batch in page.batches:
        behind, data = 0, batch.data or b""
        for length, end in zip(batch.lengths, batch.message_ends(), strict=True):
            begin, behind = behind, behind + length
            if end - length >= page.start:
                stored = data[begin:behind]
                yield end, stored[:-1] if is_json else stored
