"""A subscription's configuration (§6.2), and its glob patterns over stream paths: `*` matches one segment,
`**` any number of segments.

A star inside a longer segment is a plain character. The segment `%2A` stands for a star in a name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote

import orjson

from tidemark.outbound.request import PORTS, Url, is_public, split_url
from tidemark.protocol.compaction import check_pointer
from tidemark.protocol.errors import InvalidSubscription, ProtocolError, WebhookUrlRejected
from tidemark.protocol.offset import EARLIEST, NOW, parse_token
from tidemark.protocol.stream_key import CONTROL_CHARACTER, parse_plain_path

ONE: Final = "*"
ANY: Final = "**"


def matches_pattern(pattern: str, path: str) -> bool:
    """Whether the whole path matches. Takes segments × segments steps for any number of `**`."""
    segments = path.split("/")
    # reachable[i]: the part of the pattern seen so far matches the first i segments.
    reachable = [True] + [False] * len(segments)
    for part in pattern.split("/"):
        if part == ANY:
            for index in range(1, len(reachable)):
                reachable[index] = reachable[index] or reachable[index - 1]
        else:
            literal = part.replace("%2A", ONE).replace("%2a", ONE)
            for index in range(len(segments), 0, -1):
                reachable[index] = reachable[index - 1] and (part == ONE or segments[index - 1] == literal)
            reachable[0] = False
    return reachable[-1]


def follows(pattern: str | None, wake_stream: str | None, path: str) -> bool:
    """Whether the pattern matches the stream. A subscription does not follow its own wake stream."""
    return pattern is not None and path != wake_stream and matches_pattern(pattern, path)


def literal_prefix(pattern: str) -> str:
    """The common prefix of all matching paths; the whole path if the pattern has no wildcard."""
    parts = [part.replace("%2A", ONE).replace("%2a", ONE) for part in pattern.split("/")]
    wild = next((index for index, part in enumerate(pattern.split("/")) if part in {ONE, ANY}), None)
    if wild is None:
        return "/".join(parts)
    # `a/**` matches `a` itself too, so the slash before `**` is not part of the prefix.
    before = "/".join(parts[:wild])
    return before + "/" if before and pattern.split("/")[wild] == ONE else before


def matching_path(pattern: str) -> str:
    """An example of a matching path, with "x" for each wildcard."""
    parts = pattern.split("/")
    return "/".join(
        "x" if part in {ONE, ANY} else part.replace("%2A", ONE).replace("%2a", ONE) for part in parts
    )


MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 600_000
DEFAULT_LEASE_MS: Final = 30_000
#: Below DynamoDB's limits of 2,048 bytes for a partition key and 1,024 for a sort key, with our prefixes.
MAX_ID_BYTES: Final = 500
MAX_DESCRIPTION_BYTES: Final = 1_000
MAX_ATTEMPTS: Final = 1_000
#: Most streams that one request names or acks. Further requests add more.
MAX_NAMED_STREAMS: Final = 1_000
#: Most bytes of the names at the creation, as JSON. A DynamoDB item has up to 400 KB; 20 remain for the rest.
MAX_NAMES_BYTES: Final = 380_000
MAX_URL_BYTES: Final = 2_000
NOT_PUBLIC: Final = "webhook.url must lead to an address of the public internet"
#: A label of a host name, in its ASCII form.
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
#: Names of this machine and of the local network (RFC 6761, RFC 6762, RFC 8375).
_LOCAL_NAMES: Final = (
    ".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".localdomain", ".test",
)  # fmt: skip


class SubscriptionKind(Enum):
    WEBHOOK = "webhook"
    PULL_WAKE = "pull-wake"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class SubscriptionConfiguration:
    """`streams` are the streams that the creation names; `normalize` sorts them."""

    kind: SubscriptionKind
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = DEFAULT_LEASE_MS
    description: str | None = None
    #: An extension: after `max_attempts` failures the delivery ends with an event in `dead_letter_stream`.
    #: Set together or not at all.
    max_attempts: int | None = None
    dead_letter_stream: str | None = None
    #: Of a shared subscription: the JSON pointer to a message's key, and where it begins if not at the tail.
    key: str | None = None
    offset: str | None = None

    def follows(self, path: str) -> bool:
        return follows(self.pattern, self.wake_stream, path)

    def check_named(self, paths: Collection[str]) -> None:
        """Refuse the streams that the subscription itself writes: each event would cause the next. Raises
        InvalidSubscription."""
        for name in ("wake_stream", "dead_letter_stream"):
            if (path := getattr(self, name)) in paths:
                raise InvalidSubscription(f"A subscription cannot follow its own {name}, {path!r}")


def check_subscription_id(subscription_id: str) -> str:
    """Raises InvalidSubscription."""
    size = len(subscription_id.encode())
    if not 0 < size <= MAX_ID_BYTES or "/" in subscription_id or CONTROL_CHARACTER.search(subscription_id):
        raise InvalidSubscription(
            f"A subscription id has 1 to {MAX_ID_BYTES} bytes, no slash and no control characters"
        )
    return subscription_id


def normalize(asked: SubscriptionConfiguration) -> SubscriptionConfiguration:
    """Check all but the webhook's URL, and return the normal form. Raises InvalidSubscription."""
    _check_kind(asked)
    if not MIN_LEASE_MS <= asked.lease_ttl_ms <= MAX_LEASE_MS:
        raise InvalidSubscription(
            f"lease_ttl_ms must be an integer from {MIN_LEASE_MS} to {MAX_LEASE_MS}, got {asked.lease_ttl_ms}"
        )
    if asked.description is not None and len(asked.description.encode()) > MAX_DESCRIPTION_BYTES:
        raise InvalidSubscription(f"description is too long: at most {MAX_DESCRIPTION_BYTES} bytes")
    paths = tuple(sorted({stream_path(stream) for stream in asked.streams}))
    wake_path = stream_path(asked.wake_stream) if asked.wake_stream else None
    if len(paths) > MAX_NAMED_STREAMS or len(orjson.dumps(paths)) > MAX_NAMES_BYTES:
        raise InvalidSubscription(
            f"One request names at most {MAX_NAMED_STREAMS} streams, with at most {MAX_NAMES_BYTES} bytes of "
            "names; add the others afterwards"
        )
    pattern = stream_path(asked.pattern) if asked.pattern else None
    letters = _dead_letter_path(asked, pattern, wake_path)
    normal = replace(
        asked,
        pattern=pattern,
        streams=paths,
        wake_stream=wake_path,
        dead_letter_stream=letters,
        offset=None if asked.offset == NOW else asked.offset,
    )
    normal.check_named(paths)
    return normal


def _check_kind(asked: SubscriptionConfiguration) -> None:
    """Raises InvalidSubscription unless the settings are those of the kind."""
    kind, others = asked.kind, ("pattern",) if asked.kind is SubscriptionKind.SHARED else ("key", "offset")
    for name, value, needed_by in (
        ("webhook", asked.webhook_url, SubscriptionKind.WEBHOOK),
        ("wake_stream", asked.wake_stream, SubscriptionKind.PULL_WAKE),
        *((other, getattr(asked, other), None) for other in others),
    ):
        if value and kind is not needed_by:
            raise InvalidSubscription(f"A {kind.value} subscription has no {name}; leave it out")
        if not value and kind is needed_by:
            needed = "webhook.url" if name == "webhook" else name
            raise InvalidSubscription(f"A {kind.value} subscription needs {needed}")
    if kind is SubscriptionKind.SHARED and len(asked.streams) != 1:
        raise InvalidSubscription(f"A shared subscription has one stream, got {len(asked.streams)}")
    if not asked.pattern and not asked.streams:
        raise InvalidSubscription("A subscription needs pattern, streams or both")
    if asked.key is not None:
        check_pointer("key", asked.key, InvalidSubscription)
    if asked.offset not in {None, EARLIEST, NOW} and parse_token(asked.offset or "") is None:
        raise InvalidSubscription(
            f"offset must be {EARLIEST} (the earliest message), {NOW} or an offset, got {asked.offset!r:.60}"
        )


def parse_webhook_url(text: str, *, allow_local: bool) -> Url:
    """Check the text of a webhook's URL (§6.2, §12.8); each delivery checks the addresses of its host. Raises
    WebhookUrlRejected. `allow_local`, for development, also accepts plain HTTP to localhost and 127.0.0.x."""
    if len(text.encode()) > MAX_URL_BYTES or not text.isascii() or re.search(r"[\x00-\x20\x7f\\]", text):
        raise WebhookUrlRejected(
            f"webhook.url must be ASCII without spaces and backslashes, at most {MAX_URL_BYTES} bytes"
        )
    try:
        url, authority = split_url(text)
    except ValueError:
        raise WebhookUrlRejected("webhook.url is not a valid URL") from None
    if url.scheme not in PORTS:
        raise WebhookUrlRejected("webhook.url must begin with https://")
    if "@" in authority or "#" in text or "%" in authority:
        raise WebhookUrlRejected("webhook.url must have no user, no fragment and no escapes in its host")
    if url.scheme == "http":
        if allow_local and _is_local_host(url.host):
            return url
        allowed = " (or http:// to localhost)" if allow_local else ""
        raise WebhookUrlRejected(f"webhook.url must begin with https://{allowed}")
    if url.port != PORTS["https"]:
        raise WebhookUrlRejected(f"webhook.url must use port {PORTS['https']}, got {url.port}")
    _check_host(url.host, is_bracketed="[" in authority)
    return url


def _is_local_host(host: str) -> bool:
    """Whether the host is `localhost` or `127.0.0.x`. §6.2 allows no other address of 127.0.0.0/8."""
    last = host.removeprefix("127.0.0.")
    return host == "localhost" or (last != host and last in map(str, range(256)))


def _check_host(host: str, *, is_bracketed: bool) -> None:
    """Accept a public name, or a public address in its canonical form. Some resolvers read other forms as
    addresses too (`2130706433`, `0x7f.1`, `127.1`): those are refused. Raises WebhookUrlRejected."""
    name = host.removesuffix(".")
    labels = name.split(".")
    if is_bracketed or re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", labels[-1]):
        try:
            address = IPv6Address(host) if is_bracketed else IPv4Address(host)
        except ValueError:
            raise WebhookUrlRejected("webhook.url has no valid host") from None
        if not is_public(address):
            raise WebhookUrlRejected(NOT_PUBLIC)
    elif len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise WebhookUrlRejected(
            "webhook.url has no valid host; a name beyond ASCII is written in its xn-- form"
        )
    elif len(labels) < 2 or name.endswith(_LOCAL_NAMES):
        raise WebhookUrlRejected("webhook.url must name a host of the public internet")


def _dead_letter_path(
    asked: SubscriptionConfiguration, pattern: str | None, wake_path: str | None
) -> str | None:
    """Raises InvalidSubscription."""
    if asked.max_attempts is None and asked.dead_letter_stream is None:
        return None
    if asked.max_attempts is None or not asked.dead_letter_stream:
        raise InvalidSubscription("max_attempts and dead_letter_stream go together")
    if not 1 <= asked.max_attempts <= MAX_ATTEMPTS:
        raise InvalidSubscription(f"max_attempts must be from 1 to {MAX_ATTEMPTS}, got {asked.max_attempts}")
    path = stream_path(asked.dead_letter_stream)
    if path == wake_path or follows(pattern, None, path):
        raise InvalidSubscription(
            f"dead_letter_stream must not be wake_stream and must not match pattern, got {path!r}"
        )
    return path


def stream_path(path: str) -> str:
    """A stream's path below the stream root, without slashes around it. Raises InvalidSubscription."""
    try:
        # `path` is plain text: quoted, so that `parse_plain_path` decodes it to the same text.
        return parse_plain_path(quote(path.strip("/")), encoded=True).stream_id
    except ProtocolError as error:
        raise InvalidSubscription(f"{path[:80]!r} is not a stream path: {error.message}") from None
