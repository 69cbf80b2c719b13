"""Lambda's environments: one request at a time, an event loop that stands still between two requests, and
freezes.

In the local gateway many environments share one loaded module, each on a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from mangum import Mangum

from tests.protocol.event_source import parse_events
from tests.support import MINUTE_MS, World
from tests.wake.scene import CountedQueues, Scene
from tests.wake.support import PATIENCE_SECONDS, ROOT, pumping, settled, until
from tidemark.http import live
from tidemark.http.app import create_app
from tidemark.http.backend import one_at_a_time
from tidemark.settings import Settings

EVENT = json.loads((ROOT / "events" / "get-long-poll.json").read_text())


class Environment(threading.Thread):
    """Serves events one after another, as Lambda's runtime and Mangum do."""

    def __init__(self, app: Any, events: list[dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._events = events
        self.answers: list[dict[str, Any]] = []

    def run(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        handler = Mangum(self._app, lifespan="off")
        for event in self._events:
            self.answers.append(handler(event, None))  # type: ignore[arg-type]
        loop.close()

    def join_in_time(self) -> list[dict[str, Any]]:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()
        return self.answers


def event(scene: Scene, offset: str = "-1", live: str = "long-poll") -> dict[str, Any]:
    path = f"/v1/stream/{scene.key.stream_id}"
    made: dict[str, Any] = json.loads(json.dumps(EVENT))
    made |= {"rawPath": path, "rawQueryString": f"offset={offset}&live={live}"}
    made["requestContext"]["http"] |= {"method": "GET", "path": path}
    return made


def test_environments_share_a_hub(world: World) -> None:
    """One queue and one registration for thirty waiting requests; the trigger wakes each on its own loop."""
    scene = Scene(world, one_at_a_time, receive_seconds=20)
    environments = [Environment(scene.app, [event(scene)]) for _ in range(30)]
    with pumping(world, scene.prefix):
        for environment in environments:
            environment.start()
        until(lambda: len(scene.wake.hub._waiting) == len(environments))
        assert len(list(scene.queues.all())) == 1
        scene.writer.append(scene.key, b"news", content_type=scene.content_type)
        answers = [answer for environment in environments for answer in environment.join_in_time()]
    assert {(answer["statusCode"], answer["body"]) for answer in answers} == {(200, "news")}
    assert scene.reader.calls.taken()["PutItem"] == 1
    scene.wake.close()


def test_an_environment_serves_one_request_after_another(world: World) -> None:
    """A request leaves nothing on the loop that disturbs the next one."""
    scene = Scene(world, one_at_a_time, settings=Settings(long_poll_seconds=0.3, sse_buffered_seconds=0.3))
    events = [event(scene), event(scene, live="sse")] * 4
    environment = Environment(scene.app, events)
    environment.start()
    assert [answer["statusCode"] for answer in environment.join_in_time()] == [204, 200] * 4
    assert scene.wake.hub.listening == 0
    scene.wake.close()


@pytest.mark.parametrize(
    ("room", "messages"),
    [(live.BUFFERED_BYTES, ["old", "more"]), (150, ["old"])],
    ids=["", "no room for more"],
)
def test_a_buffered_event_stream_does_not_end_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, room: int, messages: list[str]
) -> None:
    """The official npm client takes three responses within a second for those of a broken proxy, and stops
    without an error. So a response that is complete at once waits, and includes what is appended meanwhile if
    it fits."""
    scene = Scene(world, one_at_a_time, settings=Settings(sse_buffered_seconds=20))
    scene.writer.append(scene.key, b"old", content_type=scene.content_type)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        scene.writer.append(scene.key, b"more", content_type=scene.content_type)

    monkeypatch.setattr(live, "BUFFERED_BYTES", room)
    # Of this module alone: other loops of this process sleep, too.
    monkeypatch.setattr(live, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    environment = Environment(scene.app, [event(scene, live="sse")])
    environment.start()
    [answer] = environment.join_in_time()
    assert 0 < sum(slept) <= live.GATHERING_SECONDS == 1
    events = parse_events(answer["body"].encode())
    assert [each.data for each in events if each.type == "data"] == messages
    reached = json.loads(events[-1].data)["streamNextOffset"]
    assert int(reached) == len("".join(messages)), "who comes again misses nothing"
    scene.wake.close()


def test_a_buffered_event_stream_of_a_closed_stream_ends_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more data can come, and the client does not come back."""
    scene = Scene(world, one_at_a_time, settings=Settings(sse_buffered_seconds=20))
    scene.writer.append(scene.key, b"old", content_type=scene.content_type, close=True)
    monkeypatch.setattr(live, "GATHERING_SECONDS", 10 * PATIENCE_SECONDS)
    environment = Environment(scene.app, [event(scene, live="sse")])
    environment.start()
    [answer] = environment.join_in_time()
    assert '"streamClosed":true' in answer["body"]
    scene.wake.close()


def test_a_buffered_event_stream_waits_for_the_other_half_of_a_line_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response without data would make its client come back at once, for as long as nobody writes."""
    monkeypatch.setattr(live, "GATHERING_SECONDS", 0)
    scene = Scene(world, one_at_a_time, settings=Settings(sse_buffered_seconds=PATIENCE_SECONDS))
    scene.writer.append(scene.key, b"\r", content_type=scene.content_type)
    environment = Environment(scene.app, [event(scene, live="sse")])
    environment.start()
    until(lambda: bool(scene.queues.begun and scene.wake.hub._waiting))
    scene.writer.append(scene.key, b"\n", content_type=scene.content_type)
    scene.notify(1)
    [answer] = environment.join_in_time()
    events = parse_events(answer["body"].encode())
    assert [each.data for each in events if each.type == "data"] == ["\n"]
    scene.wake.close()


class FrozenQueues(CountedQueues):
    """The first receive never returns: its response arrived while the process was frozen."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.frozen = threading.Event()
        self.thawed = threading.Event()

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        if not self.frozen.is_set():
            self.frozen.set()
            self.thawed.wait(PATIENCE_SECONDS)
            return []
        return super().receive(url, wait_seconds)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_after_a_freeze_during_a_receive_the_next_request_is_woken_by_its_message(
    world: World, live: str
) -> None:
    """It does not wait for the receive that the freeze cut off."""
    scene = Scene(world, one_at_a_time, 20, make_queues=FrozenQueues, settings=Settings(long_poll_seconds=2))
    settled(scene.wake)
    queues: Any = scene.queues
    before = Environment(scene.app, [event(scene)])
    before.start()
    until(queues.frozen.is_set)
    assert before.join_in_time()[0]["statusCode"] == 204

    scene.world.clock.advance(10 * MINUTE_MS)
    patient = Settings(long_poll_seconds=50, sse_buffered_seconds=50)
    after = Environment(
        create_app(one_at_a_time(scene.reader.stores, patient, scene.wake)), [event(scene, live=live)]
    )
    with pumping(world, scene.prefix):
        after.start()
        until(lambda: len(scene.wake.hub._waiting) == 1)
        scene.writer.append(scene.key, b"news", content_type=scene.content_type)
        [answer] = after.join_in_time()
    assert answer["statusCode"] == 200
    assert "news" in answer["body"]
    assert 0 not in scene.queues.receives, "it was the message that woke it"
    queues.thawed.set()
    scene.wake.close()
