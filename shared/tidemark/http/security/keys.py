"""Keys that tokens are checked with: shared secrets, and public keys fetched by URL.

The key decides which algorithm it is for; the token's header does not. So a public key cannot serve as
a shared secret, nor `none` as a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import jwt
import urllib3

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.http.security.refreshing_cache import WITH_SSM, CannotFetch, RefreshingCache
from tidemark.protocol.errors import KeysUnavailable
from tidemark.settings import AuthorizationSettings, InvalidSetting, split_secret

SHARED_ALGORITHM: Final = "HS256"
PUBLIC_ALGORITHMS: Final = frozenset({"RS256", "ES256", "EdDSA"})
_MAX_DOCUMENT_BYTES: Final = 256 * 1024
_TIMEOUT: Final = urllib3.Timeout(connect=2, read=3)

PublicKeys = Mapping[str | None, jwt.PyJWK]


class Keys(Protocol):
    def find(self, algorithm: str, key_id: str | None) -> tuple[Any, ...]:
        """The keys that may have signed such a token. Raises KeysUnavailable."""


class SharedKeys:
    """Secrets of HS256. All of them hold: that is how they are rotated."""

    def __init__(self, secrets: RefreshingCache[tuple[bytes, ...]]) -> None:
        self._secrets = secrets

    def find(self, algorithm: str, _key_id: str | None) -> tuple[Any, ...]:
        if algorithm != SHARED_ALGORITHM:
            return ()
        secrets = self._secrets.get()
        if secrets is None:
            raise KeysUnavailable
        return secrets


class PublishedKeys:
    """Keys of a JWKS document (RFC 7517). An unknown id is a reason to look for new ones."""

    def __init__(self, keys: RefreshingCache[PublicKeys]) -> None:
        self._keys = keys

    def find(self, algorithm: str, key_id: str | None) -> tuple[Any, ...]:
        if algorithm not in PUBLIC_ALGORITHMS:
            return ()
        keys = self._keys.get(lambda known: key_id is None or key_id in known)
        if keys is None:
            raise KeysUnavailable
        if key_id is None:
            found = next(iter(keys.values())) if len(keys) == 1 else None
        else:
            found = keys.get(key_id)
        return (found,) if found is not None and found.algorithm_name == algorithm else ()


def keys_of(settings: AuthorizationSettings) -> tuple[Keys, ...]:
    keys: list[Keys] = []
    if settings.secret:
        secrets = split_secret(settings.secret, "AUTH_SECRET")
        keys.append(SharedKeys(RefreshingCache(lambda: secrets)))
    if settings.secret_name:
        secrets_in_ssm = RefreshingCache(lambda: fetch_secrets(settings.secret_name), patience=WITH_SSM)
        keys.append(SharedKeys(secrets_in_ssm))
    if settings.jwks_url:
        keys.append(PublishedKeys(RefreshingCache(lambda: fetch_public_keys(settings.jwks_url))))
    return tuple(keys)


def fetch_secrets(name: str, load: Callable[[str], str] = load_parameter) -> tuple[bytes, ...]:
    """Raises CannotFetch."""
    try:
        return split_secret(load(name), f"The parameter {name}")
    except ParameterUnavailable as failure:
        raise CannotFetch(str(failure), throttled=failure.throttled) from None
    except InvalidSetting as failure:
        raise CannotFetch(str(failure)) from None


def fetch_public_keys(url: str) -> PublicKeys:
    """Raises CannotFetch."""
    try:
        with urllib3.PoolManager() as pool:
            response = pool.request(
                "GET", url, timeout=_TIMEOUT, retries=False, redirect=False, preload_content=False
            )
            document = response.read(_MAX_DOCUMENT_BYTES + 1)
            response.drain_conn() if len(document) <= _MAX_DOCUMENT_BYTES else response.close()
    except urllib3.exceptions.HTTPError as failure:
        raise CannotFetch(f"{url}: {type(failure).__name__}") from None
    if response.status != 200 or len(document) > _MAX_DOCUMENT_BYTES:
        raise CannotFetch(f"{url}: status {response.status}, {len(document)} bytes")
    return parse_public_keys(document, url)


def parse_public_keys(document: bytes, source: str) -> PublicKeys:
    """The keys that we can use; others may be beside them. Raises CannotFetch."""
    found: dict[str | None, jwt.PyJWK] = {}
    try:
        for entry in json.loads(document)["keys"]:
            if (
                not isinstance(entry, dict)
                or entry.get("use", "sig") != "sig"
                or "d" in entry
                or "k" in entry
            ):
                continue
            try:
                key = jwt.PyJWK(entry)
            except (jwt.PyJWTError, ValueError, TypeError, KeyError):
                continue
            if key.algorithm_name in PUBLIC_ALGORITHMS:
                found[key.key_id] = key
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CannotFetch(f"{source}: not a JSON Web Key Set") from None
    if not found:
        raise CannotFetch(f"{source}: no key for {', '.join(sorted(PUBLIC_ALGORITHMS))}")
    return found
