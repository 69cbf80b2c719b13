"""Waking from end to end: an append in one process, a reader that waits in another, and between them only
the table's stream, the notifier and a queue. Then the same with everything that can go wrong in between.

Receives are short here; what is asserted is how many of them it takes, never how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from tests.http.asgi import Answer, Exchange
from tests.support import MINUTE_MS, TEXT, World, a_key
from tests.wake.scene import CountedQueues, Scene
from tests.wake.support import eventually, pumping, request, settled, shared_sqs
from tidemark.aws.sqs import Queues, QueueUnavailable
from tidemark.http.backend import many_at_once, one_at_a_time
from tidemark.janitor.backstops import ORPHAN_MS, sweep_wake
from tidemark.protocol.errors import Busy
from tidemark.settings import Settings

BOTH_WAYS = pytest.mark.parametrize(
    "make", [many_at_once, one_at_a_time], ids=["many at once", "one at a time"]
)


@pytest.fixture
def run() -> Callable[[Scene, Callable[[Scene], Coroutine[Any, Any, None]]], None]:
    def run(scene: Scene, scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(scenario(scene))
        finally:
            scene.wake.close()
        assert list(scene.queues.all()) == [], "a process that ends leaves no queue"

    return run


Run = Callable[[Scene, Callable[[Scene], Coroutine[Any, Any, None]]], None]


def has(data: bytes, answer: Answer) -> bool:
    return data in answer.body


def is_done(exchange: Exchange) -> Callable[[Any], bool]:
    return lambda _: exchange.done


@BOTH_WAYS
def test_an_append_in_another_process_ends_a_long_poll(world: World, make: Any, run: Run) -> None:
    """By the wake message alone: no receive ends empty after the append."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading("long-poll") as exchange:
            before = len(scene.queues.receives)
            await scene.append(b"news")
            answer = await exchange.until(is_done(exchange))
            assert (answer.status, answer.body) == (200, b"news")
            assert 0 not in scene.queues.receives[before:]

    scene = Scene(world, make, receive_seconds=20)
    settled(scene.wake)
    with pumping(world, scene.prefix):
        run(scene, scenario)


def test_appends_in_another_process_arrive_one_after_another(world: World, run: Run) -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.reading("sse") as exchange:
            for number in range(20):
                await scene.append(b"%d;" % number)
                await exchange.until(partial(has, b"%d;" % number))

    scene = Scene(world, many_at_once)
    with pumping(world, scene.prefix):
        run(scene, scenario)


@BOTH_WAYS
def test_a_close_or_a_deletion_in_another_process_wakes_readers(world: World, make: Any, run: Run) -> None:
    async def scenario(scene: Scene) -> None:
        async with scene.reading("long-poll") as exchange:
            await asyncio.to_thread(scene.writer.append, scene.key, close=True)
            answer = await exchange.until(is_done(exchange))
            assert (answer.status, answer["stream-closed"]) == (204, "true")

    scene = Scene(world, make)
    with pumping(world, scene.prefix):
        run(scene, scenario)


def test_a_reader_is_woken_after_the_trigger_failed_at_first(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notifier reports the record as failed, and it is delivered again."""
    failures = iter([True, True])
    send = Queues.send

    def failing(queues: Queues, url: str, bodies: Any) -> None:
        if next(failures, False):
            raise ConnectionError("broken by the test")
        send(queues, url, bodies)

    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(Queues, "send", failing)
        async with scene.reading("long-poll") as exchange:
            await scene.append(b"news")
            answer = await exchange.until(is_done(exchange))
            assert answer.body == b"news"
        assert 0 not in scene.queues.receives

    scene = Scene(world, many_at_once, receive_seconds=20)
    settled(scene.wake)
    with pumping(world, scene.prefix):
        run(scene, scenario)
    assert next(failures, None) is None, "the trigger was not asked again"


@BOTH_WAYS
@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_without_a_trigger_a_reader_finds_the_append_after_one_receive(
    world: World, make: Any, live: str, run: Run
) -> None:
    """Whatever has happened to the wake message: after the first receive that ends empty, the reader polls
    the log."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading(live) as exchange:
            await scene.append(b"news")
            already = len(scene.queues.receives)
            await exchange.until(lambda answer: b"news" in answer.body)
            # One may have been ending while the append was on its way.
            assert len(scene.queues.receives) - already <= 2

    run(Scene(world, make), scenario)


async def lose_queue(scene: Scene) -> str:
    """Somebody removes the queue of the waiting reader."""
    receiver = scene.wake._receiver
    url = receiver.queue().url
    await asyncio.to_thread(scene.queues.delete, url)
    return url


async def sweep_queue(scene: Scene) -> str:
    """The janitor removes the queue: a process may have a slow clock, or have been frozen."""
    url = scene.wake._receiver.queue().url
    future_ms = scene.world.clock() + ORPHAN_MS + MINUTE_MS
    table, queues = scene.writer.stores.table, Queues(shared_sqs, scene.prefix)
    swept = await asyncio.to_thread(sweep_wake, table, queues, future_ms)
    assert swept.queues == 1
    return url


@pytest.mark.parametrize(
    ("make", "live", "remove"),
    [
        pytest.param(many_at_once, "long-poll", lose_queue, id="removed, many at once"),
        pytest.param(one_at_a_time, "long-poll", lose_queue, id="removed, one at a time"),
        pytest.param(many_at_once, "sse", sweep_queue, id="swept"),
    ],
)
def test_a_reader_whose_queue_is_removed_gets_another_one_and_every_message(
    world: World, make: Any, live: str, remove: Callable[[Scene], Coroutine[Any, Any, str]], run: Run
) -> None:
    """A long-poll has one answer, so its append comes once the new queue is registered. An event stream gets
    the appends before that as well."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading(live) as exchange:
            lost = await remove(scene)
            if live == "sse":
                for message in (b"1;", b"2;"):
                    await scene.append(message)
                    await exchange.until(partial(has, message))
            await eventually(lambda: None in scene.queues.receives)
            await eventually(lambda: scene.registered() - {lost})
            await scene.append(b"news")
            answer = await exchange.until(partial(has, b"news"))
            if live == "long-poll":
                answer = await exchange.until(is_done(exchange))
                assert answer.body == b"news"

    scene = Scene(world, make)
    with pumping(world, scene.prefix):
        run(scene, scenario)


def test_a_reader_polls_when_its_queue_is_removed_with_a_message_in_it(world: World, run: Run) -> None:
    """The notifier's message is lost with the queue: the reader finds the queue gone and polls the log."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading("long-poll") as exchange:
            await lose_queue(scene)
            await scene.append(b"news")
            await asyncio.to_thread(scene.notify, 0)
            answer = await exchange.until(is_done(exchange))
            assert answer.body == b"news"

    run(Scene(world, many_at_once), scenario)


def test_records_out_of_order_and_twice_deliver_every_byte_once(world: World, run: Run) -> None:
    """A wake message carries no data; it makes the reader read the log."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading("sse") as exchange:
            written = [b"%02d" % number for number in range(20)]
            for message in written:
                await scene.append(message)
            starts = [2 * number for number in range(20)]
            await asyncio.to_thread(scene.notify, *reversed(starts), *starts, 0, 38, 0)
            answer = await exchange.until(lambda answer: written[-1] in answer.body)
            data = [event.data for event in answer.events if event.type == "data"]
            assert "".join(data) == b"".join(written).decode()

    run(Scene(world, many_at_once), scenario)


def test_a_wake_message_for_data_already_read_causes_no_poll(world: World, run: Run) -> None:
    """The process's own append has woken its reader. When the trigger's message for it arrives, the reader
    has read further."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading("sse") as exchange:
            async with request(scene.app, scene.target.partition("?")[0], "POST", b"own") as append:
                await append.until(lambda _: append.done)
            await exchange.until(lambda answer: b"own" in answer.body)
            await scene.waiting()
            scene.reader.calls.taken()
            received = len(scene.queues.receives)
            await asyncio.to_thread(scene.notify, 0)
            await eventually(lambda: len(scene.queues.receives) > received)
            assert scene.queues.receives[received] == 1
            assert scene.reader.calls.taken() == {}

    run(Scene(world, many_at_once, receive_seconds=20), scenario)


def test_several_wakes_at_once_deliver_each_append_once(world: World, run: Run) -> None:
    """An append of this process, whose bytes need no read, and a later one of another process wake the reader
    at the same moment. It wakes once, and gets both."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading("sse") as exchange:
            # Nothing is awaited, so the reader does not run in between.
            scene.reader.append(scene.key, b"own;", content_type=TEXT)
            scene.wake.hub.wake(scene.key)
            scene.writer.append(scene.key, b"other;", content_type=TEXT)
            scene.wake.hub.wake(scene.key, scene.record.incarnation, 4)
            await exchange.until(partial(has, b"own;"))
            await exchange.until(partial(has, b"other;"))
            assert 0 not in scene.queues.receives, "only the end of the receive helped"

    scene = Scene(world, many_at_once, receive_seconds=20)
    settled(scene.wake)
    run(scene, scenario)


def test_an_append_of_the_same_process_is_sent_before_the_log_is_read(world: World, run: Run) -> None:
    """The reader gets its bytes as soon as they are committed; then it polls the log for more."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading("sse") as exchange:
            scene.reader.append(scene.key, b"own", content_type=TEXT)
            held = asyncio.Event()

            async def hold(*_: Any) -> Any:
                await held.wait()
                raise Busy

            object.__setattr__(scene.backend, "poll", hold)
            scene.wake.hub.wake(scene.key)
            await exchange.until(partial(has, b"own"))
            held.set()

    scene = Scene(world, many_at_once, receive_seconds=20)
    settled(scene.wake)
    run(scene, scenario)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_client_that_hangs_up_causes_no_more_reads(world: World, live: str, run: Run) -> None:
    """Its reader stops at once: appends happen and receives end, but nothing is read for it."""

    async def scenario(scene: Scene) -> None:
        async with scene.reading(live):
            assert scene.wake.hub.listening == 1
        # Behind here the application has ended its answer, long before it would have done so by itself.
        assert scene.wake.hub.listening == 0
        scene.reader.calls.taken()
        for _ in range(5):
            await scene.append(b"unseen")
            scene.wake.hub.wake_all()
            await asyncio.sleep(0.05)
        assert scene.reader.calls.taken() == {}

    forever = Settings(long_poll_seconds=900, sse_seconds=900)
    run(Scene(world, many_at_once, settings=forever), scenario)


def test_every_process_that_reads_a_stream_is_woken(world: World, run: Run) -> None:
    """Each has its own queue and its own registration."""
    first = Scene(world, many_at_once)
    others = [Scene(world, many_at_once, prefix=first.prefix, key=a_key()) for _ in range(4)]

    async def scenario(scene: Scene) -> None:
        scenes = [scene, *others]
        readers = [request(each.app, scene.target + "long-poll") for each in scenes]
        exchanges = [await reader.__aenter__() for reader in readers]
        await asyncio.gather(*(each.waiting() for each in scenes))
        await scene.append(b"news")
        answers = await asyncio.gather(*(each.until(is_done(each)) for each in exchanges))
        assert [answer.body for answer in answers] == [b"news"] * len(scenes)
        for reader in readers:
            await reader.__aexit__(None, None, None)
        for each in others:
            await asyncio.to_thread(each.wake.close)

    with pumping(world, first.prefix):
        run(first, scenario)


def test_readers_poll_the_log_when_sqs_is_down(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get every append."""

    def refuse(*_: Any) -> str:
        raise QueueUnavailable("broken by the test")

    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(CountedQueues, "create", refuse)
        async with request(scene.app, scene.target + "long-poll") as exchange:
            await eventually(lambda: scene.wake.hub._waiting)
            await scene.append(b"news")
            answer = await exchange.until(is_done(exchange))
            assert (answer.status, answer.body) == (200, b"news")

    run(Scene(world, many_at_once), scenario)
