"""Tokens as an issuer makes them, valid and invalid."""

import base64
import json
import time
from typing import Any

import jwt

SECRET = "a-secret-of-more-than-thirty-two-bytes-for-the-tests"
ADMIN = "read:* write:* manage:*"


def claims(scope: object = "", **more: Any) -> dict[str, Any]:
    return {"scope": scope, "exp": int(time.time()) + 3600} | more


def token(scope: object = "", *, key: Any = SECRET, algorithm: str = "HS256", **more: Any) -> str:
    headers = {"kid": more.pop("kid")} if "kid" in more else None
    return jwt.encode(claims(scope, **more), key, algorithm=algorithm, headers=headers)


def bearer(scope: object = "", **more: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(scope, **more)}"}


def handmade(header: Any, payload: Any, signature: bytes = b"") -> str:
    """A token that no library would make."""
    return ".".join(_encode(part) for part in (json.dumps(header), json.dumps(payload), signature))


def _encode(part: str | bytes) -> str:
    raw = part.encode() if isinstance(part, str) else part
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
