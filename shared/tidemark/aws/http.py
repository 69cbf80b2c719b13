"""Signed requests over pooled connections, for what every request does.

boto3's own client does the same at more than twice the CPU (`benchmarks/cpu.py`). `aws/clients.py` makes
boto3's clients for what is called seldom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import urllib3

from tidemark.aws.clock import CLOCK
from tidemark.aws.replies import missing, missing_of_object
from tidemark.aws.retry import NoAnswer
from tidemark.aws.sigv4 import AwsRequest, Service

_CONNECT_SECONDS: Final = 2
_CONNECTIONS: Final = 64

# A reply that is cut in its headers is a warning with a traceback there; here it is no answer (`replies.py`).
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
