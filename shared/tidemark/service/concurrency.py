"""How use cases do two things at once, and how they wait."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class Concurrency(Protocol):
    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        """Both at once: two independent calls cost the time of one."""

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        """The same call for several things, some at once; the answers in their order."""

    def compute(self, call: Callable[[], _T]) -> _T:
        """A call that takes long without waiting for anything: not on an event loop that serves others."""

    def sleep(self, seconds: float) -> None: ...


class Run(Protocol):
    """Makes a blocking call from a coroutine: on the spot, on a thread, or in its turn."""

    def __call__(self, call: Callable[[], _T], /) -> Awaitable[_T]: ...


class Threads:
    """A few threads, made when they are first needed.

    If no thread has started a call yet, the caller runs it itself. Nested calls therefore cannot deadlock the
    pool.
    """

    def __init__(self, threads: int = 16) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidemark-io")

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        begun = self._pool.submit(one)
        second = other()
        return one() if begun.cancel() else begun.result(), second

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        begun = [self._pool.submit(call, item) for item in items[1:]]
        try:
            results = [call(item) for item in items[:1]]
            for future, item in zip(begun, items[1:], strict=True):
                results.append(call(item) if future.cancel() else future.result())
        finally:
            for future in begun:
                future.cancel()
        return results

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
