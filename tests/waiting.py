"""Waiting for a condition, with a limit that only a hang reaches, and for an asynchronous test."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec

PATIENCE_SECONDS: Final = 60.0
_P = ParamSpec("_P")


async def eventually(condition: Callable[[], Any]) -> None:
    """Waits until the condition holds, and lets other tasks run meanwhile."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - it waits for other threads and for storage
            await asyncio.sleep(0.01)


def until(condition: Callable[..., Any], *given: Any) -> None:
    """As `eventually`, on a thread."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition(*given):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def on_a_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Runs an asynchronous test on an event loop of its own."""

    @wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 10 * PATIENCE_SECONDS))

    return run
