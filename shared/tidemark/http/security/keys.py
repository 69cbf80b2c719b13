"""Keys that verify tokens: shared secrets, and public keys fetched by URL; and the list of revoked tokens.

The key determines the algorithm; the token's header does not. This prevents two attacks: a public key used as
a shared secret, and the algorithm `none`.
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
from urllib.parse import quote

import jwt
import urllib3

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.log.schema import REVOKED_PK, IssuedToken, decode_token
from tidemark.log.table import Table, pages_around_damage
from tidemark.observability.metrics import KEY_FAILURES, PROCESS
from tidemark.protocol.errors import KeysUnavailable, ProtocolError, Unauthorized
from tidemark.settings import AuthorizationSettings, InvalidSetting, split_secret

_log = logging.getLogger("tidemark")
_T = TypeVar("_T")

#: Lifetime of a fetched value. A withdrawn key is accepted at most this long.
FRESH_SECONDS: Final = 300.0
#: The same of the list of revoked tokens: a minute, less ten seconds for a slow read.
REVOKED_SECONDS: Final = 50.0
#: The shortest time between two fetches because of a key that is missing in a current value.
REFETCH_SECONDS: Final = 30.0
#: The shortest time between a failed fetch and its retry.
FAILED_SECONDS: Final = 5.0
#: The longest use of an old value while fetches fail.
STALE_SECONDS: Final = 24 * 3600.0
#: The longest wait for the first value while the source throttles: after a deployment all environments call
#: SSM at the same time. The HTTP API's timeout is 30 s, of which storage needs some.
PATIENCE_SECONDS: Final = 15.0
#: The longest pause between these retries; the average is half of this.
LONGEST_PAUSE_SECONDS: Final = 4.0


class CannotFetch(Exception):
    """The value is missing or invalid. The message does not contain the value, which may be secret."""

    def __init__(self, message: str, *, throttled: bool = False) -> None:
        super().__init__(message)
        self.throttled = throttled


class Patience:
    """The retry budget for all values of one source, so that a request that needs two values does not wait
    twice as long."""

    def __init__(self) -> None:
        self._until = -math.inf

    def until(self, now: float) -> float:
        """The time at which a caller gives up. A new budget begins `FAILED_SECONDS` after that time."""
        if now > self._until + FAILED_SECONDS:
            self._until = now + PATIENCE_SECONDS
        return self._until


#: A process has one retry budget for all SSM parameters.
WITH_SSM: Final = Patience()


def pauses(clock: Callable[[], float], patience: Patience | None = None) -> Iterator[float]:
    """Yield the pauses between attempts to fetch a first value from a throttled source, until the budget
    ends. Random (jitter), so that environments that began together do not retry together."""
    give_up_at = (patience or Patience()).until(clock())
    while clock() < give_up_at:
        yield random.uniform(0, LONGEST_PAUSE_SECONDS)


class RefreshingCache(Generic[_T]):
    """A cached value that is fetched again when it is old. Thread-safe; only one thread fetches at a time."""

    def __init__(
        self,
        fetch: Callable[[], _T],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience: Patience | None = None,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._fetch = fetch
        self._fresh_seconds = fresh_seconds
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._value: _T | None = None
        self._fetched_at = self._tried_at = -math.inf
        self._failed = False

    def get(self, is_enough: Callable[[_T], bool] = lambda _: True) -> _T | None:
        """Return the value, fetched again if it is old or `is_enough` is false; None without a usable value.
        While another thread fetches, a caller gets the old value at once if it is enough."""
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
        may_try = now - self._tried_at >= (FAILED_SECONDS if self._failed else REFETCH_SECONDS)
        is_old = self._value is None or now - self._fetched_at > self._fresh_seconds
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
        """Fetch, and retry if the source throttles and there is no old value. Raises CannotFetch."""
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
        """Return the keys that may have signed such a token. Raises KeysUnavailable."""


class SharedKeys:
    """Secrets of HS256. Each secret is valid, so that secrets can be rotated."""

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
    """Keys of a JWKS document (RFC 7517). An unknown key id makes the cache fetch the document again."""

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
        return split_secret(fetch_parameter(name, load), f"The parameter {name}")
    except InvalidSetting as failure:
        raise CannotFetch(str(failure)) from None


def fetch_parameter(name: str, load: Callable[[str], str] = load_parameter) -> str:
    """Raises CannotFetch."""
    try:
        return load(name)
    except ParameterUnavailable as failure:
        raise CannotFetch(str(failure), throttled=failure.throttled) from None


def tokens_in(table: Table, pk: str) -> Iterator[IssuedToken]:
    """Yield the tokens of a partition, also expired ones that are not removed yet. Raises ProtocolError."""
    for page in pages_around_damage(table, pk, "/", "0"):
        yield from map(decode_token, page)


def check_of_revocation(table: Table, clock: Callable[[], float] = time.time) -> Callable[[str], float]:
    """Make a function that raises Unauthorized for the id of a revoked token, and returns the Unix second of
    the next check for other ids. (The wall clock goes on while a function is frozen.)"""

    def fetch() -> tuple[frozenset[str], float]:
        until = clock() + REVOKED_SECONDS
        try:
            return frozenset(each.id for each in tokens_in(table, REVOKED_PK)), until
        except ProtocolError as failure:
            raise CannotFetch(f"the list of revoked tokens: {failure.message}") from None

    revoked = RefreshingCache(fetch, clock, fresh_seconds=REVOKED_SECONDS)

    def check(token_id: str) -> float:
        known = revoked.get()
        if known is None:
            raise KeysUnavailable
        if token_id in known[0]:
            raise Unauthorized(f"Token {quote(token_id)} was revoked", token_given=True)
        return known[1]

    return check


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
    """Parse the keys of supported algorithms; other keys are ignored. Raises CannotFetch."""
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
