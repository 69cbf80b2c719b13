"""The options of a write: which streams, their content type, and where the write is staged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.spark.options.connection import (
    CONNECTION_OPTIONS,
    MEGABYTE,
    ConnectionOptions,
    GivenOptions,
    parse_boolean,
    parse_connection,
    parse_size,
)

WRITE_OPTIONS: Final = (
    "stream",
    "streamColumn",
    "valueColumn",
    "contentType",
    "createStreams",
    "joinRows",
    "stagingDir",
    "producerId",
    "bytesPerAppend",
    "resume",
)


#: The directory of bodies in stagingDir, with a directory in it for each producer id.
STAGED: Final = "staged"
#: The places that tasks can stage to, in the words of errors.
SHARED_PLACES: Final = "a directory that the driver and all tasks share, or s3://bucket/prefix"


@dataclass(frozen=True)
class WriteOptions:
    connection: ConnectionOptions
    stream: str | None
    stream_column: str | None
    value_column: str
    content_type: ContentType | None
    create_streams: bool
    join_rows: bool
    staging_dir: str
    producer_id: str | None
    bytes_per_append: int
    #: Complete what was staged under this producer id, whatever the rows of this write are.
    resume: bool = False

    @property
    def is_staged_by_tasks(self) -> bool:
        """Whether tasks open stagingDir themselves. All else is opened by Hadoop's file systems, in Java."""
        return urlsplit(self.staging_dir).scheme in ("", "file", "s3", "s3a")


def no_faults(_options: WriteOptions) -> list[str]:
    return []


def parse_write_options(
    given: Mapping[str, str],
    *,
    faults_of: Callable[[WriteOptions], list[str]] = no_faults,
    environment: Mapping[str, str] = os.environ,
) -> WriteOptions:
    """`faults_of` says what else is wrong with what is asked for. Raises InvalidOptions."""
    asked = GivenOptions(given, CONNECTION_OPTIONS + WRITE_OPTIONS)
    connection = parse_connection(asked, environment)
    if asked.has("stream") == asked.has("streamColumn"):
        asked.faults.append("give either stream (all rows to one) or streamColumn (the column that names it)")
    if not asked.text("stagingDir"):
        asked.faults.append(
            "stagingDir is missing: a directory that the driver and all tasks share, s3://bucket/prefix,"
            " or, for write_frame and the jobs, a path of any Hadoop file system"
        )
    content_type = asked.parse("contentType", None, parse_content_type)
    if content_type is None and (asked.has("streamColumn") or asked.has("createStreams")):
        asked.faults.append("contentType is missing: with streamColumn or createStreams it must be said")
    options = WriteOptions(
        connection=connection,
        stream=asked.text("stream"),
        stream_column=asked.text("streamColumn"),
        value_column=asked.text("valueColumn", "value") or "value",
        content_type=content_type,
        create_streams=asked.parse("createStreams", False, parse_boolean),
        join_rows=asked.parse("joinRows", False, parse_boolean),
        staging_dir=(asked.text("stagingDir") or "").rstrip("/"),
        producer_id=asked.parse("producerId", None, parse_producer_id),
        bytes_per_append=asked.parse("bytesPerAppend", MEGABYTE, parse_append_size),
        resume=asked.parse("resume", False, parse_boolean),
    )
    if options.resume and not options.producer_id:
        asked.faults.append("resume needs producerId, the id of the write that is not complete")
    asked.faults += faults_of(options)
    asked.finish()
    return options


def parse_append_size(text: str) -> int:
    size = parse_size(text)
    if size > 4 * MEGABYTE:
        raise ValueError(f"must be at most {4 * MEGABYTE}, what one append may hold, got {size}")
    return size


def parse_producer_id(text: str) -> str:
    if len(text) > 200 or not re.fullmatch(r"[A-Za-z0-9._:-]+", text):
        raise ValueError(f"must be 1 to 200 of letters, digits and . _ : -, got {text!r}")
    if text == STAGED:
        raise ValueError(f"must be another word than {STAGED!r}, which names what is staged under every id")
    return text
