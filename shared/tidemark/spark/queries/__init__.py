"""Planning of a batch read, or of a batch of a streaming query: streams, positions and partitions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Final

from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Look, Positions, Progress, crossed, decode_offset, everything_until
from tidemark.spark.readers import connect, port

#: Least size of a stream in a pack: the bytes that a task reads in the time for opening a stream.
STREAM_BYTES: Final = 128 * 1024
#: Seconds between two looks at the streams. Spark asks an idle query for its latest offset every 10 ms.
LOOK_SECONDS = 1.0


def load_heads(options: ReadOptions, reader: port.Reader) -> dict[str, port.Head]:
    """Load the heads of the subscribed streams that exist, by name."""
    if options.pattern is not None:
        return reader.heads(reader.names(re.compile(options.pattern)))
    return reader.heads(options.names)


def require_all(
    options: ReadOptions, reader: port.Reader, heads: Mapping[str, port.Head], known: Collection[str] = ()
) -> None:
    """Check the start of a query. The bucket must exist, and every named stream unless its name is in
    `known`. With includeTimestamps the server must have times. Raises InvalidOptions."""
    if not heads and not reader.has_bucket():
        raise InvalidOptions([options.connection.missing_text()])
    missing = [name for name in options.names if name not in heads and name not in known]
    if missing:
        raise InvalidOptions([options.connection.missing_text(*missing)])
    if options.asks_times and heads:
        try:
            reader.check_times(next(iter(heads.values())))
        except port.NoTimes as fault:
            raise InvalidOptions([f"includeTimestamps: {fault}"]) from fault


def positions_of(
    side: str, options: ReadOptions, reader: port.Reader, heads: Mapping[str, port.Head]
) -> dict[str, port.Position]:
    """Return the position at which the read of each stream begins or ends. Raises InvalidOptions for invalid
    offsets, and DataLoss for an offset that is no longer retained."""
    where = options.starting if side == "starting" else options.ending
    if isinstance(where, int):
        return _positions_at(f"{side}Timestamp", where, reader, heads)
    default = "earliest" if side == "starting" else "latest"
    wanted = {name: where if isinstance(where, str) else where.get(name, default) for name in heads}
    return _given_positions(f"{side}Offsets", wanted, options, reader, heads)


def pin_positions(
    options: ReadOptions, reader: port.Reader, heads: Mapping[str, port.Head]
) -> tuple[Positions, Positions]:
    """Return the positions at which a batch read begins and ends in each stream. Raises DataLoss, and
    InvalidOptions with all invalid offsets."""
    found: list[Positions] = []
    faults: list[str] = []
    for side in ("starting", "ending"):
        try:
            found.append(positions_of(side, options, reader, heads))
        except InvalidOptions as fault:
            faults += fault.faults
    if faults:
        raise InvalidOptions(faults)
    starts, ends = found
    beyond = "startingOffsets: {}: {} lies beyond the end of the read, {}"
    faults = [beyond.format(name, starts[name].offset, ends[name].offset) for name in crossed(starts, ends)]
    if faults:
        raise InvalidOptions(faults)
    return starts, ends


def _given_positions(
    option: str,
    wanted: Mapping[str, str],
    options: ReadOptions,
    reader: port.Reader,
    heads: Mapping[str, port.Head],
) -> dict[str, port.Position]:
    positions: dict[str, port.Position] = {}
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
                raise port.DataLoss(name, f"{offset} lies below {first}, the first retained offset")
            positions[name] = head.earliest
        else:
            try:
                reader.check_offset(head, offset)
            except port.BadOffset as fault:
                faults.append(f"{option}: {fault}")
            positions[name] = head.tail.at(offset)
    if faults:
        raise InvalidOptions(faults)
    return positions


def _positions_at(
    option: str, at_ms: int, reader: port.Reader, heads: Mapping[str, port.Head]
) -> dict[str, port.Position]:
    """Find each stream's position by time. Raises InvalidOptions with all streams that have no search by
    time."""
    faults: list[str] = []

    def find(head: port.Head) -> port.Position:
        try:
            return reader.position_at(head, at_ms)
        except port.BadOffset as fault:
            faults.append(f"{option}: {fault}")
            return head.tail

    with ThreadPoolExecutor(port.ASKED_AT_ONCE, thread_name_prefix="tidemark-time") as pool:
        found = dict(zip(heads, pool.map(find, heads.values()), strict=True))
    if faults:
        raise InvalidOptions(sorted(faults))
    return found


def plan_partitions(
    options: ReadOptions, reader: port.Reader, starts: Positions, ends: Positions
) -> list[port.StreamPartition]:
    """Split the messages between the two positions of each stream into partitions. Raises DataLoss."""
    partitions: list[port.StreamPartition] = []
    known = _starts_before(options, reader, starts, ends)
    for name, end in ends.items():
        partitions += reader.partitions(name, known[name], end, options.bytes_per_partition)
    is_strict, asks_times = options.fail_on_data_loss, options.asks_times
    if is_strict and not asks_times:
        return partitions
    return [replace(each, fail_on_data_loss=is_strict, with_times=asks_times) for each in partitions]


def pack(
    partitions: Sequence[port.StreamPartition], partition_bytes: int
) -> list[tuple[port.StreamPartition, ...]]:
    """Join adjacent partitions up to about `partition_bytes`, in order."""
    packs: list[list[port.StreamPartition]] = []
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
    options: ReadOptions, reader: port.Reader, starts: Positions, ends: Positions
) -> dict[str, port.Position]:
    """Return the position at which each stream's read begins. A new stream, and a stream that was deleted and
    created again, begins at its first message. Raises DataLoss in the second case unless the deleted stream
    was closed, because its unread messages are lost."""
    known: dict[str, port.Position] = {}
    for name, end in ends.items():
        start = starts.get(name)
        if start is not None and not start.is_of_another(end) and not port.is_past(start.offset, end.offset):
            known[name] = start
        elif start is not None and options.fail_on_data_loss and not start.closed:
            what = "it was deleted and created again since it was last read"
            if not start.is_of_another(end):
                what += f": it ends at {end.offset} now, and {start.offset} was read already"
            raise port.DataLoss(name, what)
    begins = [name for name in ends if name not in known]
    earliest = reader.earliest(begins) if begins else {}
    for name in begins:
        end, beginning = ends[name], ends[name].at(reader.beginning)
        first = earliest.get(name, beginning)
        # If retention has passed the end, nothing is left to read; the next batch reports the loss.
        retained = end if port.is_past(first.offset, end.offset) else first
        known[name] = beginning if first.is_of_another(end) else retained
    return known


def within_limit(options: ReadOptions, reader: port.Reader, start: Progress, end: Progress) -> Progress:
    """Move `end` towards `start` until the limit is kept. Streams share the limit by the size of their
    backlogs."""
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
    """A connected reader with the heads of the streams, at most a second old."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        #: The start and end of the last look.
        self._asked = self._looked = float("-inf")
        self._begins = False
        self._last_look = Look({}, 0)

    @cached_property
    def reader(self) -> port.Reader:
        return connect(self.options.connection)

    def initial(self, look: Look | None = None) -> Progress:
        """Return the progress at which a query begins, from `look` if given."""
        heads = (look or self.look(fresh=True)).heads
        self._begins = True
        require_all(self.options, self.reader, heads)
        given = decode_offset(self.options.between[0]).positions if self.options.between else {}
        return Progress({**positions_of("starting", self.options, self.reader, heads), **given})

    def everything_from(self, start: Progress) -> Progress:
        """Return the end of a batch, like `everything_until`. The answer "nothing new" needs a look that
        began after this call, because `processAllAvailable` ends with the answer. The call waits until
        LOOK_SECONDS allow that look.

        The first batch ends at the tails that `initial` found, even if they are old. If streams begin at
        their tails, the batch is therefore empty, also when Spark repeats it and asks for the initial offset
        again."""
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
            # The server's clock, which dates creations. It is known only after the server's first answer.
            at_ms = self.reader.now_ms() - round(1000 * (self._looked - began))
            self._last_look = Look(heads, max(0, at_ms))
        return self._last_look
