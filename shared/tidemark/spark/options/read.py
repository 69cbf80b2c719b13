"""The options of a read: which streams, from which offset to which, and how much at a time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.spark.options.connection import (
    CONNECTION_OPTIONS,
    ConnectionOptions,
    Transport,
    parse_connection,
)
from tidemark.spark.options.given import MEGABYTE, GivenOptions, parse_boolean, parse_size

READ_OPTIONS: Final = (
    "path",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "bytesPerPartition",
    "assumeProcessingTime",
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


def parse_read_options(
    given: Mapping[str, str], *, streaming: bool, environment: Mapping[str, str] = os.environ
) -> ReadOptions:
    """Raises InvalidOptions."""
    asked = GivenOptions(given, CONNECTION_OPTIONS + READ_OPTIONS)
    connection = parse_connection(asked, environment)
    names, pattern = _parse_subscription(asked, connection)
    options = ReadOptions(
        connection=connection,
        names=names,
        pattern=pattern,
        starting=asked.parse("startingOffsets", _EARLIEST, parse_where),
        ending=asked.parse("endingOffsets", _LATEST, parse_where),
        limit_bytes=asked.parse("maxOffsetsPerTrigger", None, parse_size),
        fail_on_data_loss=asked.parse("failOnDataLoss", True, parse_boolean),
        bytes_per_partition=asked.parse("bytesPerPartition", ReadOptions.bytes_per_partition, parse_size),
        assume_processing_time=asked.parse("assumeProcessingTime", False, parse_boolean),
    )
    _check_contradictions(asked, options, streaming=streaming)
    asked.finish()
    return options


def _check_contradictions(asked: GivenOptions, options: ReadOptions, *, streaming: bool) -> None:
    if streaming and asked.has("endingOffsets"):
        asked.faults.append("endingOffsets is for a batch read: a streaming query has no end")
    if not streaming and asked.has("maxOffsetsPerTrigger"):
        asked.faults.append("maxOffsetsPerTrigger is for a streaming query: a batch read reads everything")
    if not streaming and isinstance(options.ending, Earliest):
        asked.faults.append("endingOffsets must be latest or JSON: nothing ends before it begins")
    if not streaming and isinstance(options.starting, Latest):
        asked.faults.append("startingOffsets=latest is for a streaming query: a batch read would be empty")
    if options.limit_bytes is not None and options.connection.transport is Transport.HTTP:
        asked.faults.append(
            "maxOffsetsPerTrigger needs transport=dynamodb: the offsets of an HTTP server are opaque"
        )
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
