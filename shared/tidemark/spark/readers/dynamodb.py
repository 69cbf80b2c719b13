"""Transport `dynamodb`: the chain read straight from the table and S3, a query at a time.

A partition is a range of offsets, cut without looking: its task reads the messages that begin in
it. Whether anything is missing is seen by every task for its own partition, because each batch
says where it ends and so where the next one begins.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.log.chain import spans_of
from tidemark.log.lifecycle import load_stream
from tidemark.log.read import load_last
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.table import Table
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.offset import WIDTH, parse_token, render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.spark.clients.storage import connect_blobs, connect_table
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.readers.columns import BATCH_BYTES, BATCH_ROWS, make_batch
from tidemark.spark.readers.items import (
    BOUNDARY_ATTRIBUTES,
    BatchItem,
    Producer,
    connect_bulk,
    message_ends,
    producers_by_end,
)
from tidemark.spark.readers.port import BadOffset, DataLoss, Head, MissingStream, Position, StreamPartition

_STREAM_PREFIX: Final = "stream/"


@dataclass(frozen=True)
class Segment:
    """A piece of a stream's log: the messages in [start, end) are in the partition `pk`, and
    those of the stream's own end where they end, others at `cut` at the latest."""

    pk: str
    start: int
    end: int
    cut: int | None = None


class DynamoDBReader:
    beginning = render_offset(0)

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._table = connect_table(connection)
        self._bulk = connect_bulk(connection)
        self._blobs = connect_blobs(connection)

    def _key(self, name: str) -> StreamKey:
        return StreamKey(self._connection.bucket, name)

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        found: list[str] = []
        low, more = _STREAM_PREFIX, True
        while more:
            items, more = self._table.query(
                f"bucket/{self._connection.bucket}",
                at_least=low,
                at_most=_STREAM_PREFIX + "\U0010ffff",
                attributes=("sk",),
            )
            found += [item["sk"]["S"].removeprefix(_STREAM_PREFIX) for item in items]
            low = items[-1]["sk"]["S"] + "\0" if items else low
        return [name for name in found if pattern.fullmatch(name)]

    def head(self, name: str) -> Head:
        record = load_stream(self._table, self._key(name))
        if record is None or record.deleted:
            raise MissingStream(name)
        last = load_last(self._table, log_pk(record.key, record.incarnation))
        if _is_gone(record, last):
            raise MissingStream(name)
        tail = last.end if last else record.base
        return Head(name, _position(record, record.retained), _position(record, tail))

    def check_offset(self, head: Head, offset: str) -> None:
        place = parse_token(offset)
        if place is None:
            raise BadOffset(f"{head.name}: {offset!r} is not an offset of this stream: 16 digits are")
        if place > int(head.tail.offset):
            raise BadOffset(f"{head.name}: {offset} lies beyond the tail, {head.tail.offset}")
        if place in (0, int(head.tail.offset)):
            return
        segment = self._segments(head.name, head.tail, 0, place)[-1]
        item = self._item_at(segment.pk, place)
        is_boundary = item is not None and (item.start == place or place in message_ends(item))
        if not is_boundary and place != segment.cut:
            raise BadOffset(f"{head.name}: {offset} is not the end of a message")

    def _item_at(self, pk: str, place: int) -> BatchItem | None:
        """The batch that begins at or just before `place`, without its bytes."""
        return _last_until(self._bulk, pk, place, BOUNDARY_ATTRIBUTES)

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        wanted = int(start.offset) + limit_bytes
        if wanted >= int(end.offset):
            return end
        segments = self._segments(name, end, int(start.offset), int(end.offset))
        item = self._item_at(next(each.pk for each in segments if wanted < each.end), wanted)
        if item is None:
            return end
        # Batches are not cut: at their ends no query meets half a batch. The first is always
        # taken, so that a batch beyond the limit does not stop the query for ever.
        place = item.end if item.end <= wanted else item.start
        place = place if place > int(start.offset) else item.end
        return Position(render_offset(min(place, int(end.offset))), end.incarnation, end.content_type)

    def backlog(self, start: Position, end: Position) -> int:
        return int(end.offset) - int(start.offset)

    def _segments(self, name: str, where: Position, start: int, end: int) -> list[Segment]:
        """Where [start, end) of this incarnation is stored: its own log, and before that,
        for a fork, those that it inherits."""
        record = load_stream(self._table, self._key(name))
        if record is None or record.incarnation != where.incarnation:
            return [Segment(log_pk(self._key(name), where.incarnation), start, end)]
        return [
            Segment(
                span.pk, max(start, span.begin), end if span.end is None else min(end, span.end), span.end
            )
            for span in spans_of(record)
            if span.begin < max(end, start + 1) and (span.end is None or span.end > start)
        ]

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        first, last = int(start.offset), int(end.offset)
        return [
            StreamPartition(
                name, end.content_type, segment.pk, render_offset(low), render_offset(high), cut=segment.cut
            )
            for segment in self._segments(name, end, first, last)
            for low, high in _cut(segment, partition_bytes)
        ]

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        rows = Rows(self._connection.bucket, partition)
        for items in _pages(self._bulk, partition):
            for item in items:
                data = item.data
                rows.add(item, self._fetch(item) if data is None else data)
                if rows.is_full:
                    yield rows.take()
        if rows.count:
            yield rows.take()

    def _fetch(self, item: BatchItem) -> bytes:
        assert item.s is not None, "a batch with data has it, or says where it is"
        return self._blobs.get(item.s.S)


def _is_gone(record: StreamRecord, last: Batch | None) -> bool:
    if last is not None and last.tombstone:
        return True
    touched_ms = max(record.touched_ms, last.time_ms if last else record.created_ms)
    return is_expired(record.expiry, touched_ms, time.time_ns() // 1_000_000)


def _position(record: StreamRecord, place: int) -> Position:
    return Position(render_offset(place), record.incarnation, record.content_type.value)


def _cut(segment: Segment, partition_bytes: int) -> Iterator[tuple[int, int]]:
    """Even ranges of about the size asked for."""
    size = segment.end - segment.start
    pieces = max(1, round(size / partition_bytes)) if size else 0
    edges = [segment.start + size * index // pieces for index in range(pieces + 1)] if pieces else []
    return pairwise(edges)


def _pages(bulk: Table, partition: StreamPartition) -> Iterator[list[BatchItem]]:
    """The batches with messages that begin in the partition, in order. Raises DataLoss for a gap."""
    low, high = int(partition.start), int(partition.end)
    reached: int | None = None
    for items in _query(bulk, partition.segment, low, high):
        if reached is None:
            reached = low
            if not items or items[0].start > low:
                before = _last_until(bulk, partition.segment, low - 1) if low else None
                if before is not None and before.end > low:
                    # It begins before the partition, and may hold messages that begin in it.
                    reached = before.end
                    yield [before]
        for item in items:
            start = item.start
            if start > reached:
                _missing(partition, reached, start)
            reached = item.end
        yield [item for item in items if item.end > item.start] if _has_empty(items) else items
    if reached is not None and reached < high:
        _missing(partition, reached, high)


def _has_empty(items: list[BatchItem]) -> bool:
    """Only the last batch of a log is empty: the mark of closing, or a tombstone."""
    return bool(items) and items[-1].end == items[-1].start


def _last_until(bulk: Table, pk: str, place: int, attributes: Sequence[str] = ()) -> BatchItem | None:
    """The batch that begins at or just before `place`."""
    found: Any = bulk.query(pk, at_most=render_offset(place), attributes=attributes, limit=1, backward=True)[
        0
    ]
    return found[0] if found else None


def _query(bulk: Table, pk: str, low: int, high: int) -> Iterator[list[BatchItem]]:
    at_least, more = render_offset(low), True
    while more and high > low:
        items: Any
        items, more = bulk.query(pk, at_least=at_least, at_most=render_offset(high - 1))
        yield items
        if items:
            at_least = items[-1].sk.S + "."


def _missing(partition: StreamPartition, start: int, end: int) -> None:
    if partition.fail_on_data_loss:
        raise DataLoss(
            partition.name, f"{render_offset(start)} to {render_offset(end)} is not there any more"
        )


class Rows:
    """Messages gathered column by column until they fill an Arrow batch."""

    def __init__(self, bucket: str, partition: StreamPartition) -> None:
        self._stream_columns = (bucket, partition.name, partition.content_type)
        self._low, self._high = int(partition.start), int(partition.end)
        self._cut = partition.cut
        # A stored JSON message ends in a comma of ours.
        self._tail_bytes = (
            1 if partition.content_type.partition(";")[0].strip().lower() == "application/json" else 0
        )
        self._clear()

    def _clear(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[bytes] = []
        self._times: list[int] = []
        self._producers: list[tuple[int, Producer]] = []
        self._size = 0

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        return len(self._values) >= BATCH_ROWS or self._size >= BATCH_BYTES

    def add(self, item: BatchItem, data: bytes) -> None:
        """The item's messages that begin in the partition."""
        base = item.start
        ends = message_ends(item) if item.m is not None else (item.end,)
        time_ms = int(item.t.N)
        producers = producers_by_end(item) if item.p is not None else None
        start = base
        for message_end in ends:
            stop = message_end if self._cut is None else min(message_end, self._cut)
            if self._low <= start < self._high:
                self._starts.append(start)
                self._ends.append(stop)
                self._values.append(data[start - base : stop - base - self._tail_bytes])
                self._times.append(time_ms)
                if producers and stop in producers:
                    self._producers.append((len(self._values) - 1, producers[stop]))
            start = stop
        self._size += len(data)

    def take(self) -> pa.RecordBatch:
        batch = make_batch(
            self._stream_columns,
            offsets=_tokens(self._starts),
            end_offsets=_tokens(self._ends),
            positions=pa.repeat(pa.scalar(0, pa.int32()), self.count),
            values=pa.array(self._values, pa.binary()),
            timestamps=pc.multiply(pa.array(self._times, pa.int64()), 1000).cast(
                pa.timestamp("us", tz="UTC")
            ),
            producers=self._producer_columns(),
        )
        self._clear()
        return batch

    def _producer_columns(self) -> tuple[pa.Array, pa.Array, pa.Array] | None:
        if not self._producers:
            return None
        ids: list[Any] = [None] * self.count
        epochs, seqs = ids[:], ids[:]
        for row, producer in self._producers:
            ids[row], epochs[row], seqs[row] = producer.producer_id, producer.epoch, producer.seq
        return pa.array(ids, pa.string()), pa.array(epochs, pa.int64()), pa.array(seqs, pa.int64())


def _tokens(places: list[int]) -> pa.Array:
    """`render_offset`, a column at a time."""
    return pc.utf8_lpad(pa.array(places, pa.int64()).cast(pa.string()), WIDTH, "0")
