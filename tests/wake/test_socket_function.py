"""The `socket` function: answers to the messages of API Gateway's sockets, and the calls that they take."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cpu import load_handler
from tests.authorization.tokens import SECRET, token
from tests.lambdas.functions import Context, load_event
from tests.support import World, a_key, refusal
from tidemark.aws.clock import CLOCK
from tidemark.http.security.authorization import LEEWAY_SECONDS
from tidemark.http.socket import SocketEvents
from tidemark.log.records import StreamRecord, Waiter
from tidemark.log.schema import REVOKED_PK, IssuedToken, encode_token
from tidemark.log.waiters import load_waiters
from tidemark.protocol import socket
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.offset import render_offset
from tidemark.protocol.socket import MAX_LEASE_SECONDS, MAX_NAMED
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.delete import delete
from tidemark.settings import AuthorizationSettings

#: The stream, what the connection has watched, the registration, the tail; and a note of a new stream.
AGAIN = {"BatchGetItem": 1, "GetItem": 1, "PutItem": 1, "Query": 1}
WATCH = AGAIN | {"PutItem": 2}
LEASE_MS = MAX_LEASE_SECONDS * 1000


class Scene:
    """The function's own process, whose calls are counted, and another one that writes."""

    def __init__(self, world: World, settings: AuthorizationSettings, clock: Any = None) -> None:
        self.clock = clock or world.clock
        self.writer, self.process = world.process(clock=clock), world.process(clock=clock)
        self.process.stores.check_format()
        self.events = SocketEvents(
            self.process.stores, replace(self.process.settings, authorization=settings)
        )

    def stream(self, **asked: Any) -> tuple[StreamRecord, str]:
        record = self.writer.create(a_key(), body=b"one", **asked).head.record
        return record, f"/v1/stream/{record.key.stream_id}"

    def send(self, frame: Any, connection: str = "c", asked_ms: int | None = None) -> list[dict[str, Any]]:
        self.process.calls.taken()
        context = {"connectionId": connection, "requestTimeEpoch": asked_ms or self.clock()}
        event = {"requestContext": context, "body": json.dumps(frame), "isBase64Encoded": False}
        return asyncio.run(self.events.answer(event))

    def waiters(self, record: StreamRecord) -> list[Waiter]:
        return load_waiters(self.process.stores.table, record.incarnation, self.clock())


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world, AuthorizationSettings())


def answer(name: str, offset: int, **more: Any) -> dict[str, Any]:
    return {"stream": name, "offset": render_offset(offset)} | more


def test_a_watch_is_five_calls_and_registers_for_an_hour(scene: Scene) -> None:
    record, name = scene.stream()
    assert scene.send({"watch": [name]}) == [answer(name, 3, seconds=MAX_LEASE_SECONDS)]
    assert scene.process.calls.taken() == WATCH
    now_ms = scene.clock()
    registered = Waiter(record.incarnation, "c", now_ms + LEASE_MS, name, now_ms)
    assert scene.waiters(record) == [registered]


def test_a_repeated_watch_is_renewed_and_renews_the_time_to_live(scene: Scene) -> None:
    """As a read does; the lease ends where that must be renewed again."""
    record, name = scene.stream(expiry=Expiry(ttl_seconds=600))
    [first] = scene.send({"watch": [name]})
    scene.clock.advance(first["seconds"] * 1000)
    [again] = scene.send({"watch": [name]})
    assert scene.process.calls.taken() == AGAIN | {"UpdateItem": 1}
    assert again == first
    assert [waiter.until_ms for waiter in scene.waiters(record)] == [scene.clock() + LEASE_MS]


def test_many_streams_are_watched_at_once_and_answered_in_their_order(scene: Scene) -> None:
    """Those that cannot be watched are answered too, each for itself. A stream that is named twice is watched
    once, under the later name."""
    streams = [scene.stream() for _ in range(MAX_NAMED - 4)]
    names = [name for _, name in streams]
    first = names[0].replace("/a-", "/%61-")
    _, closed_name = scene.stream(closed=True)
    asked = ["nowhere", first, closed_name, "/v1/stream/absent", *names]
    answers = scene.send({"watch": asked})
    assert [each["stream"] for each in answers] == asked
    assert [each.get("status") for each in answers[:4]] == [400, None, None, 404]
    assert answers[2] == answer(closed_name, 3, closed=True)
    assert all(each["offset"] == render_offset(3) for each in answers[4:])
    assert [waiter.name for waiter in scene.waiters(streams[0][0])] == [names[0]]


def test_unwatch_removes_the_watch_of_that_connection_without_a_look_at_the_stream(scene: Scene) -> None:
    """Under whatever name, once. A connection that has watched nothing causes one small read."""
    record, name = scene.stream()
    spelled = [name.replace("/a-", "/%61-"), name.replace("/a-", "/a%2D")]
    scene.send({"watch": [name]})
    scene.send({"watch": [name]}, "d")
    scene.clock.advance(1)
    assert scene.send({"unwatch": [name, *spelled, "/v1/stream/absent", "nowhere"]}) == []
    assert scene.process.calls.taken() == {"GetItem": 1, "DeleteItem": 1}
    assert [waiter.address for waiter in scene.waiters(record)] == ["d"]
    scene.send({"unwatch": [name, "/v1/stream/absent"]}, "stranger")
    assert scene.process.calls.taken() == {"GetItem": 1}
    assert scene.send({"unwatch": ["nowhere"]}) == []
    assert scene.process.calls.taken() == {}


@pytest.mark.parametrize(
    ("scope", "is_deleted", "status"),
    [("", False, 401), ("write:*", False, 404), ("read:v1", False, 401), ("read:*", True, 404)],
)
def test_a_watch_ends_with_its_token_and_if_a_repeated_one_is_refused(
    world: World, scope: str, is_deleted: bool, status: int
) -> None:
    """A refused one registers nothing. Tokens go by the real clock."""
    scene = Scene(world, AuthorizationSettings(secret=SECRET), CLOCK.now_ms)
    record, name = scene.stream()
    now_ms = CLOCK.now_ms()
    ends = now_ms // 1000 + 600
    [watched] = scene.send({"watch": [name], "token": token("read:*", exp=ends)}, asked_ms=now_ms)
    assert 0 < watched["seconds"] <= 600 + LEEWAY_SECONDS
    assert [waiter.until_ms for waiter in scene.waiters(record)] == [(ends + LEEWAY_SECONDS) * 1000]
    if is_deleted:
        delete(scene.writer.stores, record.key)
    scene.writer.stores.table.put(encode_token(REVOKED_PK, IssuedToken("read:v1", "", "", 1000 * ends)))
    given = token(scope, jti=scope) if scope else None
    [refused] = scene.send({"watch": [name], "token": given}, asked_ms=now_ms + 1)
    assert (refused["status"], "was revoked" in refused["error"]) == (status, scope == "read:v1")
    assert "PutItem" not in scene.process.calls.taken()
    assert scene.waiters(record) == []


def test_a_socket_watches_at_most_a_thousand_streams(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever messages name them. Those that it has left, and that have lapsed, do not count."""
    monkeypatch.setattr(socket, "MAX_WATCHED", 3)
    names = [scene.stream()[1] for _ in range(5)]

    def watch(some: list[str]) -> list[int]:
        return [each.get("status", 200) for each in scene.send({"watch": some}, "limited")]

    assert watch(names[:2]) == [200] * 2
    assert watch(names[2:4]) == watch(names) == [400]
    assert watch(names[:3]) == [200] * 3
    scene.clock.advance(1)
    scene.send({"unwatch": names[:1]}, "limited")
    assert watch(names[3:4]) == [200]
    assert watch(names[4:]) == [400]
    scene.clock.advance(LEASE_MS)
    assert watch(names[4:]) == [200]


def test_messages_of_a_connection_that_are_handled_at_once_are_all_noted(scene: Scene) -> None:
    """Each of them is found by an unwatch."""
    streams = [scene.stream() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda stream: scene.send({"watch": [stream[1]]}), streams))
    scene.clock.advance(1)
    scene.send({"unwatch": [name for _, name in streams]})
    assert [scene.waiters(record) for record, _ in streams] == [[]] * 4


def test_a_message_of_a_hundred_streams_is_loaded_and_registered_at_once(scene: Scene) -> None:
    """A repeated one that is handled before the first changes nothing that the first would take back."""
    streams = [scene.stream() for _ in range(MAX_NAMED)]
    names, asked_ms = [name for _, name in streams], scene.clock()
    assert all("seconds" in each for each in scene.send({"watch": names}, asked_ms=asked_ms))
    many = {"BatchGetItem": 1, "GetItem": 1, "PutItem": 1 + MAX_NAMED, "Query": MAX_NAMED}
    assert scene.process.calls.taken() == many
    scene.send({"watch": names[:1]}, asked_ms=asked_ms + 2)
    assert len(scene.send({"watch": names}, asked_ms=asked_ms + 1)) == MAX_NAMED
    scene.send({"unwatch": names[:2]}, asked_ms=asked_ms + 2)
    waiters = [[waiter.asked_ms for waiter in scene.waiters(record)] for record, _ in streams]
    assert waiters == [[asked_ms + 2], [], *[[asked_ms + 1]] * (MAX_NAMED - 2)]


def test_an_unwatch_that_is_handled_after_a_later_watch_does_not_end_it(scene: Scene) -> None:
    """API Gateway starts a function for each message, and the first may end last."""
    record, name = scene.stream()
    now_ms = scene.clock()
    scene.send({"watch": [name]}, asked_ms=now_ms + 2)
    scene.send({"unwatch": [name]}, asked_ms=now_ms + 1)
    scene.send({"watch": [name]}, asked_ms=now_ms)
    assert [waiter.asked_ms for waiter in scene.waiters(record)] == [now_ms + 2]
    scene.send({"unwatch": [name]}, asked_ms=now_ms + 3)
    assert scene.waiters(record) == []


def test_a_table_that_is_throttled_is_told_for_each_stream(scene: Scene) -> None:
    """Or for the whole message, before the process knows that it may use the table."""
    _, name = scene.stream()

    def throttled(operation: str, body: bytes) -> tuple[int, bytes]:
        return refusal("ProvisionedThroughputExceededException")

    send, scene.process.dynamodb.send = scene.process.dynamodb.send, throttled
    [busy] = scene.send({"watch": [name]})
    assert (busy["stream"], busy["status"]) == (name, 429)
    scene.process.stores.format_epoch = -1
    [busy] = scene.send({"watch": [name]})
    assert "stream" not in busy
    assert busy["status"] == 429
    scene.process.dynamodb.send = send


# --- the handler --------------------------------------------------------------------------------


Handle = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def handle(world: World) -> Iterator[Handle]:
    """On a thread with an event loop of its own, as an environment is."""
    loop = asyncio.new_event_loop()
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setenv("TABLE_NAME", world.table_name)
        patch.setenv("BUCKET_NAME", world.bucket_name)
        thread.submit(asyncio.set_event_loop, loop).result()
        handler = thread.submit(load_handler, "socket").result()
        yield lambda event: thread.submit(handler, event, Context()).result()
    loop.close()


def body(response: dict[str, Any]) -> Any:
    assert response["statusCode"] == 200
    return json.loads(response["body"])


def test_the_sample_event_is_answered(handle: Handle, world: World) -> None:
    """`sam local invoke SocketFunction -e events/socket-message.json` sends it."""
    world.process().create(StreamKey("v1", "tides/cuxhaven"), body=b"high")
    name = "/v1/stream/tides/cuxhaven"
    response = body(handle(load_event("socket-message")))
    assert response == answer(name, 4, seconds=MAX_LEASE_SECONDS)


def test_a_message_that_cannot_be_used_is_answered_with_what_was_wrong(handle: Handle) -> None:
    for change in ({"body": None}, {"body": "eyJ9", "isBase64Encoded": True}, {"body": "watch"}):
        refused = body(handle(load_event("socket-message") | change))
        assert (refused["status"], len(refused["error"]) > 20) == (400, True), change
