"""Planning: which streams, from where, to where, and in which partitions. The same for a batch read
and for each batch of a streaming query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.read import Earliest, Latest, ReadOptions
from tidemark.spark.readers.port import (
    BadOffset,
    DataLoss,
    Head,
    MissingStream,
    Position,
    Reader,
    StreamPartition,
    is_past,
)

Positions = Mapping[str, Position]

_LOOKS_AT_ONCE: Final = 16


def load_heads(options: ReadOptions, reader: Reader) -> dict[str, Head]:
    """The subscribed streams that exist, as they stand now, by name."""
    names: Iterable[str] = options.names
    if options.pattern is not None:
        names = reader.names(re.compile(options.pattern))
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="tidemark-head") as pool:
        heads = pool.map(lambda name: _head(reader, name), names)
        return {head.name: head for head in heads if head is not None}


def _head(reader: Reader, name: str) -> Head | None:
    try:
        return reader.head(name)
    except MissingStream:
        return None


def require_all(options: ReadOptions, heads: Mapping[str, Head]) -> None:
    """Every stream that was named must be there when a query starts. Raises InvalidOptions."""
    missing = [name for name in options.names if name not in heads]
    if missing:
        raise InvalidOptions([f"no such stream in {options.connection.bucket}: {', '.join(missing)}"])


def starting_positions(
    options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> dict[str, Position]:
    """Raises InvalidOptions for offsets that are none, DataLoss for one below what is retained."""
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
    faults = faults or _crossed(*found)
    if faults:
        raise InvalidOptions(faults)
    starts, ends = found
    return starts, ends


def _crossed(starts: Positions, ends: Positions) -> list[str]:
    return [
        f"startingOffsets: {name}: {starts[name].offset} lies beyond where it is to end, {end.offset}"
        for name, end in sorted(ends.items())
        if is_past(starts[name].offset, end.offset)
    ]


def _given_positions(
    option: str, wanted: Mapping[str, str], options: ReadOptions, reader: Reader, heads: Mapping[str, Head]
) -> dict[str, Position]:
    positions, faults = {}, []
    for name, head in heads.items():
        try:
            positions[name] = _given_position(wanted[name], options, reader, head)
        except BadOffset as fault:
            faults.append(f"{option}: {fault}")
    if faults:
        raise InvalidOptions(faults)
    return positions


def _given_position(text: str, options: ReadOptions, reader: Reader, head: Head) -> Position:
    if text in ("earliest", "-1"):
        return head.earliest
    if text in ("latest", "now"):
        return head.tail
    if text < head.earliest.offset:
        loss = DataLoss(head.name, f"{text} lies below {head.earliest.offset}, the first that is retained")
        if options.fail_on_data_loss:
            raise loss
        return head.earliest
    reader.check_offset(head, text)
    return Position(text, head.tail.incarnation, head.tail.content_type)


def plan_partitions(
    options: ReadOptions, reader: Reader, starts: Positions, ends: Positions
) -> list[StreamPartition]:
    """Every stream's messages between its two positions. Raises DataLoss."""
    partitions: list[StreamPartition] = []
    for name, end in ends.items():
        start = _comparable(options, reader, name, starts.get(name), end)
        if reader.backlog(start, end) > 0:
            planned = reader.partitions(name, start, end, options.bytes_per_partition)
            partitions += [_with_policy(partition, options) for partition in planned]
    return partitions


def _with_policy(partition: StreamPartition, options: ReadOptions) -> StreamPartition:
    if options.fail_on_data_loss:
        return partition
    return replace(partition, fail_on_data_loss=False)


def _comparable(
    options: ReadOptions, reader: Reader, name: str, start: Position | None, end: Position
) -> Position:
    """Where to begin reading towards `end`: at the beginning of a stream that is new, or that
    was deleted and created again; in the second case what was not read is lost."""
    if start is not None and not start.is_of_another(end) and not is_past(start.offset, end.offset):
        return start
    if start is not None and options.fail_on_data_loss:
        raise DataLoss(name, _created_again(start, end))
    return _beginning(reader, name, end)


def _created_again(start: Position, end: Position) -> str:
    what = "it was deleted and created again since it was last read"
    if start.is_of_another(end):
        return what
    return f"{what}: it ends at {end.offset} now, and {start.offset} was read already"


def _beginning(reader: Reader, name: str, end: Position) -> Position:
    try:
        earliest = reader.head(name).earliest
    except MissingStream:
        earliest = None
    if earliest is not None and not earliest.is_of_another(end):
        return earliest
    return Position(reader.beginning, end.incarnation, end.content_type)


def within_limit(
    options: ReadOptions, reader: Reader, starts: Positions, ends: Positions
) -> dict[str, Position]:
    """`ends`, brought nearer so that no more than the limit lies between: each stream gets its
    share of it by how far behind it is."""
    if options.limit_bytes is None:
        return dict(ends)
    known = {name: _comparable(options, reader, name, starts.get(name), end) for name, end in ends.items()}
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
