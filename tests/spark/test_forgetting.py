"""Whatever streams do while a query forgets those that have ended: each message is read once."""

import json
import re
from collections import Counter

from hypothesis import settings, stateful
from hypothesis import strategies as st

from tests.spark.bucket import Bucket, Stream
from tidemark.spark import progress
from tidemark.spark.options.read import ReadOptions, parse_read_options
from tidemark.spark.queries import Driver, plan_partitions, within_limit

NAMES = st.sampled_from(["a", "ab", "c"])
#: How far the date of a creation may be from the moment in which it is first seen, in milliseconds.
LATEST = 1000 * progress.SETTLED_SECONDS - 1
DATED = st.sampled_from([0, LATEST]) | st.integers(-5000, LATEST)


class Queries(stateful.RuleBasedStateMachine):
    """A query, its checkpoint as Spark keeps it, and a bucket whose streams come and go. A batch that was
    planned may be repeated, by a new driver, as often as it likes before it is committed."""

    @stateful.initialize(
        over_http=st.booleans(), limited=st.booleans(), forget_seconds=st.sampled_from([0, 600])
    )
    def begin(self, over_http: bool, limited: bool, forget_seconds: int) -> None:
        self.over_http, self.limited, self.forget_seconds = over_http, limited, forget_seconds
        self.now_ms, self.made = 1_800_000_000_000, 0
        self.bucket = Bucket(over_http=over_http, clock_ms=lambda: self.now_ms)
        self.pattern = "a.*|b"
        self.committed = json.dumps({})
        self.planned: str | None = None
        self.pinned: progress.Look | None = None
        self.read: Counter[tuple[str, int]] = Counter()
        self.restart()
        # Of each pattern one stream that has ended, so that a game has something to forget.
        for name in ("a", "c"):
            self.create(name, 2, True, 0)
        self.batch(again=False)

    def options(self) -> ReadOptions:
        given = {"bucket": "agents", "subscribePattern": self.pattern, "failOnDataLoss": "false"}
        limited = {"maxBytesPerTrigger": "40"} if self.limited else {}
        given |= {"forgetEndedSeconds": str(self.forget_seconds)} | limited
        return parse_read_options(given, streaming=True)

    @stateful.rule()
    def restart(self) -> None:
        self.driver = Driver(self.options(), clock=lambda: 0.0)
        self.driver.reader = self.bucket
        self.pinned = None

    @stateful.precondition(lambda self: self.pattern != ".*")
    @stateful.rule()
    def subscribe_to_more(self) -> None:
        """The streams that the first pattern did not take in are new, however old they are."""
        self.pattern = ".*"
        self.restart()

    @stateful.rule(name=NAMES, messages=st.integers(0, 3), closed=st.booleans(), dated=DATED)
    def create(self, name: str, messages: int, closed: bool, dated: int) -> None:
        # Without incarnations, a name that the query has stands for one stream.
        if name in self.bucket.streams or (self.over_http and name in self.names_in_use()):
            return
        self.made += 1
        self.bucket.streams[name] = Stream(f"i{self.made}", self.now_ms - dated, messages, closed)

    def names_in_use(self) -> set[str]:
        pinned = set(self.pinned.heads) if self.pinned else set()
        return {*json.loads(self.committed), *json.loads(self.planned or "{}"), *pinned}

    @stateful.rule(name=NAMES, messages=st.integers(0, 5), closed=st.booleans())
    def append(self, name: str, messages: int, closed: bool) -> None:
        stream = self.bucket.streams.get(name)
        if stream is not None and not stream.closed:
            stream.messages += messages
            stream.closed = closed

    @stateful.rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.bucket.streams.pop(name, None)

    @stateful.rule(seconds=st.sampled_from([60, progress.SETTLED_SECONDS, 3600]))
    def wait(self, seconds: int) -> None:
        self.now_ms += 1000 * seconds

    @stateful.precondition(lambda self: self.planned is None)
    @stateful.rule()
    def take_what_is_there_now_and_nothing_newer(self) -> None:
        """As trigger AvailableNow does, until the query is started again."""
        self.pinned = self.driver.look(fresh=True)

    @stateful.rule(again=st.booleans())
    def batch(self, again: bool) -> None:
        """The driver is lost behind the plan, or not."""
        if self.planned is None:
            self.plan()
        if again:
            self.restart()
        if self.planned is not None:
            self.commit()

    @stateful.precondition(lambda self: self.planned is None)
    @stateful.rule()
    def plan(self) -> None:
        start = progress.decode_offset(json.loads(self.committed))
        pinned = self.pinned
        look = self.driver.look(fresh=True) if pinned is None else progress.not_before(start, pinned)
        ends = progress.everything_until(self.options(), start, look)
        if ends is not start:
            ends = within_limit(self.options(), self.bucket, start, ends)
            self.planned = json.dumps(progress.encode_offset(ends))

    @stateful.precondition(lambda self: self.planned is not None)
    @stateful.rule()
    def commit(self) -> None:
        """What was read counts now. A stream that ended meanwhile took the rest with it."""
        texts = self.committed, self.planned or ""
        starts, ends = (progress.decode_offset(json.loads(text)) for text in texts)
        for part in plan_partitions(self.options(), self.bucket, starts.positions, ends.positions):
            self.read.update(self.bucket.messages(part))
        self.committed, self.planned = self.planned or "", None
        assert max(self.read.values(), default=0) <= 1, "a message was read twice"

    def teardown(self) -> None:
        """What is in the streams in the end was read, and ended streams are not kept for good."""
        if not hasattr(self, "committed"):
            return
        self.restart()
        if self.planned is not None:
            self.commit()
        for _ in range(100):
            self.plan()
            if self.planned is None:
                break
            self.commit()
        there = [
            (stream.incarnation, number)
            for name, stream in self.bucket.streams.items()
            if re.fullmatch(self.pattern, name)
            for number in range(stream.messages)
        ]
        assert {message: self.read[message] for message in there} == dict.fromkeys(there, 1)
        self.now_ms += 3_600_000
        for index in (1, 2):
            self.create(f"a-last-{index}", 1, False, 0)
            self.plan()
            self.commit()
            self.now_ms += 3_600_000
        kept = progress.decode_offset(json.loads(self.committed)).positions
        streams = self.bucket.streams
        assert not [name for name in kept if name not in streams or streams[name].closed]


def test_each_message_is_read_once_while_ended_streams_are_forgotten() -> None:
    stateful.run_state_machine_as_test(
        Queries, settings=settings(max_examples=2 * settings().max_examples, stateful_step_count=50)
    )
