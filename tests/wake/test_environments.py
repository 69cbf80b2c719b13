"""Lambda's environments: one request at a time, and an event loop that stands still between two requests.

In the local gateway many environments share one loaded module, each on a thread and a loop of its own.
"""

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from mangum import Mangum

from tests.protocol.event_source import parse_events
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.scene import MakeScene, Scene
from tests.wake.support import ROOT, pumping
from tidemark.http import live
from tidemark.http.backend import lambda_backend
from tidemark.settings import Settings

pytestmark = pytest.mark.slow

EVENT = json.loads((ROOT / "events" / "get-long-poll.json").read_text())


class Environment(threading.Thread):
    """Reads the stream of a scene in these ways, one after another, as Lambda's runtime and Mangum do."""

    def __init__(self, scene: Scene, *kinds: str) -> None:
        super().__init__(daemon=True)
        self._scene = scene
        self._kinds = kinds
        self._answers: list[dict[str, Any]] = []
        self.start()

    def run(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        handler = Mangum(self._scene.app, lifespan="off")
        path = self._scene.path
        for kind in self._kinds:
            event = EVENT | {"rawPath": path, "rawQueryString": f"offset=-1&live={kind}"}
            http = event["requestContext"]["http"] | {"method": "GET", "path": path}
            event["requestContext"] = event["requestContext"] | {"http": http}
            self._answers.append(handler(event, None))  # type: ignore[arg-type]
        loop.close()

    def answers(self) -> list[dict[str, Any]]:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()
        return self._answers


def data_of(answer: dict[str, Any]) -> list[str]:
    return [event.data for event in parse_events(answer["body"].encode()) if event.type == "data"]


def append(scene: Scene, body: bytes, **asked: Any) -> None:
    scene.writer.append(scene.key, body, content_type=scene.content_type, **asked)


def test_environments_share_a_hub(make_scene: MakeScene) -> None:
    """One queue and one registration for ten waiting requests; the trigger wakes each on its own loop."""
    scene = make_scene(lambda_backend, receive_seconds=20)
    with pumping(scene.world, scene.prefix):
        environments = [Environment(scene, "long-poll") for _ in range(10)]
        until(lambda: len(scene.wake.hub._waiting) == len(environments))
        append(scene, b"news")
        answers = [answer for environment in environments for answer in environment.answers()]
    assert {(answer["statusCode"], answer["body"]) for answer in answers} == {(200, "news")}
    assert scene.reader.calls.taken()["PutItem"] == 1
    assert scene.queues.made == 1


def test_an_environment_serves_one_request_after_another(make_scene: MakeScene) -> None:
    """A request leaves nothing on the loop that disturbs the next one."""
    scene = make_scene(lambda_backend, settings=Settings(long_poll_seconds=0.3, sse_buffered_seconds=0.3))
    environment = Environment(scene, *["long-poll", "sse"] * 4)
    assert [answer["statusCode"] for answer in environment.answers()] == [204, 200] * 4
    assert scene.wake.hub.following == 0


@pytest.mark.parametrize(
    ("room", "messages"),
    [(live.BUFFERED_BYTES, ["old", "more"]), (150, ["old"])],
    ids=["", "no room for more"],
)
def test_a_buffered_event_stream_does_not_end_at_once(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, room: int, messages: list[str]
) -> None:
    """The official npm client takes three responses within a second for those of a broken proxy, and stops
    without an error. So a response that is complete at once waits, and includes what is appended meanwhile if
    it fits."""
    scene = make_scene(lambda_backend, settings=Settings(sse_buffered_seconds=20))
    append(scene, b"old")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        append(scene, b"more")

    monkeypatch.setattr(live, "BUFFERED_BYTES", room)
    # Of this module alone: other loops of this process sleep, too.
    monkeypatch.setattr(live, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    [answer] = Environment(scene, "sse").answers()
    assert 0 < sum(slept) <= live.GATHERING_SECONDS == 1
    assert data_of(answer) == messages
    reached = json.loads(parse_events(answer["body"].encode())[-1].data)["streamNextOffset"]
    assert int(reached) == len("".join(messages)), "who comes again misses nothing"


def test_a_buffered_event_stream_of_a_closed_stream_ends_at_once(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more data can come, and the client does not come back."""
    monkeypatch.setattr(live, "GATHERING_SECONDS", 10 * PATIENCE_SECONDS)
    scene = make_scene(lambda_backend)
    append(scene, b"old", close=True)
    [answer] = Environment(scene, "sse").answers()
    assert '"streamClosed":true' in answer["body"]


@pytest.mark.parametrize("whole", ["\r\n", "€"])
def test_a_buffered_event_stream_waits_for_the_other_half_of_a_character_or_a_line_end(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, whole: str
) -> None:
    """A response without data would make its client come back at once, for as long as nobody writes."""
    monkeypatch.setattr(live, "GATHERING_SECONDS", 0)
    scene = make_scene(lambda_backend)
    append(scene, whole.encode()[:1])
    environment = Environment(scene, "sse")
    until(lambda: bool(scene.queues.begun and scene.wake.hub._waiting))
    append(scene, whole.encode()[1:])
    scene.notify(1)
    [answer] = environment.answers()
    assert data_of(answer) == [whole.replace("\r", "")]
