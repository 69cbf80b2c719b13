"""A thin S3 client for whole objects: what `signed.py` carries, for bodies beside the log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from tidemark.breaker import Breaker, breaker_of
from tidemark.protocol.errors import Busy, OutOfReach, StorageSilent
from tidemark.signed import (
    Account,
    BlockingHttp,
    Failure,
    Http,
    Request,
    Service,
    Silent,
    guarded,
    persist,
    timed,
)

Send = Callable[[str, str, bytes], tuple[int, bytes]]
"""Carries one operation (`GetObject`, `PutObject`), a key and a body, and brings back status and
body. Raises NoAnswer. Tests count and break calls here."""

ANSWER_SECONDS: Final = 6.0

_METHODS: Final = {"GetObject": "GET", "PutObject": "PUT"}
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
        self.is_known = status < 500
        found = _CODE.search(answer)
        self.code = found[1].decode() if found else ""
        super().__init__(f"{operation}: {self.code or 'no code'} ({status})")

    @property
    def is_passing(self) -> bool:  # type: ignore[override] # told from the answer
        return self.status >= 500 or self.status == 429


class Objects:
    """Whole objects of one bucket. What is put is immutable, so putting it twice is safe."""

    def __init__(self, send: Send, breaker: Breaker | None = None) -> None:
        self.send = send
        self.breaker = breaker or Breaker()
        self.sleep: Callable[[float], None] = time.sleep
        self.now: Callable[[], float] = time.monotonic

    def get(self, key: str) -> bytes:
        """Raises Busy where S3 is throttled, OutOfReach where it does not answer or the object is
        not to be had, and StorageSilent where it was not asked: it is known not to answer."""
        return self._call("GetObject", key, b"")

    def put(self, key: str, data: bytes) -> None:
        self._call("PutObject", key, data)

    def _call(self, operation: str, key: str, body: bytes) -> bytes:
        try:
            return persist(lambda: self._once(operation, key, body), self.sleep, self.now)
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
        if not failure.is_passing and failure.status not in CLOSED:
            return failure
    return StorageSilent() if isinstance(failure, Silent) and failure.is_known else OutOfReach()


def _send(http: Http, bucket: str, operation: str, key: str, body: bytes) -> tuple[int, bytes]:
    """Path style, so that a local endpoint needs no name of its own for the bucket."""
    path = f"/{bucket}/{quote(key, safe='/-_.~')}"
    # A signature covers the body's hash, so what arrives is what was sent.
    return http(Request(_METHODS[operation], path, {}, body))


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
