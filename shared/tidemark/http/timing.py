"""How long a request took, and how much of that was storage: the `Server-Timing` header."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Final

#: Seconds that the request under way has waited for storage so far.
_spent: Final[ContextVar[list[float] | None]] = ContextVar("spent", default=None)


def begin() -> list[float]:
    """Start timing for the current request; the calls that it awaits add their time."""
    spent = [0.0]
    _spent.set(spent)
    return spent


def timed(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same call, whose time counts as storage."""

    async def calling(*arguments: Any) -> Any:
        started = perf_counter()
        try:
            return await call(*arguments)
        finally:
            spent = _spent.get()
            if spent is not None:
                spent[0] += perf_counter() - started

    return calling
