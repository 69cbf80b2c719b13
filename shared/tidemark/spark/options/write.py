"""The options of a write: streams, content type and staging directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.spark.options import (
    MEGABYTE,
    ConnectionOptions,
    GivenOptions,
    InvalidOptions,
    Transport,
    option,
    parse_boolean,
    parse_connection,
    parse_size,
    parse_whole,
)

#: The directory in stagingDir for bodies, with a subdirectory for each producer id.
STAGED: Final = "staged"
_PLACES: Final = "a directory that the driver and all tasks share, or s3://bucket/prefix"


def parse_staging_dir(text: str) -> str:
    if urlsplit(text).scheme not in ("", "file", "s3", "s3a"):
        raise ValueError(f"must be {_PLACES}, got {text!r}")
    return text.rstrip("/")


parse_batch = partial(parse_whole, what="the number that foreachBatch gives")
parse_append_size = partial(parse_size, most=4 * MEGABYTE)


def parse_producer_id(text: str) -> str:
    if len(text) > 200 or not re.fullmatch(r"[A-Za-z0-9._:-]+", text):
        raise ValueError(f"must be 1 to 200 of letters, digits and . _ : -, got {text!r}")
    if text == STAGED:
        raise ValueError(f"must not be {STAGED!r}, the directory of all staged files")
    return text


@dataclass(frozen=True)
class WriteOptions:
    connection: ConnectionOptions
    stream: str | None = option(stream=str)
    stream_column: str | None = option(streamColumn=str)
    value_column: str = option("value", valueColumn=str)
    content_type: ContentType | None = option(contentType=parse_content_type)  # noqa: RUF009 - a field
    create_streams: bool = option(False, createStreams=parse_boolean)
    staging_dir: str = option("", stagingDir=parse_staging_dir)
    producer_id: str | None = option(producerId=parse_producer_id)
    #: The number of this write under its producer id: the batch id of `foreachBatch`.
    batch: int | None = option(batch=parse_batch)
    bytes_per_append: int = option(MEGABYTE, bytesPerAppend=parse_append_size)
    #: Complete the earlier write staged under this producer id, and ignore the rows of this write.
    resume: bool = option(False, resume=parse_boolean)


def parse_write_options(
    given: Mapping[str, str],
    *,
    faults_of: Callable[[WriteOptions], list[str]] = lambda _: [],
    environment: Mapping[str, str] = os.environ,
) -> WriteOptions:
    """Parse the options. `faults_of` returns further faults of a write. Raises InvalidOptions with all."""
    asked = GivenOptions(given, WriteOptions)
    connection = parse_connection(asked, environment)
    options = asked.fill(WriteOptions, connection=connection)
    asked.parse("stream", "", connection.check_name)
    if connection.transport is not Transport.HTTP:
        asked.faults.append("url is missing: streams are written over HTTP only")
    if asked.has("stream") == asked.has("streamColumn"):
        asked.faults.append("give either stream (all rows to one) or streamColumn (the column that names it)")
    if not asked.text("stagingDir"):
        asked.faults.append(f"stagingDir is missing: {_PLACES}")
    if options.content_type is None and (options.stream_column or asked.has("createStreams")):
        asked.faults.append("contentType is missing: streamColumn and createStreams need it")
    if options.resume and not options.producer_id:
        asked.faults.append("resume needs producerId, the id of the write that is not complete")
    if options.batch is not None and not options.producer_id:
        asked.faults.append("batch needs producerId, the id of the writes that it numbers")
    asked.faults += faults_of(options)
    if asked.faults:
        raise InvalidOptions(asked.faults)
    return options
