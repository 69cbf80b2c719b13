"""Single flight: callers that ask at once share one call, and no result is older than its caller's
request."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import PATIENCE_SECONDS, on_a_loop
from tidemark.wake.follow import SingleFlight


class Calls:
    """Runs a call some turns of the loop later, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, call: Callable[[], Any]) -> Any:
        self.count += 1
        for _ in range(5):
            await asyncio.sleep(0)
        return call()


@on_a_loop
async def test_callers_that_want_the_same_at_once_share_one_call() -> None:
    """The readers of a stream are woken one after another, in one turn of the loop."""
    run = Calls()
    shared, woken = SingleFlight(run), asyncio.Event()

    async def reader(name: str) -> Any:
        await woken.wait()
        return await shared.share(name, lambda: name)

    readers = [asyncio.ensure_future(reader(name)) for name in "ab" * 250]
    await asyncio.sleep(0)
    woken.set()
    assert await asyncio.gather(*readers) == list("ab" * 250)
    assert run.count == 2


@on_a_loop
async def test_a_result_is_never_older_than_its_callers_request() -> None:
    """A caller that comes while a call is under way gets the next one: the first has read already."""
    tail, has_read, may_answer = 0, asyncio.Event(), asyncio.Event()

    async def read_then_answer(call: Callable[[], Any]) -> Any:
        seen = call()
        has_read.set()
        await may_answer.wait()
        return seen

    shared = SingleFlight(read_then_answer)
    async with asyncio.timeout(PATIENCE_SECONDS):
        early = asyncio.ensure_future(shared.share("a", lambda: tail))
        await has_read.wait()
        tail = 1
        late = asyncio.ensure_future(shared.share("a", lambda: tail))
        await asyncio.sleep(0)
        may_answer.set()
        assert [await early, await late] == [0, 1]


@on_a_loop
async def test_a_failure_reaches_every_caller() -> None:
    shared = SingleFlight(Calls())

    def fail() -> None:
        raise LookupError("gone")

    outcomes = await asyncio.gather(*(shared.share("a", fail) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LookupError] * 3
    with pytest.raises(LookupError):
        await shared.share("a", fail)


@on_a_loop
async def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    run = Calls()
    shared = SingleFlight(run)
    leaving, staying = (asyncio.ensure_future(shared.share("a", lambda: "seen")) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == "seen"
    assert leaving.cancelled()
    assert run.count == 1
