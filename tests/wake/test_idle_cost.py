"""What a reader costs while it waits and nothing happens: calls to the table, counted. Registrations are
counted by `test_waiters.py`, and how long a receive lasts by `test_receiver.py`.

The minutes of `docs/live.md` are made of these. An empty receive ends after 20 s or with its reader, a
long-poll after 25 s, an event stream after 55 s, and one by the HTTP API alone after one second.
"""

from typing import Any

import pytest

from tests.http.asgi import Exchange, make_scope
from tests.waiting import on_a_loop
from tests.wake.scene import MakeScene, SilentQueues
from tidemark.settings import Settings

BEGINNING = {"GetItem": 1, "Query": 2}
#: As its last wait ends a long-poll looks once more.
LAST_LOOK = {"GetItem": 1, "Query": 3}


@pytest.mark.parametrize("kind", ["long-poll", "sse"])
@on_a_loop
async def test_a_reader_makes_three_calls_in_the_beginning_and_one_for_each_empty_receive(
    make_scene: MakeScene, kind: str
) -> None:
    """Its process is registered already."""
    scene = make_scene(make_queues=SilentQueues)
    async with scene.reading(kind):
        pass
    scene.reader.calls.taken()
    async with scene.reading(kind):
        assert scene.reader.calls.taken() == BEGINNING
        for _ in range(3):
            scene.wake.hub.wake_all()
            await scene.waiting()
            assert scene.reader.calls.taken() == {"Query": 1}


@on_a_loop
async def test_a_reader_whose_wait_is_over_has_made_four_calls(make_scene: MakeScene) -> None:
    scene = make_scene(
        make_queues=SilentQueues, settings=Settings(long_poll_seconds=0.1, sse_buffered_seconds=0.1)
    )
    async with scene.reading("sse"):
        pass
    scene.reader.calls.taken()
    assert (await scene.get("offset=-1&live=long-poll")).status == 204
    assert scene.reader.calls.taken() == LAST_LOOK
    at_the_api: dict[str, Any] = {
        "aws.event": {"rawPath": scene.path, "requestContext": {"domainName": "api.example"}}
    }
    exchange = Exchange([b""])
    scope = make_scope("GET", scene.target + "sse", {}) | at_the_api
    await scene.app(scope, exchange.receive, exchange.send)
    assert exchange.status == 200
    assert scene.reader.calls.taken() == LAST_LOOK
