"""The short way to AWS, for what every request does: botocore signs, urllib3 sends.

boto3's own client does the same at more than twice the CPU (`benchmarks/cpu.py`). Endpoint,
region and credentials are found as boto3 finds them. (`aws/clients.py` is the long way, for what
is called seldom.)
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import urllib3
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.session import get_session

from tidemark.aws.breaker import Breaker
from tidemark.aws.replies import missing, missing_of_object
from tidemark.observability.metrics import PROCESS, RETRIES

#: Six tries, the last after about a second and a half in all where each is refused at once.
#: Of what is silent no more is asked after so many seconds: a gateway gives up at thirty.
_TRIES: Final = 6
_PATIENCE_SECONDS: Final = 6.0
_FIRST_DELAY_SECONDS: Final = 0.025
_CONNECT_SECONDS: Final = 2
_CONNECTIONS: Final = 64

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request:
    """`path` begins with a slash and is encoded as it is to be sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


Http = Callable[[Request], tuple[int, bytes]]
"""Signs a request, carries it, and brings back status and body of a whole reply. Raises NoAnswer."""


class Failure(Exception):
    """A call that has not succeeded."""

    #: Whether the same call may succeed a moment later.
    retryable = False
    #: Whether nothing was done, by this try or one before it.
    outcome_known = True


class NoAnswer(Failure):
    """The request may or may not have arrived: there is no reply, or none that is whole."""

    retryable = True
    outcome_known = False


class Silent(Failure):
    """Not sent: the service is known to be silent (`aws/breaker.py`)."""


class Service:
    """A service of AWS as this process reaches it: where, and with whose signature, made with
    the credentials that are valid at the time."""

    def __init__(self, endpoint: str, signature: Callable[[Any], SigV4Auth], credentials: Any) -> None:
        self.endpoint = endpoint
        self._signature = signature
        self._credentials = credentials

    def sign(self, request: Request) -> list[tuple[str, str]]:
        """All the headers to send."""
        signed = AWSRequest(
            request.method, self.endpoint + request.path, headers=request.headers, data=request.body
        )
        self._signature(self._credentials.get_frozen_credentials()).add_auth(signed)
        return list(signed.headers.items())


class Account:
    """Region and credentials, looked up once for all services."""

    def __init__(self, region: str | None = None) -> None:
        self._session = get_session()
        configured = os.environ.get("AWS_REGION") or self._session.get_config_variable("region")
        self.region: str = region or configured or "us-east-1"
        self._credentials = self._session.get_credentials()
        if self._credentials is None:
            raise RuntimeError("No AWS credentials were found; set AWS_ACCESS_KEY_ID or a profile")

    def dynamodb(self, endpoint: str | None = None) -> Service:
        return self._service("dynamodb", endpoint, SigV4Auth)

    def s3(self, endpoint: str | None = None) -> Service:
        return self._service("s3", endpoint, S3SigV4Auth)

    def _service(self, name: str, endpoint: str | None, signature: type[SigV4Auth]) -> Service:
        return Service(
            (endpoint or self._endpoint(name)).rstrip("/"),
            lambda credentials: signature(credentials, name, self.region),
            self._credentials,
        )

    def _endpoint(self, name: str) -> str:
        named = os.environ.get(f"AWS_ENDPOINT_URL_{name.upper()}") or os.environ.get("AWS_ENDPOINT_URL")
        if named:
            return named
        resolver = self._session.get_component("endpoint_resolver")
        return f"https://{resolver.construct_endpoint(name, self.region)['hostname']}"


class BlockingHttp:
    """Sends over pooled connections and waits; safe to share between threads."""

    def __init__(self, service: Service, answer_seconds: float) -> None:
        self._service = service
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=answer_seconds)
        self._pool = urllib3.connection_from_url(
            service.endpoint, maxsize=_CONNECTIONS, timeout=timeout, retries=False
        )

    def __call__(self, request: Request) -> tuple[int, bytes]:
        headers = dict(self._service.sign(request))
        try:
            answer = self._pool.urlopen(
                request.method, request.path, request.body, headers, decode_content=False
            )
        except urllib3.exceptions.HTTPError as failure:
            raise NoAnswer(str(failure)) from failure
        return whole(request, answer.status, answer.headers, answer.data)


def whole(request: Request, status: int, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """Status and body of a reply, however it was carried. Raises NoAnswer unless the reply is whole."""
    lack = missing(headers, body)
    if lack is None and status == 200 and request.method != "POST":
        lack = missing_of_object(request.method, headers, body)
    if lack is not None:
        raise NoAnswer(f"{request.method} {request.path}: {lack} (status {status})")
    return status, body


def retry(call: Callable[[], _T], sleep: Callable[[float], None], now: Callable[[], float]) -> _T:
    """What `call` returns in the end. A failure that may pass is tried again, each time after a
    longer pause; raises the last one."""
    give_up_at, outcome_known = now() + _PATIENCE_SECONDS, True
    for tried in range(1, _TRIES + 1):
        try:
            return call()
        except Failure as failure:
            outcome_known = failure.outcome_known = outcome_known and failure.outcome_known
            if not failure.retryable or tried == _TRIES or now() >= give_up_at:
                raise
        PROCESS.add(RETRIES)
        sleep(random.uniform(0, _FIRST_DELAY_SECONDS * 2**tried))
    raise AssertionError("unreachable")


def guarded(
    breaker: Breaker, now: Callable[[], float], send: Callable[[], tuple[int, bytes]]
) -> tuple[int, bytes]:
    """The call, sent unless the service is known to be silent. Raises Silent, NoAnswer."""
    sent = now()
    if not breaker.admit(sent):
        raise Silent("the service does not answer; not sent")
    try:
        answer = send()
    except NoAnswer:
        breaker.silent(sent, now())
        raise
    breaker.answered(now())
    return answer


def timed(service: str, operation: str, call: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
    """Counted as a storage call, whatever comes of it."""
    started, status = time.perf_counter(), 0
    try:
        status, answer = call()
    finally:
        PROCESS.called(service, operation, time.perf_counter() - started, status)
    return status, answer
