"""The options of a read: streams, first and last offsets, and the size of a batch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tidemark.spark.options import (
    MEGABYTE,
    ConnectionOptions,
    GivenOptions,
    InvalidOptions,
    Transport,
    option,
    parse_boolean,
    parse_connection,
    parse_seconds,
    parse_size,
)

Where = str | int | Mapping[str, str]
"""One place for all streams: `earliest`, the first retained message; `latest`, the tail when the read is
planned; or the first message written at a time in ms since 1970, or later. Or a mapping from stream to
`earliest`, `latest` or an offset."""


def parse_where(text: str) -> Where:
    """Parse `earliest`, `latest`, or JSON such as `{"chat": "0000000000000042", "log": "earliest"}`."""
    if (word := text.strip().lower()) in ("earliest", "latest"):
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

#: Hints for options of Spark's Kafka source, in lower case, that have another name or meaning here.
INSTEAD_OF_KAFKAS: Final = {
    "maxoffsetspertrigger": "an offset is a byte position here: maxBytesPerTrigger counts bytes",
    "minoffsetspertrigger": "the trigger sets the interval of batches",
    "assign": "a stream has no partitions: name streams with subscribe",
    "minpartitions": "use bytesPerPartition, the size of a task",
    "maxrecordsperpartition": "use bytesPerPartition, the size of a task",
    "includeheaders": "add headers to columns",
    "kafka.bootstrap.servers": "url is the server's address",
}


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


@dataclass(frozen=True)
class ReadOptions:
    connection: ConnectionOptions
    names: tuple[str, ...] = option((), subscribe=parse_names)
    pattern: str | None = option(subscribePattern=parse_pattern)
    starting: Where = option("earliest", startingOffsets=parse_where, startingTimestamp=parse_time)  # noqa: RUF009
    ending: Where = option("latest", endingOffsets=parse_where, endingTimestamp=parse_time)  # noqa: RUF009
    #: The columns of a read, in this order. Spark does not prune the columns of a Python source.
    columns: tuple[str, ...] = option(DEFAULT_COLUMNS, columns=parse_columns)
    #: Limit of one batch of a streaming query, in bytes.
    limit_bytes: int | None = option(maxBytesPerTrigger=parse_size)
    fail_on_data_loss: bool = option(True, failOnDataLoss=parse_boolean)
    #: Load timestamps over HTTP, which takes extra requests.
    include_timestamps: bool = option(False, includeTimestamps=parse_boolean)
    bytes_per_partition: int = option(32 * MEGABYTE, bytesPerPartition=parse_size)
    assume_processing_time: bool = option(False, assumeProcessingTime=parse_boolean)
    #: Seconds for which the checkpoint keeps the position of a stream that has ended.
    forget_seconds: int = option(3600, forgetEndedSeconds=parse_seconds)
    #: The start and end offsets of a batch read, in the form of a streaming batch, which names incarnations.
    #: Set by `read_whole`.
    between: tuple[Mapping[str, Any], Mapping[str, Any]] | None = option(between=json.loads)

    @property
    def asks_times(self) -> bool:
        return self.include_timestamps and "timestamp" in self.columns

    def subscribes(self, name: str) -> bool:
        return name in self.names if self.pattern is None else re.fullmatch(self.pattern, name) is not None


def parse_read_options(
    given: Mapping[str, str],
    *,
    streaming: bool,
    environment: Mapping[str, str] = os.environ,
    faults: Sequence[str] = (),
) -> ReadOptions:
    """Parse the options. Raises InvalidOptions with all faults, including `faults`, which the caller
    found."""
    asked = GivenOptions(given, ReadOptions, INSTEAD_OF_KAFKAS)
    asked.faults += faults
    options = _fill(asked, environment)
    names = [name for name in ("subscribe", "subscribePattern", "path") if asked.text(name)]
    if len(names) != 1:
        found = f"got {' and '.join(names) or 'neither'}"
        asked.faults.append(f"give either subscribe (or load('stream')) or subscribePattern, {found}")
    _check_boundaries(asked, options, streaming=streaming)
    if asked.faults:
        raise InvalidOptions(asked.faults)
    return options


def columns_of(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the columns of a read, even if other options are invalid."""
    return _fill(GivenOptions(given, ReadOptions), environment).columns


def _fill(asked: GivenOptions, environment: Mapping[str, str]) -> ReadOptions:
    """Parse the options one by one. By default there is no `timestamp` over HTTP without includeTimestamps,
    because a watermark on a column of nulls would wait for ever."""
    path, connection = asked.text("path"), parse_connection(asked, environment)
    has_times = connection.transport is not Transport.HTTP
    has_times = has_times or (asked.text("includeTimestamps") or "").lower() == "true"
    columns = tuple(name for name in DEFAULT_COLUMNS if has_times or name != "timestamp")
    names = (path,) if path else ()
    options = asked.fill(ReadOptions, connection=connection, names=names, columns=columns)
    if "timestamp" in options.columns and not has_times:
        asked.faults.append(f"columns: {NO_TIMES}")
    return options


def _check_boundaries(asked: GivenOptions, options: ReadOptions, *, streaming: bool) -> None:
    endings = [name for name in ("endingOffsets", "endingTimestamp") if asked.has(name)]
    if streaming and endings:
        asked.faults.append(f"{endings[0]} is for a batch read: a streaming query has no end")
    if not streaming and options.limit_bytes is not None:
        asked.faults.append("maxBytesPerTrigger is for a streaming query: a batch read reads everything")
    if not streaming and options.ending == "earliest":
        asked.faults.append("endingOffsets must be latest or JSON: with earliest the read would be empty")
    if not streaming and options.starting == "latest":
        asked.faults.append("startingOffsets=latest is for a streaming query: a batch read would be empty")
    for side, where in (("starting", options.starting), ("ending", options.ending)):
        named = where if isinstance(where, Mapping) and (options.names or options.pattern) else ()
        strangers = sorted(name for name in named if not options.subscribes(name))
        if strangers:
            named_by = f"{side}Offsets names streams that are not subscribed"
            asked.faults.append(f"{named_by}: {', '.join(strangers)}")
