"""Options that reads and writes share: the connection, the parser and the report of invalid options."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from tidemark.protocol.errors import Malformed, PicklableError, ProtocolError
from tidemark.protocol.stream_key import LISTING, PLAIN_BUCKET, check_stream_id, parse_plain_path
from tidemark.settings import Settings

_T = TypeVar("_T")
_Parse = Callable[[str], object]

MEGABYTE: Final = 1024 * 1024
#: Spark's own options, which Spark passes to every source and sink.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path", "mergeschema"})


def option(
    default: object = None, of: Transport | None = None, *, secret: bool = False, **parsers: _Parse
) -> Any:
    """Return the field of an option in a dataclass of options, with the option's name and parser; several if
    each of them sets the field. The option is `of` one transport, or of both."""
    return field(default=default, repr=not secret, metadata={"parsers": parsers, "of": of})


def names_of(options: type) -> tuple[str, ...]:
    return tuple(name for each in fields(options) for name in each.metadata.get("parsers", ()))


class InvalidOptions(PicklableError, ValueError):
    """All invalid options of one read or write."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("tidemark: " + "; ".join(faults))


class GivenOptions:
    """The user's options, whose names are case-insensitive, and their faults. `hints` are for options of
    another source that have another name here."""

    def __init__(self, given: Mapping[str, str], options: type, hints: Mapping[str, str] = {}) -> None:
        self._given = {name.lower(): str(value) for name, value in dict(given).items()}
        self.faults: list[str] = []
        known = {name.lower(): name for name in CONNECTION_OPTIONS + names_of(options)}
        for name in sorted(self._given.keys() - known.keys() - SPARKS_OWN):
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(known.values())}"
            self.faults.append(f"unknown option {name} ({hints.get(name, guess)})")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        return self._given.get(name.lower()) or None

    def parse(self, name: str, default: _T, parse: Callable[[str], _T]) -> _T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, Malformed) as fault:
            self.faults.append(f"{name}: {fault}")
            return default

    def fill(self, options: Callable[..., _T], **known: Any) -> _T:
        """Make a dataclass from its options. `known` has other fields, and defaults that depend on the
        environment."""
        for each in fields(options):  # type: ignore[arg-type]
            parsers = each.metadata.get("parsers", {})
            given = [name for name in parsers if self.has(name)]
            if len(given) > 1:
                self.faults.append(f"give one of {', '.join(given)}: each is for all streams")
            for name, parse in parsers.items():
                known[each.name] = self.parse(name, known.get(each.name, each.default), parse)
        return options(**known)


def parse_whole(text: str, what: str, least: int = 0, most: int = sys.maxsize) -> int:
    """Parse a whole number. `what` describes the valid values in the error text."""
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"must be {what}, got {text!r}")
    if int(text) > most:
        raise ValueError(f"must be at most {most}, got {text}")
    return int(text)


parse_size = partial(parse_whole, what="a whole number of bytes above 0", least=1)
parse_seconds = partial(parse_whole, what="a whole number of seconds")


def parser_of_words(choices: Mapping[str, _T]) -> Callable[[str], _T]:
    """Return the parser of a word, in any case."""

    def parse(text: str) -> _T:
        if text.lower() not in choices:
            raise ValueError(f"must be {' or '.join(choices)}, got {text!r}")
        return choices[text.lower()]

    return parse


parse_boolean = parser_of_words({"true": True, "false": False})
#: Characters that need no percent-encoding in a URL's path (RFC 3986 §3.3).
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;="
#: The URL path of the plain surface, whose streams have no bucket.
_PLAIN_PATH: Final = "/v1/stream"


class Transport(Enum):
    DYNAMODB = "dynamodb"
    HTTP = "http"


parse_transport = parser_of_words({each.value: each for each in Transport})


def parse_bucket(text: str) -> str:
    if text != PLAIN_BUCKET and not re.fullmatch("[a-z0-9_-]{4,64}", text):
        raise ValueError(f"must be 4 to 64 of a-z 0-9 _ -, got {text!r}")
    return text


def parse_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"must look like https://host, got {text!r}")
    root, protocol, _ = text.partition(_PLAIN_PATH)
    if protocol:
        raise ValueError(f"must be the server's root, {root}, without {_PLAIN_PATH}, got {text!r}")
    return text.rstrip("/")


def parse_token_option(text: str) -> str:
    """Parse a token. The error text does not show it."""
    if not re.fullmatch("[!-~]+", text):
        raise ValueError("must be ASCII without spaces and line ends")
    return text


def parse_stream_option(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"must begin with /, got {text!r}")
    return text.rstrip("/")


@dataclass(frozen=True)
class ConnectionOptions:
    """The location of streams. The driver resolves it and sends it to the tasks, because a task's environment
    may have no endpoint. AWS credentials are not sent."""

    transport: Transport = option(Transport.DYNAMODB, transport=parse_transport)  # noqa: RUF009 - a field
    bucket: str = option(PLAIN_BUCKET, bucket=parse_bucket)
    region: str | None = option(region=str)
    #: Also for writes over HTTP, which may stage in S3.
    s3_endpoint: str | None = option(s3Endpoint=str)
    #: Seconds for which a request is retried after no answer or a retryable status.
    retry_seconds: int = option(30, retrySeconds=parse_seconds)
    table: str = option("", Transport.DYNAMODB, table=str)
    blob_bucket: str = option("", Transport.DYNAMODB, blobBucket=str)
    dynamodb_endpoint: str | None = option(None, Transport.DYNAMODB, dynamodbEndpoint=str)
    url: str = option("", Transport.HTTP, url=parse_url)
    stream_path: str = option("", Transport.HTTP, streamPath=parse_stream_option)
    token: str | None = option(None, Transport.HTTP, secret=True, token=parse_token_option)
    #: A file with the token. Every process reads it before each request, so the token may be renewed.
    token_file: str = option("", Transport.HTTP, tokenFile=str)

    def place(self) -> str:
        """The location of the streams as text, the same in every process."""
        if self.transport is Transport.HTTP:
            return f"{self.url}{self.stream_path}"
        return f"bucket {self.bucket} in table {self.table}"

    def stream_url(self, name: str) -> str:
        return f"{self.url}{self.stream_path}/{quote(name, safe=_PATH_CHARACTERS)}"

    @property
    def listing_url(self) -> str:
        """The URL that lists the bucket's streams, or the plain streams."""
        path = self.stream_path.removesuffix("/stream") if self.bucket == PLAIN_BUCKET else self.stream_path
        return f"{self.url}{path}/streams"

    def check_name(self, name: str) -> str:
        """Return the name. Raises ValueError if no stream can have this name: a URL would turn it into
        another name, or the server refuses it."""
        try:
            if self.bucket == PLAIN_BUCKET:
                parse_plain_path(quote(name), encoded=True)
            elif name in (".", LISTING):
                raise Malformed("In a bucket this name is reserved")
            else:
                check_stream_id(self.bucket, name)
        except ProtocolError as fault:
            raise ValueError(f"{name[:80]!r} cannot be a stream's name: {fault.message}") from fault
        return name

    def missing_text(self, *names: str) -> str:
        """Return the error text for missing streams or, without names, for a missing bucket. A server also
        answers 404 if the token does not allow the read."""
        what = f"stream in {self.bucket}: {', '.join(names)}" if names else f"bucket: {self.bucket}"
        if self.transport is Transport.DYNAMODB:
            return f"no such {what}"
        asked = self.stream_url(names[0] if names else "streams")
        return f"no such {what} ({asked} answers 404: check the address and the token's rights)"


CONNECTION_OPTIONS: Final = names_of(ConnectionOptions)


def parse_connection(asked: GivenOptions, environment: Mapping[str, str]) -> ConnectionOptions:
    settings = Settings.from_environment(environment)
    bucket = asked.text("bucket") or PLAIN_BUCKET
    endpoint = environment.get("AWS_ENDPOINT_URL")
    found = asked.fill(
        ConnectionOptions,
        transport=Transport.HTTP if asked.has("url") else Transport.DYNAMODB,
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"),
        s3_endpoint=environment.get("AWS_ENDPOINT_URL_S3") or endpoint,
        table=settings.table_name,
        blob_bucket=settings.bucket_name,
        dynamodb_endpoint=environment.get("AWS_ENDPOINT_URL_DYNAMODB") or endpoint,
        stream_path=_PLAIN_PATH if bucket == PLAIN_BUCKET else f"/{bucket}",
    )
    is_over_http = found.transport is Transport.HTTP
    if is_over_http and not asked.has("url"):
        asked.faults.append("transport=http needs url, the server's root such as https://streams.example.com")
    if asked.has("token") and asked.has("tokenFile"):
        asked.faults.append("give either token or tokenFile")
    others = (each.metadata for each in fields(found) if each.metadata["of"] not in (None, found.transport))
    given = [name for each in others for name in each["parsers"] if asked.has(name)]
    if given:
        asked.faults.append(f"{', '.join(given)} cannot go with transport={found.transport.value}: remove it")
    # Options appear in a job's arguments and Spark's plans; a token from the environment does not.
    if is_over_http and not (asked.has("token") or asked.has("tokenFile")):
        return replace(found, token=environment.get("TIDEMARK_TOKEN"))
    return found
