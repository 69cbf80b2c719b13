"""Waking from end to end: an append in one process, a reader that waits in another, and between them only
the table's stream, the notifier and a queue. Then the same with what can go wrong in between.

What is asserted is how many receives it takes, never how long.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support import MINUTE_MS, TEXT
from tests.waiting import eventually, on_a_loop
from tests.wake.scene import MakeScene, Scene, has, whole
from tests.wake.support import pumping, request, shared_sqs
from tidemark.aws.sqs import Queues
from tidemark.http.backend import lambda_backend, threaded_backend
from tidemark.protocol.errors import Busy
from tidemark.service.delete import delete
from tidemark.wake.notifier import ORPHAN_MS, sweep_queues
from tidemark.wake.queue import POLL_SECONDS, QUIET_MS

pytestmark = pytest.mark.slow

BOTH_WAYS = pytest.mark.parametrize("way", [threaded_backend, lambda_backend], ids=lambda way: way.__name__)

READERS = 500


def append(scene: Scene) -> None:
    scene.writer.append(scene.key, b"news", content_type=TEXT)


def close(scene: Scene) -> None:
    scene.writer.append(scene.key, close=True)


def end(scene: Scene) -> None:
    delete(scene.writer.stores, scene.key)


def end_and_begin_again(scene: Scene) -> None:
    end(scene)
    scene.writer.create(scene.key, content_type=TEXT)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("happening", "status", "body"),
    [(append, 200, b"news"), (close, 204, b""), (end, 404, None), (end_and_begin_again, 404, None)],
)
@on_a_loop
async def test_what_another_process_does_ends_a_long_poll(
    make_scene: MakeScene, way: Any, happening: Callable[[Scene], None], status: int, body: bytes | None
) -> None:
    """By the wake message alone: no receive ends empty after it."""
    scene = make_scene(way, receive_seconds=20)
    with pumping(scene.world, scene.prefix):
        async with scene.reading("long-poll") as exchange:
            before = len(scene.queues.receives)
            await asyncio.to_thread(happening, scene)
            answer = await whole(exchange)
            assert 0 not in scene.queues.receives[before:]
    assert answer.status == status
    assert body in {None, answer.body}
    assert answer["stream-closed"] == ("true" if happening is close else None)


@on_a_loop
async def test_five_hundred_readers_share_a_registration_a_queue_and_few_reads(make_scene: MakeScene) -> None:
    """Half of them long-poll, half use SSE. One message for an append in another process reaches them all."""
    scene = make_scene(receive_seconds=20)
    async with AsyncExitStack() as stack:
        kinds = ["long-poll", "sse"] * (READERS // 2)
        readers = [await stack.enter_async_context(request(scene.app, scene.target + kind)) for kind in kinds]
        await scene.waiting(READERS)
        assert scene.reader.calls.taken()["PutItem"] == 1
        await scene.append(b"to all")
        await scene.tell(0)
        await eventually(lambda: all(b"to all" in reader.received for reader in readers))
        assert scene.reader.calls.taken().get("Query", 0) <= READERS / 50
        for start in (6, 8, 10, 12):
            await scene.append(b"%d" % (start + 10))
            await scene.tell(start)
            await asyncio.gather(*(each.until(has(b"%d" % (start + 10))) for each in readers[1::2]))
        await eventually(lambda: not scene.wake.hub._waiting)
        scene.reader.calls.taken()
        began = time.monotonic()
        await asyncio.sleep(10 * POLL_SECONDS)
        polls = 1 + (time.monotonic() - began) / POLL_SECONDS
        assert 1 < scene.reader.calls.taken()["Query"] <= polls * READERS / 50
    assert scene.queues.made == 1
    assert scene.wake.hub.following == 0


@BOTH_WAYS
@on_a_loop
async def test_a_reader_of_a_fast_writer_polls_until_it_falls_quiet(make_scene: MakeScene, way: Any) -> None:
    """A message wakes the reader again afterwards. The client gets each append once."""
    scene = make_scene(way, receive_seconds=20)
    sent = [b"%d;" % number for number in range(20)]
    with pumping(scene.world, scene.prefix):
        async with scene.reading("sse") as exchange:

            async def appended(*messages: bytes) -> None:
                for message in messages:
                    await scene.append(message)
                    await exchange.until(has(message))

            await appended(*sent[:6])
            await eventually(lambda: not scene.wake.hub._waiting)
            before = scene.queues.begun
            await appended(*sent[6:19])
            assert scene.queues.begun <= before + 1, "a receive that had begun may end"
            assert scene.registered() == set()
            [registration] = scene.wake._waiters._registrations.values()
            await eventually(lambda: registration.offset == len(b"".join(sent[:19])))
            scene.world.clock.advance(QUIET_MS)
            await scene.waiting()
            await appended(sent[19])
            assert 0 not in scene.queues.receives, "only the end of the receive helped"
            data = "".join(event.data for event in exchange.answer.events if event.type == "data")
    assert data.encode() == b"".join(sent)
    assert scene.reader.calls.taken()["PutItem"] == 3


async def lose_queue(scene: Scene) -> None:
    """Somebody removes the queue of the waiting reader."""
    await asyncio.to_thread(scene.queues.delete, scene.wake._receiver.queue().url)


async def sweep_queue(scene: Scene) -> None:
    """The janitor does: a process may have a slow clock, or have been frozen."""
    future_ms = scene.world.clock() + ORPHAN_MS + MINUTE_MS
    table, queues = scene.writer.stores.table, Queues(shared_sqs, scene.prefix)
    assert (await asyncio.to_thread(sweep_queues, table, queues, future_ms)).queues == 1


@pytest.mark.parametrize(
    ("serve", "live", "remove"),
    [(threaded_backend, "sse", sweep_queue), (lambda_backend, "long-poll", lose_queue)],
)
@on_a_loop
async def test_a_reader_whose_queue_is_removed_gets_another_one_and_every_message(
    make_scene: MakeScene, serve: Any, live: str, remove: Callable[[Scene], Coroutine[Any, Any, None]]
) -> None:
    """A long-poll has one answer, so its append comes once the new queue is registered. An event stream gets
    the appends before that as well."""
    scene = make_scene(serve)
    with pumping(scene.world, scene.prefix):
        async with scene.reading(live) as exchange:
            lost = scene.wake._receiver.queue().url
            await remove(scene)
            if live == "sse":
                for message in (b"1;", b"2;"):
                    await scene.append(message)
                    await exchange.until(has(message))
            await eventually(lambda: None in scene.queues.receives)
            await eventually(lambda: scene.registered() - {lost})
            await scene.append(b"news")
            await exchange.until(has(b"news"))


@on_a_loop
async def test_several_wakes_at_once_deliver_each_append_once(make_scene: MakeScene) -> None:
    """An append of this process, whose bytes need no read, and a later one of another process wake the reader
    at the same moment. It wakes once, and gets both."""
    scene = make_scene(receive_seconds=20)
    async with scene.reading("sse") as exchange:
        # Nothing is awaited, so the reader does not run in between.
        scene.reader.append(scene.key, b"own;", content_type=TEXT)
        scene.wake.hub.wake(scene.key)
        scene.writer.append(scene.key, b"other;", content_type=TEXT)
        scene.wake.hub.wake(scene.key, scene.record.incarnation, 4)
        await exchange.until(has(b"own;"))
        await exchange.until(has(b"other;"))
        assert 0 not in scene.queues.receives, "only the end of the receive helped"


@on_a_loop
async def test_an_append_of_the_same_process_is_sent_before_the_log_is_read(make_scene: MakeScene) -> None:
    """The reader gets its bytes as soon as they are committed; then it polls the log for more."""
    scene = make_scene(receive_seconds=20)
    async with scene.reading("sse") as exchange:
        scene.reader.append(scene.key, b"own", content_type=TEXT)
        held = asyncio.Event()

        async def hold(*_: Any) -> Any:
            await held.wait()
            raise Busy

        object.__setattr__(scene.backend, "share", hold)
        scene.wake.hub.wake(scene.key)
        await exchange.until(has(b"own"))
        held.set()
