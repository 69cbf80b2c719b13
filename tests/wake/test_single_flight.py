"""Single flight: callers that ask at once share one call, and no result is older than its caller's
request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidemark.http.backend import SingleFlight


class Calls:
    """Runs the call some turns of the loop later, and counts it."""

    def __init__(self, turns: int = 1) -> None:
        self.count = 0
        self.turns = turns

    async def __call__(self, call: Callable[[], Any]) -> Any:
        self.count += 1
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return call()


def looks(run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> SingleFlight:
    return SingleFlight(run)


def test_simultaneous_callers_share_one_call() -> None:
    async def scenario() -> None:
        run = Calls()
        shared = looks(run)
        answers = await asyncio.gather(*(shared.share("a", lambda: "seen") for _ in range(500)))
        assert answers == ["seen"] * 500
        assert run.count == 1

    asyncio.run(scenario())


def test_listeners_woken_together_share_one_call() -> None:
    """The readers of a stream are woken one after another, in one turn of the loop."""

    async def scenario() -> None:
        run = Calls()
        shared = looks(run)
        listener = asyncio.Event()

        async def reader() -> None:
            async with asyncio.timeout(60):
                await listener.wait()
            await shared.share("a", lambda: None)

        readers = [asyncio.ensure_future(reader()) for _ in range(500)]
        await asyncio.sleep(0.01)
        listener.set()
        await asyncio.gather(*readers)
        assert run.count == 1

    asyncio.run(scenario())


def test_calls_with_different_names_are_not_shared() -> None:
    async def scenario() -> None:
        run = Calls()
        shared = looks(run)
        answers = await asyncio.gather(shared.share(("a", 1), lambda: 1), shared.share(("a", 2), lambda: 2))
        assert list(answers) == [1, 2]
        assert run.count == 2

    asyncio.run(scenario())


def test_a_result_is_never_older_than_its_callers_request() -> None:
    """A caller that comes while a call is under way gets the next one: the first has read already."""

    async def scenario() -> None:
        tail, has_read, may_answer = 0, asyncio.Event(), asyncio.Event()

        async def read_then_answer(call: Callable[[], Any]) -> Any:
            seen = call()
            has_read.set()
            await may_answer.wait()
            return seen

        shared = looks(read_then_answer)
        early = asyncio.ensure_future(shared.share("a", lambda: tail))
        async with asyncio.timeout(60):
            await has_read.wait()
        tail = 1
        late = asyncio.ensure_future(shared.share("a", lambda: tail))
        await asyncio.sleep(0)
        may_answer.set()
        async with asyncio.timeout(60):
            assert [await early, await late] == [0, 1]

    asyncio.run(scenario())


def test_a_failure_reaches_every_caller() -> None:
    async def scenario() -> None:
        shared = looks(Calls())

        def fail() -> None:
            raise LookupError("gone")

        asked = [shared.share("a", fail) for _ in range(3)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LookupError] * 3
        with pytest.raises(LookupError):
            await shared.share("a", fail)

    asyncio.run(scenario())


def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    async def scenario() -> None:
        run = Calls(turns=5)
        shared = looks(run)
        leaving, staying = (asyncio.ensure_future(shared.share("a", lambda: "seen")) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == "seen"
        assert leaving.cancelled()
        assert run.count == 1

    asyncio.run(scenario())
