"""Create (§5.1): idempotent, and a fresh start where the old stream has expired."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.blobs.store import batch_blob_key
from tidemark.log.append import TailMoved
from tidemark.log.lifecycle import (
    Creation,
    StreamChanged,
    StreamEndedLater,
    StreamExists,
    bury,
    create_stream,
    load_stream,
    replace_stream,
    tombstone,
)
from tidemark.log.read import load_last
from tidemark.log.reclaim import schedule_once
from tidemark.log.records import Batch, Due, DueKind, StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.tails import RECLAIM_AFTER_MS, StreamHead
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.create import Configuration, check_same_configuration
from tidemark.protocol.errors import Busy, Conflict
from tidemark.protocol.expiry import NEVER, Expiry
from tidemark.protocol.fork import ForkPoint, check_same_fork
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.delete import end
from tidemark.service.fork import Origin, fork_origin
from tidemark.service.load import head_from
from tidemark.service.parse import parse_body
from tidemark.service.release import release, release_writes
from tidemark.service.stores import Stores

_MAX_TRIES = 8


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A PUT as it arrived. A fork may leave content type and expiry to its source."""

    content_type: ContentType | None
    expiry: Expiry
    closed: bool
    body: bytes = b""
    fork: ForkPoint | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """`is_new` tells 201 from 200."""

    known: StreamHead
    is_new: bool


def create(stores: Stores, key: StreamKey, request: CreateRequest) -> Created:
    """Make the stream, or find that it is there as asked for.

    Raises Malformed for a body that is not what the content type says, Conflict where a
    different stream is there, and what `fork_origin` raises.
    """
    return _Creation(stores, key, request).run()


class _Creation:
    def __init__(self, stores: Stores, key: StreamKey, request: CreateRequest) -> None:
        self._stores = stores
        self._key = key
        self._request = request
        #: When the name was free again, by the clock of whoever ended the stream before.
        self._free_ms = 0

    def run(self) -> Created:
        """A repeated fork is recognised even after its source is gone, so it is looked for
        first; a plain stream is simply made, and met if it is there."""
        existing = load_stream(self._stores.table, self._key) if self._request.fork else None
        for tries in range(_MAX_TRIES):
            try:
                return self._make() if existing is None else self._meet(existing)
            except StreamExists as met:
                existing = met.existing
            except StreamEndedLater as ended:
                existing, self._free_ms = None, ended.ended_ms + 1
            except (StreamChanged, TailMoved):
                self._stores.pause(tries)
                existing = load_stream(self._stores.table, self._key)
        raise Busy

    def _make(self) -> Created:
        creation = self._plan()
        create_stream(self._stores.table, creation)
        return self._made(creation)

    def _plan(self) -> Creation:
        stores, request = self._stores, self._request
        now_ms = max(stores.clock_ms(), self._free_ms)
        origin = self._origin()
        record = StreamRecord(
            key=self._key,
            incarnation=stores.new_id(),
            content_type=origin.content_type,
            expiry=origin.expiry,
            created_ms=now_ms,
            touched_ms=now_ms,
            lineage=origin.lineage,
            fork=origin.fork,
            snapshot=origin.snapshot,
            retained=origin.retained,
        )
        return self._with_content(record, request, now_ms)

    def _origin(self) -> Origin:
        request = self._request
        if request.fork is not None:
            return fork_origin(self._stores, self._key, request.fork, request.content_type, request.expiry)
        assert request.content_type is not None, "only a fork may leave it open"
        return Origin(request.content_type, request.expiry)

    def _with_content(self, record: StreamRecord, request: CreateRequest, now_ms: int) -> Creation:
        """An open stream without content of its own has an empty log. A large body is in S3 before the
        stream is there, which may never be: the janitor's entry for it comes first."""
        messages = parse_body(self._stores, record.content_type, request.body)
        if not messages.data and not request.closed:
            return Creation(record)
        data, blob, orphan = messages.data, None, None
        append_id = self._stores.new_id()
        if len(data) > INLINE_BYTES:
            orphan = Due(DueKind.ORPHAN, record.key, record.incarnation, now_ms + RECLAIM_AFTER_MS)
            schedule_once(self._stores.table, orphan)
            blob = batch_blob_key(record.incarnation, append_id)
            self._stores.blobs.put(blob, data)
        after = Tail(offset=record.base + len(data), closed=request.closed)
        kept = None if blob else data
        first = Batch(record.base, after, append_id, now_ms, kept, blob, messages.lengths)
        return Creation(record, first, orphan)

    def _made(self, creation: Creation) -> Created:
        record = creation.record
        known = head_from(record, creation.first, record.created_ms)
        self._stores.tails.forget(record.key)
        self._stores.tails.learn(known)
        return Created(known, is_new=True)

    def _meet(self, existing: StreamRecord) -> Created:
        """Somebody is there: the same stream, another one, or one that has ended.

        Raises Conflict, and StreamChanged where it changed while we looked.
        """
        now_ms = self._stores.clock_ms()
        last = load_last(self._stores.table, log_pk(existing.key, existing.incarnation))
        known = head_from(existing, last, now_ms)
        if existing.deleted or (known.is_expired(now_ms) and existing.references):
            raise Conflict("Stream was deleted, and its name is not free before its last fork is gone")
        if last is not None and last.tombstone:
            bury(self._stores.table, existing, now_ms)
            raise StreamChanged
        if known.is_expired(now_ms):
            return self._replace(known)
        self._check_same(existing, known)
        self._stores.tails.learn(known)
        return Created(known, is_new=False)

    def _check_same(self, existing: StreamRecord, known: StreamHead) -> None:
        """What a fork leaves to its source matches whatever the source had."""
        request = self._request
        expiry = existing.expiry if request.fork and request.expiry == NEVER else request.expiry
        check_same_configuration(
            Configuration(existing.content_type, existing.expiry, known.tail.closed),
            Configuration(request.content_type or existing.content_type, expiry, request.closed),
        )
        check_same_fork(existing.fork.point if existing.fork else None, request.fork)

    def _replace(self, expired: StreamHead) -> Created:
        stores = self._stores
        if self._request.fork is not None:
            # The old stream may let go of the very source that the new one takes hold of,
            # and a transaction may change an item only once.
            end(stores, expired, stores.new_id())
            return self._make()
        creation = self._plan()
        now_ms = stores.clock_ms()
        last = tombstone(expired.tail, stores.new_id(), now_ms)
        writes, due = release_writes(stores, expired.record, now_ms)
        replace_stream(stores.table, expired.record, last, creation, release=writes)
        release(stores, due)
        return self._made(creation)
