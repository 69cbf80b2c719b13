"""Settings: every environment variable the application reads, in one place.

A plain dataclass rather than a settings library: every cold start imports it. A variable that is
empty counts as not set. The variables of the server alone are in `server/serve.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

#: RFC 7518 §3.2: a key of HS256 has at least as many bits as its hash.
MIN_SECRET_BYTES: Final = 32
MAX_WAIT_SECONDS: Final = 900.0
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


class InvalidSetting(ValueError):
    """An environment variable has a value that cannot be used. The message names the variable and
    never shows what might be a secret."""


@dataclass(frozen=True, slots=True)
class AuthorizationSettings:
    """The variables behind `docs/authorization.md`. `repr` leaves secrets out, and so do logs."""

    #: HS256 keys, one per line: several during a rotation.
    secret: str = field(default="", repr=False)
    #: The name of the SSM parameter that holds the same.
    secret_name: str = ""
    #: The URL of the public keys of RS256, ES256 and EdDSA.
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""
    #: Buckets whose streams anybody may read without a token.
    public_read_buckets: frozenset[str] = frozenset()
    #: Whether everybody may read and write without a key, pages of other origins included;
    allow_anonymous: bool = False
    #: or the origins whose pages may, beside the server's own (`http/security/open_server.py`).
    anonymous_origins: frozenset[str] = frozenset()
    #: The name of the SSM parameter that holds the origin secret,
    edge_secret_name: str = ""
    #: or the origin secret itself, as the stack made it.
    edge_secret: str = field(default="", repr=False)
    #: Whether requests without the origin secret are refused, where there is one.
    edge_only: bool = True

    @property
    def is_on(self) -> bool:
        return bool(self.secret or self.secret_name or self.jwks_url)

    @property
    def has_edge(self) -> bool:
        """Whether there is a distribution in front: then it sends the origin secret, required or not."""
        return bool(self.edge_secret or self.edge_secret_name)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AuthorizationSettings:
        """Raises InvalidSetting."""
        anonymous = environment.get("ALLOW_ANONYMOUS") or ""
        is_list = "://" in anonymous
        settings = cls(
            secret=environment.get("AUTH_SECRET") or "",
            secret_name=environment.get("AUTH_SECRET_NAME") or "",
            jwks_url=environment.get("AUTH_JWKS_URL") or "",
            issuer=environment.get("AUTH_ISSUER") or "",
            audience=environment.get("AUTH_AUDIENCE") or "",
            public_read_buckets=frozenset(
                (environment.get("PUBLIC_READ_BUCKETS") or "").replace(",", " ").split()
            ),
            allow_anonymous=not is_list and parse_boolean(environment, "ALLOW_ANONYMOUS", default=False),
            anonymous_origins=_parse_origins(anonymous) if is_list else frozenset(),
            edge_secret_name=environment.get("EDGE_SECRET_NAME") or "",
            edge_secret=environment.get("EDGE_SECRET") or "",
            edge_only=parse_boolean(environment, "EDGE_ONLY", default=True),
        )
        settings.check()
        return settings

    def check(self) -> None:
        """Raises InvalidSetting for settings that contradict each other or cannot be safe."""
        if self.secret:
            split_secret(self.secret, "AUTH_SECRET")
        if (self.allow_anonymous or self.anonymous_origins) and self.is_on:
            raise InvalidSetting("ALLOW_ANONYMOUS contradicts the keys that are set: remove one of them")
        if self.edge_secret and self.edge_secret_name:
            raise InvalidSetting("EDGE_SECRET contradicts EDGE_SECRET_NAME: remove one of them")
        if not self.jwks_url:
            return
        # Over plain HTTP, anybody on the way could put in keys of his own and sign with them.
        url = urlsplit(self.jwks_url)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in _LOOPBACK):
            raise InvalidSetting(f"AUTH_JWKS_URL must begin with https://, got {self.jwks_url!r}")
        # The same keys sign tokens for other services too; only the audience tells them apart.
        if not self.audience:
            raise InvalidSetting("AUTH_JWKS_URL needs AUTH_AUDIENCE: the aud claim of tokens for this server")

    def check_not_open(self, host: str | None = None) -> None:
        """Raises InvalidSetting if the server would be open to everybody without ALLOW_ANONYMOUS.

        `host` is the address where it would listen; None is the internet, where origins protect nothing."""
        if self.is_on or self.allow_anonymous or host in _LOOPBACK:
            return
        if host is not None and self.anonymous_origins:
            return
        where = f"Listening on {host}" if host else "This function"
        raise InvalidSetting(
            f"{where} would be open to everybody: set AUTH_SECRET_NAME, AUTH_SECRET or AUTH_JWKS_URL, "
            "or ALLOW_ANONYMOUS=true if everybody may read and write"
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """Units are in the names. The defaults suit AWS: an HTTP API ends a request at 30 s."""

    table_name: str = "tidemark"
    bucket_name: str = "tidemark-blobs"
    #: Begins the name of every queue that wakes a process. The janitor removes orphans by it, so
    #: two systems of one account must not share it.
    queue_prefix: str = "tidemark-wake-"
    long_poll_seconds: float = 25.0
    #: How long a streamed SSE response lasts (§5.8: about 60 s).
    sse_seconds: float = 55.0
    #: How long an SSE response waits for data where the platform sends it only once complete.
    sse_buffered_seconds: float = 1.0
    #: How many requests a second a server accepts; 0 is no limit. An HTTP API has a limit of its own.
    requests_per_second: float = 0.0
    #: How old batches are before they are packed; 0 packs as soon as the janitor comes.
    #: Less than an hour is for tests and demonstrations: an append may be lost (`docs/internals/packs.md`).
    pack_after_seconds: float = 3600.0
    #: The lowest severity that a deployed function logs; INFO writes a line for every request.
    log_level: str = "WARNING"
    #: The CloudWatch namespace of a deployed function's metrics.
    metrics_namespace: str = "Tidemark"
    #: The queue of the function that delivers to subscriptions. Without it nothing is delivered.
    subscriptions_queue_url: str = ""
    #: The location of the private keys that sign webhooks: `ssm:` and the beginning of parameters' names, or
    #: a folder. Without it there are no webhooks.
    webhook_keys: str = ""
    #: The public URL of this server, for receivers of webhooks: scheme and host, without a slash at the end.
    public_url: str = ""
    #: Where clients open a socket: a path of this server, or a `wss://` URL. Empty: nowhere.
    socket_url: str = ""
    #: Where functions send to its connections: `https://` and the stage (`@connections`).
    socket_endpoint: str = ""
    #: The upstreams that the durable proxy may call (`protocol/proxy.py: parse_allowed`). Empty: none.
    proxy_allow: str = ""
    authorization: AuthorizationSettings = field(default_factory=AuthorizationSettings)

    @property
    def allows_local_webhooks(self) -> bool:
        """Webhooks by plain HTTP to this very machine: where the server itself is reached there alone."""
        return urlsplit(self.public_url).hostname in _LOOPBACK

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Raises InvalidSetting."""
        default = cls(sse_seconds=parse_seconds(environment, "SSE_SECONDS", cls().sse_seconds))
        longest = min(default.long_poll_seconds, default.sse_seconds)
        return cls(
            table_name=environment.get("TABLE_NAME") or default.table_name,
            bucket_name=environment.get("BUCKET_NAME") or default.bucket_name,
            queue_prefix=environment.get("QUEUE_PREFIX") or default.queue_prefix,
            long_poll_seconds=parse_seconds(environment, "LONG_POLL_SECONDS", longest),
            sse_seconds=default.sse_seconds,
            sse_buffered_seconds=parse_seconds(
                environment, "SSE_BUFFERED_SECONDS", default.sse_buffered_seconds
            ),
            requests_per_second=parse_number(
                environment, "REQUESTS_PER_SECOND", default.requests_per_second, "a number, 0 for no limit"
            ),
            pack_after_seconds=parse_number(
                environment, "PACK_AFTER_SECONDS", default.pack_after_seconds, "seconds, 3600 or more in AWS"
            ),
            log_level=parse_choice(environment, "LOG_LEVEL", LOG_LEVELS, default.log_level),
            metrics_namespace=environment.get("METRICS_NAMESPACE") or default.metrics_namespace,
            subscriptions_queue_url=environment.get("SUBSCRIPTIONS_QUEUE_URL") or "",
            webhook_keys=environment.get("WEBHOOK_KEYS") or "",
            public_url=_parse_public_url(environment.get("PUBLIC_URL") or ""),
            socket_url=environment.get("SOCKET_URL") or "",
            socket_endpoint=environment.get("SOCKET_ENDPOINT") or "",
            proxy_allow=environment.get("PROXY_ALLOW") or "",
            authorization=AuthorizationSettings.from_environment(environment),
        )


def parse_boolean(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The one rule for every variable that is true or false. Raises InvalidSetting."""
    given = environment.get(name) or ""
    value = given.strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    if value:
        raise InvalidSetting(f"{name} must be true or false (or 1, yes, on; 0, no, off), got {given!r}")
    return default


def parse_number(
    environment: Mapping[str, str],
    name: str,
    default: float,
    right: str,
    *,
    most: float = sys.float_info.max,
    least: float = 0.0,
) -> float:
    """The one rule for every variable that is a number; `right` says what would be right. Raises
    InvalidSetting."""
    given = environment.get(name) or str(default)
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InvalidSetting(f"{name} must be {right}, got {given!r}")
    return number


def parse_seconds(
    environment: Mapping[str, str], name: str, default: float, most: float = MAX_WAIT_SECONDS
) -> float:
    """Raises InvalidSetting."""
    return parse_number(environment, name, default, f"a number of seconds between 0 and {most:g}", most=most)


def parse_choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    """Raises InvalidSetting."""
    value = environment.get(name) or default
    if value not in choices:
        raise InvalidSetting(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}")
    return value


def split_secret(text: str, name: str) -> tuple[bytes, ...]:
    """The keys in a secret, one per line. Raises InvalidSetting, which quotes none of them."""
    keys = tuple(line.encode() for line in text.split())
    if not keys or min(map(len, keys)) < MIN_SECRET_BYTES:
        raise InvalidSetting(f"{name} must hold keys of at least {MIN_SECRET_BYTES} bytes, one per line")
    return keys


def _parse_origins(text: str) -> frozenset[str]:
    origins = text.lower().replace(",", " ").split()
    for origin in origins:
        if not _is_origin(origin):
            raise InvalidSetting(
                f"ALLOW_ANONYMOUS must be true, false or origins, as http://localhost:5173, got {origin!r}"
            )
    return frozenset(origins)


def _parse_public_url(text: str) -> str:
    if text and not _is_origin(text.lower()):
        raise InvalidSetting(f"PUBLIC_URL must be a scheme and a host, as https://example.com, got {text!r}")
    return text


def _is_origin(text: str) -> bool:
    try:
        url = urlsplit(text)
        return bool(url.hostname) and text in {f"http://{url.netloc}", f"https://{url.netloc}"}
    except ValueError:  # A bracket without its other one.
        return False
