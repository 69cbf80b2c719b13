"""How late a reader gets an append on AWS, and the price of its wake-ups: by the trigger and a queue, or by
polls of its own while data come in. `python -m benchmarks.waking` prints both for several writers.

Computed from published latencies and prices: nothing here was measured on AWS.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import prices
from tidemark.wake import queue

#: Milliseconds: the median, and the 99th percentile. DynamoDB promises single digits; calls within a region
#: to SQS and to `@connections` take about ten; a warm function begins within ten.
STORAGE, QUEUE, INVOCATION = (4, 10), (8, 30), (8, 25)
#: Lambda asks each shard of a table's stream four times a second.
POLL_MS: Final = 250
#: Eventually consistent: one of three replicas is behind, by AWS's word "usually" less than a second.
STALE_SHARE, LAG = 1 / 3, (20, 1000)


def took(chance: random.Random, latency: tuple[float, float]) -> float:
    """Skewed to the right, as latencies are."""
    median, p99 = latency
    return median * math.exp(math.log(p99 / median) * chance.gauss() / 2.326)


def percentiles(delays: Sequence[float]) -> str:
    delays = sorted(delays)
    return f"{delays[len(delays) // 2]:.0f} / {delays[len(delays) * 99 // 100]:.0f}"


@dataclass(frozen=True)
class Rule:
    """A reader polls after `news` reads with data within `news_ms`, until `quiet_ms` bring none."""

    period_ms: float = 1000 * queue.POLL_SECONDS
    news: int = queue.FAST_NEWS
    news_ms: float = queue.FAST_MS
    quiet_ms: float = queue.QUIET_MS
    consistent: bool = True


@dataclass
class Reader:
    """A reader in a process of its own. `dollars` is the price of the wake-ups of a million readers."""

    rule: Rule | None
    chance: random.Random
    dollars: float = prices.WRITE_UNIT  # The registration.
    delays: list[float] = field(default_factory=list)
    #: The times of reads after reads with data.
    news: list[float] = field(default_factory=list)
    has_news: bool = False

    def follow(self, appends: Sequence[float]) -> None:
        """Get these appends (their milliseconds). The reader leaves after the last one."""
        now, seen, polls = 0.0, 0.0, False
        while len(self.delays) < len(appends):
            if self.rule is not None and polls:
                now = self._read(appends, now + self.rule.period_ms, consistent=self.rule.consistent)
                if now - self.news[-1] > self.rule.quiet_ms:
                    polls, seen, self.news = False, now, []
                    self.dollars += prices.WRITE_UNIT
                    now = self._read(appends, now + took(self.chance, STORAGE))
                continue
            # The appends since the last invocation share one, even if the reader has read them already.
            seen = math.ceil(min(each for each in appends if each > seen) / POLL_MS) * POLL_MS
            way = sum(took(self.chance, each) for each in (INVOCATION, STORAGE, QUEUE, QUEUE))
            self.dollars += 2 * prices.SQS_CALL
            now = self._read(appends, max(now, seen + way))
            last = self.news[-self.rule.news :] if self.rule else []
            if self.rule and len(last) == self.rule.news and now - last[0] <= self.rule.news_ms:
                polls = True
                self.dollars += prices.WRITE_UNIT + prices.READ_UNIT  # Counts the other waiters.

    def _read(self, appends: Sequence[float], at: float, *, consistent: bool = True) -> float:
        self.dollars += prices.READ_UNIT if consistent else prices.READ_UNIT / 2
        is_stale = not consistent and self.chance.random() < STALE_SHARE
        lag, done = took(self.chance, LAG) if is_stale else 0.0, at + took(self.chance, STORAGE)
        found = [each for each in appends[len(self.delays) :] if each + lag <= at]
        self.delays += [done - each for each in found]
        self.news += [at] if self.has_news else []
        self.has_news = bool(found)
        return done


def every(gap_ms: float, appends: int = 150) -> Callable[[random.Random], list[float]]:
    return lambda chance: [gap_ms * (number + chance.uniform(0, 0.5)) for number in range(1, appends)]


def bursts(appends: int, gap_ms: float, pause_ms: float) -> Callable[[random.Random], list[float]]:
    return lambda chance: [
        burst * pause_ms + gap_ms * (number + chance.uniform(1, 1.5))
        for burst in range(20)
        for number in range(appends)
    ]


WRITERS: Final = {
    "5 a second": every(200),
    "2 a second": every(500),
    "1 a second": every(1000),
    "1 in 10 s": every(10_000),
    "25 in 5 s, 25 s of quiet": bursts(25, 200, 30_000),
    "4 in 1 s, 9 s of quiet": bursts(4, 250, 10_000),
}
RULES: Final = {
    "queue": None,
    "polls": Rule(),
    **{f"polls, {ms} ms": Rule(ms) for ms in (100, 150, 250)},
    **{f"polls, {ms} ms, eventual": Rule(ms, consistent=False) for ms in (100, 200)},
}


def follow(writer: str, rule: Rule | None, readers: int = 40) -> tuple[float, list[float]]:
    """Dollars for a million appends to one reader, and the delays."""
    dollars, delays = 0.0, list[float]()
    for seed in range(readers):
        reader = Reader(rule, random.Random(seed))
        reader.follow(WRITERS[writer](random.Random(seed)))
        dollars, delays = dollars + reader.dollars, delays + reader.delays
    return dollars / len(delays), delays


def main() -> int:
    for writer in WRITERS:
        print(f"{writer}: dollars for a million appends to a reader; ms late, p50 / p99")
        for name, rule in RULES.items():
            dollars, delays = follow(writer, rule)
            print(f"    {name:24} {dollars:.3f}  {percentiles(delays)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
