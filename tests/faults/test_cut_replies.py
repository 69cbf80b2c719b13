"""No reply of DynamoDB or S3 counts before it is proven to be whole.

Replies of each kind are cut behind every single byte, and the connection closed. What is tried here is one
exchange; what the use cases make of a lost reply is played by `tests/simulation`.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from tests.faults.proxy import Proxy, Reply, Sent, Spoil, unspoiled
from tests.stack.engines import LocalServices
from tests.support import make_world, refusal
from tidemark.aws.dynamodb import DynamoDB, Fault, connect_dynamodb
from tidemark.aws.http import Account, AwsRequest, crc32_text, whole
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Objects, connect_objects
from tidemark.protocol.errors import Damaged, OutcomeUnknown

KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
OTHER = {"pk": {"S": "a"}, "sk": {"S": "c"}}
MISSING = {"pk": {"S": "a"}, "sk": {"S": "z"}}
REFUSED = {
    "ConditionExpression": "attribute_not_exists(sk)",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}
OBJECT = b"an object of some length"
Outcome = tuple[int, bytes] | NoAnswer


@dataclass
class Scene:
    """Engines behind proxies; pauses take no time."""

    table: str
    tables: Proxy
    bucket: Proxy
    dynamodb: DynamoDB
    objects: Objects

    def send(self, operation: str, **arguments: Any) -> tuple[int, bytes]:
        """One try. Raises NoAnswer."""
        return self.dynamodb.send(operation, orjson.dumps({"TableName": self.table} | arguments))

    def item(self, key: dict[str, Any]) -> Any:
        """With all tries."""
        return self.dynamodb.call("GetItem", {"TableName": self.table, "Key": key}).get("Item", {}).get("n")


@pytest.fixture(scope="module")
def scene(services: LocalServices) -> Iterator[Scene]:
    world, account = make_world(services), Account()
    with (
        Proxy(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]).on_a_thread() as tables,
        Proxy(os.environ["AWS_ENDPOINT_URL_S3"]).on_a_thread() as bucket,
    ):
        dynamodb = connect_dynamodb(account, endpoint=tables.endpoint)
        objects = connect_objects(account, world.bucket_name, endpoint=bucket.endpoint)
        dynamodb.sleep = objects.sleep = lambda _: None
        made = Scene(world.table_name, tables, bucket, dynamodb, objects)
        made.send("PutItem", Item=KEY | {"n": {"N": "1"}})
        made.send("PutItem", Item=OTHER | {"n": {"N": "2"}})
        objects.put("there", OBJECT)
        objects.put("empty", b"")
        yield made


TABLE_CALLS: dict[str, Callable[[Scene], Outcome]] = {
    "an item": lambda scene: scene.send("GetItem", Key=KEY),
    "a refused write": lambda scene: scene.send("PutItem", Item=KEY, **REFUSED),
}
OBJECT_CALLS: dict[str, Callable[[Scene], Outcome]] = {
    "an object": lambda scene: scene.objects.send("GetObject", "there", b""),
    "an empty object": lambda scene: scene.objects.send("GetObject", "empty", b""),
    "no object": lambda scene: scene.objects.send("GetObject", "nowhere", b""),
    "a stored object": lambda scene: scene.objects.send("PutObject", "stored", OBJECT),
}


@pytest.mark.parametrize("kind", [*TABLE_CALLS, *OBJECT_CALLS])
def test_a_reply_that_is_cut_anywhere_does_not_count(scene: Scene, kind: str) -> None:
    """A reply of S3 that has no body may count once its status, its tag and its length of nothing are there:
    nothing that follows them would change it. Every other one counts only whole."""
    proxy, call = (
        (scene.tables, TABLE_CALLS[kind]) if kind in TABLE_CALLS else (scene.bucket, OBJECT_CALLS[kind])
    )
    with proxy.spoiling(unspoiled) as seen:
        expected = outcome(lambda: call(scene))
    (reply,) = seen
    assert isinstance(expected, tuple)
    has_body = bool(expected[1])
    said = len(reply.raw) if has_body else max(end_of(reply, "etag"), end_of(reply, "content-length"))
    for position in range(len(reply.raw)):
        with proxy.spoiling(lambda _, position=position: Sent(reply.raw[:position], close=True)):  # type: ignore[misc]
            answer = outcome(lambda: call(scene))
        assert isinstance(answer, NoAnswer) or (position >= said and answer == expected), position


def outcome(call: Callable[[], Outcome]) -> Outcome:
    try:
        return call()
    except NoAnswer as failure:
        return failure


def end_of(reply: Reply, header: str) -> int:
    """The position behind a header's value."""
    begin = reply.head.lower().index(f"\r\n{header}:".encode())
    return reply.head.index(b"\r\n", begin + 2)


# --- replies that are whole HTTP, and no answer all the same -------------------------------

OF_TWO = {"content-length": "2"}
OF_AN_OBJECT = OF_TWO | {"etag": '"0123"'}
TO_NO_MATTER_WHAT: list[dict[str, str]] = [
    {},
    {"content-length": ""},
    {"content-length": "1"},
    {"content-length": "3"},
    {"content-length": "2, 2"},
    {"content-length": "two"},
    {"transfer-encoding": "gzip"},
    OF_TWO | {"x-amz-crc32": "1"},
    OF_TWO | {"x-amz-crc32": ""},
]
TO_A_READ = [
    OF_TWO,
    OF_TWO | {"etag": '"0123'},
    OF_AN_OBJECT | {"x-amz-checksum-crc32": crc32_text(b"other")},
]


@pytest.mark.parametrize(
    ("method", "status", "headers"),
    [
        *(("POST", status, headers) for status in (200, 400, 500) for headers in TO_NO_MATTER_WHAT),
        *(("GET", 200, headers) for headers in TO_A_READ),
        *(("PUT", 200, headers) for headers in (OF_TWO, OF_AN_OBJECT)),
    ],
)
def test_replies_need_length_checksum_and_tag(method: str, status: int, headers: dict[str, str]) -> None:
    with pytest.raises(NoAnswer):
        whole(AwsRequest(method, "/", {}), status, headers, b"{}")


@pytest.mark.parametrize(
    ("method", "status", "headers", "body"),
    [
        ("POST", 200, OF_TWO, b"{}"),
        ("POST", 200, {"transfer-encoding": "chunked"}, b"{}"),
        ("GET", 200, OF_AN_OBJECT | {"x-amz-checksum-crc32": crc32_text(b"{}")}, b"{}"),
        ("GET", 200, OF_AN_OBJECT | {"x-amz-checksum-crc32": "of parts-3"}, b"{}"),
        ("GET", 404, OF_TWO, b"{}"),
        ("PUT", 200, OF_AN_OBJECT | {"content-length": "0"}, b""),
    ],
)
def test_a_whole_reply_counts(method: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    assert whole(AwsRequest(method, "/", {}), status, headers, body) == (status, body)


ANSWERS: dict[str, tuple[str, tuple[int, bytes]]] = {
    "an item": ("GetItem", (200, orjson.dumps({"Item": KEY}))),
    "no item": ("GetItem", (200, b"{}")),
    "items": ("Query", (200, orjson.dumps({"Items": [KEY], "Count": 1}))),
    "a write": ("PutItem", (200, b"{}")),
    "a refused write": ("PutItem", refusal("ConditionalCheckFailedException", Item=KEY)),
}
CHANGES: dict[str, Callable[[int, bytes], bytes]] = {
    "truncated": lambda _, body: body[:-1],
    "half": lambda _, body: body[: len(body) // 2],
    "empty": lambda *_: b"",
    "an error": lambda status, _: (
        refusal("InternalServerError")[1] if status == 200 else b'{"message": "no"}'
    ),
    "null": lambda *_: b"null",
    "a list": lambda *_: b"[]",
    "a text": lambda *_: b'"Items"',
    "HTML": lambda *_: b"<html>Bad gateway</html>",
    "another operation's": lambda *_: b'{"TableNames":[]}',
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_body_of_the_right_length_is_no_reply_of_dynamodb(kind: str, change: str) -> None:
    """As something on the way may answer, checksum and all. It is asked again, and what comes then counts;
    where nothing else comes, the outcome is unknown."""
    operation, (status, body) = ANSWERS[kind]
    wrong, right = (status, CHANGES[change](status, body)), (status, body)

    def result(*answers: tuple[int, bytes]) -> object:
        left = list(answers)
        dynamodb = DynamoDB(lambda *_: left.pop(0))
        dynamodb.sleep = lambda _: None
        try:
            return dynamodb.call(operation, {})
        except Fault as fault:
            return fault.answer
        finally:
            assert left == []

    assert result(wrong, right) == orjson.loads(body)
    with pytest.raises(OutcomeUnknown):
        result(*[wrong] * 6)


@pytest.mark.parametrize("body", [OBJECT[:-1], b"", OBJECT + b"x"], ids=["truncated", "empty", "longer"])
def test_an_object_without_checksum_is_checked_by_size(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """An object that somebody else has put may have none that this can compute."""
    left = [body, OBJECT, *[body] * 6]
    objects = Objects(lambda *_: (200, left.pop(0)))
    objects.sleep = lambda _: None
    assert objects.get("there", len(OBJECT)) == OBJECT
    with pytest.raises(Damaged):
        objects.get("there", len(OBJECT))
    assert "there has" in caplog.text


# --- what else can be on a connection ------------------------------------------------------


def once(change: Callable[[Reply], Reply | bytes], *, close: bool = False) -> Spoil:
    """The first reply is changed, those to later tries are left as they are."""
    left = [change]

    def spoil(reply: Reply) -> Sent:
        changed = left.pop()(reply) if left else reply
        return Sent(changed.raw if isinstance(changed, Reply) else changed, close)

    return spoil


def test_one_wrong_byte_is_found_by_the_checksum(scene: Scene) -> None:
    """Well-formed, as long as it should be, of the right shape: only the checksum tells."""
    with scene.tables.spoiling(once(lambda reply: reply.with_body(reply.body.replace(b'"1"', b'"7"')))):
        assert scene.item(KEY) == {"N": "1"}
    with scene.bucket.spoiling(once(lambda reply: reply.with_body(reply.body[::-1]))):
        assert scene.objects.get("there") == OBJECT


@pytest.mark.parametrize(
    "more", [b"", b"HTTP/1.1 200 OK\r\n", b"\r\nnonsense"], ids=["all", "half", "nonsense"]
)
def test_a_second_reply_does_not_answer_the_next_request(scene: Scene, more: bytes) -> None:
    """In one piece with the first: the connection is given up, or what is behind the reply thrown away."""
    with scene.tables.spoiling(once(lambda reply: reply.raw + (more or reply.raw))):
        assert scene.item(KEY) == {"N": "1"}
        for _ in range(3):
            assert scene.item(OTHER) == {"N": "2"}
            assert scene.item(MISSING) is None


def test_a_reply_without_a_request_does_not_answer_the_next_request() -> None:
    """Between two requests, on a connection that is kept."""
    asked = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    stale = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"stale": "x"}'
    answered, is_there = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        request = b""
        while not request.endswith(b"{}"):
            request += connection.recv(65536)
        connection.sendall(asked)

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as first:
            answer(first)
            answered.wait(60)
            first.sendall(stale)
            is_there.set()
            with listener.accept()[0] as second:
                answer(second)
                second.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        dynamodb = connect_dynamodb(Account(), endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert dynamodb.send("GetItem", b"{}") == (200, b"{}")
        answered.set()
        assert is_there.wait(60)
        assert dynamodb.send("GetItem", b"{}") == (200, b"{}")
