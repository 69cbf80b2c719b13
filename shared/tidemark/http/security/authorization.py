"""Authorization: a guard of the whole application, the same for the server and the functions.

A request is checked before any lookup. Therefore no response reveals whether a stream exists that the token
may not read.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl

import jwt
from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.error_handlers import HAS_TOKEN, error_response
from tidemark.http.paths import Find, Operation
from tidemark.http.requests import ACCESS, CREATES, Respond, header, url_path
from tidemark.http.security.keys import Keys, check_of_revocation, keys_of
from tidemark.log.table import Table
from tidemark.protocol.authorization import Access, Grant, Right, grants_of_public, parse_scopes
from tidemark.protocol.caching import decide_private
from tidemark.protocol.errors import Forbidden, ProtocolError, StreamNotFound, Unauthorized
from tidemark.settings import AuthorizationSettings

#: Most gateways refuse headers of this size.
MAX_TOKEN_BYTES: Final = 8 * 1024
#: The largest difference between clocks that is tolerated.
LEEWAY_SECONDS: Final = 30
#: The lifetime of a valid token in the cache, and the most tokens in the cache.
_REMEMBERED_SECONDS: Final = 60.0
_REMEMBERED: Final = 1024
#: The upper bound for `exp`, because a token may contain any number.
_FAR_SECONDS: Final = 1e11

#: The messages for exceptions, subclasses first.
_FAULTS: Final = (
    (jwt.ExpiredSignatureError, "Token has expired"),
    (jwt.ImmatureSignatureError, "Token is not valid yet"),
    (jwt.InvalidAudienceError, "Token is meant for another audience"),
    (jwt.InvalidIssuerError, "Token comes from another issuer"),
    (jwt.InvalidSignatureError, "Token's signature is not valid"),
    (jwt.MissingRequiredClaimError, "Token lacks a claim: exp, and aud and iss if the server requires them"),
)
_UNREADABLE: Final = "Token is not a readable JWT"
#: Exceptions that libraries raise for odd JSON, which must not become a 500.
_ODD: Final = (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class Tokens:
    """Checks tokens, and caches the valid ones."""

    def __init__(
        self,
        keys: Iterable[Keys],
        issuer: str = "",
        audience: str = "",
        clock: Callable[[], float] = time.time,
        public: tuple[Grant, ...] = (),
        *,
        check_id: Callable[[str], float] = lambda _: _FAR_SECONDS,
    ) -> None:
        self._check_id = check_id
        self._public = public
        self._keys = tuple(keys)
        self._issuer = issuer or None
        self._audience = audience or None
        self._clock = clock
        self._remembered: dict[str, tuple[Access, float]] = {}

    def recall(self, token: str) -> Access | None:
        """Return a token's grants from the cache, or None. Never blocks."""
        remembered = self._remembered.get(token)
        return remembered[0] if remembered is not None and self._clock() < remembered[1] else None

    def check(self, token: str) -> Access:
        """Check a token and return its grants. May fetch keys. Raises Unauthorized, KeysUnavailable."""
        if len(token) > MAX_TOKEN_BYTES:
            raise _invalid(f"Token is too long: at most {MAX_TOKEN_BYTES} bytes")
        algorithm, key_id = read_header(token)
        candidates = [key for keys in self._keys for key in keys.find(algorithm, key_id)]
        claims = self.verify(token, algorithm, candidates)
        subject, token_id = (_text(claims.get(name)) for name in ("sub", "jti"))
        ends = float(claims["exp"]) + LEEWAY_SECONDS
        granted = parse_scopes(claims.get("scope"))
        access = replace(
            granted,
            grants=(*granted.grants, *self._public),
            until_ms=int(min(ends, _FAR_SECONDS) * 1000),
            subject=subject,
            token_id=token_id,
            key_id=_text(key_id),
        )
        until = min(ends, self._clock() + _REMEMBERED_SECONDS)
        if token_id:
            until = min(until, self._check_id(token_id))
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[token] = (access, until)
        return access

    def verify(self, token: str, algorithm: str, candidates: Sequence[Any]) -> dict[str, Any]:
        """Return the token's claims if one of the keys signed the token. Raises Unauthorized."""
        fault: Exception | None = None
        for key in candidates:
            try:
                return self._decode(token, key, algorithm)
            except jwt.InvalidSignatureError as other_key:
                fault = other_key
            except _ODD as odd:
                fault = odd
                break
        if fault is None:
            raise _invalid("Token is signed with an algorithm or a key that is not known here")
        raise _invalid(
            next((text for kind, text in _FAULTS if isinstance(fault, kind)), _UNREADABLE)
        ) from None

    def _decode(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_SECONDS,
            options={
                "require": ["exp", *(["iss"] if self._issuer else []), *(["aud"] if self._audience else [])],
                "verify_aud": self._audience is not None,
                # No decision here depends on these claims.
                "verify_sub": False,
                "verify_jti": False,
                "verify_iat": False,
            },
        )


def _text(claim: object) -> str | None:
    """A claim as text for a log line. A claim can be any JSON."""
    return None if claim is None else str(claim)[:256]


def read_header(token: str) -> tuple[str, str | None]:
    try:
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header["alg"], header.get("kid")
    except _ODD:
        raise _invalid(_UNREADABLE) from None
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise _invalid(_UNREADABLE)
    return algorithm, key_id


def _invalid(message: str) -> Unauthorized:
    return Unauthorized(message, token_given=True)


#: If CloudFront signs the request, `Authorization` has the signature, and the edge moves the token here.
FORWARDED: Final = "X-Tidemark-Authorization"
QUERY_NAME: Final = "access_token"
_SIGNATURE: Final = "AWS4-HMAC-SHA256"

_audit_log = logging.getLogger("tidemark.audit")
_audit_log.setLevel(logging.INFO)

Check = Callable[[str], Awaitable[Access]]


@dataclass(frozen=True, slots=True)
class Credential:
    token: str | None
    in_query: bool = False


class Authorization:
    """Guard. `find` returns the operation of a request. `check` returns a token's grants, or raises
    Unauthorized. An unknown path or method is refused like a path that the token may not read."""

    def __init__(self, find: Find, check: Check, public_buckets: frozenset[str] = frozenset()) -> None:
        self._find = find
        self._check = check
        self._public_buckets = public_buckets
        self._public = Access(grants_of_public(public_buckets))

    async def __call__(self, respond: Respond, request: Request) -> Response:
        if request.method == "OPTIONS":
            return await respond(request)
        operation = self._find(request.scope)
        if not operation.rights or (operation.is_signed and operation.is_signed(request.scope)):
            return await respond(request)
        try:
            credential = read_credential(request)
            if credential.token is not None:
                request.scope[HAS_TOKEN] = True
            is_public = await self.admit(request, credential, operation)
        except ProtocolError as error:
            if isinstance(error, Forbidden | StreamNotFound) and ACCESS in request.scope:
                audit(request, error.status)
            return _private(error_response(request, error), in_query=False)
        response = await respond(request)
        if is_audited(request, operation):
            audit(request, response.status_code)
        return response if is_public else _private(response, in_query=credential.in_query)

    async def admit(self, request: Request, credential: Credential, operation: Operation) -> bool:
        """Check the request's scopes. Return whether the response is public. Raises ProtocolError."""
        if credential.token is None:
            request.scope[ACCESS] = self._public
            try:
                for demand in operation.demand(request, operation.rights):
                    self._public.check(demand)
            except ProtocolError:
                raise Unauthorized("A bearer token is needed", token_given=False) from None
            return True
        request.scope[ACCESS] = access = await self._check(credential.token)
        buckets = set()
        for demand in list(operation.demand(request, operation.rights)):
            access.check(demand)
            buckets.add(demand.target.bucket)
        return not credential.in_query and buckets <= self._public_buckets


def is_audited(request: Request, operation: Operation) -> bool:
    """Whether the request creates, deletes, closes or publishes something, or begins an upload. Plain appends
    are not audited."""
    if request.method != "POST":
        return request.method in {"PUT", "DELETE"}
    if (header(request, "Stream-Closed") or "").lower() == "true":
        return True
    return CREATES in request.scope or (operation.method == "POST" and operation.rights == {Right.MANAGE})


def audit(request: Request, status: int) -> None:
    """Write an audit line for a request that was carried out or refused, at every LOG_LEVEL."""
    access: Access = request.scope[ACCESS]
    entry = {
        "method": request.method,
        "path": url_path(request)[:1024],
        "status": status,
        "subject": access.subject,
        "token_id": access.token_id,
        "key_id": access.key_id,
    }
    _audit_log.info("audit %s", json.dumps(entry))


def read_credential(request: Request) -> Credential:
    """Read the request's token (RFC 6750 §2). Raises Unauthorized.

    Only an event stream may have the token in its URL, because a browser's EventSource sends no headers.
    """
    sent = header(request, "Authorization")
    if sent is None or sent.startswith(_SIGNATURE):
        sent = header(request, FORWARDED)
    query: bytes = request.scope["query_string"]
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True) if QUERY_NAME.encode() in query else []
    tokens = [value for name, value in pairs if name == QUERY_NAME]
    if len(tokens) > 1:
        raise _invalid(f"{QUERY_NAME} must be given once")
    if tokens and (request.method != "GET" or request.query_params.get("live") != "sse"):
        raise _invalid(f"{QUERY_NAME} is for GET with live=sse; send a header instead")
    if tokens and sent is not None:
        raise _invalid(f"Send the token once: by header, or as {QUERY_NAME}")
    if tokens:
        return Credential(tokens[0], in_query=True)
    if sent is None:
        return Credential(None)
    scheme, _, token = sent.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _invalid("Authorization must be: Bearer <token>")
    return Credential(token.strip())


def _private(response: Response, *, in_query: bool) -> Response:
    """Make the response private: no shared cache may keep it."""
    headers = response.headers
    headers["Cache-Control"] = decide_private(headers.get("Cache-Control"), token_in_query=in_query)
    headers.add_vary_header("Authorization")
    return response


def make_check(
    settings: AuthorizationSettings, table: Table, run: Callable[[Callable[[], Access]], Awaitable[Access]]
) -> Check:
    """Make a function that returns the grants of a token and of the public: from the cache, or else through
    `run`, because keys may have to be fetched."""
    public = grants_of_public(settings.public_read_buckets)
    check_id = check_of_revocation(table)
    tokens = Tokens(keys_of(settings), settings.issuer, settings.audience, public=public, check_id=check_id)

    async def check(token: str) -> Access:
        return tokens.recall(token) or await run(lambda: tokens.check(token))

    return check
