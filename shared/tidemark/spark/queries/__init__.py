"""Planning: which streams, from where, to where, and in which partitions. The same for a batch read
and for each batch of a streaming query."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Final

from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import SIDES, AtTime, Earliest, Latest, ReadOptions, Side
from tidemark.spark.progress import Look, Positions, Progress, decode_offset, everything_until
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import (
    ASKED_AT_ONCE,
    BadOffset,
    DataLoss,
    Head,
    NoTimes,
    Position,
    Reader,
    StreamPartition,
    is_past,
)

#: The bytes that a task could read in the time it takes to open a stream: no stream counts for less in a
#: pack.
STREAM_BYTES: Final = 128 * 1024
#: An idle query is asked for its latest offset every 10 ms; the streams are asked once a second.
LOOK_SECONDS = 1.0


def load_heads(options: ReadOptions, reader: Reader) -> dict[str, Head]:
    """The subscribed streams that exist, as they stand now, by name."""
    if options.pattern is not None:
        return reader.heads(reader.names(re.compile(options.pattern)))
    return reader.heads(options.names)


def require_all(
    options: ReadOptions, reader: Reader, heads: Mapping[str, Head], known: Collection[str] = ()
) -> None:
    """The bucket must be there when a query starts, every stream that was named unless it is `known` to have
    been there, and a server that tells the times, where they are asked for. Raises InvalidOptions."""
    if not heads and not reader.has_bucket():
        raise InvalidOptions([options.connection.tell_missing()])
    missing = [name for name in options.names if name not in heads and name not in known]
    if missing:
        raise InvalidOptions([options.connection.tell_missing(*missing)])
    if options.asks_times and heads:
        try:
            reader.check_times(next(iter(heads.values())))
        except NoTimes as fault:
            raise InvalidOptions([f"includeTimestamps: {fault}"]) from fault


def positions_of(
    side: Side, options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> dict[str, Position]:
    """The positions at which each stream's read begins or ends. Raises InvalidOptions for invalid offsets,
    and DataLoss for an offset below the retained ones."""
    where = options.starting if side == "starting" else options.ending
    if isinstance(where, Earliest):
        return {name: head.earliest for name, head in heads.items()}
    if isinstance(where, Latest):
        return {name: head.tail for name, head in heads.items()}
    if isinstance(where, AtTime):
        return _positions_at(f"{side}Timestamp", where, reader, heads)
    default = "earliest" if side == "starting" else "latest"
    wanted = {name: where.get(name, default) for name in heads}
    return _given_positions(f"{side}Offsets", wanted, options, reader, heads)


def pin_positions(
    options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> tuple[Positions, Positions]:
    """The positions at which a batch read begins and ends in each stream. Raises DataLoss, and InvalidOptions
    that names all wrong offsets."""
    found: list[Positions] = []
    faults: list[str] = []
    for side in SIDES:
        try:
            found.append(positions_of(side, options, reader, heads))
        except InvalidOptions as fault:
            faults += fault.faults
    if faults:
        raise InvalidOptions(faults)
    starts, ends = found
    crossed = [
        f"startingOffsets: {name}: {starts[name].offset} lies beyond where it is to end, {end.offset}"
        for name, end in sorted(ends.items())
        if is_past(starts[name].offset, end.offset)
    ]
    if crossed:
        raise InvalidOptions(crossed)
    return starts, ends


def _given_positions(
    option: str, wanted: Mapping[str, str], options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> dict[str, Position]:
    positions: dict[str, Position] = {}
    faults: list[str] = []
    for name, head in heads.items():
        offset = wanted[name]
        if offset in ("earliest", "-1"):
            positions[name] = head.earliest
        elif offset in ("latest", "now"):
            positions[name] = head.tail
        elif offset < head.earliest.offset:
            if options.fail_on_data_loss:
                first = head.earliest.offset
                raise DataLoss(name, f"{offset} lies below {first}, the first that is retained")
            positions[name] = head.earliest
        else:
            try:
                reader.check_offset(head, offset)
            except BadOffset as fault:
                faults.append(f"{option}: {fault}")
            positions[name] = head.tail.at(offset)
    if faults:
        raise InvalidOptions(faults)
    return positions


def _positions_at(
    option: str, where: AtTime, reader: Reader, heads: Mapping[str, Head]
) -> dict[str, Position]:
    """Raises InvalidOptions that names all streams whose server finds no offset by its time."""
    faults: list[str] = []

    def find(head: Head) -> Position:
        try:
            return reader.position_at(head, where.ms)
        except BadOffset as fault:
            faults.append(f"{option}: {fault}")
            return head.tail

    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="tidemark-time") as pool:
        found = dict(zip(heads, pool.map(find, heads.values()), strict=True))
    if faults:
        raise InvalidOptions(sorted(faults))
    return found


def plan_partitions(
    options: ReadOptions, reader: Reader, starts: Positions, ends: Positions
) -> list[StreamPartition]:
    """Every stream's messages between its two positions. Raises DataLoss."""
    partitions: list[StreamPartition] = []
    known = _starts_before(options, reader, starts, ends)
    for name, end in ends.items():
        partitions += reader.partitions(name, known[name], end, options.bytes_per_partition)
    is_strict, asks_times = options.fail_on_data_loss, options.asks_times
    if is_strict and not asks_times:
        return partitions
    return [replace(each, fail_on_data_loss=is_strict, with_times=asks_times) for each in partitions]


def pack(partitions: Sequence[StreamPartition], partition_bytes: int) -> list[tuple[StreamPartition, ...]]:
    """Neighbours put together up to about the size of a partition, in order."""
    packs: list[list[StreamPartition]] = []
    left = 0
    for partition in partitions:
        size = max(partition.size, STREAM_BYTES // 8 if partition.is_small_batch else STREAM_BYTES)
        if size > left:
            packs.append([])
            left = partition_bytes
        packs[-1].append(partition)
        left -= size
    return [tuple(parts) for parts in packs]


def _starts_before(
    options: ReadOptions, reader: Reader, starts: Positions, ends: Positions
) -> dict[str, Position]:
    """The position to read from towards each end. A new stream, or one that was deleted and created again, is
    read from its beginning; the unread messages of the deleted one are lost, unless it was closed."""
    known: dict[str, Position] = {}
    for name, end in ends.items():
        start = starts.get(name)
        if start is not None and not start.is_of_another(end) and not is_past(start.offset, end.offset):
            known[name] = start
        elif start is not None and options.fail_on_data_loss and not start.closed:
            what = "it was deleted and created again since it was last read"
            if not start.is_of_another(end):
                what += f": it ends at {end.offset} now, and {start.offset} was read already"
            raise DataLoss(name, what)
    begins = [name for name in ends if name not in known]
    earliest = reader.earliest(begins) if begins else {}
    for name in begins:
        end, beginning = ends[name], ends[name].at(reader.beginning)
        first = earliest.get(name, beginning)
        # Where retention has passed the end, nothing is left; the next batch tells what is lost.
        retained = end if is_past(first.offset, end.offset) else first
        known[name] = beginning if first.is_of_another(end) else retained
    return known


def within_limit(options: ReadOptions, reader: Reader, start: Progress, end: Progress) -> Progress:
    """`end`, brought nearer so that no more than the limit lies between: each stream gets its share of it by
    how far behind it is."""
    limit, ends = options.limit_bytes, end.positions
    if limit is None:
        return end
    known = _starts_before(options, reader, start.positions, ends)
    backlogs = {name: reader.backlog(known[name], place) for name, place in ends.items()}
    total = sum(backlogs.values())
    if total <= limit:
        return end
    nearer = {
        name: reader.limit(name, known[name], ends[name], max(1, limit * size // total))
        for name, size in backlogs.items()
        if size
    }
    return replace(end, positions={**ends, **nearer})


class Driver:
    """A connected reader, and the streams as they were up to a second ago."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        #: When the last look began, and when it ended.
        self._asked = self._looked = float("-inf")
        self._begins = False
        self._last_look = Look({}, 0)

    @cached_property
    def reader(self) -> Reader:
        return connect(self.options.connection)

    def initial(self, look: Look | None = None) -> Progress:
        """Where a query begins; by `look`, if it is to end with what that has found."""
        heads = (look or self.look(fresh=True)).heads
        self._begins = True
        require_all(self.options, self.reader, heads)
        given = decode_offset(self.options.between[0]).positions if self.options.between else {}
        return Progress({**positions_of("starting", self.options, self.reader, heads), **given})

    def everything_from(self, start: Progress) -> Progress:
        """As `everything_until`. That nothing is new is answered by a look that began after the question,
        once that is allowed again: an idle query is asked every 10 ms, and `processAllAvailable` ends by the
        answer.

        The first batch ends with the look that the query began with, however long ago: where streams begin at
        their tails it is empty, as it is when Spark repeats it and asks again where the query begins."""
        asked, is_first = self._clock(), self._begins
        self._begins = False
        if is_first:
            return everything_until(self.options, start, self._last_look)
        end = everything_until(self.options, start, self.look())
        if end is start and self._asked < asked:
            time.sleep(max(0.0, self._looked + LOOK_SECONDS - asked))
            end = everything_until(self.options, start, self.look(fresh=True))
        return end

    def look(self, *, fresh: bool = False) -> Look:
        began = self._clock()
        if fresh or began - self._looked >= LOOK_SECONDS:
            heads = load_heads(self.options, self.reader)
            self._asked, self._looked = began, self._clock()
            # By the clock that wrote when the streams were created; it is known once the server has answered.
            at_ms = self.reader.now_ms() - round(1000 * (self._looked - began))
            self._last_look = Look(heads, max(0, at_ms))
        return self._last_look
