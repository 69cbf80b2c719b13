"""The options of a read: which streams, from which offset to which, and how much at a time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.spark.options.connection import (
    CONNECTION_OPTIONS,
    ConnectionOptions,
    Transport,
    parse_connection,
)
from tidemark.spark.options.given import MEGABYTE, GivenOptions, parse_boolean, parse_seconds, parse_size

#: What a read gives, by Spark's names of the types.
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
}
ALL_COLUMNS: Final = tuple(COLUMNS)

READ_OPTIONS: Final = (
    "path",
    "columns",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "bytesPerPartition",
    "assumeProcessingTime",
    "forgetEndedSeconds",
)


@dataclass(frozen=True)
class Latest:
    """The tail at the time of asking."""


@dataclass(frozen=True)
class Earliest:
    """The first message that is retained."""


Where = Latest | Earliest | Mapping[str, str]
"""For every stream alike, or for each its own: `earliest`, `latest` or an offset."""

_EARLIEST: Final[Where] = Earliest()
_LATEST: Final[Where] = Latest()


@dataclass(frozen=True)
class ReadOptions:
    connection: ConnectionOptions
    names: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Where = field(default_factory=Earliest)
    ending: Where = field(default_factory=Latest)
    limit_bytes: int | None = None
    fail_on_data_loss: bool = True
    bytes_per_partition: int = 32 * MEGABYTE
    assume_processing_time: bool = False
    #: How long the checkpoint remembers where a stream was read that does not exist any more.
    forget_seconds: int = 3600
    #: Those that a read gives, in this order. Spark does not tell a source which ones a query needs.
    columns: tuple[str, ...] = ALL_COLUMNS


def parse_read_options(
    given: Mapping[str, str],
    *,
    streaming: bool,
    environment: Mapping[str, str] = os.environ,
    faults: Sequence[str] = (),
) -> ReadOptions:
    """`faults` are those that were found elsewhere. Raises InvalidOptions with these and all others."""
    asked = GivenOptions(given, CONNECTION_OPTIONS + READ_OPTIONS)
    asked.faults += faults
    connection = parse_connection(asked, environment)
    names, pattern = _parse_subscription(asked, connection)
    options = ReadOptions(
        connection=connection,
        names=names,
        pattern=pattern,
        starting=asked.parse("startingOffsets", _EARLIEST, parse_where),
        ending=asked.parse("endingOffsets", _LATEST, parse_where),
        limit_bytes=asked.parse("maxBytesPerTrigger", None, parse_size)
        or asked.parse("maxOffsetsPerTrigger", None, parse_size),
        fail_on_data_loss=asked.parse("failOnDataLoss", True, parse_boolean),
        bytes_per_partition=asked.parse("bytesPerPartition", ReadOptions.bytes_per_partition, parse_size),
        assume_processing_time=asked.parse("assumeProcessingTime", False, parse_boolean),
        forget_seconds=asked.parse("forgetEndedSeconds", ReadOptions.forget_seconds, parse_seconds),
        columns=asked.parse("columns", ALL_COLUMNS, parse_columns),
    )
    _check_contradictions(asked, options, streaming=streaming)
    asked.finish()
    return options


def _check_contradictions(asked: GivenOptions, options: ReadOptions, *, streaming: bool) -> None:
    if streaming and asked.has("endingOffsets"):
        asked.faults.append("endingOffsets is for a batch read: a streaming query has no end")
    limits = [name for name in ("maxBytesPerTrigger", "maxOffsetsPerTrigger") if asked.has(name)]
    if limits and not streaming:
        asked.faults.append(f"{limits[0]} is for a streaming query: a batch read reads everything")
    if len(limits) == 2:
        asked.faults.append("maxBytesPerTrigger and maxOffsetsPerTrigger are the same: give one of them")
    if not streaming and isinstance(options.ending, Earliest):
        asked.faults.append("endingOffsets must be latest or JSON: nothing ends before it begins")
    if not streaming and isinstance(options.starting, Latest):
        asked.faults.append("startingOffsets=latest is for a streaming query: a batch read would be empty")
    for option, where in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        strangers = _strangers(where, options) if isinstance(where, Mapping) else []
        if strangers:
            asked.faults.append(f"{option} names streams that are not subscribed: {', '.join(strangers)}")


def _strangers(where: Mapping[str, str], options: ReadOptions) -> list[str]:
    """Whether those that a pattern takes in exist is another question."""
    if options.pattern is not None:
        return sorted(name for name in where if not re.fullmatch(options.pattern, name))
    return sorted(where.keys() - set(options.names)) if options.names else []


def _parse_subscription(
    asked: GivenOptions, connection: ConnectionOptions
) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("subscribe", "subscribePattern", "path") if asked.text(name)]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "got neither"
        asked.faults.append(f"give either subscribe (or load('stream')) or subscribePattern, {found}")
    pattern = asked.parse("subscribePattern", None, parse_pattern)
    if pattern is not None and connection.transport is Transport.HTTP and connection.bucket == PLAIN_BUCKET:
        asked.faults.append("subscribePattern over HTTP needs bucket: only a bucket's streams can be listed")
    if asked.text("path"):
        return (asked.text("path") or "",), pattern
    return asked.parse("subscribe", (), parse_names), pattern


def parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between, or a JSON array of them where a name has a comma in it."""
    if text.lstrip().startswith("["):
        names = json.loads(text)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a JSON array must hold names alone")
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


def render_schema(columns: tuple[str, ...] = ALL_COLUMNS) -> str:
    """As Spark reads it."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


def parse_where(text: str) -> Where:
    """`earliest`, `latest`, or JSON such as `{"chat": "0000000000000042", "log": "earliest"}`."""
    lowered = text.strip().lower()
    if lowered in ("earliest", "latest"):
        return Earliest() if lowered == "earliest" else Latest()
    try:
        given = json.loads(text)
    except ValueError as fault:
        raise ValueError(f"must be earliest, latest or a JSON object, got {text!r} ({fault})") from None
    if not isinstance(given, dict) or not given:
        raise ValueError(f"must be earliest, latest or a JSON object of stream to offset, got {text!r}")
    for name, offset in given.items():
        if not isinstance(offset, str) or not offset:
            raise ValueError(f"the offset of {name} must be text, as the server gave it, got {offset!r}")
    return given


def parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(f"not a regular expression: {fault}") from None
    return text
