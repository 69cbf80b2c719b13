"""A table that asks us to slow down: every way in says so with 429, and nothing is half done."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.authorization.ways import WAYS, Answer, Way, in_environment
from tests.support import conflict, refusal
from tidemark.aws.http import BlockingHttp
from tidemark.local.engines import LocalServices
from tidemark.settings import Settings

_serial = itertools.count()
TEXT = {"Content-Type": "text/plain"}
OPERATIONS = [
    ("PUT", "", TEXT, b""),
    ("PUT", "", TEXT, b"with content"),
    ("POST", "", TEXT, b"x"),
    ("GET", "?offset=-1", {}, b""),
    ("GET", "?offset=now", {}, b""),
    ("GET", "?offset=-1&live=long-poll", {}, b""),
    ("GET", "?offset=-1&live=sse", {}, b""),
    ("HEAD", "", {}, b""),
    ("DELETE", "", {}, b""),
]
CODES = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "TransactionConflictException",
]


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, services: LocalServices) -> Iterator[Way]:
    with (
        in_environment(services),
        WAYS[request.param](Settings.from_environment(os.environ)) as opened,
    ):
        yield opened


@pytest.fixture
def path(way: Way) -> str:
    path = f"/v1/stream/throttled/{next(_serial)}"
    assert way("PUT", path, TEXT, b"first").status == 201
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again takes no time."""
    monkeypatch.setattr("tidemark.aws.retry.random.uniform", lambda *_: 0.0)


def throttle(monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes]) -> None:
    monkeypatch.setattr(BlockingHttp, "__call__", lambda *_: answer)


def check_busy(answer: Answer, method: str) -> None:
    assert answer.status == 429, answer
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["cache-control"] == "no-store"
    assert method == "HEAD" or answer.error


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: "".join(operation[:2]))
@pytest.mark.parametrize("code", CODES)
def test_a_throttled_table_gets_429(  # noqa: PLR0917 - fixtures are asked for by name
    way: Way,
    path: str,
    impatient: None,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    operation: tuple[str, str, dict[str, str], bytes],
) -> None:
    method, query, headers, body = operation
    with monkeypatch.context() as patch:
        throttle(patch, refusal(code))
        check_busy(way(method, path + query, headers, body), method)
    answer = way("GET", f"{path}?offset=-1")
    assert (answer.status, answer.body) == (200, b"first")


def test_a_transaction_that_conflicts_with_others_gets_429(
    way: Way, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/stream/throttled/{next(_serial)}"
    with monkeypatch.context() as patch:
        throttle(patch, conflict("TransactWriteItems"))
        check_busy(way("PUT", path, TEXT, b"x"), "PUT")
    assert way("HEAD", path).status == 404


def test_a_table_with_internal_errors_gets_503_and_not_429(
    way: Way, path: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503: the write may have landed, so the client is told what to do about it."""
    throttle(monkeypatch, (500, b'{"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}'))
    answer = way("POST", path, TEXT, b"x")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "producer" in answer.error
