"""Concurrent calls on a few threads: results in order, and no deadlock."""

import threading
import time
from typing import Any

import pytest

from tidemark.service.stores import Threads

THREADS = 2
#: Far longer than it takes: what hangs, hangs for ever.
PATIENCE_SECONDS = 60.0


def test_results_are_in_the_order_of_the_items() -> None:
    threads = Threads(THREADS)
    assert threads.each(str, range(20)) == [str(number) for number in range(20)]
    assert threads.each(str, []) == []
    assert threads.pair(lambda: 1, lambda: 2) == (1, 2)


@pytest.mark.parametrize("way", ["each", "pair"])
def test_nested_calls_end_however_few_threads_there_are(way: str) -> None:
    """Many requests share the threads of one process: each combining append reads several boxes while it
    posts its mail. All threads may run calls that wait for further calls, for which no thread is left."""
    threads, results = Threads(THREADS), list[Any]()

    def inner() -> list[int]:
        time.sleep(0.05)
        return threads.each(lambda number: number, range(3))

    def outer() -> None:
        if way == "pair":
            results.append([*threads.pair(inner, inner)])
        else:
            results.append(threads.each(lambda _: inner(), range(2)))

    requests = [threading.Thread(target=outer, daemon=True) for _ in range(4 * THREADS)]
    for request in requests:
        request.start()
    for request in requests:
        request.join(PATIENCE_SECONDS)
    assert results == [[[0, 1, 2], [0, 1, 2]]] * len(requests), "a call waits for ever"


@pytest.mark.parametrize("bad", [0, 3])
def test_the_first_failure_is_raised(bad: int) -> None:
    def fail(number: int) -> int:
        if number >= bad:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match=str(bad)):
        Threads(THREADS).each(fail, range(5))
