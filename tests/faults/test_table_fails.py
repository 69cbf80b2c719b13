"""A table that does not answer, throttles, or is not there: every way in says what is known of the outcome,
in time, and nothing is half done."""

import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.authorization.ways import WAYS, Way, in_environment
from tests.stack.engines import LocalServices
from tests.support import conflict, refusal
from tidemark.aws.dynamodb import DynamoDB, Fault
from tidemark.aws.http import AwsRequest, BlockingHttp
from tidemark.aws.retry import NoAnswer
from tidemark.protocol.errors import OutcomeUnknown, StorageUnavailable
from tidemark.settings import Settings

_serial = itertools.count()
TEXT = {"Content-Type": "text/plain"}
PRODUCER = TEXT | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
THROTTLED = refusal("ThrottlingException")
INTERNAL_ERROR = (500, refusal("InternalServerError")[1])
#: None is no reply.
Reply = tuple[int, bytes] | None


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, services: LocalServices) -> Iterator[Way]:
    with in_environment(services), pytest.MonkeyPatch.context() as patch:
        # Trying again takes no time.
        patch.setattr("tidemark.aws.retry.random.uniform", lambda *_: 0.0)
        # However slow this machine is: the breaker has tests of its own.
        patch.setattr("tidemark.aws.retry.SILENCE_SECONDS", math.inf)
        with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
            yield opened


@pytest.fixture
def path(way: Way) -> str:
    path = f"/v1/stream/table-fails/{next(_serial)}"
    assert way("PUT", path, TEXT, b"first").status == 201
    return path


def answering(reply: Callable[[str], Reply]) -> Callable[..., tuple[int, bytes]]:
    """In place of the way to DynamoDB: what it replies to an operation."""

    def call(_: BlockingHttp, request: AwsRequest) -> tuple[int, bytes]:
        found = reply(request.headers["X-Amz-Target"].rpartition(".")[2])
        if found is None:
            raise NoAnswer("injected")
        return found

    return call


def refuses(code: str) -> Callable[[str], Reply]:
    return lambda _: refusal(code, message="arn:aws:secret")


#: What the table replies to every call, and what the client is told: status, Retry-After, and in the body.
UNKNOWN = (503, "1", '"outcome":"unknown"')
BUSY = (429, "1", "")
NOTHING = (503, "5", "nothing has changed")
FAILURES: dict[str, tuple[Callable[[str], Reply], tuple[int, str, str]]] = {
    "no reply": (lambda _: None, UNKNOWN),
    "internal error": (lambda _: INTERNAL_ERROR, UNKNOWN),
    "throughput exceeded": (refuses("ProvisionedThroughputExceededException"), BUSY),
    "limit exceeded": (refuses("RequestLimitExceeded"), BUSY),
    "throttled": (refuses("ThrottlingException"), BUSY),
    "conflict": (conflict, BUSY),
    "no table": (refuses("ResourceNotFoundException"), NOTHING),
    "no rights": (refuses("AccessDeniedException"), NOTHING),
    "no client": (refuses("UnrecognizedClientException"), NOTHING),
    "expired": (refuses("ExpiredTokenException"), NOTHING),
}


def requests_to(path: str) -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    yield "PUT", f"{path}/new", TEXT, b""
    yield "PUT", f"{path}/new", TEXT, b"with content"
    yield "POST", path, TEXT, b"x"
    yield "HEAD", path, {}, b""
    yield "DELETE", path, {}, b""
    for query in ("?offset=-1", "?offset=now", "?offset=-1&live=long-poll", "?offset=-1&live=sse"):
        yield "GET", path + query, {}, b""


@pytest.mark.parametrize("failure", FAILURES)
def test_every_request_is_told_what_is_known_of_its_outcome(
    way: Way, path: str, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """The reason is in the log and not in the answer. Afterwards all is as it was."""
    reply, (status, retry_after, text) = FAILURES[failure]
    with monkeypatch.context() as patch:
        patch.setattr(BlockingHttp, "__call__", answering(reply))
        for method, target, headers, body in requests_to(path):
            answer = way(method, target, headers, body)
            assert (answer.status, answer.headers["retry-after"]) == (status, retry_after), answer
            assert answer.headers["cache-control"] == "no-store"
            if method != "HEAD":
                assert text in answer.body.decode()
                assert not any(word in answer.error for word in ("arn", "injected"))
    assert way("GET", path).body == b"first"
    assert way("HEAD", f"{path}/new").status == 404


@pytest.mark.parametrize(
    "reply", [None, THROTTLED, refusal("AccessDeniedException")], ids=["none", "429", "403"]
)
def test_a_write_whose_reply_is_missing_is_unknown_and_lands_once(
    way: Way, path: str, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    """429 says that nothing was written. Behind a write that may have landed, nobody can say that."""
    send, lost = BlockingHttp.__call__, list[bool]()

    def lose(self: BlockingHttp, request: AwsRequest) -> tuple[int, bytes]:
        """The first write is carried out unheard; from then on every call is answered with `reply`."""
        if lost:
            return answering(lambda _: reply)(self, request)
        answer = send(self, request)
        if request.headers["X-Amz-Target"].endswith(".PutItem"):
            lost.append(True)
            raise NoAnswer("injected")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(BlockingHttp, "__call__", lose)
        answer = way("POST", path, PRODUCER, b" second")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert UNKNOWN[2] in answer.body.decode()
    assert way("GET", path).body == b"first second", "it did land"
    repeated = way("POST", path, PRODUCER, b" second")
    assert (repeated.status, repeated.headers["stream-next-offset"]) == (204, f"{12:016d}")
    assert way("GET", path).body == b"first second"


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0, 7.0])
def test_the_answer_comes_before_the_gateway_gives_up(seconds: float) -> None:
    """Connecting and reading have two and five seconds: a gateway that waits for thirty hears from us."""
    tries: list[float] = []
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    def silent(*_: Any) -> tuple[int, bytes]:
        tries.append(clock[0])
        wait(seconds)
        raise NoAnswer("injected")

    dynamodb = DynamoDB(silent)
    dynamodb.now, dynamodb.sleep = lambda: clock[0], wait
    with pytest.raises(OutcomeUnknown):
        dynamodb.call("GetItem", {})
    assert clock[0] < 15
    assert len(tries) > 1 or seconds > 6


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([THROTTLED] * 6, "ThrottlingException"),
        ([INTERNAL_ERROR, *[THROTTLED] * 5], OutcomeUnknown),
        ([THROTTLED, INTERNAL_ERROR, *[THROTTLED] * 4], OutcomeUnknown),
        ([THROTTLED, refusal("ConditionalCheckFailedException")], "ConditionalCheckFailedException"),
        ([INTERNAL_ERROR, refusal("ConditionalCheckFailedException")], "ConditionalCheckFailedException"),
        ([refusal("AccessDeniedException")], StorageUnavailable),
        ([THROTTLED, refusal("AccessDeniedException")], StorageUnavailable),
        ([INTERNAL_ERROR, refusal("AccessDeniedException")], OutcomeUnknown),
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
