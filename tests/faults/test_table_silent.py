"""A table that does not answer, or is not there: what is known of the outcome is said, and in time."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.authorization.ways import WAYS, Answer, Way, in_environment
from tests.support import refusal
from tidemark.aws.account import AwsRequest
from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.aws.http import BlockingHttp
from tidemark.aws.retry import NoAnswer
from tidemark.local.engines import LocalServices
from tidemark.protocol.errors import OutcomeUnknown, StorageUnavailable
from tidemark.settings import Settings

_serial = itertools.count()
TEXT = {"Content-Type": "text/plain"}
PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
THROTTLED = refusal("ThrottlingException")
#: Of a table that was deleted, or whose key or rights were taken away.
GONE = [
    "ResourceNotFoundException",
    "AccessDeniedException",
    "UnrecognizedClientException",
    "ExpiredTokenException",
]
Send = Callable[..., tuple[int, bytes]]


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, services: LocalServices) -> Iterator[Way]:
    with in_environment(services), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.aws.retry.random.uniform", lambda *_: 0.0)
        # However slow this machine is: the breaker has tests of its own.
        patch.setattr("tidemark.aws.retry.SILENT_SECONDS", math.inf)
        with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
            yield opened


@pytest.fixture
def path(way: Way) -> str:
    path = f"/v1/stream/silent/{next(_serial)}"
    assert way("PUT", path, TEXT, b"first").status == 201
    return path


def requests_to(path: str) -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    yield "PUT", f"{path}/new", TEXT, b""
    yield "PUT", f"{path}/new", TEXT, b"with content"
    yield "POST", path, TEXT, b"x"
    yield "HEAD", path, {}, b""
    yield "DELETE", path, {}, b""
    for query in ("?offset=-1", "?offset=now", "?offset=-1&live=long-poll", "?offset=-1&live=sse"):
        yield "GET", path + query, {}, b""


def check_unknown(answer: Answer, method: str) -> None:
    assert (answer.status, answer.headers["retry-after"]) == (503, "1"), answer
    assert answer.headers["cache-control"] == "no-store"
    if method != "HEAD":
        assert "outcome is unknown" in answer.error
        assert "injected" not in answer.error


def silent(*_: Any) -> tuple[int, bytes]:
    raise NoAnswer("injected")


def test_a_table_that_never_replies_gets_503_with_an_unknown_outcome(
    way: Way, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 for every operation, on every way in; afterwards all is as it was."""
    with monkeypatch.context() as patch:
        patch.setattr(BlockingHttp, "__call__", silent)
        for method, target, headers, body in requests_to(path):
            check_unknown(way(method, target, headers, body), method)
    assert way("GET", path).body == b"first"
    assert way("HEAD", f"{path}/new").status == 404


def test_a_write_whose_reply_is_missing_lands_once(
    way: Way, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is carried out and no answer comes back, however often it is asked for again."""
    send = BlockingHttp.__call__

    def lose(self: BlockingHttp, request: AwsRequest) -> tuple[int, bytes]:
        send(self, request)
        raise NoAnswer("injected")

    with monkeypatch.context() as patch:
        patch.setattr(BlockingHttp, "__call__", lose)
        check_unknown(way("POST", path, TEXT | PRODUCER, b" second"), "POST")
    repeated = way("POST", path, TEXT | PRODUCER, b" second")
    assert (repeated.status, repeated.headers["stream-next-offset"]) == (204, f"{12:016d}")
    assert way("GET", path).body == b"first second"


def lost_then(answer: tuple[int, bytes]) -> Callable[[Send], Send]:
    """The first write is carried out unheard; from then on every call is answered so."""

    def make(send: Send) -> Send:
        lost = False

        def once_lost(self: BlockingHttp, request: AwsRequest) -> tuple[int, bytes]:
            nonlocal lost
            if lost:
                return answer
            if request.headers["X-Amz-Target"].endswith(".PutItem"):
                lost = True
                send(self, request)
                raise NoAnswer("injected")
            return send(self, request)

        return once_lost

    return make


@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException"])
def test_a_refusal_after_a_missing_reply_leaves_the_outcome_unknown(
    way: Way, path: str, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """429 says that nothing was written. Behind a write that may have landed, nobody can say that."""
    with monkeypatch.context() as patch:
        patch.setattr(BlockingHttp, "__call__", lost_then(refusal(code))(BlockingHttp.__call__))
        check_unknown(way("POST", path, TEXT | PRODUCER, b" second"), "POST")
    assert way("GET", path).body == b"first second", "it did land"
    assert way("POST", path, TEXT | PRODUCER, b" second").status == 204


@pytest.mark.parametrize("code", GONE)
def test_a_table_that_refuses_access_gets_503_and_nothing_has_changed(
    way: Way, path: str, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """503, and that nothing has changed; the reason is in the log and not in the answer."""
    with monkeypatch.context() as patch:
        patch.setattr(BlockingHttp, "__call__", lambda *_: refusal(code, message="arn:aws:secret"))
        for method, target, headers, body in requests_to(path):
            answer = way(method, target, headers, body)
            assert (answer.status, answer.headers["retry-after"]) == (503, "5"), answer
            assert method == "HEAD" or "nothing has changed" in answer.error
            assert b"arn" not in answer.body
    assert way("GET", path).body == b"first"


class Silence:
    """A table that takes its time not to answer, by a clock that only this moves."""

    def __init__(self, seconds: float) -> None:
        self.now, self.calls, self._seconds = 0.0, 0, seconds
        self.dynamodb = DynamoDB(self._send)
        self.dynamodb.now = lambda: self.now
        self.dynamodb.sleep = self._pass

    def _send(self, _operation: str, _body: bytes) -> tuple[int, bytes]:
        self.calls += 1
        self._pass(self._seconds)
        raise NoAnswer("injected")

    def _pass(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0, 7.0])
def test_the_answer_comes_before_the_gateway_gives_up(seconds: float) -> None:
    """Connecting and reading have two and five seconds: a gateway that waits for thirty hears from us."""
    silence = Silence(seconds)
    with pytest.raises(OutcomeUnknown):
        silence.dynamodb.call("GetItem", {})
    assert silence.now < 15
    assert silence.calls > 1 or seconds > 6


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([THROTTLED] * 6, "ThrottlingException"),
        ([(500, b"{}"), *[THROTTLED] * 5], OutcomeUnknown),
        ([THROTTLED, (500, b"{}"), *[THROTTLED] * 4], OutcomeUnknown),
        ([THROTTLED, refusal("ConditionalCheckFailedException")], "ConditionalCheckFailedException"),
        ([(500, b"{}"), refusal("ConditionalCheckFailedException")], "ConditionalCheckFailedException"),
        ([refusal("AccessDeniedException")], StorageUnavailable),
        ([THROTTLED, refusal("AccessDeniedException")], StorageUnavailable),
        ([(500, b"{}"), refusal("AccessDeniedException")], OutcomeUnknown),
        ([refusal("ValidationException")], "ValidationException"),
    ],
)
def test_the_outcome_of_a_call_follows_from_all_its_replies(
    answers: list[tuple[int, bytes]], expected: str | type[Exception]
) -> None:
    left = list(answers)
    dynamodb = DynamoDB(lambda *_: left.pop(0))
    dynamodb.sleep = lambda _: None
    with pytest.raises((Fault, StorageUnavailable, OutcomeUnknown)) as raised:
        dynamodb.call("PutItem", {})
    assert left == []
    assert expected == (raised.value.code if isinstance(raised.value, Fault) else type(raised.value))
