"""The options of a read: streams, first and last offsets, and the size of a batch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from tidemark.spark.options import (
    CONNECTION_OPTIONS,
    MEGABYTE,
    ConnectionOptions,
    GivenOptions,
    Transport,
    names_of,
    option,
    parse_boolean,
    parse_connection,
    parse_seconds,
    parse_size,
)

Word = Literal["earliest", "latest"]
Where = Word | int | Mapping[str, str]
"""One place for all streams: the first retained message, the tail when the read is planned, or the first
message written at a time in ms since 1970, or later. Or a mapping from stream to `earliest`, `latest` or an
offset."""

Side = Literal["starting", "ending"]
SIDES: Final[tuple[Side, ...]] = ("starting", "ending")

_WORDS: Final[Mapping[str, Word]] = {"earliest": "earliest", "latest": "latest"}

WHERE_OPTIONS: Final = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")


def parse_boundary(asked: GivenOptions, side: Side, default: Where) -> Where:
    options = given_boundaries(asked, side)
    if len(options) > 1:
        asked.faults.append(f"give one of {', '.join(options)}: each sets the {side} offsets of all streams")
    offsets = asked.parse(f"{side}Offsets", default, parse_where)
    return asked.parse(f"{side}Timestamp", offsets, parse_time)


def given_boundaries(asked: GivenOptions, side: Side) -> list[str]:
    return [option for option in WHERE_OPTIONS if option.startswith(side) and asked.has(option)]


def parse_where(text: str) -> Where:
    """Parse `earliest`, `latest`, or JSON such as `{"chat": "0000000000000042", "log": "earliest"}`."""
    if word := _WORDS.get(text.strip().lower()):
        return word
    wanted = "must be earliest, latest or a JSON object of stream to offset"
    try:
        given = json.loads(text)
    except ValueError as fault:
        raise ValueError(f"{wanted}, got {text!r} ({fault})") from None
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{wanted}, got {text!r}")
    for name, offset in given.items():
        if not isinstance(offset, str) or not offset:
            raise ValueError(f"the offset of {name} must be text, as in the column offset, got {offset!r}")
    return given


def parse_time(text: str) -> int:
    """Parse milliseconds since 1970, as in Spark's Kafka source, or RFC 3339 with an offset from UTC."""
    if text.isascii() and text.isdigit():
        return int(text)
    wanted = "must be milliseconds since 1970 or a time with its zone such as 2026-11-21T10:00Z"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{wanted}, got {text!r}") from None
    if instant.tzinfo is None:
        raise ValueError(f"{wanted}, got {text!r}, which has no zone")
    return round(instant.timestamp() * 1000)


#: The columns of a read with their Spark types.
COLUMNS: Final = {
    "bucket": "STRING",
    "stream": "STRING",
    "offset": "STRING",
    "end_offset": "STRING",
    "position": "INT",
    "value": "BINARY",
    "content_type": "STRING",
    "timestamp": "TIMESTAMP",
    "producer_id": "STRING",
    "producer_epoch": "BIGINT",
    "producer_seq": "BIGINT",
    "incarnation": "STRING",
    "type": "STRING",
    "key": "STRING",
    "headers": "STRING",
}
#: Members of JSON messages. Not in the default columns, because every message must be parsed.
JSON_COLUMNS: Final = frozenset({"type", "key", "headers"})
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in JSON_COLUMNS)

NO_TIMES: Final = "over http there is a timestamp only with includeTimestamps=true"

#: Hints for options of Spark's Kafka source that have another name or meaning here.
INSTEAD_OF_KAFKAS: Final = {
    "maxOffsetsPerTrigger": "an offset is a byte position here: maxBytesPerTrigger counts bytes",
    "minOffsetsPerTrigger": "the trigger sets the interval of batches",
    "assign": "a stream has no partitions: name streams with subscribe",
    "minPartitions": "use bytesPerPartition, the size of a task",
    "maxRecordsPerPartition": "use bytesPerPartition, the size of a task",
    "includeHeaders": "add headers to columns",
    "kafka.bootstrap.servers": "url is the server's address",
}


@dataclass(frozen=True)
class ReadOptions:
    connection: ConnectionOptions
    names: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Where = "earliest"
    ending: Where = "latest"
    #: The columns of a read, in this order. Spark does not prune the columns of a Python source.
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    #: Limit of one batch of a streaming query, in bytes.
    limit_bytes: int | None = option("maxBytesPerTrigger", parse_size)
    fail_on_data_loss: bool = option("failOnDataLoss", parse_boolean, True)
    #: Load timestamps over HTTP, which takes extra requests.
    include_timestamps: bool = option("includeTimestamps", parse_boolean, False)
    bytes_per_partition: int = option("bytesPerPartition", parse_size, 32 * MEGABYTE)
    assume_processing_time: bool = option("assumeProcessingTime", parse_boolean, False)
    #: Seconds for which the checkpoint keeps the position of a stream that has ended.
    forget_seconds: int = option("forgetEndedSeconds", parse_seconds, 3600)
    #: The start and end offsets of a batch read, in the form of a streaming batch, which names incarnations.
    #: Set by `read_whole`.
    between: tuple[Mapping[str, Any], Mapping[str, Any]] | None = option("between", json.loads)

    @property
    def asks_times(self) -> bool:
        return self.include_timestamps and "timestamp" in self.columns

    def subscribes(self, name: str) -> bool:
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None


READ_OPTIONS: Final = (
    *("path", "columns", "subscribe", "subscribePattern", *WHERE_OPTIONS),
    *names_of(ReadOptions),
)


def parse_read_options(
    given: Mapping[str, str],
    *,
    streaming: bool,
    environment: Mapping[str, str] = os.environ,
    faults: Sequence[str] = (),
) -> ReadOptions:
    """Parse the options. Raises InvalidOptions with all faults, including `faults`, which the caller
    found."""
    asked = GivenOptions(given, CONNECTION_OPTIONS + READ_OPTIONS, INSTEAD_OF_KAFKAS)
    asked.faults += faults
    connection = parse_connection(asked, environment)
    names, pattern = _parse_subscription(asked)
    options = asked.fill(
        ReadOptions,
        connection=connection,
        names=names,
        pattern=pattern,
        starting=parse_boundary(asked, "starting", "earliest"),
        ending=parse_boundary(asked, "ending", "latest"),
    )
    options = replace(options, columns=_parse_columns(asked, options))
    _check_boundaries(asked, options, streaming=streaming)
    asked.finish()
    return options


def _parse_columns(asked: GivenOptions, options: ReadOptions) -> tuple[str, ...]:
    """Parse the columns. The default leaves out `timestamp` over HTTP without includeTimestamps, because a
    watermark on a column of nulls would wait for ever."""
    timed = options.connection.transport is not Transport.HTTP or options.include_timestamps
    filled = tuple(name for name in DEFAULT_COLUMNS if timed or name != "timestamp")
    columns = asked.parse("columns", filled, parse_columns)
    if "timestamp" in columns and "timestamp" not in filled:
        asked.faults.append(f"columns: {NO_TIMES}")
    return columns


def columns_of(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the columns of a read, even if other options are invalid."""
    asked = GivenOptions(given, CONNECTION_OPTIONS + READ_OPTIONS)
    timed = asked.parse("includeTimestamps", False, parse_boolean)
    return _parse_columns(asked, ReadOptions(parse_connection(asked, environment), include_timestamps=timed))


def _check_boundaries(asked: GivenOptions, options: ReadOptions, *, streaming: bool) -> None:
    if not streaming and options.limit_bytes is not None:
        asked.faults.append("maxBytesPerTrigger is for a streaming query: a batch read reads everything")
    endings = given_boundaries(asked, "ending")
    if streaming and endings:
        asked.faults.append(f"{endings[0]} is for a batch read: a streaming query has no end")
    if not streaming and options.ending == "earliest":
        asked.faults.append("endingOffsets must be latest or JSON: with earliest the read would be empty")
    if not streaming and options.starting == "latest":
        asked.faults.append("startingOffsets=latest is for a streaming query: a batch read would be empty")
    for side, where in zip(SIDES, (options.starting, options.ending), strict=True):
        named = where if isinstance(where, Mapping) and (options.names or options.pattern) else ()
        strangers = sorted(name for name in named if not options.subscribes(name))
        if strangers:
            option = given_boundaries(asked, side)[0]
            asked.faults.append(f"{option} names streams that are not subscribed: {', '.join(strangers)}")


def _parse_subscription(asked: GivenOptions) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("subscribe", "subscribePattern", "path") if asked.text(name)]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "got neither"
        asked.faults.append(f"give either subscribe (or load('stream')) or subscribePattern, {found}")
    pattern = asked.parse("subscribePattern", None, parse_pattern)
    if asked.text("path"):
        return (asked.text("path") or "",), pattern
    return asked.parse("subscribe", (), parse_names), pattern


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas, or a JSON array for names that contain a comma."""
    if text.lstrip().startswith("["):
        names = json.loads(text)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a JSON array must hold names only")
    else:
        names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"an empty name in {text!r}")
    return tuple(dict.fromkeys(names))


def parse_columns(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    strange = [name for name in names if name not in COLUMNS]
    if strange:
        raise ValueError(f"there is no {', '.join(map(repr, strange))}; columns: {', '.join(COLUMNS)}")
    return names


def render_schema(columns: tuple[str, ...] = DEFAULT_COLUMNS) -> str:
    """Return the schema in Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


def parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(f"not a regular expression: {fault}") from None
    return text
