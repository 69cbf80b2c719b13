"""How late a wake-up is on AWS, from published latencies: the figures of `docs/live.md`, and of the decision
about the way of waking. Nothing here has run on AWS."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import prices

DOCS: Final = Path(__file__).parents[2] / "docs"
WAKES: Final = 50_000

#: Milliseconds: the median, and the 99th percentile. DynamoDB promises single digits; calls within a region
#: to SQS and to `@connections` take about ten; a warm function begins within ten.
STORAGE, QUEUE, INVOCATION = (4, 10), (8, 30), (8, 25)
#: Lambda asks each shard of a table's stream four times a second.
POLL_MS: Final = 250


def took(chance: random.Random, latency: tuple[int, int]) -> float:
    """Skewed to the right, as latencies are."""
    median, p99 = latency
    return median * (p99 / median) ** (chance.gauss() / 2.326)


def by_trigger(chance: random.Random) -> float:
    """Poll, invocation, query of waiters, send, receive, read."""
    calls = (INVOCATION, STORAGE, QUEUE, QUEUE, STORAGE)
    return chance.uniform(0, POLL_MS) + sum(took(chance, each) for each in calls)


def by_writer(chance: random.Random) -> float:
    """It knows the waiters when it has committed: send, receive, read."""
    return sum(took(chance, each) for each in (QUEUE, QUEUE, STORAGE))


def by_message(chance: random.Random) -> float:
    """The trigger's, with the data on a socket: poll, invocation, two queries, post."""
    calls = (INVOCATION, STORAGE, STORAGE, QUEUE)
    return chance.uniform(0, POLL_MS) + sum(took(chance, each) for each in calls)


def late(way: Callable[[random.Random], float]) -> str:
    chance = random.Random(1)
    times = sorted(way(chance) for _ in range(WAKES))
    return f"{times[WAKES // 2]:.0f} / {times[WAKES * 99 // 100]:.0f}"


def test_the_pages_say_how_late_a_wake_up_is() -> None:
    live = (DOCS / "live.md").read_text()
    assert f"| by the socket, with data | {late(by_message)} |" in live
    assert f"| by a queue, then a read | {late(by_trigger)} |" in live


def test_a_writer_that_wakes_readers_itself_is_fast_and_dear() -> None:
    """The trigger, which guarantees, wakes them once more: another send, another receive, a read that finds
    nothing."""
    decision = (DOCS / "internals" / "adr" / "index.md").read_text()
    dollars = prices.READ_UNIT / 2 + 2 * prices.SQS_CALL + prices.READ_UNIT
    assert f"{late(by_writer)} ms" in decision
    assert f"${dollars:.2f}" in decision
    assert dollars > 0.1 * 3.16
