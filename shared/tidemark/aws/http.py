"""Signed requests over pooled connections, for frequent calls: region, credentials and endpoint as in boto3,
the signature, and checks that a reply is complete.

boto3's own client takes more than twice the CPU (`benchmarks/cpu.py`); `aws/clients.py` creates boto3's
clients for rare calls. Lambda has region and credentials in its environment. Importing botocore takes 150 ms
of a cold start, so this module imports it only if the environment is not enough: profiles, container roles,
refreshed credentials, regions with other domain names.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import urllib3

from tidemark.aws.clock import CLOCK
from tidemark.aws.retry import NoAnswer


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """A request. `path` begins with a slash and is already encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


class Credentials(NamedTuple):
    """The credentials of botocore or of the environment. A user's own key has no session `token`."""

    access_key: str
    secret_key: str
    token: str | None


class Service:
    """A service `name` ("dynamodb", "s3", "execute-api") in a region, at an endpoint. `credentials` returns
    the currently valid ones. Safe to share between threads."""

    def __init__(self, name: str, region: str, endpoint: str, credentials: Callable[[], Credentials]) -> None:
        self.name = name
        self.region = region
        self.endpoint = endpoint.rstrip("/")
        self.now: Callable[[], float] = time.time
        self._credentials = credentials
        parts = urlsplit(self.endpoint)
        is_default_port = parts.port in {None, {"http": 80, "https": 443}.get(parts.scheme)}
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        #: The form of HTTP clients: with the port only if it is not the scheme's default.
        self._host = f"{host}" if is_default_port else f"{host}:{parts.port}"
        self._scope = f"{region}/{name}/aws4_request"
        #: The last signing key, by its day and secret key.
        self._derived: dict[tuple[str, str], bytes] = {}

    def sign(self, request: AwsRequest) -> dict[str, str]:
        """Return all headers to send, except Host."""
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
        # Every service except S3 encodes the path once more.
        path = request.path if self.name == "s3" else quote(request.path, safe="/~")
        canonical_request = f"{request.method}\n{path}\n\n{lines}\n{signed_names}\n{payload_hash}"
        to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(canonical_request.encode()).hexdigest()}"
        key = self._derived.get((at[:8], credentials.secret_key))
        if key is None:
            key = self._derive_key(at[:8], credentials.secret_key)
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed_names}, Signature={hmac.digest(key, to_sign.encode(), 'sha256').hex()}"
        )
        return headers

    def _derive_key(self, day: str, secret_key: str) -> bytes:
        """Derive the signing key: once a day, and again for other credentials."""
        key = f"AWS4{secret_key}".encode()
        for part in (day, *self._scope.split("/")):
            key = hmac.digest(key, part.encode(), "sha256")
        self._derived = {(day, secret_key): key}
        return key


#: Patterns of region names, and the domain of their services. botocore knows all other regions.
_DOMAINS: Final = (
    (re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx|us-gov)-[a-z]+-\d+"), "amazonaws.com"),
    (re.compile(r"cn-[a-z]+-\d+"), "amazonaws.com.cn"),
)


def credentials_in(environment: Mapping[str, str]) -> Credentials | None:
    """Return the credentials in the environment; None if they expire or are missing."""
    access_key = environment.get("AWS_ACCESS_KEY_ID")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key or environment.get("AWS_CREDENTIAL_EXPIRATION"):
        return None
    token = environment.get("AWS_SECURITY_TOKEN") or environment.get("AWS_SESSION_TOKEN")
    return Credentials(access_key, secret_key, token or None)


class Account:
    """Region and credentials, looked up once for all services. Raises OSError without credentials."""

    def __init__(self, region: str | None = None) -> None:
        configured = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        self.region: str = configured or self._session.get_config_variable("region") or "us-east-1"
        self._credentials: Callable[[], Credentials]
        fixed = credentials_in(os.environ)
        if fixed is not None:
            self._credentials = lambda: fixed
            return
        found = self._session.get_credentials()
        if found is None:
            raise OSError("No AWS credentials were found; set AWS_ACCESS_KEY_ID or a profile")
        self._credentials = found.get_frozen_credentials

    def endpoint(self, name: str) -> str:
        """Return the endpoint of a service, given botocore's name for the service."""
        named = os.environ.get(f"AWS_ENDPOINT_URL_{name.upper()}") or os.environ.get("AWS_ENDPOINT_URL")
        if named:
            return named
        for regions, domain in _DOMAINS:
            if regions.fullmatch(self.region):
                return f"https://{name}.{self.region}.{domain}"
        endpoint: str = self._session.create_client(name, region_name=self.region).meta.endpoint_url
        return endpoint

    @cached_property
    def _session(self) -> Any:
        from botocore.session import get_session

        return get_session()

    def service(self, name: str, endpoint: str | None = None) -> Service:
        return Service(name, self.region, endpoint or self.endpoint(name), self._credentials)


#: The checksum of a whole object. (A multipart object has a checksum of the parts' checksums: "…-3".)
_CRC32: Final = "x-amz-checksum-crc32"


def missing(headers: Mapping[str, str], body: bytes) -> str | None:
    """Describe the missing part of a reply; None if it is complete. The keys of `headers` are
    case-insensitive; `body` is not decompressed.

    A chunked body ends with an empty chunk, which its reader has already checked. The length alone does not
    detect a replaced body: DynamoDB also sends the body's checksum.
    """
    length = headers.get("content-length")
    if length is None:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return "the reply has no length"
    elif length != str(len(body)):
        return f"the reply has {len(body)} bytes and promises {length}"
    checksum = headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(body)):
        return "the reply's bytes do not fit their checksum"
    return None


def missing_of_object(method: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """Describe the missing part of S3's 200 to a GET or a PUT of an object. The reply always has an entity
    tag, unlike an error in the place of an object."""
    if not has_tag(headers):
        return "the reply names no entity tag"
    if method == "PUT":
        return "the reply to a PUT has a body" if body else None
    checksum = headers.get(_CRC32)
    if checksum is not None and "-" not in checksum and checksum != crc32_text(body):
        return "the object's bytes do not fit their checksum"
    return None


def has_tag(headers: Mapping[str, str]) -> bool:
    """Whether there is a complete entity tag."""
    tag = headers.get("etag", "")
    return len(tag) > 1 and tag[0] == tag[-1] == '"'


def crc32_header(body: bytes) -> dict[str, str]:
    """Return the checksum header of an object. S3 checks and stores it, and returns it with each read."""
    return {_CRC32: crc32_text(body)}


def crc32_text(body: bytes) -> str:
    """Return the CRC-32 in S3's form."""
    return b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


_CONNECT_SECONDS: Final = 2
_CONNECTIONS: Final = 64

# urllib3 logs a reply cut in its headers as a warning with a traceback. Here it is no answer (`missing`).
logging.getLogger("urllib3.connection").setLevel(logging.ERROR)

Http = Callable[[AwsRequest], tuple[int, bytes]]
"""Signs and sends a request, and returns status and body of a complete reply. Raises NoAnswer."""


class BlockingHttp:
    """Sends over pooled connections and waits; safe to share between threads."""

    def __init__(self, service: Service, answer_seconds: float) -> None:
        self._service = service
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=answer_seconds)
        self._pool = urllib3.connection_from_url(
            service.endpoint, maxsize=_CONNECTIONS, timeout=timeout, retries=False
        )

    def __call__(self, request: AwsRequest) -> tuple[int, bytes]:
        headers, sent = self._service.sign(request), CLOCK.sent()
        try:
            reply = self._pool.urlopen(
                request.method, request.path, request.body, headers, decode_content=False
            )
        except urllib3.exceptions.HTTPError as failure:
            raise NoAnswer(str(failure)) from failure
        if sent is not None:
            CLOCK.received(sent, reply.headers)
        return whole(request, reply.status, reply.headers, reply.data)


def whole(request: AwsRequest, status: int, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Return status and body of a reply from any transport. Raises NoAnswer unless the reply is complete."""
    # A 204 has no body and needs no length.
    lack = missing(headers, body) if status != 204 else None
    if lack is None and status == 200 and request.method != "POST":
        lack = missing_of_object(request.method, headers, body)
    if lack is not None:
        raise NoAnswer(f"{request.method} {request.path}: {lack} (status {status})")
    return status, body
