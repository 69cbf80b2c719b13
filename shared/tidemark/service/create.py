"""Create (§5.1): idempotent; an expired stream is replaced by a new one. The first append may create the
stream too (an extension): the creation has its batch, in the same conditional write."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.blobs import batch_blob_key
from tidemark.log import lifecycle, records
from tidemark.log.append import TailMoved
from tidemark.log.buckets import BucketHasDefaults, DatedTooEarly, load_bucket
from tidemark.log.due import schedule_once
from tidemark.log.read import load_last, load_stream, read_page
from tidemark.log.schema import COMPACTED_EPOCH, log_pk
from tidemark.log.tails import RECLAIM_AFTER_MS, StreamHead
from tidemark.protocol import create as rules
from tidemark.protocol import errors
from tidemark.protocol.append import Append, Kind, Outcome, plan_appends
from tidemark.protocol.compaction import MODE_HEADER, Compaction, decide_compaction
from tidemark.protocol.expiry import FOREVER, NEVER, Expiry, Retention
from tidemark.protocol.messages import ContentType
from tidemark.protocol.offset import render_offset
from tidemark.protocol.snapshot import check_retained
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES, AppendRequest, append_of, parse_body
from tidemark.service.delete import end, release_writes, remove_unreferenced, try_release
from tidemark.service.load import head_from, load_head
from tidemark.service.stores import Stores


@dataclass(frozen=True, slots=True)
class Origin:
    content_type: ContentType
    expiry: Expiry
    lineage: tuple[records.Segment, ...] = ()
    fork: records.Fork | None = None
    snapshot: records.Snapshot | None = None
    retained: int = 0
    compacted: int = 0


def fork_origin(
    stores: Stores, key: StreamKey, point: rules.ForkPoint, content_type: ContentType | None, expiry: Expiry
) -> Origin:
    """The initial state of the fork `key`, which has the snapshot of its source. No data are copied.

    Raises StreamNotFound, Malformed, Conflict (the protocol's fork creation errors), and RetentionGone.
    """
    if point.source == key:
        raise errors.Malformed("A stream cannot be forked from itself")
    try:
        source = load_head(stores, point.source)
    except errors.SoftDeleted:
        raise errors.Conflict(
            "The source stream was deleted; it is kept for its present forks only"
        ) from None
    except errors.StreamNotFound:
        raise errors.StreamNotFound(
            "The source stream does not exist; Stream-Forked-From must name one"
        ) from None
    record = source.record
    generation = (record.fork.generation if record.fork else 0) + 1
    rules.check_generation(generation)
    fork_type = rules.decide_content_type(record.content_type, content_type)
    anchor = source.tail.offset if point.offset is None else point.offset
    check_retained(anchor, record.retained)
    if anchor < record.compacted:
        raise errors.ForkBelowCompacted(record.compacted)
    end = _fork_end(stores, source, anchor, point.sub_offset)
    return Origin(
        fork_type,
        rules.decide_expiry(record.expiry, expiry),
        record.inherited(end),
        records.Fork(rules.ForkPoint(point.source, anchor, point.sub_offset), record.incarnation, generation),
        record.snapshot,
        record.retained,
        record.compacted,
    )


def _fork_end(stores: Stores, source: StreamHead, anchor: int, sub_offset: int) -> int:
    """The offset at which the fork leaves its source."""
    tail = source.tail
    if anchor > tail.offset:
        raise errors.Malformed(f"Stream-Fork-Offset {render_offset(anchor)} lies beyond the source's tail")
    if not sub_offset and anchor in {0, tail.offset}:
        return anchor
    record = source.record
    page = read_page(
        stores.table, record, anchor, known_tail=tail, recent=stores.recent, limit_bytes=0, fill=stores.fill
    )
    if not sub_offset:
        return anchor
    if not page.has_data:
        raise errors.Malformed("Stream-Fork-Sub-Offset needs an append that follows Stream-Fork-Offset")
    batch = page.batches[0]
    return anchor + rules.decide_sub_offset(
        record.content_type, batch.lengths, batch.appends, page.skip, sub_offset
    )


_MAX_TRIES = 8


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A PUT as it arrived. A fork may leave content type and expiry to its source; a stream may leave its
    retention and compaction to its bucket. With `first` the append is the request, and its body counts."""

    content_type: ContentType | None
    expiry: Expiry
    closed: bool
    body: bytes = b""
    fork: rules.ForkPoint | None = None
    retention: Retention = FOREVER
    compaction: Compaction | None = None
    first: AppendRequest | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """`is_new`: the response is 201, else 200."""

    head: StreamHead
    is_new: bool


def create(stores: Stores, key: StreamKey, request: CreateRequest) -> Created:
    """Create the stream, or check that the existing stream has the requested configuration.

    Raises Malformed for an invalid body, Conflict if a different stream exists; and as `fork_origin`.
    """
    return _Creation(stores, key, request).run()


def create_with_append(stores: Stores, key: StreamKey, request: CreateRequest) -> Outcome | None:
    """Create the stream with its first append. Returns None if the stream exists, whatever its configuration:
    then nothing was written.

    Raises the error that an empty stream would refuse the append with; and as `create`.
    """
    made = create(stores, key, request)
    if not made.is_new:
        return None
    tail = made.head.tail
    producer = tail.producers[0] if tail.producers else None
    return Outcome(Kind.APPENDED, tail.offset, tail.closed, producer, made.head.record.incarnation)


class _Creation:
    def __init__(self, stores: Stores, key: StreamKey, request: CreateRequest) -> None:
        self._stores = stores
        self._key = key
        self._request = request
        #: The time at which the name became free, by the clock of the process that ended the earlier stream.
        self._free_ms = 0
        self._retention = request.retention
        self._compaction = request.compaction

    def run(self) -> Created:
        """Read the name first for a fork: a repeated request succeeds even if the source is gone. Other
        streams are written at once, and a refused write returns the existing stream."""
        existing = load_stream(self._stores.table, self._key) if self._request.fork else None
        for tries in range(_MAX_TRIES):
            try:
                return self.make() if existing is None else self.meet(existing)
            except lifecycle.StreamExists as met:
                existing = met.existing
            except DatedTooEarly as refused:
                existing, self._free_ms = None, refused.changed_ms + 1
            except BucketHasDefaults as found:
                existing = None
                self.adopt(found.bucket)
            except (lifecycle.StreamChanged, TailMoved):
                self._stores.pause(tries)
                existing = load_stream(self._stores.table, self._key)
        raise errors.Busy

    def make(self) -> Created:
        creation = self.plan()
        lifecycle.put_stream(self._stores.table, creation)
        return self.learn(creation)

    def plan(self) -> lifecycle.Creation:
        stores, request = self._stores, self._request
        now_ms = max(stores.clock_ms(), self._free_ms)
        if request.fork is not None:
            origin = fork_origin(stores, self._key, request.fork, request.content_type, request.expiry)
        else:
            assert request.content_type is not None, "only a fork may leave it open"
            origin = Origin(request.content_type, request.expiry)
        record = records.StreamRecord(
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
            retention=self._retention,
            compaction=self.compaction_of(origin.content_type),
            compacted=origin.compacted,
        )
        if record.compaction and record.snapshot:
            raise errors.Conflict(
                "The source has a snapshot, and a compacted stream cannot begin with one: fork it without "
                f"{MODE_HEADER}, outside of buckets that compact their streams"
            )
        if record.compaction:
            stores.check_format(COMPACTED_EPOCH)
        if request.first is not None:
            if request.first.if_match is not None:
                request.first.if_match.check_missing()
            first = append_of(stores, record, request.first._replace(if_match=None))
            return self.with_first_batch(record, first)
        messages = parse_body(stores, record.content_type, request.body)
        if not messages.data and not request.closed:
            return lifecycle.Creation(record)  # An open stream without content has an empty log.
        return self.with_first_batch(record, Append(messages, request.closed))

    def with_first_batch(self, record: records.StreamRecord, append: Append) -> lifecycle.Creation:
        """The creation with a first batch. A large body goes to S3 before the stream exists. The creation may
        then fail, so the due entry that removes the body is written first. Raises the append's refusal."""
        plan = plan_appends(Tail(record.base), [append], {})
        if isinstance(refusal := plan.results[0], errors.ProtocolError):
            raise refusal
        stores, now_ms, append_id = self._stores, record.created_ms, self._stores.new_id()
        data, lengths, _ = plan.body()
        checksums = records.Checksums.of(None, record.base, data)
        first = records.Batch(
            record.base, plan.after, append_id, now_ms, data, lengths=lengths, checksums=checksums
        )
        if len(data) <= INLINE_BYTES:
            return lifecycle.Creation(record, first)
        orphan = records.Due(
            records.DueKind.ORPHAN, record.key, record.incarnation, now_ms + RECLAIM_AFTER_MS
        )
        schedule_once(stores.table, orphan)
        blob = batch_blob_key(record.incarnation, append_id)
        stores.blobs.put(blob, data)
        return lifecycle.Creation(record, replace(first, data=None, blob=blob), orphan)

    def load_defaults(self) -> None:
        """Take the bucket's defaults for settings that the request lacks. A new stream is first created
        without this read: the creation is refused if the bucket has defaults."""
        is_explicit = self._request.retention.is_limited and self._request.compaction
        if self._key.bucket != PLAIN_BUCKET and not is_explicit:
            self.adopt(load_bucket(self._stores.table, self._key.bucket))

    def adopt(self, bucket: records.BucketRecord) -> None:
        if not self._request.retention.is_limited:
            self._retention = bucket.retention
        self._compaction = self._request.compaction or bucket.compaction

    def compaction_of(self, content_type: ContentType) -> Compaction | None:
        return decide_compaction(content_type, self._request.compaction, self._compaction)

    def learn(self, creation: lifecycle.Creation) -> Created:
        record = creation.record
        head = head_from(record, creation.first, record.created_ms)
        self._stores.tails.forget(record.key)
        self._stores.tails.learn(head)
        return Created(head, is_new=True)

    def meet(self, existing: records.StreamRecord) -> Created:
        """Handle an existing stream of the name: the requested one, another one, or one that has ended.

        Raises Conflict, and StreamChanged if the stream changed meanwhile.
        """
        now_ms = self._stores.clock_ms()
        last = load_last(self._stores.table, log_pk(existing.key, existing.incarnation))
        head = head_from(existing, last, now_ms)
        if existing.deleted and not existing.references:
            # The last fork has ended, but the process that ended it has not removed this stream yet.
            try_release(self._stores, remove_unreferenced(self._stores, existing))
            return self.make()
        if existing.references and (existing.deleted or head.is_expired(now_ms)):
            raise errors.Conflict("Stream was deleted, and its name is not free before its last fork is gone")
        if isinstance(last, records.Tombstone):
            lifecycle.bury(self._stores.table, existing, now_ms)
            raise lifecycle.StreamChanged
        if head.is_expired(now_ms):
            return self.replace(head)
        if self._request.first is None:
            self.check_as_asked(existing, closed=head.tail.closed)
        self._stores.tails.learn(head)
        return Created(head, is_new=False)

    def check_as_asked(self, existing: records.StreamRecord, *, closed: bool) -> None:
        """Raises Conflict."""
        request = self._request
        content_type = request.content_type or existing.content_type
        if (existing.retention, existing.compaction) != (self._retention, self.compaction_of(content_type)):
            self.load_defaults()  # The stream may have the bucket's defaults.
        # A fork without an expiry of its own matches the expiry that it inherited.
        expiry = existing.expiry if request.fork and request.expiry == NEVER else request.expiry
        rules.check_same_configuration(
            rules.StreamConfiguration(
                existing.content_type, existing.expiry, closed, existing.retention, existing.compaction
            ),
            rules.StreamConfiguration(
                content_type, expiry, request.closed, self._retention, self.compaction_of(content_type)
            ),
        )
        rules.check_same_fork(existing.fork.point if existing.fork else None, request.fork)

    def replace(self, expired: StreamHead) -> Created:
        stores = self._stores
        if self._request.fork is not None:
            # Both streams may have the same source, and a transaction may change an item only once.
            end(stores, expired, stores.new_id())
            return self.make()
        self.load_defaults()
        creation = self.plan()
        now_ms = stores.clock_ms()
        last = lifecycle.tombstone(expired.tail, stores.new_id(), now_ms)
        writes, due = release_writes(stores, expired.record, now_ms)
        lifecycle.replace_stream(stores.table, expired.record, last, creation, release=writes)
        try_release(stores, due)
        return self.learn(creation)
