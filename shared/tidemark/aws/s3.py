"""A thin S3 client for whole objects, over `aws/http.py`: bodies outside the log."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from tidemark.aws.http import Account, AwsRequest, BlockingHttp, Http, Service, crc32_header
from tidemark.aws.retry import Attempts, Breaker, Failure, NoAnswer, Silent
from tidemark.protocol.errors import BlobUnreadable, Busy, Damaged, StorageSilent, StorageUnavailable

_Send = Callable[[str, str, bytes], tuple[int, bytes]]
"""Sends one operation (`GetObject`, `GetRange`, `PutObject`) with a key and a body, and returns status and
body. For `GetRange` the body is the Range header's value. Raises NoAnswer. Tests replace it."""

_ANSWER_SECONDS: Final = 6.0

_log = logging.getLogger("tidemark")

_METHODS: Final = {"GetObject": "GET", "GetRange": "GET", "PutObject": "PUT"}
#: Requests the checksum that was sent with the object, as boto3 does.
_WITH_CHECKSUM: Final = {"x-amz-checksum-mode": "ENABLED"}
_THROTTLED: Final = frozenset({"SlowDown", "ThrottlingException"})
#: The bucket or the object has moved, is forbidden, missing, or replaced. (Without the permission to list, S3
#: answers 403 for a missing object, so the two cannot be distinguished.)
_CLOSED: Final = frozenset({301, 307, 401, 403, 404, 412})
#: An error is XML. The body of a request refused on the way may be anything.
_CODE: Final = re.compile(rb"<Code>([A-Za-z]+)</Code>")


class Refusal(Failure):
    """S3 has refused a call, or part of one."""

    def __init__(self, operation: str, status: int, code: str) -> None:
        self.status = status
        self.code = code
        self.retryable = status >= 500 or status == 429
        self.outcome_known = status < 500
        super().__init__(f"{operation}: {code or 'no code'} ({status})")


class WrongSize(NoAnswer):
    """The reply has another object than the requested one, or a part of an object."""


class Objects:
    """Whole objects of one bucket. Objects are immutable, so writing one twice is safe."""

    def __init__(self, send: _Send) -> None:
        self.send = send
        self.breaker = Breaker()
        self.sleep: Callable[[float], None] = time.sleep
        self.now: Callable[[], float] = time.monotonic

    def get(self, key: str, size: int | None = None) -> bytes:
        """Return an object. Raises the exceptions of `storage_error`: Busy, StorageUnavailable,
        StorageSilent, and Damaged if the object does not have `size` bytes."""
        return self._call("GetObject", key, b"", size)

    def get_range(self, key: str, first_byte: int, size: int) -> bytes:
        """Return a part of an object. Raises as `get`. S3 sends no checksum of a part: the caller has one."""
        asked = f"bytes={first_byte}-{first_byte + size - 1}".encode()
        return self._call("GetRange", key, asked, size)

    def put(self, key: str, data: bytes) -> None:
        """Raises Busy, StorageUnavailable, StorageSilent."""
        self._call("PutObject", key, data)

    def _call(self, operation: str, key: str, body: bytes, size: int | None = None) -> bytes:
        attempts = Attempts(self.sleep, self.now)
        while True:
            try:
                status, reply = self.breaker.exchange(self.now, self.send, operation, key, body)
                if operation == "GetRange" and status in {200, 416}:
                    raise WrongSize(f"{key} has no {body.decode()} (status {status})")
                if status != (206 if operation == "GetRange" else 200):
                    code = _CODE.search(reply)
                    raise Refusal(operation, status, code[1].decode() if code else "")
                if size is not None and len(reply) != size:
                    raise WrongSize(f"{key} has {len(reply)} bytes in place of {size}")
            except Failure as failure:
                if not attempts.go_on_after(failure):
                    raise storage_error(failure) from failure
            else:
                return reply


def storage_error(failure: Failure) -> Exception:
    """Translate a failed call to S3 into the request's error, for any client. Any other failure is returned
    unchanged. A body is stored before anything refers to it, so nothing has changed.

    Busy: S3 throttles. Damaged: the object has another size. StorageSilent: S3 has stopped answering, and the
    call was not sent. BlobUnreadable: the object is missing or forbidden. StorageUnavailable: no reply.
    """
    if isinstance(failure, Refusal):
        if failure.code in _THROTTLED:
            return Busy()
        if not failure.retryable:
            return BlobUnreadable() if failure.status in _CLOSED else failure
    if isinstance(failure, WrongSize):
        _log.error("a stored object is damaged: %s", failure)
        return Damaged()
    return StorageSilent() if isinstance(failure, Silent) and failure.outcome_known else StorageUnavailable()


def _send(http: Http, bucket: str, operation: str, key: str, body: bytes) -> tuple[int, bytes]:
    """Send in path style, so that a local endpoint needs no host name for the bucket."""
    path = f"/{bucket}/{quote(key, safe='/-_.~')}"
    # The signature covers the body's hash, so the received body is correct. S3 stores the checksum.
    headers = crc32_header(body) if operation == "PutObject" else _WITH_CHECKSUM
    if operation == "GetRange":
        headers, body = {"Range": body.decode()}, b""
    return http(AwsRequest(_METHODS[operation], path, headers, body))


def connect_objects(
    account: Account,
    bucket: str,
    http: Callable[[Service, float], Http] = BlockingHttp,
    endpoint: str | None = None,
) -> Objects:
    """Connect to `endpoint`, or to the same endpoint as boto3."""
    return Objects(partial(_send, http(account.service("s3", endpoint), _ANSWER_SECONDS), bucket))
