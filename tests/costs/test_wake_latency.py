"""How late a wake-up is on AWS, from published latencies: the figures of `docs/live.md`, and of the decision
about the way of waking. Nothing here has run on AWS."""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Final

import pytest

from benchmarks import prices
from benchmarks.waking import INVOCATION, POLL_MS, QUEUE, STORAGE, WRITERS, Rule, follow, percentiles, took
from tidemark.wake.queue import POLL_SECONDS

DOCS: Final = Path(__file__).parents[2] / "docs"
WAKES: Final = 50_000


def by_trigger(chance: random.Random) -> float:
    """Poll, invocation, query of waiters, send, receive, read."""
    calls = (INVOCATION, STORAGE, QUEUE, QUEUE, STORAGE)
    return chance.uniform(0, POLL_MS) + sum(took(chance, each) for each in calls)


def by_writer(chance: random.Random) -> float:
    """The writer knows the waiters when it has committed: send, receive, read."""
    return sum(took(chance, each) for each in (QUEUE, QUEUE, STORAGE))


def by_poll(chance: random.Random) -> float:
    """A read, at most a period later."""
    return chance.uniform(0, 1000 * POLL_SECONDS) + took(chance, STORAGE)


def by_message(chance: random.Random) -> float:
    """The trigger's, with the data on a socket: poll, invocation, two queries, post."""
    calls = (INVOCATION, STORAGE, STORAGE, QUEUE)
    return chance.uniform(0, POLL_MS) + sum(took(chance, each) for each in calls)


def late(way: Callable[[random.Random], float]) -> str:
    chance = random.Random(1)
    return percentiles([way(chance) for _ in range(WAKES)])


def test_the_pages_say_how_late_a_wake_up_is() -> None:
    live = (DOCS / "live.md").read_text()
    assert f"| by the socket, with data | {late(by_message)} |" in live
    assert f"| by a queue, then a read | {late(by_trigger)} |" in live
    assert f"| by polls, while data come fast | {late(by_poll)} |" in live


def test_a_writer_that_wakes_readers_itself_is_fast_and_dear() -> None:
    """The trigger, which guarantees, wakes them once more: another send, another receive, a read that finds
    nothing."""
    decision = (DOCS / "internals" / "adr" / "index.md").read_text()
    dollars = prices.READ_UNIT / 2 + 2 * prices.SQS_CALL + prices.READ_UNIT
    assert f"{late(by_writer)} ms" in decision
    assert f"${dollars:.2f}" in decision
    assert dollars > 0.1 * 3.16


@pytest.mark.parametrize("writer", WRITERS)
def test_a_reader_that_polls_a_fast_writer_is_sooner_and_cheaper(writer: str) -> None:
    """Bursts that are just long enough to begin the polls are the dearest."""
    (queue, late_by_queue), (polls, late_by_polls) = (follow(writer, rule) for rule in (None, Rule()))
    assert polls < queue * (0.5 if writer in {"5 a second", "2 a second"} else 1.5)
    assert quantiles(late_by_polls, n=100)[98] < quantiles(late_by_queue, n=100)[98] * 1.01
