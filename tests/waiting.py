"""Waiting for a condition, with a limit that only a hang reaches, and for an asynchronous test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final

PATIENCE_SECONDS: Final = 60.0


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


def on_own_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an asynchronous test on an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run
