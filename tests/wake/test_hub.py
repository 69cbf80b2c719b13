"""The hub: which followers are woken, from which thread, and which requests count as waiting."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tests.waiting import PATIENCE_SECONDS, eventually, on_a_loop, until
from tests.wake.support import Heard
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake import follow as hub_module
from tidemark.wake.follow import Hub

HERE, ELSEWHERE = StreamKey("v1", "here"), StreamKey("v1", "elsewhere")


async def woken(*followers: Heard) -> list[int]:
    await asyncio.sleep(0)
    return [len(follower.heard) for follower in followers]


@on_a_loop
async def test_a_wake_reaches_every_follower_of_its_stream_once_and_no_other() -> None:
    hub = Hub()
    one, two, other = followers = [Heard(hub, key) for key in (HERE, HERE, ELSEWHERE)]
    hub.wake(HERE)
    assert await woken(*followers) == [1, 1, 0]
    hub.wake_all()
    assert await woken(*followers) == [2, 2, 1]
    other.incarnation, two.incarnation = "log", "another"
    hub.wake_all("log")
    assert await woken(*followers) == [3, 2, 2], "one may follow that log"
    one.close()
    hub.wake(HERE)
    assert await woken(*followers) == [3, 3, 2]
    two.close()
    other.close()
    assert not hub._followers


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
async def test_a_follower_is_woken_only_for_batches_that_it_has_not_read(
    incarnation: str | None, start: int, is_interested: bool
) -> None:
    hub = Hub()
    followers = Heard(hub, HERE, "now", 10), Heard(hub, HERE)
    hub.wake(HERE, incarnation, start)
    assert await woken(*followers) == [is_interested, True]


def test_followers_are_woken_on_their_own_event_loops() -> None:
    """The local gateway's environments share one hub, and each has a loop of its own. One that was closed
    with a follower on it keeps nobody else from being woken."""
    hub = Hub()
    right: list[bool] = []

    async def leave_a_follower() -> None:
        Heard(hub, HERE)

    async def follow() -> None:
        follower = Heard(hub, HERE)
        await eventually(lambda: follower.heard)
        right.append(follower.heard == [asyncio.get_running_loop()])
        follower.close()

    asyncio.run(leave_a_follower())
    threads = [threading.Thread(target=asyncio.run, args=(follow(),), daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: hub.following == 1 + len(threads))
    hub.wake(HERE)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert right == [True] * len(threads)
    assert hub.following == 1


@on_a_loop
async def test_longest_wait_is_that_of_the_last_request_to_stop_waiting() -> None:
    """So no receive lasts longer than a request waits, and none is made while no request waits."""
    hub = Hub()
    assert hub.longest_wait_seconds(0) is None
    one, two = Heard(hub, HERE), Heard(hub, ELSEWHERE)
    assert hub.longest_wait_seconds(0.01) is None, "to follow is not to wait"
    # A thread that asks is told as soon as a request waits.
    first = asyncio.ensure_future(asyncio.to_thread(hub.longest_wait_seconds, PATIENCE_SECONDS))
    hub.start_waiting(one, 100)
    hub.start_waiting(two, 1000)
    assert await first is not None
    assert 900 < (hub.longest_wait_seconds(1) or 0) <= 1000
    hub.wake(ELSEWHERE)
    assert (hub.longest_wait_seconds(1) or 0) <= 100, "a woken follower does not wait any more"
    hub.stop_waiting(one)
    assert hub.longest_wait_seconds(0.01) is None


def test_a_wait_that_is_over_and_not_removed_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that outlives its leases leaves one behind."""
    hub, waited = Hub(), list[float]()
    monkeypatch.setattr(hub._changed, "wait", waited.append)
    monkeypatch.setattr(hub_module, "time", SimpleNamespace(monotonic=lambda: 100.0 + sum(waited)))
    hub.start_waiting(object(), -1.0)
    assert hub.longest_wait_seconds(60.0) is None
    assert waited == [60.0]
    hub.start_waiting(object(), 40.0)
    assert hub.longest_wait_seconds(60.0) == 40.0
