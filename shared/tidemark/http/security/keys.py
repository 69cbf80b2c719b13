"""Keys that tokens are checked with: shared secrets, and public keys fetched by URL.

The key decides which algorithm it is for; the token's header does not. So a public key cannot serve as
a shared secret, nor `none` as a key.
"""

from __future__ import annotations

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import jwt
import urllib3

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.observability.metrics import KEY_FAILURES, PROCESS
from tidemark.protocol.errors import KeysUnavailable
from tidemark.settings import AuthorizationSettings, InvalidSetting, split_secret

_log = logging.getLogger("tidemark")
_T = TypeVar("_T")

#: How long a fetched value counts as current: a withdrawn key is accepted for so long.
FRESH_SECONDS: Final = 300.0
#: How often a caller that misses something in the value may make us fetch it again.
MISSING_SECONDS: Final = 30.0
#: How soon a failed fetch is tried again.
FAILED_SECONDS: Final = 5.0
#: How long an old value is used while no newer one can be fetched.
STALE_SECONDS: Final = 24 * 3600.0
#: How long a caller waits for the first value where the source is only busy. After a deployment all
#: environments ask SSM in the same seconds. The HTTP API gives up at thirty, and storage needs some of them.
PATIENCE_SECONDS: Final = 15.0
#: Between two attempts of that: half of it on average.
LONGEST_PAUSE_SECONDS: Final = 4.0


class CannotFetch(Exception):
    """The value is not there, or is not valid. The message quotes nothing of it."""

    def __init__(self, message: str, *, throttled: bool = False) -> None:
        super().__init__(message)
        self.throttled = throttled


class Patience:
    """The patience of callers, for all values that one source is asked for: a request that needs two of them
    does not wait twice as long."""

    def __init__(self) -> None:
        self._until = -math.inf

    def until(self, now: float) -> float:
        """The time at which a caller gives up. After that and a pause, callers have patience anew."""
        if now > self._until + FAILED_SECONDS:
            self._until = now + PATIENCE_SECONDS
        return self._until


#: A process has one retry budget for all SSM parameters.
WITH_SSM: Final = Patience()


def pauses(clock: Callable[[], float], patience: Patience | None = None) -> Iterator[float]:
    """Pauses between the attempts to fetch a first value from a busy source, for as long as a caller waits.
    Random, so that environments that began together do not ask together again."""
    give_up_at = (patience or Patience()).until(clock())
    while clock() < give_up_at:
        yield random.uniform(0, LONGEST_PAUSE_SECONDS)


class RefreshingCache(Generic[_T]):
    """Safe to share between threads, one of which fetches."""

    def __init__(
        self,
        fetch: Callable[[], _T],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience: Patience | None = None,
    ) -> None:
        self._fetch = fetch
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._value: _T | None = None
        self._fetched_at = self._tried_at = -math.inf
        self._failed = False

    def get(self, is_enough: Callable[[_T], bool] = lambda _: True) -> _T | None:
        """The value, fetched again where it is old or not enough; None if none can be fetched. A caller for
        whom the old value is enough does not wait for one that fetches."""
        old, fetched_at = self._value, self._fetched_at
        serves = old is not None and self._clock() - fetched_at <= STALE_SECONDS and is_enough(old)
        if not self._lock.acquire(blocking=not serves):
            return old
        try:
            return self._refreshed(is_enough)
        finally:
            self._lock.release()

    def _refreshed(self, is_enough: Callable[[_T], bool]) -> _T | None:
        now = self._clock()
        may_try = now - self._tried_at >= (FAILED_SECONDS if self._failed else MISSING_SECONDS)
        is_old = self._value is None or now - self._fetched_at > FRESH_SECONDS
        if may_try and (is_old or (self._value is not None and not is_enough(self._value))):
            self._tried_at, self._failed = now, True
            try:
                self._value = self._fetch_patiently()
            except CannotFetch as failure:
                PROCESS.add(KEY_FAILURES)
                _log.warning("keys cannot be fetched: %s", failure)
            else:
                self._fetched_at, self._failed = now, False
        return self._value if now - self._fetched_at <= STALE_SECONDS else None

    def _fetch_patiently(self) -> _T:
        """Raises CannotFetch. If there is an old value, a busy source is not retried."""
        for pause in pauses(self._clock, self._patience):
            try:
                return self._fetch()
            except CannotFetch as failure:
                if not failure.throttled or self._value is not None:
                    raise
            self._sleep(pause)
        return self._fetch()


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
