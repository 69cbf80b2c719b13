"""A thin DynamoDB client: botocore signs, urllib3 sends, orjson reads and writes.

boto3's own client does the same call at more than twice the CPU, and one call is most of
what an append costs (`benchmarks/`). Items are in DynamoDB's own JSON, so a binary value
is base64 text here. Endpoint, region and credentials are found as boto3 finds them.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import orjson
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import get_session

from tidemark.meter import PROCESS, RETRIES
from tidemark.protocol.errors import OutOfReach, Unavailable

Send = Callable[[str, bytes], tuple[int, bytes]]
"""Carries one operation and its JSON to DynamoDB, and brings back status and JSON.
Raises NoAnswer. Tests count and break calls here."""

#: Six tries, the last after about a second and a half in all where each is refused at once.
#: Of a silent table no more is asked after so many seconds: a gateway gives up at thirty.
_TRIES: Final = 6
_PATIENCE_SECONDS: Final = 6.0
_FIRST_DELAY_SECONDS: Final = 0.025
_TIMEOUT: Final = urllib3.Timeout(connect=2, read=5)
_CONNECTIONS: Final = 64

_THROTTLED: Final = frozenset(
    {
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
#: The table is not there, or not for us. Nothing was done.
_OUT_OF_REACH: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidSignatureException",
        "ResourceNotFoundException",
        "UnrecognizedClientException",
    }
)


class NoAnswer(Exception):
    """The request may or may not have arrived."""


class Fault(Exception):
    """DynamoDB said no. `answer` is all that it said."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        self.status = status
        self.answer = answer
        self.code: str = str(answer.get("__type", "")).rpartition("#")[2]
        super().__init__(f"{self.code} ({status}): {answer.get('message', answer.get('Message', ''))}")

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """Of a cancelled transaction: one for each write."""
        reasons: list[dict[str, Any]] = self.answer.get("CancellationReasons", [])
        return reasons

    @property
    def is_passing(self) -> bool:
        """Whether the same call may succeed a moment later. A transaction that another one
        was in the way of may; one whose own condition failed may not."""
        if self.code == "TransactionCanceledException":
            codes = {reason.get("Code") for reason in self.reasons}
            return "ConditionalCheckFailed" not in codes and codes != {"ValidationError"}
        return self.status >= 500 or self.code in _THROTTLED

    @property
    def is_known(self) -> bool:
        """Whether it says that nothing was done."""
        return self.status < 500


class DynamoDB:
    """One method for every operation: `call("PutItem", {...})` as the API reference has it."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.sleep: Callable[[float], None] = time.sleep
        self.now: Callable[[], float] = time.monotonic

    def call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Raises Fault where DynamoDB refuses, OutOfReach where it cannot be asked at all, and
        Unavailable where it did not answer, once at least: the call may have been carried out.

        What may pass is tried again: every write here is recognised if it meets itself, so
        sending it twice is safe.
        """
        if operation == "TransactWriteItems":
            arguments = arguments | {"ClientRequestToken": secrets.token_hex(18)}
        body = orjson.dumps(arguments)
        give_up_at, is_known = self.now() + _PATIENCE_SECONDS, True
        for tried in range(1, _TRIES + 1):
            try:
                return self._once(operation, body)
            except (Fault, NoAnswer) as failure:
                is_known = is_known and isinstance(failure, Fault) and failure.is_known
                is_last = tried == _TRIES or self.now() >= give_up_at
                if is_last or (isinstance(failure, Fault) and not failure.is_passing):
                    raise _final(failure, is_known=is_known) from failure
            PROCESS.add(RETRIES)
            self.sleep(random.uniform(0, _FIRST_DELAY_SECONDS * 2**tried))
        raise AssertionError("unreachable")

    def _once(self, operation: str, body: bytes) -> dict[str, Any]:
        started, status = time.perf_counter(), 0
        try:
            status, answer = self.send(operation, body)
        finally:
            PROCESS.called(operation, time.perf_counter() - started, status)
        parsed: dict[str, Any] = orjson.loads(answer) if answer else {}
        if status != 200:
            raise Fault(status, parsed)
        return parsed


def _final(failure: Fault | NoAnswer, *, is_known: bool) -> Exception:
    """Throttled to the end is an answer; one silence or internal error before is none. A
    condition that fails behind a silence is: whoever set it recognises his own write."""
    if isinstance(failure, Fault) and not failure.is_passing and failure.code not in _OUT_OF_REACH:
        return failure
    if not is_known:
        return Unavailable()
    return OutOfReach() if isinstance(failure, Fault) and failure.code in _OUT_OF_REACH else failure


class Signer:
    """Signs requests with the credentials that are valid at the time."""

    def __init__(self, endpoint: str, region: str, credentials: Any) -> None:
        self._endpoint = endpoint
        self._region = region
        self._credentials = credentials

    def headers(self, operation: str, body: bytes) -> list[tuple[str, str]]:
        request = AWSRequest(
            "POST",
            self._endpoint,
            headers={
                "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Target": f"DynamoDB_20120810.{operation}",
            },
            data=body,
        )
        SigV4Auth(self._credentials.get_frozen_credentials(), "dynamodb", self._region).add_auth(request)
        return list(request.headers.items())


class BlockingHttp:
    """Sends over pooled connections and waits; safe to share between threads."""

    def __init__(self, endpoint: str, signer: Signer) -> None:
        self._signer = signer
        self._pool = urllib3.connection_from_url(
            endpoint, maxsize=_CONNECTIONS, timeout=_TIMEOUT, retries=False
        )

    def __call__(self, operation: str, body: bytes) -> tuple[int, bytes]:
        headers = dict(self._signer.headers(operation, body))
        try:
            answer = self._pool.urlopen("POST", "/", body, headers)
        except urllib3.exceptions.HTTPError as failure:
            raise NoAnswer(str(failure)) from failure
        return answer.status, answer.data


def connect_dynamodb(http: Callable[[str, Signer], Send] = BlockingHttp) -> DynamoDB:
    """Where boto3 would connect to, with the credentials that it would use."""
    session = get_session()
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    credentials = session.get_credentials()
    if credentials is None:
        raise RuntimeError("No AWS credentials were found; set AWS_ACCESS_KEY_ID or a profile")
    endpoint = _endpoint(session, region)
    return DynamoDB(http(endpoint, Signer(endpoint, region, credentials)))


def _endpoint(session: Any, region: str) -> str:
    named = os.environ.get("AWS_ENDPOINT_URL_DYNAMODB") or os.environ.get("AWS_ENDPOINT_URL")
    if named:
        return named
    resolver = session.get_component("endpoint_resolver")
    return f"https://{resolver.construct_endpoint('dynamodb', region)['hostname']}"
