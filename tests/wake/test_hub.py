"""The hub: which listeners are woken, from which thread, and which requests count as waiting."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.support import on_a_loop
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake import hub as hub_module
from tidemark.wake.hub import Hub, Listener

HERE, ELSEWHERE = StreamKey("v1", "here"), StreamKey("v1", "elsewhere")


async def woken(*listeners: Listener) -> list[bool]:
    return [await listener.wait(0) for listener in listeners]


@on_a_loop
async def test_a_wake_reaches_every_listener_of_its_stream_once_and_no_other() -> None:
    """Also one that comes before the wait: a reader listens, reads, and then waits."""
    hub = Hub()
    with hub.listen(HERE) as one, hub.listen(HERE) as two, hub.listen(ELSEWHERE) as other:
        hub.wake(HERE)
        assert await woken(one, two, other) == [True, True, False]
        assert await woken(one, two, other) == [False, False, False]
        hub.wake_all()
        assert await woken(one, two, other) == [True, True, True]
    assert not hub._listeners


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
@on_a_loop
async def test_a_listener_is_woken_only_for_batches_that_it_has_not_read(
    incarnation: str | None, start: int, is_interested: bool
) -> None:
    hub = Hub()
    with hub.listen(HERE) as listener, hub.listen(HERE) as has_not_read_yet:
        listener.has_read("now", 10)
        hub.wake(HERE, incarnation, start)
        assert await woken(listener, has_not_read_yet) == [is_interested, True]


def test_listeners_are_woken_on_their_own_event_loops() -> None:
    """The local gateway's environments share one hub, and each has a loop of its own. One that was closed
    with a listener on it keeps nobody else from being woken."""
    hub = Hub()
    heard: list[bool] = []

    left = hub.listen(HERE)

    async def leave_a_listener() -> None:
        left.__enter__()

    async def wait() -> None:
        with hub.listen(HERE) as listener:
            heard.append(await listener.wait(10 * PATIENCE_SECONDS))

    asyncio.run(leave_a_listener())
    threads = [threading.Thread(target=asyncio.run, args=(wait(),), daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: len(hub._waiting) == len(threads))
    hub.wake(HERE)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert heard == [True] * len(threads)
    assert hub.listening == 1


@on_a_loop
async def test_a_cancelled_wait_leaves_no_listener_behind() -> None:
    hub = Hub()
    with hub.listen(HERE) as listener:
        waiting = asyncio.ensure_future(listener.wait(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        assert hub._waiting
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not hub._waiting
    assert not hub._listeners


@on_a_loop
async def test_longest_wait_is_that_of_the_last_request_to_stop_waiting() -> None:
    """So no receive lasts longer than a request waits, and none is made while no request waits."""
    hub = Hub()
    assert hub.longest_wait_seconds(0) is None
    with hub.listen(HERE) as one, hub.listen(ELSEWHERE) as two:
        assert hub.longest_wait_seconds(0.01) is None, "to listen is not to wait"
        # A thread that asks is told as soon as a request waits.
        first = asyncio.ensure_future(asyncio.to_thread(hub.longest_wait_seconds, PATIENCE_SECONDS))
        waits = [asyncio.ensure_future(each.wait(seconds)) for each, seconds in ((one, 100), (two, 1000))]
        assert await first is not None
        assert 900 < (hub.longest_wait_seconds(1) or 0) <= 1000
        hub.wake(ELSEWHERE)
        assert (hub.longest_wait_seconds(1) or 0) <= 100, "a woken listener does not wait any more"
        hub.wake(HERE)
        assert hub.longest_wait_seconds(0.01) is None
        assert await asyncio.gather(*waits) == [True, True]


def test_a_wait_that_is_over_and_not_removed_is_not_looked_at_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A socket that outlives its leases leaves one behind."""
    hub, waited = Hub(), list[float]()
    monkeypatch.setattr(hub._changed, "wait", waited.append)
    monkeypatch.setattr(hub_module, "time", SimpleNamespace(monotonic=lambda: 100.0 + sum(waited)))
    hub.start_waiting(object(), 99.0)
    assert hub.longest_wait_seconds(60.0) is None
    assert waited == [60.0]
    hub.start_waiting(object(), 200.0)
    assert hub.longest_wait_seconds(60.0) == 40.0
