"""What a live read does besides waking: heartbeats, its end, streams that end while it waits, bad input."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from tests.buckets import key_in_new_bucket, publish
from tests.http.asgi import Answer, Exchange
from tests.support import TEXT, World, a_key
from tests.wake.scene import CountedQueues, Scene
from tests.wake.support import PATIENCE_SECONDS, eventually, request, settled
from tidemark.http import live
from tidemark.http.backend import many_at_once
from tidemark.protocol.expiry import Expiry
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.stores import wall_clock_ms
from tidemark.settings import Settings
from tidemark.wake import wake


async def whole(exchange: Exchange) -> Any:
    return await exchange.until(lambda _: exchange.done)


def test_a_silent_stream_sends_heartbeats(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are comments, which no client shows and for which nothing is read; proxies on the way keep the
    connection."""
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.05)
    scene = Scene(world, many_at_once, receive_seconds=20)

    async def scenario() -> None:
        async with scene.reading("sse") as exchange:
            scene.reader.calls.taken()
            beats = exchange.received.count(b": heartbeat\n\n")
            await exchange.until(lambda answer: answer.body.count(b": heartbeat\n\n") >= beats + 10)
            assert scene.reader.calls.taken() == {}
            assert [event.type for event in exchange.answer.events] == ["control"]
            await scene.append(b"news")
            await asyncio.to_thread(scene.notify, 0)
            await exchange.until(lambda answer: b"news" in answer.body)

    settled(scene.wake)
    asyncio.run(scenario())
    scene.wake.close()


def test_a_heartbeat_comes_every_fifteen_seconds() -> None:
    """CloudFront and most proxies give up on a silent connection after thirty seconds or more."""
    assert live.HEARTBEAT_SECONDS == 15


class SilentQueues(CountedQueues):
    """No receive ever ends, as if the receiver's thread were stuck."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.released = threading.Event()

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        self.begun += 1
        self.released.wait(10 * PATIENCE_SECONDS)
        return []


def test_every_long_poll_reads_the_log_before_it_ends(world: World) -> None:
    """A wake message that was lost costs a long-poll its time, not its data."""
    waits = Settings(long_poll_seconds=3)
    scene = Scene(world, many_at_once, 20, make_queues=SilentQueues, settings=waits)
    settled(scene.wake)

    async def scenario() -> None:
        async with scene.reading("long-poll") as exchange:
            await scene.append(b"news")
            answer = await whole(exchange)
        assert (answer.status, answer.body) == (200, b"news")

    asyncio.run(scenario())
    scene.queues.released.set()  # type: ignore[attr-defined]
    scene.wake.close()


def test_a_reader_polls_the_log_although_the_receiver_is_stuck(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has not been woken for longer than a receive lasts polls the log."""
    monkeypatch.setattr(wake, "_OVERDUE_SECONDS", 0.1)
    scene = Scene(world, many_at_once, receive_seconds=1, make_queues=SilentQueues)
    settled(scene.wake)

    async def scenario() -> None:
        async with scene.reading("sse") as exchange:
            for message in (b"one", b"two"):
                await scene.append(message)
                await exchange.until(partial(has, message))

    asyncio.run(scenario())
    scene.queues.released.set()  # type: ignore[attr-defined]
    scene.wake.close()


def test_a_reader_polls_the_log_while_its_queue_is_new(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS may not know a new queue everywhere, so a message could get lost. Here none arrives."""
    monkeypatch.setattr(wake, "SETTLING_SECONDS", 10 * PATIENCE_SECONDS)
    monkeypatch.setattr(wake, "_OVERDUE_SECONDS", 10 * PATIENCE_SECONDS)
    scene = Scene(world, many_at_once, receive_seconds=20, make_queues=SilentQueues)

    async def scenario() -> None:
        async with request(scene.app, scene.target + "sse") as exchange:
            await eventually(lambda: scene.wake.hub._waiting)
            assert scene.wake._receiver.queue().settling_seconds
            await scene.append(b"news")
            await exchange.until(partial(has, b"news"))

    asyncio.run(scenario())
    scene.queues.released.set()  # type: ignore[attr-defined]
    scene.wake.close()


def has(data: bytes, answer: Answer) -> bool:
    return data in answer.body


@pytest.mark.parametrize("ending", ["deleted", "expired", "deleted and made again"])
@pytest.mark.parametrize("kind", ["sse", "long-poll"])
def test_readers_learn_that_their_stream_was_deleted_or_has_expired(
    world: World, ending: str, kind: str
) -> None:
    """An event stream ends without an error, and the client gets 404 when it reconnects. A long-poll gets 404
    at once."""
    scene = Scene(world, many_at_once)

    def end() -> None:
        if ending == "expired":
            world.clock.advance(60_000)
            scene.wake.hub.wake_all()  # The clock was moved by hand: nobody notices by himself.
            return
        delete(scene.writer.stores, scene.key)
        if ending.endswith("again"):
            scene.writer.create(scene.key, content_type=TEXT)
        scene.notify(0)

    async def scenario() -> None:
        if ending == "expired":
            scene.key = a_key("expires")
            scene.writer.create(scene.key, content_type=TEXT, expiry=Expiry(ttl_seconds=30))
        async with scene.reading(kind) as exchange:
            await asyncio.to_thread(end)
            answer = await whole(exchange)
        if kind == "sse":
            assert answer.status == 200
            assert [event.type for event in answer.events] == ["control"]
        else:
            assert answer.status == 404
        if not ending.endswith("again"):
            async with request(scene.app, scene.target + kind) as exchange:
                assert (await whole(exchange)).status == 404

    asyncio.run(scenario())
    scene.wake.close()


@pytest.mark.parametrize("kind", ["sse", "long-poll"])
def test_a_waiting_reader_gets_the_messages_that_a_snapshot_has_replaced_meanwhile(
    world: World, kind: str
) -> None:
    """It is given what it waits for, so no message is skipped. A request that begins at that offset later
    gets 410 in every mode."""
    scene = Scene(world, many_at_once, key=key_in_new_bucket(world.process()))
    path = f"/{scene.key.bucket}/{scene.key.stream_id}?offset=-1"

    def overtake() -> None:
        scene.writer.append(scene.key, b"folded", content_type=TEXT)
        publish(scene.writer, scene.key, 6)
        scene.notify(0)

    async def scenario() -> None:
        async with request(scene.app, f"{path}&live={kind}") as exchange:
            await scene.waiting()
            await asyncio.to_thread(overtake)
            await exchange.until(partial(has, b"folded"))
        for query in ("", "&live=sse", "&live=long-poll"):
            async with request(scene.app, path + query) as exchange:
                assert (await whole(exchange)).status == 410

    asyncio.run(scenario())
    scene.wake.close()


def test_a_waiting_reader_notices_the_fixed_end_of_its_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expiry wakes nobody, so the reader's own wait ends when the stream does; here by the real clock. No
    receive ends, and neither a poll nor the long-poll's end is due, so nothing else can end it."""
    monkeypatch.setattr(wake, "_OVERDUE_SECONDS", 10 * PATIENCE_SECONDS)
    patient = Settings(long_poll_seconds=10 * PATIENCE_SECONDS)
    scene = Scene(world, many_at_once, 20, make_queues=SilentQueues, settings=patient, clock=wall_clock_ms)
    settled(scene.wake)

    async def scenario() -> None:
        scene.key = a_key("expires")
        ends_ms = wall_clock_ms() + 2000
        scene.writer.create(scene.key, content_type=TEXT, expiry=Expiry(None, "in two seconds", ends_ms))
        async with request(scene.app, scene.target + "long-poll") as exchange:
            answer = await whole(exchange)
        assert answer.status == 404

    asyncio.run(scenario())
    scene.queues.released.set()  # type: ignore[attr-defined]
    scene.wake.close()


@pytest.mark.parametrize("kind", ["sse", "long-poll"])
def test_a_stream_does_not_expire_while_a_reader_waits(world: World, kind: str) -> None:
    """§5.1: "A stream with active live readers will not expire". Here by the real clock: two windows pass."""
    settings = Settings(long_poll_seconds=5, sse_seconds=5)
    scene = Scene(world, many_at_once, 20, make_queues=SilentQueues, settings=settings, clock=wall_clock_ms)
    settled(scene.wake)

    async def scenario() -> None:
        scene.key = a_key("kept")
        scene.writer.create(scene.key, content_type=TEXT, expiry=Expiry(ttl_seconds=2))
        async with request(scene.app, scene.target + kind) as exchange:
            answer = await whole(exchange)
        assert answer.status == (200 if kind == "sse" else 204)
        assert (await asyncio.to_thread(load_head, scene.writer.stores, scene.key)).tail.offset == 0

    asyncio.run(scenario())
    scene.queues.released.set()  # type: ignore[attr-defined]
    scene.wake.close()


def test_a_hundred_waiting_readers_renew_a_stream_once_in_a_window(world: World) -> None:
    """Neither each reader nor each poll renews it, and an append renews it without an extra write."""
    scene = Scene(world, many_at_once, key=a_key("kept"))
    settled(scene.wake)

    async def scenario() -> None:
        scene.key = a_key("kept")
        known = scene.writer.create(scene.key, content_type=TEXT, expiry=Expiry(ttl_seconds=100)).head
        scene.record = known.record
        async with AsyncExitStack() as exchanges:
            for kind in ("sse", "long-poll") * 50:
                await exchanges.enter_async_context(request(scene.app, scene.target + kind))
            await eventually(lambda: len(scene.wake.hub._waiting) == 100)
            scene.reader.calls.taken()
            for _ in range(6):
                world.clock.advance(51_000)  # Every second time the window is nearly over.
                scene.wake.hub.wake_all()
                await eventually(lambda: len(scene.wake.hub._waiting) == 100)
            assert scene.reader.calls.taken()["UpdateItem"] == 3
            for end in (6, 12, 18, 24):
                world.clock.advance(90_000)
                await scene.append(b"batch ")
                await asyncio.to_thread(scene.notify, end - 6)
                await eventually(lambda: len(scene.wake.hub._waiting) >= 50)
            assert scene.reader.calls.taken().get("UpdateItem", 0) == 0

    asyncio.run(scenario())
    scene.wake.close()


def test_a_reader_does_not_end_a_stream_that_others_renew(world: World) -> None:
    """What the waiting reader remembers of the expiry is old, so it reads the stream's item before it
    ends."""
    scene = Scene(world, many_at_once, key=a_key("renewed"))

    async def scenario() -> None:
        scene.key = a_key("renewed")
        scene.record = scene.writer.create(
            scene.key, content_type=TEXT, expiry=Expiry(ttl_seconds=30)
        ).head.record
        async with scene.reading("long-poll") as exchange:
            for _ in range(3):
                world.clock.advance(20_000)
                async with request(scene.app, scene.target.partition("&")[0]) as other:
                    assert (await whole(other)).status == 200
                scene.wake.hub.wake_all()
                await eventually(lambda: scene.wake.hub._waiting)
            await scene.append(b"still here")
            await asyncio.to_thread(scene.notify, 0)
            assert (await whole(exchange)).body == b"still here"

    asyncio.run(scenario())
    scene.wake.close()


def test_a_reader_that_is_behind_reads_on_without_waiting(world: World) -> None:
    """It reads page after page until the tail, and registers only there."""
    scene = Scene(world, many_at_once)
    message = b"%01048575d;" % 7

    async def scenario() -> None:
        for _ in range(10):
            await scene.append(message)
        async with request(scene.app, scene.target + "sse") as exchange:
            answer = await exchange.until(lambda answer: b'"upToDate":true' in answer.body)
            assert scene.reader.calls.taken().get("PutItem", 0) <= 1
        parts = [event.data for event in answer.events if event.type == "data"]
        assert "".join(parts) == 10 * message.decode()
        assert len(parts) >= 3

    asyncio.run(scenario())
    scene.wake.close()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("live=sse", 400),
        ("offset=-1&live=long-poll&cursor=x", 400),
        ("offset=0000000000000099&live=sse", 410),
    ],
)
def test_bad_input_is_refused_before_anything_waits(world: World, query: str, status: int) -> None:
    """No queue is made. Every wrong query is in `http/test_bad_input.py`."""
    scene = Scene(world, many_at_once)

    async def scenario() -> None:
        async with request(scene.app, f"/v1/stream/{scene.key.stream_id}?{query}") as exchange:
            answer = await whole(exchange)
        assert answer.status == status
        assert answer.json["error"]

    asyncio.run(scenario())
    assert list(scene.queues.all()) == []
