"""A WebSocket API as API Gateway has it: frames become events, and functions post to its
connections by boto3."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from tests.processes import threads_named
from tests.stack import environments
from tests.stack.conftest import write_function
from tests.stack.template import load_template
from tests.stack.websocket_api import MOST_AT_ONCE, Connections, ManagementServer, WebSocketApi
from tests.waiting import PATIENCE_SECONDS, eventually, on_a_loop, until
from tidemark.server import Message

ECHO = """
import json

def handler(event, context):
    return {"statusCode": 200, "body": json.dumps(event)}
"""


@dataclass
class Client:
    """Of an ASGI application."""

    api: WebSocketApi
    told: list[Message] = field(default_factory=list)
    #: Whether it reads what is sent to it.
    reads: bool = True
    _says: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self._says.put_nowait({"type": "websocket.connect"})

    async def run(self) -> None:
        headers = [(b"host", b"streams.example:4437"), (b"user-agent", b"probe")]
        scope = {"type": "websocket", "path": "/v1/socket", "headers": headers, "client": ("192.0.2.7", 1)}
        await self.api(scope, self._says.get, self._send)

    async def _send(self, message: Message) -> None:
        while not self.reads:  # noqa: ASYNC110 - until the test lets it
            await asyncio.sleep(0.01)
        self.told.append(message)

    def say(self, frame: str | bytes) -> None:
        kind = "text" if isinstance(frame, str) else "bytes"
        self._says.put_nowait({"type": "websocket.receive", kind: frame})

    def leave(self) -> None:
        self._says.put_nowait({"type": "websocket.disconnect", "code": 1005})

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.told if message["type"] == "websocket.send"]

    async def answer(self, frame: str) -> Any:
        """The parsed answer to a frame."""
        before = len(self.texts)
        self.say(frame)
        await eventually(lambda: len(self.texts) > before)
        return json.loads(self.texts[before])

    async def connection_id(self) -> str:
        """As the function is told it."""
        event = await self.answer("who am I?")
        return str(event["requestContext"]["connectionId"])


MakeApi = Callable[..., WebSocketApi]


@pytest.fixture
def make_api(project: Path) -> Iterator[MakeApi]:
    """Makes WebSocket APIs in front of a handler's code."""
    made: list[WebSocketApi] = []

    def make(code: str = ECHO, *, function_seconds: float = 60) -> WebSocketApi:
        write_function(project, "probe", code)
        template = load_template(project / "template.yaml")
        probe = replace(template.functions["Probe"], timeout_seconds=function_seconds)
        made.append(WebSocketApi(probe, Connections()))
        return made[-1]

    yield make
    for each in made:
        each.close()


@asynccontextmanager
async def connected(api: WebSocketApi) -> AsyncIterator[Client]:
    client = Client(api)
    running = asyncio.create_task(client.run())
    try:
        await eventually(lambda: client.told)
        yield client
    finally:
        client.leave()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running


@on_a_loop
async def test_a_frame_becomes_an_event_and_what_the_function_returns_goes_back(make_api: MakeApi) -> None:
    async with connected(api := make_api()) as client, connected(api) as other:
        event, another = await client.answer('{"é": 1}'), await other.answer("{}")
    assert (event["body"], event["isBase64Encoded"]) == ('{"é": 1}', False)
    context = event["requestContext"]
    assert (context["eventType"], context["routeKey"]) == ("MESSAGE", "$default")
    assert context["domainName"] == "streams.example"
    assert context["identity"] == {"userAgent": "probe", "sourceIp": "192.0.2.7"}
    assert context["connectedAt"] <= context["requestTimeEpoch"]
    assert len(context["connectionId"]) == len("L0SM9cOFvHcCIhw=")
    assert context["connectionId"] != another["requestContext"]["connectionId"]
    assert client.told[0] == {"type": "websocket.accept"}


@pytest.mark.parametrize(
    ("body", "seconds"), [("raise RuntimeError('the tide is out')", 60), ("wait()", 0.1)]
)
@on_a_loop
async def test_of_a_function_that_fails_the_client_is_told_and_the_connection_goes_on(
    make_api: MakeApi, tmp_path: Path, body: str, seconds: float
) -> None:
    over = tmp_path / "over"
    code = f"""
import time
from pathlib import Path

def wait():
    while not Path({str(over)!r}).exists():
        time.sleep(0.01)

def handler(event, context):
    {body}
"""
    async with connected(make_api(code, function_seconds=seconds)) as client:
        for _ in range(2):
            answer = await client.answer("{}")
            assert answer.keys() == {"message", "connectionId", "requestId"}
            assert answer["message"] == "Internal server error"
    over.touch()


SLOW = """
import time

def handler(event, context):
    time.sleep(0.02)
    return {"statusCode": 200, "body": event["body"]}
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")
@on_a_loop
async def test_a_churn_of_sockets_leaves_no_descriptor_and_no_thread(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most leave before their answer. A client that comes after them gets its own."""
    monkeypatch.setattr(environments, "IDLE_SECONDS", 0.5)
    api, name = make_api(SLOW), "environment of Probe"

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def come_and_go() -> None:
        async with connected(api) as client:
            client.say("{}")
            await asyncio.sleep(0.01)
            most.append(len(threads_named(name)))

    before, most = descriptors(), list[int]()
    async with connected(api) as client:
        await asyncio.gather(*(come_and_go() for _ in range(500)))
        assert await client.answer("{}") == {}
    assert 1 < max(most) <= MOST_AT_ONCE
    await eventually(lambda: not threads_named(name) and descriptors() <= before)


# --- @connections --------------------------------------------------------------------------


Post = Callable[[str, bytes | None], Coroutine[Any, Any, str]]


@asynccontextmanager
async def posting(api: WebSocketApi) -> AsyncIterator[Post]:
    """A function's way to the connections: what boto3 says, "" or the name of its exception. Without data it
    ends the connection."""
    with ManagementServer(api._connections) as server:
        client = boto3.client(
            "apigatewaymanagementapi",
            endpoint_url=server.environment["SOCKET_ENDPOINT"],
            region_name="us-east-1",
            aws_access_key_id="local",
            aws_secret_access_key="local",
            config=boto3.session.Config(retries={"total_max_attempts": 1}),
        )

        def post(connection_id: str, data: bytes | None) -> str:
            try:
                if data is None:
                    client.delete_connection(ConnectionId=connection_id)
                else:
                    client.post_to_connection(ConnectionId=connection_id, Data=data)
            except client.exceptions.ClientError as error:
                return type(error).__name__
            return ""

        try:
            yield lambda connection_id, data: asyncio.to_thread(post, connection_id, data)
        finally:
            client.close()


@on_a_loop
async def test_a_connection_that_has_ended_or_never_was_is_gone(make_api: MakeApi) -> None:
    """Its client has left, it sent a binary frame, or a function has ended it."""
    api, ids = make_api(), ["L0SM9cOFvHcCIhw="]
    async with posting(api) as post:
        async with connected(api) as left:
            ids.append(await left.connection_id())
        async with connected(api) as refused, connected(api) as ended:
            ids += [await refused.connection_id(), await ended.connection_id()]
            refused.say(b"binary")
            assert await post(ids[-1], None) == ""
            await eventually(lambda: refused.told[-1]["type"] == "websocket.close")
            await eventually(lambda: ended.told[-1] == {"type": "websocket.close", "code": 1001})
            for each in ids:
                for data in (b"late", None):
                    assert await post(each, data) == "GoneException"


@on_a_loop
async def test_a_post_that_the_client_does_not_read_is_refused(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function does not wait for a client that stalls."""
    monkeypatch.setattr("tests.stack.websocket_api._UNREAD_SECONDS", 0.1)
    api = make_api()
    async with posting(api) as post, connected(api) as client:
        connection_id = await client.connection_id()
        client.reads = False
        assert await post(connection_id, b"unread") == "LimitExceededException"
        client.reads = True
        assert await post(connection_id, b"read") == ""
        assert client.texts[1:] == ["read"]


def test_a_function_that_leaves_before_its_answer_is_no_error(
    make_api: MakeApi, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own patience is over, or it was killed. Closed with unread bytes, a connection is reset."""
    others = threads_named("process_request_thread")
    with ManagementServer(make_api()._connections) as server:
        address = urlsplit(server.environment["SOCKET_ENDPOINT"])
        for _ in range(3):
            with socket.create_connection((address.hostname, address.port)) as function:
                function.sendall(b"POST /@connections/a HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}" * 100)
                function.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: threads_named("process_request_thread") <= others)
    assert capfd.readouterr() == ("", "")
