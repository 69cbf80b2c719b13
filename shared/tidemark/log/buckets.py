"""Buckets in the table: one item with a count of streams, in one partition with the streams.

The transaction that creates or ends a stream also changes the count. The count is therefore right after any
crash, and only a bucket with count zero is deleted.

Buckets are listed from one more entry for each bucket, all in one partition
(`docs/internals/adr/index.md`, 13). The bucket's own transactions write this entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.records import BucketRecord, EndMark, StreamRecord
from tidemark.log.schema import SK
from tidemark.protocol.errors import BucketExists, BucketNotEmpty, BucketNotFound, OutcomeUnknown
from tidemark.protocol.stream_key import LAST_CHARACTER, MAX_STREAM_ID_BYTES, PLAIN_BUCKET

#: An end mark has no count.
_IF_THERE: Final = tables.Present(schema.STREAM_COUNT)


@dataclass(eq=False)
class DatedTooEarly(Exception):
    """The change must be dated after `changed_ms`, the last change of the bucket or end of a stream of this
    name."""

    changed_ms: int


@dataclass(eq=False)
class BucketHasDefaults(Exception):
    """The bucket has settings that the new stream lacks and must take over."""

    bucket: BucketRecord


def create_bucket(table: tables.Table, record: BucketRecord) -> None:
    """Create the bucket. Raises BucketExists, DatedTooEarly, OutcomeUnknown. A creation whose reply was
    lost finds its own item and succeeds."""
    bucket = tables.Write(
        schema.encode_bucket(record), condition=tables.if_never_or_ended_before(record.created_ms)
    )
    try:
        table.transact([bucket, tables.Write(schema.bucket_entry_key(record.bucket))])
    except tables.TransactionRefused as refused:
        existing = refused.existing[0]
        assert existing is not None, "a refused creation returns the existing item"
        if schema.is_end_mark(existing):
            if refused.maybe_landed:
                raise OutcomeUnknown from refused
            raise DatedTooEarly(schema.decode_end_mark(existing).ended_ms) from refused
        found = schema.decode_bucket(existing)
        if found.creation_id == record.creation_id:
            return
        if refused.maybe_landed and found.created_ms >= record.created_ms:
            raise OutcomeUnknown from refused
        _put_entry(table, found)
        raise BucketExists from refused


def _put_entry(table: tables.Table, found: BucketRecord) -> None:
    """Write the list entry of a bucket that an earlier release made without one. The condition is that the
    bucket still exists: a late copy of the write would list a deleted bucket."""
    unchanged = tables.Update(schema.bucket_key(found.bucket), adds={schema.STREAM_COUNT: 0})
    is_same = tables.equals(schema.CREATION_ID, found.creation_id)
    with suppress(tables.TransactionRefused):
        entry = tables.Write(schema.bucket_entry_key(found.bucket))
        table.transact([tables.Write(unchanged, is_same), entry])


def load_bucket(table: tables.Table, bucket: str) -> BucketRecord:
    """Return the bucket's record. Raises BucketNotFound."""
    item = table.get(schema.bucket_key(bucket))
    if item is None or schema.is_end_mark(item):
        raise BucketNotFound
    return schema.decode_bucket(item)


def end_bucket(table: tables.Table, bucket: str, mark: EndMark) -> None:
    """Replace an empty bucket, created before `mark`, with its end mark. Raises BucketNotEmpty,
    BucketNotFound, DatedTooEarly, OutcomeUnknown. A deletion whose reply was lost finds its own mark."""
    # The count must have been zero when the deletion was dated. Otherwise a deletion that was refused because
    # of streams could succeed as a late copy, after those streams are gone.
    empty_and_older = tables.AllOf(
        tables.equals(schema.STREAM_COUNT, 0),
        tables.Compared(schema.CREATED_MS, "<", mark.ended_ms),
        tables.AnyOf(
            tables.Missing(schema.COUNTED_MS), tables.Compared(schema.COUNTED_MS, "<", mark.ended_ms)
        ),
    )
    ended = tables.Write(schema.encode_end_mark(schema.bucket_key(bucket), mark), condition=empty_and_older)
    try:
        table.transact([ended, tables.Write(schema.encode_end_mark(schema.bucket_entry_key(bucket), mark))])
    except tables.TransactionRefused as refused:
        _check_deleted(refused, mark)


def _check_deleted(refused: tables.TransactionRefused, mark: EndMark) -> None:
    """Return if the deletion found its own mark, after a lost reply. Raises as `end_bucket`."""
    existing = refused.existing[0]
    if existing is None:
        raise BucketNotFound from refused
    answer: Exception = BucketNotFound()
    if schema.is_end_mark(existing):
        ended = schema.decode_end_mark(existing)
        if ended.ended_id == mark.ended_id:
            return
        since_ms = ended.ended_ms
    else:
        found = schema.decode_bucket(existing)
        since_ms = found.created_ms
        changed_ms = max(found.created_ms, 0 if found.streams else found.counted_ms)
        answer = DatedTooEarly(changed_ms) if changed_ms >= mark.ended_ms else BucketNotEmpty()
    # If the deletion had been written, any later item of the bucket would have a later date.
    is_unknown = refused.maybe_landed and since_ms > mark.ended_ms
    raise (OutcomeUnknown() if is_unknown else answer) from refused


def count_streams(bucket: str, change: int, now_ms: int, *if_without: str) -> list[tables.Write]:
    """Return the write that counts a stream, for the transaction that creates or ends the stream. The write
    is refused if the bucket does not exist, or if its item has any of the attributes `if_without`
    (`check_counted`). The plain surface has no bucket and no count."""
    if bucket == PLAIN_BUCKET:
        return []
    update = tables.Update(
        schema.bucket_key(bucket), {schema.COUNTED_MS: {"N": str(now_ms)}}, {schema.STREAM_COUNT: change}
    )
    return [tables.Write(update, condition=tables.AllOf(_IF_THERE, *map(tables.Missing, if_without)))]


def count_created(record: StreamRecord) -> list[tables.Write]:
    """Return the writes of `count_streams`, refused also for a bucket's setting that the stream lacks."""
    limits = () if record.retention.is_limited else (schema.RETAIN_SECONDS, schema.RETAIN_BYTES)
    may_compact = record.compaction is None and record.content_type.is_json
    compaction = (schema.COMPACTION,) if may_compact else ()
    return count_streams(record.key.bucket, +1, record.created_ms, *limits, *compaction)


def check_counted(refused: tables.TransactionRefused, index: int) -> None:
    """Check the bucket's count, write `index` of a refused creation. Raises BucketHasDefaults or
    BucketNotFound; OutcomeUnknown if the stream may have been created before the bucket was deleted."""
    if not refused.failed[index]:
        return
    existing = refused.existing[index]
    if existing is not None and not schema.is_end_mark(existing):
        raise BucketHasDefaults(schema.decode_bucket(existing)) from refused
    raise (OutcomeUnknown if refused.maybe_landed else BucketNotFound) from refused


def list_records(
    table: tables.Table, bucket: str, prefix: str, after: str, limit: int
) -> tuple[list[StreamRecord], bool]:
    """Return up to `limit` streams, sorted by the bytes of their ids, and whether there may be more."""
    first, last = max(prefix, after), _last_of(prefix)
    if first > last:
        return [], False
    records: list[StreamRecord] = []
    low, high = schema.stream_sk(first), schema.stream_sk(last)
    # Two more than `limit`: one shows that there may be more, and one may be `after`, which is excluded.
    for items in tables.pages(table, schema.bucket_pk(bucket), low, high, limit=limit + 2):
        found = (schema.decode_stream(item) for item in items if not schema.is_end_mark(item))
        records += [record for record in found if record.key.stream_id != after]
        if len(records) > limit:
            break
    return records[:limit], len(records) > limit


def pages_of_records(
    table: tables.Table, bucket: str, prefix: str = "", size: int = 500
) -> Iterator[list[StreamRecord]]:
    """Yield all streams of a bucket whose ids have the prefix, in pages of up to `size`."""
    after, more = "", True
    while more:
        records, more = list_records(table, bucket, prefix, after, size)
        if not records:
            return
        yield records
        after = records[-1].key.stream_id


def list_bucket_ids(table: tables.Table, prefix: str, after: str, limit: int) -> tuple[list[str], bool]:
    """Return up to `limit` ids of buckets in order, and whether there are more."""
    first, last = max(prefix, after + tables.NEXT if after else prefix), _last_of(prefix)
    if first > last:
        return [], False
    found: list[str] = []
    for items in tables.pages(table, schema.BUCKETS_PK, first or "-", last, limit=limit + 1):
        found += [item[SK]["S"] for item in items if not schema.is_end_mark(item)]
        if len(found) > limit:
            break
    return found[:limit], len(found) > limit


def _last_of(prefix: str) -> str:
    """Return a text that sorts after every id with the prefix and fits a sort key."""
    left = MAX_STREAM_ID_BYTES - len(prefix.encode())
    return prefix + LAST_CHARACTER * (left // len(LAST_CHARACTER.encode()) + 1)
