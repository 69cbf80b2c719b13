"""Bearer tokens: from a JWT (RFC 7519) to what it grants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import jwt

from tidemark.http.security.keys import Keys
from tidemark.protocol.authorization import Access, parse_scopes
from tidemark.protocol.errors import Unauthorized

#: Larger than any header ought to be, and than most gateways let through.
MAX_TOKEN_BYTES: Final = 8 * 1024
#: How far clocks may be apart.
LEEWAY_SECONDS: Final = 30
#: How long a token that held once is not looked at again, and how many of them.
_REMEMBERED_SECONDS: Final = 60.0
_REMEMBERED: Final = 1024

#: The messages for exceptions, the specific ones first.
_FAULTS: Final = (
    (jwt.ExpiredSignatureError, "Token has expired"),
    (jwt.ImmatureSignatureError, "Token is not valid yet"),
    (jwt.InvalidAudienceError, "Token is meant for another audience"),
    (jwt.InvalidIssuerError, "Token comes from another issuer"),
    (jwt.InvalidSignatureError, "Token's signature does not hold"),
    (jwt.MissingRequiredClaimError, "Token lacks a claim: exp, and aud and iss where they are asked for"),
)
_UNREADABLE: Final = "Token is not a readable JWT"
#: Exceptions that libraries raise for odd JSON; none of them may become a 500.
_ODD: Final = (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


class Tokens:
    """Checks tokens, and remembers for a while those that held."""

    def __init__(
        self,
        keys: Iterable[Keys],
        issuer: str = "",
        audience: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = tuple(keys)
        self._issuer = issuer or None
        self._audience = audience or None
        self._clock = clock
        self._remembered: dict[str, tuple[Access, float]] = {}

    def recall(self, token: str) -> Access | None:
        """The token's grants, if it was checked just now. Never blocks."""
        remembered = self._remembered.get(token)
        return remembered[0] if remembered is not None and self._clock() < remembered[1] else None

    def check(self, token: str) -> Access:
        """May fetch keys. Raises Unauthorized, KeysUnavailable."""
        if len(token) > MAX_TOKEN_BYTES:
            raise _invalid(f"Token is too long: at most {MAX_TOKEN_BYTES} bytes")
        algorithm, key_id = read_header(token)
        candidates = [key for keys in self._keys for key in keys.find(algorithm, key_id)]
        claims = self.verify(token, algorithm, candidates)
        subject, token_id = (_text(claims.get(name)) for name in ("sub", "jti"))
        access = replace(
            parse_scopes(claims.get("scope")), subject=subject, token_id=token_id, key_id=_text(key_id)
        )
        until = min(float(claims["exp"]) + LEEWAY_SECONDS, self._clock() + _REMEMBERED_SECONDS)
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        self._remembered[token] = (access, until)
        return access

    def verify(self, token: str, algorithm: str, candidates: Sequence[Any]) -> dict[str, Any]:
        """The token's claims, if one of the keys signed it. Raises Unauthorized."""
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
    """A claim as a log line may have it: any JSON can be in a token."""
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
