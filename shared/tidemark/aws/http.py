"""Signed requests over pooled connections, for what every request does.

boto3's own client does the same at more than twice the CPU (`benchmarks/cpu.py`). `aws/clients.py` makes
boto3's clients for what is called seldom.
"""

from __future__ import annotations

import logging
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final

import urllib3

from tidemark.aws.account import AwsRequest, Service
from tidemark.aws.clock import CLOCK
from tidemark.aws.retry import NoAnswer

#: The checksum of a whole object. (That of an object made of parts covers the parts' checksums: "…-3".)
_CRC32: Final = "x-amz-checksum-crc32"


def missing(headers: Mapping[str, str], body: bytes) -> str | None:
    """Describes the missing part of a reply; None if it is whole. `headers` are found by names in lower case;
    `body` is as it came, not decompressed.

    A chunked body ends with a chunk of no bytes, which its reader has required already. The length alone does
    not detect a body that was replaced by another: DynamoDB also sends the body's checksum.
    """
    length = headers.get("content-length")
    if length is None:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return "the reply does not say how long it is"
    elif length != str(len(body)):
        return f"the reply has {len(body)} bytes and promises {length}"
    checksum = headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(body)):
        return "the reply's bytes do not fit their checksum"
    return None


def missing_of_object(method: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """The same of S3's 200 to a GET or a PUT of an object: it always names the entity tag, which an
    error in the place of an object does not have."""
    if not has_tag(headers):
        return "the reply names no entity tag"
    if method == "PUT":
        return "the reply to a PUT has a body" if body else None
    checksum = headers.get(_CRC32)
    if checksum is not None and "-" not in checksum and checksum != crc32_text(body):
        return "the object's bytes do not fit their checksum"
    return None


def has_tag(headers: Mapping[str, str]) -> bool:
    """Whether there is an entity tag, and all of it."""
    tag = headers.get("etag", "")
    return len(tag) > 1 and tag[0] == tag[-1] == '"'


def crc32_header(body: bytes) -> dict[str, str]:
    """The checksum sent with an object: S3 checks and stores it, and returns it with each read of the
    object."""
    return {_CRC32: crc32_text(body)}


def crc32_text(body: bytes) -> str:
    """The CRC32 as S3 writes it."""
    return b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


_CONNECT_SECONDS: Final = 2
_CONNECTIONS: Final = 64

# A reply that is cut in its headers is a warning with a traceback there; here it is no answer (`missing`).
logging.getLogger("urllib3.connection").setLevel(logging.ERROR)

Http = Callable[[AwsRequest], tuple[int, bytes]]
"""Signs a request, carries it, and brings back status and body of a whole reply. Raises NoAnswer."""


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
    """Status and body of a reply, however it was carried. Raises NoAnswer unless the reply is whole."""
    lack = missing(headers, body)
    if lack is None and status == 200 and request.method != "POST":
        lack = missing_of_object(request.method, headers, body)
    if lack is not None:
        raise NoAnswer(f"{request.method} {request.path}: {lack} (status {status})")
    return status, body
