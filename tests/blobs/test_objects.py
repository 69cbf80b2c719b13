"""The direct client of S3: what each response means, and that requests are signed as boto3 signs them."""

import datetime as dt
from collections import deque
from typing import Any

import pytest

from tests.stack.engines import LocalServices
from tests.support import World, make_world
from tidemark.aws.clients import s3_client
from tidemark.aws.http import Account, AwsRequest
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Objects, Refusal, connect_objects
from tidemark.protocol.errors import Busy, Damaged, StorageUnavailable

pytestmark = pytest.mark.each_engine

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
SLOW_DOWN = (503, b"<Error><Code>SlowDown</Code></Error>")
BROKEN = (500, b"<Error><Code>InternalError</Code></Error>")
MISSING = (404, b"<Error><Code>NoSuchKey</Code></Error>")
REFUSED = (403, b"")
OK = (200, b"body")
Answer = tuple[int, bytes] | NoAnswer


@pytest.fixture
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture
def objects(world: World) -> Objects:
    return world.process().objects


@pytest.mark.parametrize("key", ["snapshot/i/0000000000000001-x.bootstrap", "ä b+%2F=&?#~"])
@pytest.mark.parametrize("data", [b"", bytes(range(256)) * 1000])
def test_an_object_that_is_put_is_read_back(world: World, objects: Objects, key: str, data: bytes) -> None:
    """Also by boto3, which makes the other calls for objects, and the other way round."""
    objects.put(key, data)
    assert objects.get(key) == data
    s3 = world.process().s3
    assert s3.get_object(Bucket=world.bucket_name, Key=key)["Body"].read() == data
    s3.put_object(Bucket=world.bucket_name, Key=key, Body=b"there")
    assert objects.get(key) == b"there"


def answering(*answers: Answer) -> tuple[Objects, deque[Answer], list[float]]:
    """Objects over an S3 that gives these responses in turn; also the responses that are left, and each
    pause."""
    left = deque(answers)
    pauses: list[float] = []

    def send(_operation: str, _key: str, _body: bytes) -> tuple[int, bytes]:
        answer = left.popleft()
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    objects = Objects(send)
    objects.sleep = pauses.append
    return objects, left, pauses


@pytest.mark.parametrize("passing", [SLOW_DOWN, BROKEN, (429, b""), NoAnswer("lost")])
@pytest.mark.parametrize("times", [1, 5])
def test_a_transient_error_is_retried(passing: Answer, times: int) -> None:
    objects, left, pauses = answering(*[passing] * times, OK)
    assert objects.get("a") == b"body"
    assert (len(left), len(pauses)) == (0, times)


@pytest.mark.parametrize(
    ("answer", "error", "retries"),
    [
        (SLOW_DOWN, Busy, 5),
        (BROKEN, StorageUnavailable, 5),
        (NoAnswer("lost"), StorageUnavailable, 5),
        (MISSING, StorageUnavailable, 0),
        (REFUSED, StorageUnavailable, 0),
        ((400, b"odd"), Refusal, 0),
    ],
)
def test_a_transient_error_that_lasts_and_a_permanent_one_are_raised(
    answer: Answer, error: type[Exception], retries: int
) -> None:
    objects, left, pauses = answering(*[answer] * 7)
    with pytest.raises(error):
        objects.put("a", b"x") if retries else objects.get("a")
    assert (6 - len(left), len(pauses)) == (retries, retries)


def test_a_range_of_an_object_is_read_and_one_beyond_it_is_damaged(objects: Objects) -> None:
    data, objects.sleep = bytes(range(256)), lambda _seconds: None
    objects.put("log/part", data)
    for first, size in ((0, 1), (0, 256), (7, 100), (255, 1)):
        assert objects.get_range("log/part", first, size) == data[first : first + size]
    for first, size in ((0, 257), (255, 2), (256, 1), (1000, 5)):
        with pytest.raises(Damaged):
            objects.get_range("log/part", first, size)
    with pytest.raises(StorageUnavailable):
        objects.get_range("log/nothing", 0, 1)


def test_a_whole_object_instead_of_a_range_is_refused() -> None:
    objects, _, _ = answering(*[(200, b"body")] * 7)
    with pytest.raises(Damaged):
        objects.get_range("a", 4, 4)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0, 8.0])
def test_a_silent_s3_raises_before_the_gateway_times_out(seconds: float) -> None:
    """A connection may take two seconds and a read six; the gateway waits for thirty."""
    now = [0.0]

    def silent(*_: object) -> tuple[int, bytes]:
        now[0] += seconds
        raise NoAnswer("injected")

    objects = Objects(silent)
    objects.now, objects.sleep = lambda: now[0], lambda _: None
    with pytest.raises(StorageUnavailable):
        objects.get("a")
    assert now[0] < 15


def signed_by_boto3(operation: str, **arguments: Any) -> dict[str, str]:
    """The headers that boto3 would send at `NOW`."""
    sent: list[Any] = []

    class Sent(Exception):
        pass

    def stop(request: Any, **_: Any) -> None:
        sent.append(request)
        raise Sent

    client = s3_client()
    client.meta.events.register("before-send.s3", stop)
    with pytest.raises(Sent):
        getattr(client, operation)(**arguments)
    return {
        name.lower(): value if isinstance(value, str) else value.decode()
        for name, value in sent[0].headers.items()
    }


def test_a_read_is_signed_as_boto3_signs_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No local engine checks a signature; AWS does. `tests/aws/test_sigv4.py` compares all requests."""
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: NOW.replace(tzinfo=None))
    expected = signed_by_boto3("get_object", Bucket=world.bucket_name, Key="log/ä b+c/1")
    headers = signed_by_us(world.bucket_name)
    assert headers["authorization"] == expected["authorization"]
    assert headers["x-amz-date"] == expected["x-amz-date"]


def signed_by_us(bucket: str) -> dict[str, str]:
    """The headers of one of our requests."""
    sent = dict[str, str]()

    def http(service: Any, _seconds: float) -> Any:
        def carry(request: AwsRequest) -> tuple[int, bytes]:
            service.now = NOW.timestamp
            sent.update({name.lower(): value for name, value in service.sign(request).items()})
            return OK

        return carry

    connect_objects(Account(), bucket, http).send("GetObject", "log/ä b+c/1", b"")
    return sent
