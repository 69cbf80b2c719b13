"""A thin S3 client for whole objects: what `aws/signed.py` carries, for bodies beside the log."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from tidemark.aws.breaker import Breaker, breaker_of
from tidemark.aws.replies import crc32_header
from tidemark.aws.signed import (
    Account,
    BlockingHttp,
    Failure,
    Http,
    NoAnswer,
    Request,
    Service,
    Silent,
    guarded,
    retry,
    timed,
)
from tidemark.protocol.errors import Busy, Damaged, StorageSilent, StorageUnavailable

Send = Callable[[str, str, bytes], tuple[int, bytes]]
"""Carries one operation (`GetObject`, `PutObject`), a key and a body, and brings back status and
body. Raises NoAnswer. Tests count and break calls here."""

ANSWER_SECONDS: Final = 6.0

_log = logging.getLogger("tidemark")

_METHODS: Final = {"GetObject": "GET", "PutObject": "PUT"}
#: Names the checksum that was sent with the object, as boto3 asks for it.
_WITH_CHECKSUM: Final = {"x-amz-checksum-mode": "ENABLED"}
THROTTLED: Final = frozenset({"SlowDown", "ThrottlingException"})
#: The bucket or the object is elsewhere, not for us, or not there. (Where listing is not allowed,
#: S3 says 403 of an object that is not there, and nobody can tell which.)
CLOSED: Final = frozenset({301, 307, 401, 403, 404})
#: An error is XML; of a request refused on the way it may be anything.
_CODE: Final = re.compile(rb"<Code>([A-Za-z]+)</Code>")


class Refusal(Failure):
    """S3 said no."""

    def __init__(self, operation: str, status: int, answer: bytes) -> None:
        self.status = status
        self.outcome_known = status < 500
        found = _CODE.search(answer)
        self.code = found[1].decode() if found else ""
        super().__init__(f"{operation}: {self.code or 'no code'} ({status})")

    @property
    def retryable(self) -> bool:  # type: ignore[override] # told from the answer
        return self.status >= 500 or self.status == 429


class WrongSize(NoAnswer):
    """Another object than the one that was asked for, or a part of it."""


class Objects:
    """Whole objects of one bucket. What is put is immutable, so putting it twice is safe."""

    def __init__(self, send: Send, breaker: Breaker | None = None) -> None:
        self.send = send
        self.breaker = breaker or Breaker()
        self.sleep: Callable[[float], None] = time.sleep
        self.now: Callable[[], float] = time.monotonic

    def get(self, key: str, size: int | None = None) -> bytes:
        """Raises Busy where S3 is throttled, StorageUnavailable where it does not answer or the object is not
        to be had, StorageSilent where it was not asked because it is known not to answer, and Damaged
        where the object does not have `size` bytes."""

        def once() -> bytes:
            data = self._once("GetObject", key, b"")
            if size is not None and len(data) != size:
                raise WrongSize(f"{key} has {len(data)} bytes in place of {size}")
            return data

        return self._call(once)

    def put(self, key: str, data: bytes) -> None:
        self._call(lambda: self._once("PutObject", key, data))

    def _call(self, once: Callable[[], bytes]) -> bytes:
        try:
            return retry(once, self.sleep, self.now)
        except Failure as failure:
            raise _final(failure) from failure

    def _once(self, operation: str, key: str, body: bytes) -> bytes:
        status, answer = guarded(
            self.breaker, self.now, lambda: timed("S3", operation, lambda: self.send(operation, key, body))
        )
        if status != 200:
            raise Refusal(operation, status, answer)
        return answer


def _final(failure: Failure) -> Exception:
    """Bodies come before what points to them: whatever fails here, nothing has changed."""
    if isinstance(failure, Refusal):
        if failure.code in THROTTLED:
            return Busy()
        if not failure.retryable and failure.status not in CLOSED:
            return failure
    if isinstance(failure, WrongSize):
        _log.error("a stored object is damaged: %s", failure)
        return Damaged()
    return StorageSilent() if isinstance(failure, Silent) and failure.outcome_known else StorageUnavailable()


def _send(http: Http, bucket: str, operation: str, key: str, body: bytes) -> tuple[int, bytes]:
    """Path style, so that a local endpoint needs no name of its own for the bucket."""
    path = f"/{bucket}/{quote(key, safe='/-_.~')}"
    # A signature covers the body's hash, so what arrives is what was sent. The checksum stays with it.
    headers = crc32_header(body) if operation == "PutObject" else _WITH_CHECKSUM
    return http(Request(_METHODS[operation], path, headers, body))


def connect_objects(
    account: Account,
    bucket: str,
    http: Callable[[Service, float], Http] = BlockingHttp,
    endpoint: str | None = None,
) -> Objects:
    """Where boto3 would connect to, unless an endpoint is named."""
    service = account.s3(endpoint)
    send = partial(_send, http(service, ANSWER_SECONDS), bucket)
    return Objects(send, breaker_of("S3", service.endpoint))
