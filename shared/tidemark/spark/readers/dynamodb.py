"""Transport `dynamodb`: reads the chain directly from the table and S3, a query at a time.

A partition is a range of offsets, cut without reading messages; its task reads the messages that begin in the
range. Every task detects missing data in its own partition, because each batch has the offset at which the
next batch begins (`log/chain.py`).

A stream's tail is the end of its last batch, which takes one query to find. A cached tail, however, has
changed only if an item exists at its offset now, because the next write takes that key. One BatchGetItem
therefore checks 100 cached tails, a second one checks the ends of the batches that the first one found, and
only streams with further batches take a query. Cached tails are valid for five minutes (`log/tails.py`),
because no batch is removed within an hour of its write. Packs may be forced earlier (`PACK_AFTER_SECONDS`),
but the stream's item has the end of its packs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from tidemark.aws.clock import CLOCK
from tidemark.log import schema
from tidemark.log.buckets import load_bucket, pages_of_records
from tidemark.log.chain import MOST_BEHIND, ChainWalk, Span, spans_of
from tidemark.log.read import load_last, load_stream, logs_written_at
from tidemark.log.records import Batch, StreamRecord, Tombstone
from tidemark.log.table import MAX_GETS, check_format, in_hundreds
from tidemark.log.tails import MAX_AGE_MS
from tidemark.protocol.errors import BucketNotFound
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.offset import parse_token, render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.spark.options import ConnectionOptions
from tidemark.spark.options.read import DEFAULT_COLUMNS
from tidemark.spark.readers.columns import MessageRows, rows_of_batches
from tidemark.spark.readers.items import (
    BOUNDARY_ATTRIBUTES,
    BatchItem,
    BulkDynamoDB,
    MessageRun,
    cut_by_bytes,
    merge_page,
    message_ends,
    pack_blocks,
    runs_of,
)
from tidemark.spark.readers.port import ASKED_AT_ONCE, BadOffset, DataLoss, Head, Position, StreamPartition
from tidemark.spark.storage import connect_blobs, connect_table

_LISTED_AT_ONCE: Final = 1000
#: Largest batch that is read together with others, in bytes. 100 such batches are in memory at once.
_SMALL_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class _KnownTail:
    """The end of a stream's log at `learned_ms`. `last` and `written_ms` are the offset and time of its last
    batch. `moved`: the stream was written between the last two loads, so the next load expects another write.
    Below `compacted` the stream has fewer bytes than its offsets span."""

    incarnation: str
    end: int
    closed: bool
    written_ms: int
    learned_ms: int
    moved: bool = False
    compacted: int = 0
    last: int = -1

    def moves_behind(self, item: schema.Item) -> bool:
        """Move the end to the end of this item, which begins at the old end. Returns False unless the item is
        a batch with bytes."""
        entry = schema.decode_entry(item)
        if not isinstance(entry, Batch) or entry.end == entry.start:
            return False
        self.last, self.end, self.closed = entry.start, entry.end, entry.after.closed
        self.written_ms = entry.time_ms
        return True


class DynamoDBReader:
    beginning = render_offset(0)

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._key = partial(StreamKey, connection.bucket)
        self._table = connect_table(connection)
        self._bulk = connect_table(connection, BulkDynamoDB)
        self._blobs = connect_blobs(connection)
        check_format(self._table)
        self._clock_ms: Callable[[], int] = CLOCK.now_ms
        self._listed: dict[str, StreamRecord] = {}
        self._tails: dict[str, _KnownTail] = {}
        #: The forks, which inherit messages from other logs. All other streams in `_tails` have one log.
        self._forks: dict[str, StreamRecord] = {}
        self.lost = Counter[tuple[str, str]]()

    def now_ms(self) -> int:
        return self._clock_ms()

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        found: list[str] = []
        for records in pages_of_records(self._table, self._connection.bucket, size=_LISTED_AT_ONCE):
            for record in records:
                name = record.key.stream_id
                if pattern.fullmatch(name):
                    found.append(name)
                    self._listed[name] = record
        self._tails = {name: self._tails[name] for name in self._listed.keys() & self._tails.keys()}
        self._forks = {name: self._forks[name] for name in self._listed.keys() & self._forks.keys()}
        return found

    def has_bucket(self) -> bool:
        try:
            load_bucket(self._table, self._connection.bucket)
        except BucketNotFound:
            return self._connection.bucket == PLAIN_BUCKET
        return True

    def heads(self, names: Sequence[str]) -> dict[str, Head]:
        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="tidemark-head") as pool:
            listed = {name: self._listed.pop(name) for name in names if name in self._listed}
            asked = self._load_records([name for name in names if name not in listed], pool)
            records = [record for record in (listed | asked).values() if not record.deleted]
            tails = self._confirm_tails(records, pool)
            others = [record for record in records if record.key.stream_id not in tails]
            loaded = zip(others, pool.map(self._load_tail, others), strict=True)
        tails |= {record.key.stream_id: tail for record, tail in loaded if tail is not None}
        known = ((record, tails.get(record.key.stream_id)) for record in records)
        found = (self._head_of(record, tail) for record, tail in known if tail is not None)
        return {head.name: head for head in found if head is not None}

    def earliest(self, names: Sequence[str]) -> dict[str, Position]:
        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="tidemark-head") as pool:
            records = self._load_records(names, pool)
        return {name: _earliest(record) for name, record in records.items() if not record.deleted}

    def _load_records(self, names: Sequence[str], pool: ThreadPoolExecutor) -> dict[str, StreamRecord]:
        """Return the existing streams' records, by name."""
        keys = [schema.stream_key(self._key(name)) for name in dict.fromkeys(names)]
        pages = pool.map(self._table.get_many, in_hundreds(keys))
        records = [
            schema.decode_stream(item) for page in pages for item in page if not schema.is_end_mark(item)
        ]
        return {record.key.stream_id: record for record in records}

    def _confirm_tails(
        self, records: Iterable[StreamRecord], pool: ThreadPoolExecutor
    ) -> dict[str, _KnownTail]:
        """Return the cached tails that are still current, by name."""
        now_ms = self._clock_ms()
        confirmed: dict[str, _KnownTail] = {}
        in_question: dict[str, str] = {}
        for record in records:
            name = record.key.stream_id
            known = self._tails.get(name)
            if known is None or known.incarnation != record.incarnation:
                continue
            if known.closed:
                confirmed[name] = known
            elif known.moved or record.packed > known.end:
                continue
            elif now_ms - known.learned_ms < MAX_AGE_MS:
                in_question[schema.log_pk(record.key, record.incarnation)] = name
        # The second round checks streams with a new batch: most often no further batch follows.
        for _ in range(2):
            places = {pk: self._tails[name].end for pk, name in in_question.items()}
            written = logs_written_at(self._table, places, pool.map, schema.STATE_ATTRIBUTES)
            for name in (in_question[pk] for pk in places.keys() - written.keys()):
                confirmed[name] = self._tails[name]
                confirmed[name].learned_ms = now_ms
            moved = ((pk, in_question[pk], item) for pk, item in written.items())
            in_question = {pk: name for pk, name, item in moved if self._tails[name].moves_behind(item)}
        return confirmed

    def _head_of(self, record: StreamRecord, known: _KnownTail) -> Head | None:
        """Return the stream's head; None if the stream has expired."""
        if is_expired(record.expiry, max(record.used_ms, known.written_ms), self._clock_ms()):
            return None
        known.compacted = record.compacted
        earliest = _earliest(record)
        tail = replace(earliest, offset=render_offset(known.end), closed=known.closed)
        return Head(record.key.stream_id, earliest, tail, record.created_ms)

    def _load_tail(self, record: StreamRecord) -> _KnownTail | None:
        """Load the tail and cache it. Returns None if the last batch is a tombstone."""
        name, now_ms, before = record.key.stream_id, self._clock_ms(), self._tails.get(record.key.stream_id)
        last = load_last(self._table, schema.log_pk(record.key, record.incarnation))
        if last is None:
            found = _KnownTail(record.incarnation, record.base, False, record.created_ms, now_ms)
        elif isinstance(last, Tombstone):
            return None
        else:
            found = _KnownTail(record.incarnation, last.end, last.after.closed, last.time_ms, now_ms)
            found.last = last.start
        if before is not None and before.incarnation == record.incarnation:
            found.moved = before.end != found.end
        self._tails[name] = found
        if record.lineage:
            self._forks[name] = record
        return found

    def check_offset(self, head: Head, offset: str) -> None:
        place, tail = parse_token(offset), int(head.tail.offset)
        if place is None:
            raise BadOffset(f"{head.name}: {offset!r} is no offset of this stream; an offset is 16 digits")
        if place > tail:
            raise BadOffset(f"{head.name}: {offset} lies beyond the tail, {head.tail.offset}")
        span = self._span_at(head.name, head.tail, place)
        if place in (span.begin, tail):
            return
        item = self._item_until(span, place)
        if item is None or not (item.start == place or self._is_between(item, place)):
            raise BadOffset(f"{head.name}: {offset} is not the end of a message")

    def _is_between(self, item: BatchItem, place: int) -> bool:
        """Whether a message of the item ends at the place, or did before compaction removed it."""
        if item.index is None:
            return place in message_ends(item)
        blocks = pack_blocks(item, self._blobs, place - 1, place)
        return any(not ((block.starts < place) & (place < block.ends)).any() for block in blocks)

    def position_at(self, head: Head, at_ms: int) -> Position:
        # The search is the server's code. Imported here, because reads without a time do not need it.
        from tidemark.service.load import head_from
        from tidemark.service.start_point import first_written_from
        from tidemark.service.stores import Stores

        record = load_stream(self._table, self._key(head.name))
        if record is None or record.incarnation != head.tail.incarnation:
            return head.earliest  # The read reports the loss.
        last = load_last(self._table, schema.log_pk(record.key, record.incarnation))
        place = first_written_from(Stores(self._table, self._blobs), head_from(record, last, 0), at_ms)
        place = min(self._in_block(head, place, at_ms), int(head.tail.offset))
        return head.tail.at(render_offset(place))

    def check_times(self, head: Head) -> None:
        """Do nothing: every item has its time."""

    def _in_block(self, head: Head, place: int, at_ms: int) -> int:
        """Refine a place that the search found. The search ends at the start of a block of a pack, whose
        first batches may be older than `at_ms`."""
        item = self._item_until(self._span_at(head.name, head.tail, place), place)
        if item is None or item.index is None or place >= item.end:
            return place
        for block in pack_blocks(item, self._blobs, place, place + 1):
            later = block.starts[block.message_times_ms >= at_ms]
            place = max(place, *later[:1].tolist())
        return place

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        wanted = int(start.offset) + limit_bytes
        if wanted >= int(end.offset):
            return end
        span, most = self._span_at(name, end, wanted), int(end.offset)
        item = self._item_until(span, wanted)
        if item is None:
            return end
        # A fork may leave a log in the middle of a batch.
        most = most if span.end is None else min(most, span.end)
        # Cut only at the end of a batch or of a pack's block, so that no query reads half a batch. The first
        # one is always included: otherwise a batch above the limit would block the query for ever.
        ends = message_ends(item) if item.index is not None else [item.end]
        place = max((end for end in ends if end <= wanted), default=item.start)
        if place <= int(start.offset):
            place = min((end for end in ends if end > int(start.offset)), default=most)
        return end.at(render_offset(min(place, most)))

    def _span_at(self, name: str, where: Position, place: int) -> Span:
        """Return the span of the log that has the byte at `place`."""
        return next(each for each in self._spans(name, where) if each.end is None or place < each.end)

    def _item_until(self, span: Span, place: int) -> BatchItem | None:
        """Return the batch or pack that contains `place` or ends there, without its bytes; else the last one
        before `place`. A second query finds a pack whose replaced batches are not all removed yet."""
        found: Any = []
        for limit in (1, MOST_BEHIND):
            found, _ = self._bulk.query(
                span.pk,
                at_most=render_offset(place),
                attributes=BOUNDARY_ATTRIBUTES,
                limit=limit,
                backward=True,
            )
            if not found or found[0].end >= place:
                break
        return next((item for item in found if item.end >= place), found[0] if found else None)

    def _spans(self, name: str, where: Position) -> list[Span]:
        """Return the logs of this incarnation of the stream; a fork also has the logs of its sources."""
        known, record = self._tails.get(name), self._forks.get(name)
        if record is None or record.incarnation != where.incarnation:
            is_plain = known is not None and known.incarnation == where.incarnation
            record = None if is_plain else load_stream(self._table, self._key(name))
        if record is None or record.incarnation != where.incarnation:
            # The stream is no fork, or it has ended since the read was planned; its log stays for a while.
            return [Span(schema.log_pk(self._key(name), where.incarnation), where.incarnation, 0, None)]
        return spans_of(record)

    def backlog(self, start: Position, end: Position) -> int:
        return int(end.offset) - int(start.offset)

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        """Split into ranges of about `partition_bytes`, each in one log."""
        planned: list[StreamPartition] = []
        if start.offset == end.offset:
            return planned
        known = self._tails.get(name)
        compacted, last_batch = 0, None
        if known and known.incarnation == end.incarnation:
            compacted, last_batch = known.compacted, (known.last, known.end)
        for span in self._spans(name, end):
            low = max(int(start.offset), span.begin)
            high = int(end.offset) if span.end is None else min(int(end.offset), span.end)
            ranges = self._ranges(span, low, high, partition_bytes, compacted) if low < high else ()
            for first, last, size in ranges:
                is_small = size <= _SMALL_BYTES and (first, last) == last_batch
                place = render_offset(first), render_offset(last), span, end.incarnation
                planned.append(
                    StreamPartition(name, end.content_type, *place, size=size, is_small_batch=is_small)
                )
        return planned

    def _ranges(
        self, span: Span, low: int, high: int, size: int, compacted: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield begin, end and bytes of each range. Ranges are even; below `compacted` they are cut by the
        bytes that remain."""
        edge = min(high, compacted)
        if edge > low:
            query = partial(self._bulk.query, attributes=BOUNDARY_ATTRIBUTES)
            walk = ChainWalk(query, iter, [span], low, until=edge)
            yield from cut_by_bytes(walk, low, edge, size)
            low = edge
        count = max(1, round((high - low) / size))
        edges = [low + (high - low) * index // count for index in range(count + 1)]
        yield from ((first, last, last - first) for first, last in pairwise(edges) if first < last)

    def read_all(
        self, partitions: Sequence[StreamPartition], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for low in range(0, len(partitions), MAX_GETS):
            some = partitions[low : low + MAX_GETS]
            small = {part.span.pk: part for part in some if part.is_small_batch and part.span}
            keys = [schema.batch_key(pk, int(part.start)) for pk, part in small.items()]
            found: list[Any] = self._bulk.get_many(keys) if keys else []
            alike: dict[str, list[tuple[StreamPartition, BatchItem]]] = {}
            for item in found:
                part = small[item.log.S]
                if item.has_bytes and item.end == int(part.end):
                    alike.setdefault(part.content_type, []).append((small.pop(item.log.S), item))
            for part in some:
                if not part.is_small_batch or part.span is None or part.span.pk in small:
                    yield from self.read(part, columns)
            for pairs in alike.values():
                yield rows_of_batches(self._connection.bucket, columns, pairs)

    def read(
        self, partition: StreamPartition, columns: Sequence[str] = DEFAULT_COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        def warn_of_loss(begin: int, end: int) -> None:
            if partition.fail_on_data_loss:
                lost = f"{render_offset(begin)} to {render_offset(end)} is not there any more"
                raise DataLoss(partition.name, lost)
            self.lost[partition.name, partition.incarnation] += min(end, high) - begin

        span, low, high = partition.span, int(partition.start), int(partition.end)
        assert span is not None, "planned by this reader"
        rows = MessageRows(self._connection.bucket, partition, columns, span.end)
        until = high if span.end is None else min(high, span.end)

        # The bulk client has decoded the items already.
        def decode(items: Sequence[BatchItem]) -> Iterable[BatchItem | MessageRun]:
            return merge_page(items, walk.reached, until)

        walk = ChainWalk[BatchItem | MessageRun](
            self._bulk.query, decode, [span], low, until=high, on_gap=warn_of_loss
        )
        reached = low
        for item in walk:
            # Skip a closing mark, a tombstone, and a batch that a pack has replaced.
            if item.end <= reached:
                continue
            runs = [item] if isinstance(item, MessageRun) else runs_of(item, self._blobs, reached, until)
            for run in runs:
                yield from rows.add(run, reached)
            reached = item.end
        yield from rows.take_rest()


def _earliest(record: StreamRecord) -> Position:
    return Position(render_offset(record.retained), record.incarnation, record.content_type.value)
