"""What a live read does besides waking: heartbeats, expiry, catching up, and polls when no message comes."""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.buckets import key_in_new_bucket, publish
from tests.support import World
from tests.waiting import eventually, on_a_loop
from tests.wake.scene import MakeScene, SilentQueues, has, whole
from tests.wake.support import request
from tidemark.http import live
from tidemark.protocol.expiry import NEVER, Expiry
from tidemark.service.read import SMALL_PAGE_BYTES, read
from tidemark.settings import Settings
from tidemark.wake import follow, queue
from tidemark.wake.follow import WakeByHub

pytestmark = pytest.mark.slow

BOTH_KINDS = pytest.mark.parametrize("kind", ["sse", "long-poll"])


@on_a_loop
async def test_silent_streams_send_heartbeats(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are comments, which no client shows and for which nothing is read; proxies on the way keep the
    connection. CloudFront and most proxies give up a silent one after thirty seconds or more."""
    assert live.HEARTBEAT_SECONDS == 15
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.05)
    # The end of a receive would be a reason to read.
    scene = make_scene(make_queues=SilentQueues, receive_seconds=600)
    assert isinstance(scene.queues, SilentQueues)
    async with scene.reading("sse") as exchange:
        scene.reader.calls.taken()
        beats = exchange.received.count(b": heartbeat\n\n")
        await exchange.until(lambda answer: answer.body.count(b": heartbeat\n\n") >= beats + 10)
        assert scene.reader.calls.taken() == {}
        assert [event.type for event in exchange.answer.events] == ["control"]
        await scene.append(b"news")
        scene.queues.released.release()
        await exchange.until(has(b"news"))


@pytest.mark.parametrize(
    ("kind", "settling_seconds", "overdue_seconds"),
    [
        pytest.param("long-poll", 0, 600, id="a long-poll, before it ends"),
        pytest.param("sse", 0, 0.1, id="an event stream that was not woken for longer than a receive lasts"),
        pytest.param("sse", 600, 600, id="a reader whose queue is new, so that messages may get lost"),
    ],
)
@on_a_loop
async def test_a_reader_to_whom_no_message_comes_polls_the_log(
    make_scene: MakeScene,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    settling_seconds: float,
    overdue_seconds: float,
) -> None:
    """The receiver's thread is stuck. That costs a reader time, and no data."""
    monkeypatch.setattr(queue, "SETTLING_SECONDS", settling_seconds)
    monkeypatch.setattr(queue, "_OVERDUE_SECONDS", overdue_seconds)
    clock = SimpleNamespace(now=0.0)
    if kind == "long-poll":  # It ends after the append, however long that takes.
        monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: clock.now))
    scene = make_scene(make_queues=SilentQueues, settings=Settings(long_poll_seconds=0.1, sse_seconds=600))
    async with request(scene.app, scene.target + kind) as exchange:
        await eventually(lambda: scene.wake.hub._waiting or (scene.queues.made and settling_seconds))
        for message in (b"one", b"two") if kind == "sse" else (b"one",):
            await scene.append(message)
            clock.now = 0.1
            await exchange.until(has(message))


@pytest.mark.parametrize(
    ("expiry", "seconds"),
    [
        (NEVER, math.inf),
        (Expiry(ttl_seconds=10), 5.5),
        (Expiry(ttl_seconds=60), 58.0),
        (Expiry(None, "in eight seconds", 1_800_000_008_000), 8.0),
    ],
)
@on_a_loop
async def test_a_reader_polls_when_it_must_renew_its_stream_or_notice_its_end(
    world: World, make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch, expiry: Expiry, seconds: float
) -> None:
    """Expiry wakes nobody, so no wait is longer. Nothing else bounds it here: the hub hears of every append.
    §5.1: "A stream with active live readers will not expire". A stream lives a twentieth of its window longer
    than that."""
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: 0.0))
    world.clock.now_ms = 1_800_000_000_000
    scene = make_scene(expiry=expiry)
    seen = read(scene.reader.stores, scene.key, 0)
    live_read = follow.LiveRead(replace(scene.backend, wake=WakeByHub()), seen)
    assert await live_read.next(0.0) is None
    assert live_read._read_at == seconds


@BOTH_KINDS
@on_a_loop
async def test_readers_learn_that_a_stream_expires(world: World, make_scene: MakeScene, kind: str) -> None:
    """An event stream ends without an error; the client gets 404 when it reconnects."""
    scene = make_scene(expiry=Expiry(ttl_seconds=30))
    async with scene.reading(kind) as exchange:
        world.clock.advance(60_000)
        scene.wake.hub.wake_all()  # The clock was moved by hand: nobody notices by himself.
        assert (await whole(exchange)).status == (200 if kind == "sse" else 404)
    assert (await scene.get(f"offset=-1&live={kind}")).status == 404


@on_a_loop
async def test_many_waiting_readers_renew_a_stream_once_a_window(world: World, make_scene: MakeScene) -> None:
    """Neither each reader nor each poll renews it, and an append renews it without an extra write."""
    scene = make_scene(expiry=Expiry(ttl_seconds=100))
    async with AsyncExitStack() as exchanges:
        for kind in ("sse", "long-poll") * 20:
            await exchanges.enter_async_context(request(scene.app, scene.target + kind))
        await scene.waiting(40)
        scene.reader.calls.taken()
        for _ in range(6):
            world.clock.advance(51_000)  # Every second time the window is nearly over.
            scene.wake.hub.wake_all()
            await scene.waiting(40)
        assert scene.reader.calls.taken()["UpdateItem"] == 3
        for start in (0, 6, 12, 18):
            world.clock.advance(90_000)
            await scene.append(b"batch ")
            await scene.tell(start)
            await eventually(lambda: len(scene.wake.hub._waiting) >= 20)
        assert scene.reader.calls.taken().get("UpdateItem", 0) == 0


@on_a_loop
async def test_a_reader_does_not_end_a_stream_that_others_renew(world: World, make_scene: MakeScene) -> None:
    """What the waiting reader remembers of the expiry is old, so it reads the stream's item before it
    ends."""
    scene = make_scene(expiry=Expiry(ttl_seconds=30))
    async with scene.reading("long-poll") as exchange:
        for _ in range(3):
            world.clock.advance(20_000)
            assert (await scene.get("offset=-1")).status == 200
            scene.wake.hub.wake_all()
            await eventually(lambda: scene.wake.hub._waiting)
        await scene.append(b"still here")
        await scene.tell(0)
        assert (await whole(exchange)).body == b"still here"


@BOTH_KINDS
@on_a_loop
async def test_a_waiting_reader_gets_the_messages_that_a_snapshot_has_replaced_meanwhile(
    world: World, make_scene: MakeScene, kind: str
) -> None:
    """It is given what it waits for, so no message is skipped. A request that begins at that offset later
    gets 410 in every mode."""
    scene = make_scene(key=key_in_new_bucket(world.process()))
    async with scene.reading(kind) as exchange:
        await scene.append(b"folded")
        await asyncio.to_thread(publish, scene.writer, scene.key, 6)
        await scene.tell(0)
        await exchange.until(has(b"folded"))
    for query in ("", "&live=sse", "&live=long-poll"):
        assert (await scene.get(f"offset=-1{query}")).status == 410


@on_a_loop
async def test_a_reader_that_is_behind_reads_on_without_waiting(make_scene: MakeScene) -> None:
    """It reads page after page until the tail, and registers only there."""
    scene = make_scene()
    message = b"%0*d;" % (SMALL_PAGE_BYTES // 2, 7)
    for _ in range(10):
        await scene.append(message)
    async with request(scene.app, scene.target + "sse") as exchange:
        answer = await exchange.until(has(b'"upToDate":true'))
        assert scene.reader.calls.taken().get("PutItem", 0) <= 1
    parts = [event.data for event in answer.events if event.type == "data"]
    assert "".join(parts) == 10 * message.decode()
    assert len(parts) >= math.ceil(10 * len(message) / SMALL_PAGE_BYTES)
