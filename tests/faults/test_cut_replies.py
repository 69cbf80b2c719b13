"""No reply counts before it is proven to be whole, both ways of sending.

Whole: each kind of reply (of DynamoDB: a result, an empty result, an error; of S3: an object, an empty
object, a stored object, an error) is cut behind every single byte, and the connection closed. What is
tried here is one exchange; what the use cases make of it is in `test_cut_use_cases.py`.
"""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from tests.faults.proxy import Proxy, Reply, Sent, Spoil, read_message, unspoiled
from tests.support import World, make_world
from tidemark.aws.account import Account, AwsRequest
from tidemark.aws.dynamodb import Fault, connect_dynamodb
from tidemark.aws.http import whole
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import connect_objects
from tidemark.local.engines import LocalServices
from tidemark.protocol.errors import Damaged, OutcomeUnknown, StorageUnavailable

KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
OTHER = {"pk": {"S": "a"}, "sk": {"S": "c"}}
MISSING = {"pk": {"S": "a"}, "sk": {"S": "z"}}
OBJECT = b"an object of some length"
Call = Callable[[], Any]


class Client:
    """Sends to engines behind proxies; pauses take no time."""

    def __init__(self, world: World, tables: Proxy, objects: Proxy) -> None:
        self.table = world.table_name
        account = Account()
        self.dynamodb = connect_dynamodb(account, endpoint=tables.endpoint)
        self.objects = connect_objects(account, world.bucket_name, endpoint=objects.endpoint)
        self.dynamodb.sleep = self.objects.sleep = lambda _: None

    def to(self, endpoint: str) -> Call:
        """The same way to another server, one GetItem."""
        other = connect_dynamodb(Account(), endpoint=endpoint)
        return lambda: other.send("GetItem", b"{}")

    def send(self, operation: str, arguments: dict[str, Any]) -> tuple[int, bytes]:
        """One try. Raises NoAnswer."""
        body = orjson.dumps({"TableName": self.table} | arguments)
        return self.dynamodb.send(operation, body)

    def call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """With all its tries."""
        return self.dynamodb.call(operation, {"TableName": self.table} | arguments)


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)


@pytest.fixture(scope="module")
def tables(services: LocalServices) -> Iterator[Proxy]:
    with Proxy(os.environ["AWS_ENDPOINT_URL_DYNAMODB"]) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bucket(services: LocalServices) -> Iterator[Proxy]:
    with Proxy(os.environ["AWS_ENDPOINT_URL_S3"]) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def client(world: World, tables: Proxy, bucket: Proxy) -> Client:
    made = Client(world, tables, bucket)
    made.call("PutItem", {"Item": KEY | {"n": {"N": "1"}}})
    made.call("PutItem", {"Item": OTHER | {"n": {"N": "2"}}})
    made.objects.put("there", OBJECT)
    made.objects.put("empty", b"")
    return made


QUERY = {"KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": {":pk": {"S": "a"}}}
FAILS = {"Item": KEY, "ConditionExpression": "attribute_not_exists(sk)"}
TABLE_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "an item": ("GetItem", {"Key": KEY}),
    "no item": ("GetItem", {"Key": MISSING}),
    "items": ("Query", QUERY),
    "a write": ("PutItem", {"Item": {"pk": {"S": "other"}, "sk": {"S": "b"}}}),
    "a refused write": ("PutItem", FAILS | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}),
}
OBJECT_CALLS: dict[str, tuple[str, str, bytes]] = {
    "an object": ("GetObject", "there", b""),
    "an empty object": ("GetObject", "empty", b""),
    "no object": ("GetObject", "nowhere", b""),
    "a stored object": ("PutObject", "stored", OBJECT),
}


def outcome(call: Call) -> tuple[int, bytes] | NoAnswer:
    try:
        answer: tuple[int, bytes] = call()
    except NoAnswer as failure:
        return failure
    return answer


def sweep(proxy: Proxy, call: Call) -> tuple[Reply, tuple[int, bytes], list[tuple[int, bytes] | NoAnswer]]:
    """A reply, the answer to it, and the answers to it when it is cut behind each byte."""
    with proxy.spoiling(unspoiled) as seen:
        whole = call()
    (reply,) = seen
    answers = []
    for position in range(len(reply.raw)):
        with proxy.spoiling(cut(reply, position)):
            answers.append(outcome(call))
    return reply, whole, answers


def cut(reply: Reply, position: int) -> Spoil:
    return lambda _: Sent(reply.raw[:position], close=True)


@pytest.mark.parametrize("kind", TABLE_CALLS)
def test_a_reply_of_dynamodb_that_is_cut_anywhere_does_not_count(
    client: Client, tables: Proxy, kind: str
) -> None:
    operation, arguments = TABLE_CALLS[kind]
    _, whole, answers = sweep(tables, lambda: client.send(operation, arguments))
    assert whole[1].startswith(b"{")
    assert len(answers) > 150
    assert [position for position, answer in enumerate(answers) if not isinstance(answer, NoAnswer)] == []


@pytest.mark.parametrize("kind", OBJECT_CALLS)
def test_a_reply_of_s3_that_is_cut_anywhere_never_counts_as_another_one(
    client: Client, bucket: Proxy, kind: str
) -> None:
    """A reply that has no body may count once its status, its tag and its length of nothing are there:
    nothing that follows them would change it. Every other one counts only whole."""
    reply, whole, answers = sweep(bucket, lambda: client.objects.send(*OBJECT_CALLS[kind]))
    assert len(answers) > 400
    said = max(end_of(reply, "etag"), end_of(reply, "content-length")) if not whole[1] else len(reply.raw)
    for position, answer in enumerate(answers):
        assert isinstance(answer, NoAnswer) or (position >= said and answer == whole), position


def end_of(reply: Reply, header: str) -> int:
    """The position behind a header's value."""
    begin = reply.head.lower().index(f"\r\n{header}:".encode())
    return reply.head.index(b"\r\n", begin + 2)


# --- replies that are whole HTTP, and no answer all the same -------------------------------


def spoiled_once(change: Callable[[Reply], Reply | bytes], *, close: bool = False) -> Spoil:
    """The first reply is changed, those to later tries are left as they are."""
    left = [change]

    def spoil(reply: Reply) -> Sent:
        changed = left.pop()(reply) if left else reply
        return Sent(changed.raw if isinstance(changed, Reply) else changed, close)

    return spoil


def always(change: Callable[[Reply], Reply]) -> Spoil:
    return lambda reply: Sent(change(reply).raw)


def without_checksum(change: Callable[[Reply], Reply]) -> Callable[[Reply], Reply]:
    """As an engine that sends none."""
    return lambda reply: change(reply).with_header("x-amz-crc32", None)


def with_checksum(change: Callable[[Reply], Reply]) -> Callable[[Reply], Reply]:
    """As something on the way that has made its own answer, checksum and all."""
    return lambda reply: (changed := change(reply)).with_header("x-amz-crc32", str(zlib.crc32(changed.body)))


ERROR = orjson.dumps({"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError", "message": "no"})
NAMELESS = b'{"message": "bad gateway"}'
CHANGES: dict[str, Callable[[Reply], Reply]] = {
    "truncated": lambda reply: reply.with_body(reply.body[:-1]),
    "half": lambda reply: reply.with_body(reply.body[: len(reply.body) // 2]),
    "empty": lambda reply: reply.with_body(b""),
    "an error": lambda reply: reply.with_body(NAMELESS if b" 400 " in reply.head else ERROR),
    "null": lambda reply: reply.with_body(b"null"),
    "a list": lambda reply: reply.with_body(b"[]"),
    "a text": lambda reply: reply.with_body(b'"Items"'),
    "HTML": lambda reply: reply.with_body(b"<html>Bad gateway</html>"),
    "another operation's": lambda reply: reply.with_body(b'{"TableNames":[]}'),
}
LENGTHS: dict[str, Callable[[Reply], Reply]] = {
    "too short": lambda reply: reply.with_header("content-length", str(len(reply.body) - 1)),
    "nothing": lambda reply: reply.with_header("content-length", "0"),
    "none": lambda reply: reply.with_header("content-length", None),
    "no number": lambda reply: reply.with_header("content-length", "many"),
}


@pytest.mark.parametrize("checksum", [with_checksum, without_checksum], ids=["with crc", "without crc"])
@pytest.mark.parametrize("kind", TABLE_CALLS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_body_of_the_right_length_does_not_count_as_a_reply_of_dynamodb(
    client: Client, tables: Proxy, kind: str, change: str, checksum: Callable[..., Any]
) -> None:
    """It is asked again, and what comes then counts; where nothing else comes, the outcome is unknown."""
    operation, arguments = TABLE_CALLS[kind]
    expected = result_of(client, operation, arguments)
    with tables.spoiling(spoiled_once(checksum(CHANGES[change]))) as seen:
        assert result_of(client, operation, arguments) == expected
    assert len(seen) == 2
    with tables.spoiling(always(checksum(CHANGES[change]))) as seen, pytest.raises(OutcomeUnknown):
        client.call(operation, arguments)
    assert len(seen) == 6


def result_of(client: Client, operation: str, arguments: dict[str, Any]) -> object:
    try:
        return client.call(operation, arguments)
    except Fault as fault:
        return fault.answer


@pytest.mark.parametrize("kind", TABLE_CALLS)
@pytest.mark.parametrize("change", ["truncated", "an error", "null"])
def test_a_body_that_does_not_match_its_checksum_does_not_count(
    client: Client, tables: Proxy, kind: str, change: str
) -> None:
    operation, arguments = TABLE_CALLS[kind]
    with tables.spoiling(spoiled_once(CHANGES[change])):
        assert isinstance(outcome(lambda: client.send(operation, arguments)), NoAnswer)


def test_one_wrong_byte_is_found_by_the_checksum(client: Client, tables: Proxy) -> None:
    """Well-formed, as long as it should be, of the right shape: only the checksum tells."""
    with tables.spoiling(spoiled_once(lambda reply: reply.with_body(reply.body.replace(b'"1"', b'"7"')))):
        assert client.call("GetItem", {"Key": KEY})["Item"]["n"] == {"N": "1"}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", TABLE_CALLS)
def test_a_wrong_content_length_does_not_count_as_a_reply_of_dynamodb(
    client: Client, tables: Proxy, kind: str, length: str
) -> None:
    """What is left of the reply on the connection is not taken for the next one either."""
    operation, arguments = TABLE_CALLS[kind]
    expected = result_of(client, operation, arguments)
    close = length in {"none", "no number"}
    with tables.spoiling(spoiled_once(LENGTHS[length], close=close)) as seen:
        assert result_of(client, operation, arguments) == expected
    assert len(seen) == 2
    assert result_of(client, operation, arguments) == expected


def test_a_chunked_reply_counts_only_with_its_last_chunk(client: Client, tables: Proxy) -> None:
    def in_chunks(reply: Reply) -> bytes:
        chunked = reply.with_header("content-length", None)
        chunked = chunked.with_header("keep-alive", "x\r\nTransfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (reply.body[:7], reply.body[7:]))
        return chunked.head + body + b"0\r\n\r\n"

    with tables.spoiling(spoiled_once(in_chunks)):
        status, _ = client.send("GetItem", {"Key": KEY})
        assert status == 200
    with tables.spoiling(spoiled_once(lambda reply: in_chunks(reply)[:-5], close=True)):
        assert isinstance(outcome(lambda: client.send("GetItem", {"Key": KEY})), NoAnswer)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-length": ""},
        {"content-length": "1"},
        {"content-length": "3"},
        {"content-length": "2, 2"},
        {"content-length": "two"},
        {"transfer-encoding": "gzip"},
        {"content-length": "2", "x-amz-crc32": "1"},
        {"content-length": "2", "x-amz-crc32": ""},
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_no_status_counts_without_a_matching_length_and_checksum(
    status: int, headers: dict[str, str]
) -> None:
    request = AwsRequest("POST", "/", {})
    with pytest.raises(NoAnswer):
        whole(request, status, headers, b"{}")
    assert whole(request, status, {"content-length": "2"}, b"{}") == (status, b"{}")


XML = b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>"
OBJECT_CHANGES: dict[str, Callable[[Reply], Reply]] = {
    "truncated": lambda reply: reply.with_body(reply.body[:-1]),
    "empty": lambda reply: reply.with_body(b""),
    "longer": lambda reply: reply.with_body(reply.body + b"x"),
    "another": lambda reply: reply.with_body(reply.body[::-1]),
    "an error": lambda reply: reply.with_body(XML).with_header("etag", None),
    "too short": LENGTHS["too short"],
    "no tag": lambda reply: reply.with_header("etag", None),
    "half a tag": lambda reply: reply.with_header("etag", '"0123'),
}


@pytest.mark.parametrize("change", OBJECT_CHANGES)
def test_a_changed_object_does_not_count_as_a_reply_of_s3(client: Client, bucket: Proxy, change: str) -> None:
    """By its checksum, which S3 keeps from when the object was put, or by its tag."""
    with bucket.spoiling(spoiled_once(OBJECT_CHANGES[change])) as seen:
        assert client.objects.get("there") == OBJECT
    assert len(seen) == 2
    with bucket.spoiling(always(OBJECT_CHANGES[change])), pytest.raises(StorageUnavailable):
        client.objects.get("there")


@pytest.mark.parametrize("change", ["truncated", "empty", "longer"])
def test_an_object_without_a_checksum_is_checked_by_its_size(
    client: Client, bucket: Proxy, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An object that somebody else has put may have none that this can compute."""

    def changed(reply: Reply) -> Reply:
        return OBJECT_CHANGES[change](reply).with_header("x-amz-checksum-crc32", None)

    with bucket.spoiling(spoiled_once(changed)):
        assert client.objects.get("there", len(OBJECT)) == OBJECT
    with bucket.spoiling(always(changed)), pytest.raises(Damaged):
        client.objects.get("there", len(OBJECT))
    assert "there has" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: reply.with_body(XML),
        lambda reply: reply.with_header("etag", None),
        lambda reply: reply.with_header("etag", '"0123'),
    ],
    ids=["an error", "no tag", "half a tag"],
)
def test_an_object_counts_as_stored_only_when_s3_names_its_tag(
    client: Client, bucket: Proxy, change: Callable[[Reply], Reply]
) -> None:
    with bucket.spoiling(spoiled_once(change)) as seen:
        client.objects.put("stored", OBJECT)
    assert len(seen) == 2
    with bucket.spoiling(always(change)), pytest.raises(StorageUnavailable):
        client.objects.put("stored", OBJECT)


@pytest.mark.parametrize(
    "more", [b"", b"HTTP/1.1 200 OK\r\n", b"\r\nnonsense"], ids=["all", "half", "nonsense"]
)
def test_a_second_reply_does_not_answer_the_next_request(client: Client, tables: Proxy, more: bytes) -> None:
    """In one piece with the first: the connection is given up, or what is behind the reply thrown away."""
    doubled = spoiled_once(lambda reply: reply.raw + (more or reply.raw))
    with tables.spoiling(doubled):
        assert client.call("GetItem", {"Key": KEY})["Item"]["n"] == {"N": "1"}
        for _ in range(3):
            assert client.call("GetItem", {"Key": OTHER})["Item"]["n"] == {"N": "2"}
            assert "Item" not in client.call("GetItem", {"Key": MISSING})


def test_a_reply_without_a_request_does_not_answer_the_next_request(client: Client) -> None:
    """Between two requests, on a connection that is kept."""
    asked = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    stale = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"stale": "x"}'
    answered, is_there = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as first:
            read_message(first)
            first.sendall(asked)
            answered.wait(60)
            first.sendall(stale)
            is_there.set()
            with listener.accept()[0] as second:
                read_message(second)
                second.sendall(asked)
                second.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        send = client.to(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert send() == (200, b"{}")
        answered.set()
        assert is_there.wait(60)
        assert send() == (200, b"{}")
