"""AWS as it fails: answers and silences in place of a service's, at boto3's own seam."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from botocore import exceptions
from botocore.awsrequest import AWSResponse

from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Objects

Fault = Callable[[str], AWSResponse | None]
"""What becomes of a request to this URL; None lets it pass."""


@dataclass
class _Raw:
    """The body as urllib3 hands it on."""

    body: bytes

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.body


def answers(status: int, code: str) -> Fault:
    """In the words of S3, or, where they are JSON, of SQS."""
    body = f"<Error><Code>{code}</Code><Message>not now</Message></Error>".encode()
    headers = {"content-type": "application/xml", "content-length": str(len(body))}
    return lambda url: AWSResponse(url, status, headers, _Raw(body))


def raises(failure: Callable[..., Exception]) -> Fault:
    def fail(url: str) -> NoReturn:
        raise failure(endpoint_url=url, error="injected")

    return fail


#: A bucket that cannot be used: the network, the region, a policy, a key, a hand that deleted it.
OUT_OF_REACH: dict[str, Fault] = {
    "no connection": raises(exceptions.EndpointConnectionError),
    "no route": raises(exceptions.ConnectTimeoutError),
    "silence": raises(exceptions.ReadTimeoutError),
    "hangs up": raises(exceptions.ConnectionClosedError),
    "internal error": answers(500, "InternalError"),
    "unavailable": answers(503, "ServiceUnavailable"),
    "forbidden": answers(403, "AccessDenied"),
    "expired": answers(403, "RequestTimeTooSkewed"),
    "deleted": answers(404, "NoSuchBucket"),
    "a body that is missing": answers(404, "NoSuchKey"),
}


class Breakable:
    """A boto3 client that fails while it is told to, call by call, and objects beside it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.asked: list[str] = []
        self._fault: Fault | None = None
        self._operations: frozenset[str] = frozenset()
        client.meta.events.register_first("before-send", self._send)

    @contextmanager
    def failing(self, fault: Fault, *operations: str) -> Iterator[None]:
        """Those operations, or all."""
        self._fault, self._operations = fault, frozenset(operations)
        try:
            yield
        finally:
            self._fault = None

    def breaking(self, objects: Objects) -> Objects:
        """The short way to the same service fails with it, and waits no time to try again."""
        send = objects.send

        def acting(operation: str, key: str, body: bytes) -> tuple[int, bytes]:
            try:
                answer = self._answer(operation, key)
            except exceptions.BotoCoreError as failure:
                raise NoAnswer(str(failure)) from failure
            return (answer.status_code, answer.content) if answer else send(operation, key, body)

        objects.send, objects.sleep = acting, lambda _: None
        return objects

    def _send(self, request: Any, event_name: str, **_: Any) -> AWSResponse | None:
        return self._answer(event_name.rpartition(".")[2], request.url)

    def _answer(self, operation: str, url: str) -> AWSResponse | None:
        self.asked.append(operation)
        if self._fault is None or (self._operations and operation not in self._operations):
            return None
        return self._fault(url)
