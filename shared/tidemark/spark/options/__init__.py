"""Options that reads and writes share: the connection, the parser and the report of invalid options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

from tidemark.protocol.errors import Malformed, PicklableError, ProtocolError
from tidemark.protocol.stream_key import LISTING, PLAIN_BUCKET, check_stream_id, parse_plain_path
from tidemark.settings import Settings

_T = TypeVar("_T")

MEGABYTE: Final = 1024 * 1024
#: Spark's own options, which Spark passes to every source and sink.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path", "mergeschema"})


def option(name: str, parse: Callable[[str], object], default: object = None, **how: Any) -> Any:
    """Return the field of an option in a dataclass of options."""
    return field(default=default, metadata={"name": name, "parse": parse}, **how)


def names_of(options: type) -> tuple[str, ...]:
    return tuple(each.metadata["name"] for each in fields(options) if each.metadata)


class InvalidOptions(PicklableError, ValueError):
    """All invalid options of one read or write."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("tidemark: " + "; ".join(faults))


class GivenOptions:
    """The user's options, whose names are case-insensitive, and their faults."""

    def __init__(
        self, given: Mapping[str, str], known: tuple[str, ...], instead: Mapping[str, str] | None = None
    ) -> None:
        """`instead` has hints for options of another source that have another name here."""
        self._given = {name.lower(): str(value) for name, value in dict(given).items()}
        self.faults: list[str] = []
        by_lower = {name.lower(): name for name in known}
        hints = {name.lower(): hint for name, hint in (instead or {}).items()}
        for name in sorted(self._given.keys() - by_lower.keys() - SPARKS_OWN):
            near = difflib.get_close_matches(name, by_lower, n=1)
            guess = f"did you mean {by_lower[near[0]]}?" if near else f"known: {', '.join(known)}"
            hint = hints.get(name, guess)
            self.faults.append(f"unknown option {name} ({hint})")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name.lower()) or default

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
            if each.metadata:
                default = known.get(each.name, each.default)
                known[each.name] = self.parse(each.metadata["name"], default, each.metadata["parse"])
        return options(**known)

    def finish(self) -> None:
        if self.faults:
            raise InvalidOptions(self.faults)


def parse_whole(text: str, what: str, least: int = 0) -> int:
    """Parse a whole number. `what` describes the valid values in the error text."""
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"must be {what}, got {text!r}")
    return int(text)


parse_size = partial(parse_whole, what="a whole number of bytes above 0", least=1)
parse_seconds = partial(parse_whole, what="a whole number of seconds")


def parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, got {text!r}")
    return text.lower() == "true"


_BUCKET: Final = re.compile(r"[a-z0-9_-]{4,64}", re.ASCII)
#: Characters that need no percent-encoding in a URL's path (RFC 3986 §3.3).
_PATH_CHARACTERS: Final = "/:@!$&'()*+,;="
#: The URL path of the plain surface, whose streams have no bucket.
_PLAIN_PATH: Final = "/v1/stream"

_OF_HTTP: Final = ("url", "streamPath", "token", "tokenFile")
_OF_DYNAMODB: Final = ("table", "blobBucket", "dynamodbEndpoint")


class Transport(Enum):
    DYNAMODB = "dynamodb"
    HTTP = "http"


def parse_transport(text: str) -> Transport:
    try:
        return Transport(text.lower())
    except ValueError:
        raise ValueError(f"must be dynamodb or http, got {text!r}") from None


def parse_bucket(text: str) -> str:
    if text != PLAIN_BUCKET and not _BUCKET.fullmatch(text):
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

    transport: Transport = Transport.DYNAMODB
    bucket: str = option("bucket", parse_bucket, PLAIN_BUCKET)
    region: str | None = option("region", str)
    #: Also for writes over HTTP, which may stage in S3.
    s3_endpoint: str | None = option("s3Endpoint", str)
    #: Seconds for which a request is retried after no answer or a retryable status.
    retry_seconds: int = option("retrySeconds", parse_seconds, 30)
    table: str = option("table", str, "")
    blob_bucket: str = option("blobBucket", str, "")
    dynamodb_endpoint: str | None = option("dynamodbEndpoint", str)
    url: str = option("url", parse_url, "")
    stream_path: str = option("streamPath", parse_stream_option, "")
    token: str | None = option("token", parse_token_option, repr=False)
    #: A file with the token. Every process reads it before each request, so the token may be renewed.
    token_file: str = option("tokenFile", str, "")

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


CONNECTION_OPTIONS: Final = ("transport", *names_of(ConnectionOptions))


def parse_connection(asked: GivenOptions, environment: Mapping[str, str]) -> ConnectionOptions:
    settings = Settings.from_environment(environment)
    default = Transport.HTTP if asked.has("url") else Transport.DYNAMODB
    transport = asked.parse("transport", default, parse_transport)
    _check_transport(asked, transport)
    bucket = asked.text("bucket", PLAIN_BUCKET)
    endpoint = environment.get("AWS_ENDPOINT_URL")
    # Options appear in a job's arguments and Spark's plans; a token from the environment does not.
    is_without = transport is Transport.HTTP and not asked.has("tokenFile")
    return asked.fill(
        ConnectionOptions,
        transport=transport,
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"),
        s3_endpoint=environment.get("AWS_ENDPOINT_URL_S3") or endpoint,
        table=settings.table_name,
        blob_bucket=settings.bucket_name,
        dynamodb_endpoint=environment.get("AWS_ENDPOINT_URL_DYNAMODB") or endpoint,
        stream_path=_PLAIN_PATH if bucket == PLAIN_BUCKET else f"/{bucket}",
        token=environment.get("TIDEMARK_TOKEN") if is_without else None,
    )


def _check_transport(asked: GivenOptions, transport: Transport) -> None:
    if transport is Transport.HTTP and not asked.has("url"):
        asked.faults.append("transport=http needs url, the server's root such as https://streams.example.com")
    if asked.has("token") and asked.has("tokenFile"):
        asked.faults.append("give either token or tokenFile")
    others = _OF_HTTP if transport is Transport.DYNAMODB else _OF_DYNAMODB
    given = [name for name in others if asked.has(name)]
    if given:
        asked.faults.append(f"{', '.join(given)} cannot go with transport={transport.value}: remove it")
