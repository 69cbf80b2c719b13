"""Settings of who may come in: the environment variables behind `docs/authorization.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

#: RFC 7518 §3.2: a key of HS256 has at least as many bits as its hash.
MIN_SECRET_BYTES: Final = 32
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}


class InvalidSetting(ValueError):
    """An environment variable has a value that cannot be used; the message names it, and
    never shows what might be a secret."""


@dataclass(frozen=True, slots=True)
class AuthorizationSettings:
    """Who may come in. Secrets are kept out of `repr`, and so out of logs."""

    #: Keys of HS256, one a line: several while they are being rotated.
    secret: str = field(default="", repr=False)
    #: The name of the SSM parameter that holds the same.
    secret_name: str = ""
    #: Where the public keys of RS256, ES256 and EdDSA are published.
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""
    #: Buckets whose streams anybody may read, without a token.
    public_read_buckets: frozenset[str] = frozenset()
    allow_anonymous: bool = False
    #: The name of the SSM parameter with the word that the distribution in front says,
    edge_secret_name: str = ""
    #: or that word itself, as the stack made it.
    edge_secret: str = field(default="", repr=False)

    @property
    def is_on(self) -> bool:
        return bool(self.secret or self.secret_name or self.jwks_url)

    @property
    def is_edge_only(self) -> bool:
        """Whether requests must come through the distribution in front."""
        return bool(self.edge_secret or self.edge_secret_name)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AuthorizationSettings:
        """Raises InvalidSetting."""
        settings = cls(
            secret=environment.get("AUTH_SECRET") or "",
            secret_name=environment.get("AUTH_SECRET_NAME") or "",
            jwks_url=environment.get("AUTH_JWKS_URL") or "",
            issuer=environment.get("AUTH_ISSUER") or "",
            audience=environment.get("AUTH_AUDIENCE") or "",
            public_read_buckets=frozenset(
                (environment.get("PUBLIC_READ_BUCKETS") or "").replace(",", " ").split()
            ),
            allow_anonymous=_flag(environment, "ALLOW_ANONYMOUS"),
            edge_secret_name=environment.get("EDGE_SECRET_NAME") or "",
            edge_secret=environment.get("EDGE_SECRET") or "",
        )
        _check(settings)
        return settings

    def check_not_open(self, host: str | None = None) -> None:
        """Raises InvalidSetting for a server that would let everybody in unasked.
        `host` is where it would listen; None is out on the internet."""
        if self.is_on or self.allow_anonymous or host in LOOPBACK:
            return
        where = f"Listening on {host}" if host else "This function"
        raise InvalidSetting(
            f"{where} would be open to everybody: set AUTH_SECRET_NAME, AUTH_SECRET or AUTH_JWKS_URL, "
            "or ask for it by name with ALLOW_ANONYMOUS=true"
        )


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = (environment.get(name) or "").strip().lower()
    if value not in _TRUE:
        raise InvalidSetting(f"{name} must be true or false, got {value!r}")
    return _TRUE[value]


def _check(settings: AuthorizationSettings) -> None:
    if settings.secret:
        split_secret(settings.secret, "AUTH_SECRET")
    if settings.allow_anonymous and settings.is_on:
        raise InvalidSetting("ALLOW_ANONYMOUS=true contradicts the keys that are set: take one of them away")
    if settings.jwks_url:
        _check_jwks(settings)
    if settings.edge_secret and settings.edge_secret_name:
        raise InvalidSetting("EDGE_SECRET contradicts EDGE_SECRET_NAME: take one of them away")


def _check_jwks(settings: AuthorizationSettings) -> None:
    """Whoever can put himself between us and the keys can sign; and keys that sign for
    others' services too say nothing without the audience."""
    url = urlsplit(settings.jwks_url)
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in LOOPBACK):
        raise InvalidSetting("AUTH_JWKS_URL must begin with https://")
    if not settings.audience:
        raise InvalidSetting("AUTH_JWKS_URL needs AUTH_AUDIENCE: which tokens of its issuer are meant for us")


def split_secret(text: str, name: str) -> tuple[bytes, ...]:
    """The keys in a secret, one a line. Raises InvalidSetting, never quoting one."""
    keys = tuple(line.encode() for line in text.split())
    if not keys or min(map(len, keys)) < MIN_SECRET_BYTES:
        raise InvalidSetting(f"{name} must hold keys of at least {MIN_SECRET_BYTES} bytes, one a line")
    return keys
