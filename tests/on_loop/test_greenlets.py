"""Functions that run in greenlets: what they return and raise, and that they hold nobody up."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tidemark.local.on_loop.greenlets import await_only, greenlet_spawn
from tidemark.local.on_loop.stores import Concurrently


async def later(value: int, *, fails: bool = False) -> int:
    await asyncio.sleep(0)
    if fails:
        raise LookupError(value)
    return value


def total(*numbers: int) -> int:
    return sum(await_only(later(number)) for number in numbers)


def test_await_only_returns_what_the_awaitable_returns() -> None:
    assert asyncio.run(greenlet_spawn(lambda: total(1, 2, 3))) == 6
    assert asyncio.run(greenlet_spawn(lambda: 7)) == 7


def test_await_only_raises_what_the_awaitable_raises() -> None:
    def caught() -> str:
        try:
            await_only(later(5, fails=True))
        except LookupError as failure:
            return f"caught {failure}"
        return "nothing to catch"

    assert asyncio.run(greenlet_spawn(caught)) == "caught 5"
    with pytest.raises(LookupError):
        asyncio.run(greenlet_spawn(lambda: await_only(later(5, fails=True))))


def test_many_functions_wait_at_once_on_one_thread() -> None:
    """Each waits until all have come: on one thread that needs all of them in flight."""

    async def meet(count: int) -> int:
        gate, arrived = asyncio.Event(), []

        def come(number: int) -> int:
            arrived.append(number)
            if len(arrived) == count:
                gate.set()
            await_only(gate.wait())
            return total(number, 1)

        return sum(await asyncio.gather(*(greenlet_spawn(partial(come, n)) for n in range(count))))

    assert asyncio.run(meet(100)) == sum(range(100)) + 100


def test_a_function_may_run_others_at_once() -> None:
    def both() -> tuple[int, int]:
        return Concurrently().pair(lambda: total(1, 1), lambda: total(2, 2))

    assert asyncio.run(greenlet_spawn(both)) == (2, 4)


def test_cancelling_ends_the_function() -> None:
    ended = []

    def waits_for_ever() -> None:
        try:
            await_only(asyncio.Event().wait())
        finally:
            ended.append("cleaned up")

    async def cancel() -> None:
        task = asyncio.create_task(greenlet_spawn(waits_for_ever))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert ended == ["cleaned up"]


def test_await_only_outside_of_a_greenlet_is_an_error() -> None:
    awaitable = later(1)
    with pytest.raises(AssertionError, match="greenlet_spawn"):
        await_only(awaitable)
    awaitable.close()
