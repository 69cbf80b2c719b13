"""The hub: who is rung, from which thread, and who counts as waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support import a_key
from tests.wake.support import PATIENCE_SECONDS, until
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake.hub import Bell, Hub

HERE, ELSEWHERE = StreamKey("v1", "here"), StreamKey("v1", "elsewhere")


async def is_rung(bell: Bell) -> bool:
    return await bell.wait(0)


async def ring_one_then_all(hub: Hub) -> None:
    with hub.listen(HERE) as one, hub.listen(HERE) as two, hub.listen(ELSEWHERE) as other:
        hub.ring(HERE)
        assert [await is_rung(bell) for bell in (one, two, other)] == [True, True, False]
        assert not await is_rung(one), "a ring is heard once"
        hub.ring_all()
        assert [await is_rung(bell) for bell in (one, two, other)] == [True, True, True]


def test_a_ring_reaches_all_of_its_stream_and_nobody_else() -> None:
    asyncio.run(ring_one_then_all(Hub()))


def test_a_ring_before_the_wait_is_not_lost() -> None:
    """A reader listens, reads, then waits; what is appended after the read may ring before the wait."""

    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as bell:
            hub.ring(HERE)
            assert await bell.wait(PATIENCE_SECONDS)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("incarnation", "start", "rings"),
    [
        ("now", 10, True),  # At the reader's place: what it waits for, or the mark of closing.
        ("now", 11, True),
        ("now", 9, False),  # It has read further than that batch begins, so it has read the batch.
        ("before", 9, True),  # Of another life of the stream the offsets say nothing.
        (None, 0, True),  # A ring of this very process, which does not say where.
    ],
)
def test_old_news_ring_nobody(incarnation: str | None, start: int, rings: bool) -> None:
    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as bell:
            bell.has_read("now", 10)
            hub.ring(HERE, incarnation, start)
            assert await is_rung(bell) is rings

    asyncio.run(scenario())


def test_before_its_first_look_a_reader_hears_everything() -> None:
    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as bell:
            hub.ring(HERE, "any", 0)
            assert await is_rung(bell)

    asyncio.run(scenario())


def test_bells_are_rung_on_their_own_loops() -> None:
    """The local gateway's environments share one hub, and each has a loop of its own."""
    hub, key = Hub(), a_key()
    heard: list[bool] = []

    def environment() -> None:
        async def wait() -> None:
            with hub.listen(key) as bell:
                heard.append(await bell.wait(10 * PATIENCE_SECONDS))

        asyncio.run(wait())

    threads = [threading.Thread(target=environment, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: len(hub._waiting) == len(threads))
    hub.ring(key)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert heard == [True] * len(threads)
    assert hub.listening == 0


def test_a_loop_that_is_gone_keeps_nobody_else_from_hearing() -> None:
    """A request that was cut off with its loop still has a bell."""
    hub = Hub()

    async def leave_a_bell() -> None:
        hub.listen(HERE).__enter__()

    async def scenario() -> None:
        with hub.listen(HERE) as bell:
            hub.ring(HERE)
            assert await is_rung(bell)

    asyncio.run(leave_a_bell())
    asyncio.run(scenario())


def test_who_leaves_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        hub = Hub()
        with hub.listen(HERE) as bell:
            waiting = asyncio.ensure_future(bell.wait(PATIENCE_SECONDS))
            await asyncio.sleep(0)
            assert hub._waiting
            waiting.cancel()
            await asyncio.wait([waiting])
            assert not hub._waiting
        assert not hub._bells

    asyncio.run(scenario())


def test_patience_is_that_of_the_most_patient_who_waits() -> None:
    """Nobody listens to a queue for longer than somebody waits, nor while nobody does."""

    async def scenario() -> None:
        hub = Hub()
        assert hub.patience_seconds(0) is None
        with hub.listen(HERE) as one, hub.listen(ELSEWHERE) as two:
            assert hub.patience_seconds(0.01) is None, "to listen is not to wait"
            waits = [asyncio.ensure_future(bell.wait(seconds)) for bell, seconds in ((one, 100), (two, 1000))]
            await asyncio.sleep(0)
            assert 900 < (hub.patience_seconds(1) or 0) <= 1000
            hub.ring(ELSEWHERE)
            assert (hub.patience_seconds(1) or 0) <= 100, "who has been rung does not wait any more"
            hub.ring(HERE)
            assert hub.patience_seconds(0.01) is None
            assert await asyncio.gather(*waits) == [True, True]

    asyncio.run(scenario())


def test_patience_blocks_until_somebody_waits() -> None:
    async def scenario() -> None:
        hub = Hub()
        patience = asyncio.ensure_future(asyncio.to_thread(hub.patience_seconds, PATIENCE_SECONDS))
        with hub.listen(HERE) as bell:
            waiting = asyncio.ensure_future(bell.wait(PATIENCE_SECONDS))
            assert await patience is not None
            hub.ring(HERE)
            await waiting

    asyncio.run(scenario())
