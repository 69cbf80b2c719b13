"""What the tests of wake-ups share."""

import asyncio
import os
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.http.asgi import Exchange, exchanging
from tests.stack.template import Function, Template, load_template
from tests.stack.triggers import Pump
from tests.support import World
from tidemark.aws.sqs import Queues, receiving_client
from tidemark.protocol.socket import Message, parse_messages
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake.follow import Follower, Hub
from tidemark.wake.notifier import SocketApi

ROOT: Final = Path(__file__).parents[2]


def shared_sqs() -> Any:
    """A client of the engines that run now, which waits as long as a receive lasts. Making one takes longer
    than most of these tests."""
    return _sqs_at(os.environ["AWS_ENDPOINT_URL_SQS"])


@cache
def _sqs_at(_endpoint: str) -> Any:
    return receiving_client()


def make_prefix() -> str:
    """The beginning of a queue's name that no other test uses."""
    return f"tidemark-test-{uuid.uuid4().hex[:8]}-"


def make_queues(prefix: str | None = None) -> Queues:
    return Queues(shared_sqs, prefix or make_prefix())


@cache
def template() -> Template:
    return load_template(ROOT / "template.yaml")


def notifier_function(world: World, prefix: str) -> Function:
    return deployed(world, "NotifierFunction", prefix)


def deployed(world: World, name: str, prefix: str) -> Function:
    return replace(template().functions[name], variables=world.variables | {"QUEUE_PREFIX": prefix})


@contextmanager
def pumping(
    world: World, prefix: str = "", function: Function | None = None, **trigger: Any
) -> Iterator[Pump]:
    """The trigger of the table's stream, from now on: of the notifier, or of another function."""
    [real] = template().triggers
    function = function or notifier_function(world, prefix)
    pump = Pump(replace(real, **trigger), function, world.table_name)
    world.followers.append(pump.tell)
    pump.start()
    try:
        yield pump
    finally:
        world.followers.remove(pump.tell)
        pump.stop()


@asynccontextmanager
async def request(app: Any, target: str, method: str = "GET", body: bytes = b"") -> AsyncIterator[Exchange]:
    async with exchanging(
        app, method, target, {"Content-Type": "text/plain"} if body else {}, [body]
    ) as exchange:
        yield exchange


class Heard(Follower):
    """Notes when it is woken, and on which event loop."""

    def __init__(self, hub: Hub, key: StreamKey, *read: Any) -> None:
        super().__init__(hub, key, *read)
        self.heard: list[asyncio.AbstractEventLoop] = []

    def wake(self) -> None:
        self.heard.append(asyncio.get_running_loop())


class Sockets(SocketApi):
    """Frames by connection, and the failures of others."""

    def __init__(self) -> None:
        self.frames: dict[str, list[str]] = defaultdict(list)
        self.failures: dict[str, Exception] = {}

    def send(self, connection_id: str, frames: Sequence[str]) -> None:
        if connection_id in self.failures:
            raise self.failures[connection_id]
        self.frames[connection_id] += frames

    def messages(self, connection_id: str) -> list[Message]:
        """All since the last time of asking."""
        return [each for frame in self.frames.pop(connection_id, ()) for each in parse_messages(frame)]
