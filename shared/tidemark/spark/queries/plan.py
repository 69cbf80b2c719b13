"""Planning: which streams, from where, to where, and in which partitions. The same for a batch read
and for each batch of a streaming query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from tidemark.spark.options.given import InvalidOptions
from tidemark.spark.options.read import Earliest, Latest, ReadOptions
from tidemark.spark.readers.port import (
    BadOffset,
    DataLoss,
    Head,
    MissingStream,
    PackedPartition,
    Position,
    Reader,
    StreamPartition,
    is_past,
)

Positions = Mapping[str, Position]

_HEADS_AT_ONCE: Final = 16
#: What a task could read in the time in which a stream is opened: no stream counts for less in a pack.
STREAM_BYTES: Final = 128 * 1024


def load_heads(options: ReadOptions, reader: Reader) -> dict[str, Head]:
    """The subscribed streams that exist, as they stand now, by name."""
    names: Iterable[str] = options.names
    if options.pattern is not None:
        names = reader.names(re.compile(options.pattern))

    def head_of(name: str) -> Head | None:
        try:
            return reader.head(name)
        except MissingStream:
            return None

    with ThreadPoolExecutor(_HEADS_AT_ONCE, thread_name_prefix="tidemark-head") as pool:
        return {head.name: head for head in pool.map(head_of, names) if head is not None}


def require_all(options: ReadOptions, reader: Reader, heads: Mapping[str, Head]) -> None:
    """The bucket and every stream that was named must be there when a query starts. Raises InvalidOptions."""
    if not heads and not reader.has_bucket():
        raise InvalidOptions([f"no such bucket: {options.connection.bucket}"])
    missing = [name for name in options.names if name not in heads]
    if missing:
        raise InvalidOptions([f"no such stream in {options.connection.bucket}: {', '.join(missing)}"])


def starting_positions(
    options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> dict[str, Position]:
    """Raises InvalidOptions for invalid offsets, and DataLoss for an offset below the retained ones."""
    given = options.starting
    if isinstance(given, Earliest):
        return {name: head.earliest for name, head in heads.items()}
    if isinstance(given, Latest):
        return {name: head.tail for name, head in heads.items()}
    wanted = {name: given.get(name, "earliest") for name in heads}
    return _given_positions("startingOffsets", wanted, options, reader, heads)


def ending_positions(options: ReadOptions, reader: Reader, heads: Mapping[str, Head]) -> dict[str, Position]:
    given = options.ending
    if not isinstance(given, Mapping):
        return {name: head.tail for name, head in heads.items()}
    wanted = {name: given.get(name, "latest") for name in heads}
    return _given_positions("endingOffsets", wanted, options, reader, heads)


def pin_positions(
    options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> tuple[Positions, Positions]:
    """Where a batch read begins and ends in each stream. Raises InvalidOptions, for all offsets
    that are wrong, and DataLoss."""
    found: list[Positions] = []
    faults: list[str] = []
    for positions_of in (starting_positions, ending_positions):
        try:
            found.append(positions_of(options, reader, heads))
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
    positions, faults = {}, []
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
            positions[name] = Position(offset, head.tail.incarnation, head.tail.content_type)
    if faults:
        raise InvalidOptions(faults)
    return positions


def plan_partitions(
    options: ReadOptions, reader: Reader, starts: Positions, ends: Positions
) -> list[StreamPartition]:
    """Every stream's messages between its two positions. Raises DataLoss."""
    partitions: list[StreamPartition] = []
    for name, end in ends.items():
        start = _start_before(end, options, reader, name, starts.get(name))
        if reader.backlog(start, end) > 0:
            partitions += reader.partitions(name, start, end, options.bytes_per_partition)
    if options.fail_on_data_loss:
        return partitions
    return [replace(partition, fail_on_data_loss=False) for partition in partitions]


def pack(partitions: Sequence[StreamPartition], partition_bytes: int) -> list[PackedPartition]:
    """Neighbours put together up to about the size of a partition, in order."""
    packs: list[list[StreamPartition]] = []
    left = 0
    for partition in partitions:
        size = max(partition.size, STREAM_BYTES)
        if size > left:
            packs.append([])
            left = partition_bytes
        packs[-1].append(partition)
        left -= size
    return [PackedPartition(tuple(parts)) for parts in packs]


def _start_before(
    end: Position, options: ReadOptions, reader: Reader, name: str, start: Position | None
) -> Position:
    """Where to begin reading towards `end`: at the beginning of a stream that is new, or that
    was deleted and created again; in the second case what was not read is lost."""
    if start is not None and not start.is_of_another(end) and not is_past(start.offset, end.offset):
        return start
    if start is not None and options.fail_on_data_loss:
        what = "it was deleted and created again since it was last read"
        if not start.is_of_another(end):
            what += f": it ends at {end.offset} now, and {start.offset} was read already"
        raise DataLoss(name, what)
    beginning = Position(reader.beginning, end.incarnation, end.content_type)
    try:
        earliest = reader.head(name).earliest
    except MissingStream:
        return beginning
    return beginning if earliest.is_of_another(end) else earliest


def within_limit(
    options: ReadOptions, reader: Reader, starts: Positions, ends: Positions
) -> dict[str, Position]:
    """`ends`, brought nearer so that no more than the limit lies between: each stream gets its
    share of it by how far behind it is."""
    if options.limit_bytes is None:
        return dict(ends)
    known = {name: _start_before(end, options, reader, name, starts.get(name)) for name, end in ends.items()}
    backlogs = {name: reader.backlog(known[name], end) for name, end in ends.items()}
    total = sum(backlogs.values())
    if total <= options.limit_bytes:
        return dict(ends)
    return {
        name: reader.limit(name, known[name], end, max(1, options.limit_bytes * backlogs[name] // total))
        if backlogs[name]
        else end
        for name, end in ends.items()
    }
