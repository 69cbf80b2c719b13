"""The hub: which listeners are woken, from which thread, and which requests count as waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support import a_key
from tests.wake.support import PATIENCE_SECONDS, until
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake.hub import Hub, Listener

HERE, ELSEWHERE = StreamKey("v1", "here"), StreamKey("v1", "elsewhere")


async def is_woken(listener: Listener) -> bool:
    return await listener.wait(0)


async def wake_one_stream_then_all(hub: Hub) -> None:
    with hub.listen(HERE) as one, hub.listen(HERE) as two, hub.listen(ELSEWHERE) as other:
        hub.wake(HERE)
        assert [await is_woken(listener) for listener in (one, two, other)] == [True, True, False]
        assert not await is_woken(one), "one wake ends one wait"
        hub.wake_all()
        assert [await is_woken(listener) for listener in (one, two, other)] == [True, True, True]


def test_wake_reaches_every_listener_of_its_stream_and_no_other() -> None:
    asyncio.run(wake_one_stream_then_all(Hub()))


def test_a_wake_before_the_wait_is_not_lost() -> None:
    """A reader listens, reads, then waits; what is appended after the read may wake it before the wait."""

    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as listener:
            hub.wake(HERE)
            assert await listener.wait(PATIENCE_SECONDS)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("incarnation", "start", "is_interested"),
    [
        ("now", 10, True),  # At the reader's place: what it waits for, or the mark of closing.
        ("now", 11, True),
        ("now", 9, False),  # It has read further than that batch begins, so it has read the batch.
        ("before", 9, True),  # Offsets of another incarnation say nothing.
        (None, 0, True),  # A wake by this very process, which does not say where.
    ],
)
def test_a_listener_is_woken_only_for_batches_that_it_has_not_read(
    incarnation: str | None, start: int, is_interested: bool
) -> None:
    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as listener:
            listener.has_read("now", 10)
            hub.wake(HERE, incarnation, start)
            assert await is_woken(listener) is is_interested

    asyncio.run(scenario())


def test_a_listener_that_has_not_read_yet_is_woken_by_every_batch() -> None:
    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as listener:
            hub.wake(HERE, "any", 0)
            assert await is_woken(listener)

    asyncio.run(scenario())


def test_listeners_are_woken_on_their_own_event_loops() -> None:
    """The local gateway's environments share one hub, and each has a loop of its own."""
    hub, key = Hub(), a_key()
    heard: list[bool] = []

    def environment() -> None:
        async def wait() -> None:
            with hub.listen(key) as listener:
                heard.append(await listener.wait(10 * PATIENCE_SECONDS))

        asyncio.run(wait())

    threads = [threading.Thread(target=environment, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: len(hub._waiting) == len(threads))
    hub.wake(key)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert heard == [True] * len(threads)
    assert hub.listening == 0


def test_a_closed_event_loop_does_not_keep_other_listeners_from_being_woken() -> None:
    """A request that was cut off with its loop still has a listener."""
    hub = Hub()

    async def leave_a_listener() -> None:
        hub.listen(HERE).__enter__()

    async def scenario() -> None:
        with hub.listen(HERE) as listener:
            hub.wake(HERE)
            assert await is_woken(listener)

    asyncio.run(leave_a_listener())
    asyncio.run(scenario())


def test_a_cancelled_wait_leaves_no_listener_behind() -> None:
    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as listener:
            waiting = asyncio.ensure_future(listener.wait(PATIENCE_SECONDS))
            await asyncio.sleep(0)
            assert hub._waiting
            waiting.cancel()
            await asyncio.wait([waiting])
            assert not hub._waiting
        assert not hub._listeners

    asyncio.run(scenario())


def test_longest_wait_is_that_of_the_last_request_to_stop_waiting() -> None:
    """So no receive lasts longer than a request waits, and none is made while no request waits."""

    async def scenario() -> None:
        hub = Hub()
        assert hub.longest_wait_seconds(0) is None
        with hub.listen(HERE) as one, hub.listen(ELSEWHERE) as two:
            assert hub.longest_wait_seconds(0.01) is None, "to listen is not to wait"
            waits = [
                asyncio.ensure_future(listener.wait(seconds))
                for listener, seconds in ((one, 100), (two, 1000))
            ]
            await asyncio.sleep(0)
            assert 900 < (hub.longest_wait_seconds(1) or 0) <= 1000
            hub.wake(ELSEWHERE)
            assert (hub.longest_wait_seconds(1) or 0) <= 100, "a woken listener does not wait any more"
            hub.wake(HERE)
            assert hub.longest_wait_seconds(0.01) is None
            assert await asyncio.gather(*waits) == [True, True]

    asyncio.run(scenario())


def test_longest_wait_blocks_until_a_request_waits() -> None:
    async def scenario() -> None:
        hub = Hub()
        patience = asyncio.ensure_future(asyncio.to_thread(hub.longest_wait_seconds, PATIENCE_SECONDS))
        with hub.listen(HERE) as listener:
            waiting = asyncio.ensure_future(listener.wait(PATIENCE_SECONDS))
            assert await patience is not None
            hub.wake(HERE)
            await waiting

    asyncio.run(scenario())
