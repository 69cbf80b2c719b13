"""Options: what may be asked of the data source, checked as a whole before anything is read.

Spark hands options on with their names in lower case; here they are found whichever way they
are written. Every fault is named at once, not the first one alone.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

from tidemark.protocol.content_type import ContentType, parse_content_type
from tidemark.protocol.errors import Malformed
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.settings import Settings

T = TypeVar("T")

_MEGABYTE: Final = 1024 * 1024
_BUCKET: Final = re.compile(r"[a-z0-9_-]{4,64}", re.ASCII)
#: What stands for itself in a URL's path (RFC 3986 §3.3).
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;="

ORIGIN_OPTIONS: Final = (
    "transport",
    "bucket",
    "table",
    "blobBucket",
    "region",
    "dynamodbEndpoint",
    "s3Endpoint",
    "url",
    "streamPath",
    "token",
    "retrySeconds",
)
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
    "pushDown",
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
)
#: Spark's own, which reach every source and sink.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path", "mergeschema"})


class InvalidOptions(ValueError):
    """All that is wrong with the options of one read or write."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("tidemark: " + "; ".join(faults))


class Transport(Enum):
    """The way to the data."""

    DYNAMODB = "dynamodb"
    HTTP = "http"


@dataclass(frozen=True)
class Origin:
    """Where streams are. Resolved where the query is planned, and carried to the tasks:
    a task's own environment may know of no endpoint. Credentials are not carried."""

    transport: Transport = Transport.DYNAMODB
    bucket: str = PLAIN_BUCKET
    table: str = ""
    blob_bucket: str = ""
    region: str | None = None
    dynamodb_endpoint: str | None = None
    s3_endpoint: str | None = None
    url: str = ""
    stream_path: str = ""
    token: str | None = field(default=None, repr=False)
    #: How long a request is repeated that is not answered, or is answered "later".
    retry_seconds: int = 30

    def stream_url(self, name: str) -> str:
        return f"{self.url}{self.stream_path}/{quote(name, safe=_PATH_CHARACTERS)}"


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
    origin: Origin
    names: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Where = field(default_factory=Earliest)
    ending: Where = field(default_factory=Latest)
    limit_bytes: int | None = None
    fail_on_data_loss: bool = True
    bytes_per_partition: int = 32 * _MEGABYTE
    assume_processing_time: bool = False


@dataclass(frozen=True)
class WriteOptions:
    origin: Origin
    stream: str | None
    stream_column: str | None
    value_column: str
    content_type: ContentType | None
    create_streams: bool
    join_rows: bool
    staging_dir: str
    producer_id: str | None
    bytes_per_append: int


class _Reading:
    """Options by any spelling of their names, and the faults found on the way."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): str(value) for name, value in dict(given).items()}
        self.faults: list[str] = []
        self._name_unknown(known)

    def _name_unknown(self, known: tuple[str, ...]) -> None:
        by_lower = {name.lower(): name for name in known}
        for name in sorted(self._given.keys() - by_lower.keys() - SPARKS_OWN):
            near = difflib.get_close_matches(name, by_lower, n=1)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"known: {', '.join(known)}"
            self.faults.append(f"unknown option {name} ({hint})")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name.lower()) or default

    def parse(self, name: str, default: T, parse: Callable[[str], T]) -> T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, Malformed) as fault:
            self.faults.append(f"{name}: {fault}")
            return default

    def finish(self) -> None:
        if self.faults:
            raise InvalidOptions(self.faults)


def parse_read_options(
    given: Mapping[str, str], *, streaming: bool, environment: Mapping[str, str] = os.environ
) -> ReadOptions:
    """Raises InvalidOptions."""
    reading = _Reading(given, ORIGIN_OPTIONS + READ_OPTIONS)
    origin = _parse_origin(reading, environment)
    names, pattern = _parse_subscription(reading, origin)
    options = ReadOptions(
        origin=origin,
        names=names,
        pattern=pattern,
        starting=reading.parse("startingOffsets", _EARLIEST, parse_where),
        ending=reading.parse("endingOffsets", _LATEST, parse_where),
        limit_bytes=reading.parse("maxOffsetsPerTrigger", None, _positive),
        fail_on_data_loss=reading.parse("failOnDataLoss", True, _boolean),
        bytes_per_partition=reading.parse("bytesPerPartition", ReadOptions.bytes_per_partition, _positive),
        assume_processing_time=reading.parse("assumeProcessingTime", False, _boolean),
    )
    _check_contradictions(reading, options, streaming=streaming)
    reading.finish()
    return options


def _check_contradictions(reading: _Reading, options: ReadOptions, *, streaming: bool) -> None:
    if streaming and reading.has("endingOffsets"):
        reading.faults.append("endingOffsets is for a batch read: a streaming query has no end")
    if not streaming and reading.has("maxOffsetsPerTrigger"):
        reading.faults.append("maxOffsetsPerTrigger is for a streaming query: a batch read reads everything")
    if not streaming and isinstance(options.ending, Earliest):
        reading.faults.append("endingOffsets must be latest or JSON: nothing ends before it begins")
    if not streaming and isinstance(options.starting, Latest):
        reading.faults.append("startingOffsets=latest is for a streaming query: a batch read would be empty")
    if options.limit_bytes is not None and options.origin.transport is Transport.HTTP:
        reading.faults.append(
            "maxOffsetsPerTrigger needs transport=dynamodb: the offsets of an HTTP server are opaque"
        )
    for option, where in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if isinstance(where, Mapping) and options.names:
            strangers = sorted(where.keys() - set(options.names))
            if strangers:
                reading.faults.append(
                    f"{option} names streams that are not subscribed: {', '.join(strangers)}"
                )


def parse_write_options(
    given: Mapping[str, str], *, environment: Mapping[str, str] = os.environ
) -> WriteOptions:
    """Raises InvalidOptions."""
    reading = _Reading(given, ORIGIN_OPTIONS + WRITE_OPTIONS)
    origin = _parse_origin(reading, environment)
    if reading.has("stream") == reading.has("streamColumn"):
        reading.faults.append(
            "give either stream (all rows to one) or streamColumn (the column that names it)"
        )
    if not reading.text("stagingDir"):
        reading.faults.append(
            "stagingDir is missing: a directory that the driver and all tasks share, or s3://bucket/prefix"
        )
    content_type = reading.parse("contentType", None, parse_content_type)
    if content_type is None and (reading.has("streamColumn") or reading.has("createStreams")):
        reading.faults.append("contentType is missing: with streamColumn or createStreams it must be said")
    options = WriteOptions(
        origin=origin,
        stream=reading.text("stream"),
        stream_column=reading.text("streamColumn"),
        value_column=reading.text("valueColumn", "value") or "value",
        content_type=content_type,
        create_streams=reading.parse("createStreams", False, _boolean),
        join_rows=reading.parse("joinRows", False, _boolean),
        staging_dir=(reading.text("stagingDir") or "").rstrip("/"),
        producer_id=reading.parse("producerId", None, _producer_id),
        bytes_per_append=reading.parse("bytesPerAppend", _MEGABYTE, _append_size),
    )
    reading.finish()
    return options


def _parse_origin(reading: _Reading, environment: Mapping[str, str]) -> Origin:
    settings = Settings.from_environment(environment)
    default = Transport.HTTP if reading.has("url") else Transport.DYNAMODB
    transport = reading.parse("transport", default, _transport)
    bucket = reading.parse("bucket", PLAIN_BUCKET, _bucket)
    plain = "/v1/stream" if bucket == PLAIN_BUCKET else f"/{bucket}"
    endpoint = environment.get("AWS_ENDPOINT_URL")
    _check_transport(reading, transport)
    return Origin(
        transport=transport,
        bucket=bucket,
        table=reading.text("table", settings.table_name) or "",
        blob_bucket=reading.text("blobBucket", settings.bucket_name) or "",
        region=reading.text("region", environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")),
        dynamodb_endpoint=reading.text(
            "dynamodbEndpoint", environment.get("AWS_ENDPOINT_URL_DYNAMODB") or endpoint
        ),
        s3_endpoint=reading.text("s3Endpoint", environment.get("AWS_ENDPOINT_URL_S3") or endpoint),
        url=reading.parse("url", "", _url),
        stream_path=reading.parse("streamPath", plain, _stream_path),
        token=reading.text("token"),
        retry_seconds=reading.parse("retrySeconds", Origin.retry_seconds, _seconds),
    )


def _check_transport(reading: _Reading, transport: Transport) -> None:
    of_http = ("url", "streamPath", "token")
    of_dynamodb = ("table", "blobBucket", "region", "dynamodbEndpoint", "s3Endpoint")
    if transport is Transport.HTTP and not reading.has("url"):
        reading.faults.append(
            "transport=http needs url, the server's root such as https://streams.example.com"
        )
    others = of_http if transport is Transport.DYNAMODB else of_dynamodb
    given = [name for name in others if reading.has(name)]
    if given:
        reading.faults.append(f"{', '.join(given)} cannot go with transport={transport.value}")


def _parse_subscription(reading: _Reading, origin: Origin) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("subscribe", "subscribePattern", "path") if reading.text(name)]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "got neither"
        reading.faults.append(f"give either subscribe (or load('stream')) or subscribePattern, {found}")
    pattern = reading.parse("subscribePattern", None, _pattern)
    if pattern is not None and origin.transport is Transport.HTTP and origin.bucket == PLAIN_BUCKET:
        reading.faults.append(
            "subscribePattern over HTTP needs bucket: only a bucket's streams can be listed"
        )
    if reading.text("path"):
        return (reading.text("path") or "",), pattern
    return reading.parse("subscribe", (), parse_names), pattern


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


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(f"not a regular expression: {fault}") from None
    return text


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError(f"must be a whole number of bytes above 0, got {text!r}")
    return int(text)


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"must be a whole number of seconds, got {text!r}")
    return int(text)


def _append_size(text: str) -> int:
    size = _positive(text)
    if size > 4 * _MEGABYTE:
        raise ValueError(f"must be at most {4 * _MEGABYTE}, what one append may hold, got {size}")
    return size


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, got {text!r}")
    return text.lower() == "true"


def _transport(text: str) -> Transport:
    try:
        return Transport(text.lower())
    except ValueError:
        raise ValueError(f"must be dynamodb or http, got {text!r}") from None


def _bucket(text: str) -> str:
    if text != PLAIN_BUCKET and not _BUCKET.fullmatch(text):
        raise ValueError(f"must be 4 to 64 of a-z 0-9 _ -, got {text!r}")
    return text


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"must look like https://host, got {text!r}")
    return text.rstrip("/")


def _stream_path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"must begin with /, got {text!r}")
    return text.rstrip("/")


def _producer_id(text: str) -> str:
    if len(text) > 200 or not re.fullmatch(r"[A-Za-z0-9._:-]+", text):
        raise ValueError(f"must be 1 to 200 of letters, digits and . _ : -, got {text!r}")
    return text
