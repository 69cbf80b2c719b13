"""Signature Version 4, for requests of two fixed shapes: a POST to DynamoDB and one whole object of S3.

The algorithm: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html.
Not botocore's, because its signer takes a quarter of a warm append's CPU
(docs/internals/adr/0004-short-way-to-aws.md). It signs every header and the hash of every body. A path is
signed as it is sent, and there is no query.
`tests/aws/test_sigv4.py` compares it with botocore's.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """`path` begins with a slash and is encoded as it is to be sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


class Credentials(Protocol):
    @property
    def access_key(self) -> str: ...

    @property
    def secret_key(self) -> str: ...

    @property
    def token(self) -> str | None:
        """The session token; None for a user's own key."""


class Service:
    """`name` ("dynamodb" or "s3") in a region, at an endpoint. `credentials` returns those that are valid
    at the time. Safe to share between threads."""

    def __init__(self, name: str, region: str, endpoint: str, credentials: Callable[[], Credentials]) -> None:
        self.name = name
        self.region = region
        self.endpoint = endpoint.rstrip("/")
        self.now: Callable[[], float] = time.time
        self._credentials = credentials
        parts = urlsplit(self.endpoint)
        is_default_port = parts.port in {None, {"http": 80, "https": 443}.get(parts.scheme)}
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        #: As HTTP clients send it: the port only where it is not the scheme's own.
        self._host = f"{host}" if is_default_port else f"{host}:{parts.port}"
        self._scope = f"{region}/{name}/aws4_request"
        #: A day, a secret key, and the key derived from both.
        self._derived: tuple[str, str, bytes] = ("", "", b"")

    def sign(self, request: AwsRequest) -> dict[str, str]:
        """All the headers to send, but for Host."""
        credentials = self._credentials()
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.now()))
        scope = f"{at[:8]}/{self._scope}"
        payload_hash = sha256(request.body).hexdigest()
        headers = request.headers | {"X-Amz-Date": at}
        if credentials.token:
            headers["X-Amz-Security-Token"] = credentials.token
        if self.name == "s3":
            headers["X-Amz-Content-SHA256"] = payload_hash
        canonical = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
        canonical["host"] = self._host
        names = sorted(canonical)
        lines = "".join(f"{name}:{canonical[name]}\n" for name in names)
        signed_names = ";".join(names)
        canonical_request = f"{request.method}\n{request.path}\n\n{lines}\n{signed_names}\n{payload_hash}"
        to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(canonical_request.encode()).hexdigest()}"
        key = self._signing_key(at[:8], credentials.secret_key)
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed_names}, Signature={hmac.digest(key, to_sign.encode(), 'sha256').hex()}"
        )
        return headers

    def _signing_key(self, day: str, secret_key: str) -> bytes:
        """Derived once a day, and again for other credentials."""
        derived_day, derived_secret, key = self._derived
        if (derived_day, derived_secret) != (day, secret_key):
            key = f"AWS4{secret_key}".encode()
            for part in (day, *self._scope.split("/")):
                key = hmac.digest(key, part.encode(), "sha256")
            self._derived = (day, secret_key, key)
        return key
