"""Any interleaving of operations, from two processes, against a small model in memory.

The model is that of appends (`tests/protocol/test_append.py`), with the bytes and a clock. What it says and
what Tidemark answers must be the same, always: answers, offsets, bytes, and that what was read once never
changes.
"""

# A rule takes what it draws, and judges a refusal where it meets it.
# ruff: noqa: PLR0917, PT017

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.properties.play import PACKING, bodies, play
from tests.protocol.test_append import Answer, answer_of, data
from tests.protocol.test_append import Model as Appends
from tests.simulation.memory import MemoryWorld
from tests.support import BYTES, HOUR_MS, TEXT, World, a_key, make_world
from tidemark.janitor.sweep import sweep
from tidemark.local.engines import LocalServices
from tidemark.protocol.append import Append, Kind, Outcome
from tidemark.protocol.errors import ContentTypeMismatch, Malformed, ProtocolError, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import ContentType
from tidemark.protocol.producer import Claim
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read

NAMES = ("red", "green")
TTL_SECONDS = 100
#: A sliding window may last this much longer than it says (`protocol/expiry.py`).
SLACK_MS = TTL_SECONDS * 1000 // 20


@dataclass
class Model:
    """A stream as the specification describes it."""

    content_type: ContentType
    ttl: bool
    appends: Appends = field(default_factory=Appends)
    data: bytes = b""
    ends: list[int] = field(default_factory=lambda: [0])
    touched_ms: int = 0

    def append(self, body: bytes, content_type: ContentType, append: Append) -> Answer:
        fault: ProtocolError | None = None
        if not body and not append.close:
            fault = Malformed("empty")
        elif body and content_type.essence != self.content_type.essence:
            fault = ContentTypeMismatch(self.content_type.value, content_type.value)
        answer = self.appends.apply(replace(append, fault=fault))
        if body and answer[0] is Kind.APPENDED:
            self.data += body
            self.ends.append(len(self.data))
        return answer


content_types = st.sampled_from([BYTES, BYTES, BYTES, TEXT])
claims = st.none() | st.tuples(
    st.sampled_from([f"p{index}" for index in range(12)]), st.integers(0, 1), st.integers(0, 3)
)
sequences = st.none() | st.sampled_from(["1", "10", "2", "a"])
names = st.sampled_from(NAMES)
who, flags = st.sampled_from([0, 1]), st.booleans()


class Streams(RuleBasedStateMachine):
    """Two processes that share storage and nothing else; either may serve any request."""

    world: World

    @initialize()
    def start(self) -> None:
        self.keys = {name: a_key(name) for name in NAMES}
        self.processes = [self.world.process(), self.world.process()]
        for each in self.processes:
            each.stores.packing = PACKING
        self.models: dict[str, Model] = {}
        self.seen: dict[tuple[str, int], bytes] = {}
        # Hypothesis leaves rules out of most games; without this one nearly every append would get 404.
        self.create("red", 0, BYTES, ttl=False, closed=False, body=b"")

    def alive(self, name: str) -> Model | None:
        """The model's stream, unless its window is over."""
        model = self.models.get(name)
        if model is None or not model.ttl:
            return model
        idle_ms = self.world.clock() - model.touched_ms
        if idle_ms >= TTL_SECONDS * 1000 + SLACK_MS:
            self.forget(name)
            return None
        return model

    def forget(self, name: str) -> None:
        self.models.pop(name, None)
        self.seen = {place: seen for place, seen in self.seen.items() if place[0] != name}

    def touch(self, model: Model) -> None:
        model.touched_ms = self.world.clock()

    @rule(name=names, process=who, content_type=content_types, ttl=flags, closed=flags, body=bodies())
    def create(
        self, name: str, process: int, content_type: ContentType, ttl: bool, closed: bool, body: bytes
    ) -> None:
        expiry = Expiry(ttl_seconds=TTL_SECONDS) if ttl else Expiry()
        # A stream that is created in the millisecond in which another one ended is dated the next one.
        self.world.clock.advance(1)
        existing = self.alive(name)
        try:
            made = self.processes[process].create(
                self.keys[name], content_type=content_type, expiry=expiry, closed=closed, body=body
            )
        except ProtocolError as refusal:
            assert refusal.status == 409
            assert existing is not None
            same = (existing.content_type.essence, existing.ttl, existing.appends.closed)
            assert same != (content_type.essence, ttl, closed)
            return
        assert made.is_new == (existing is None)
        if existing is None:
            model = Model(content_type, ttl)
            model.appends = Appends(len(body), closed)
            model.data, model.ends = body, sorted({0, len(body)})
            self.touch(model)
            self.models[name] = model
        assert made.head.tail.offset == len(self.models[name].data)

    @rule(
        name=names,
        process=who,
        content_type=content_types,
        body=bodies(),
        close=st.sampled_from([False] * 7 + [True]),
        seq=sequences,
        claim=claims,
    )
    def append(
        self,
        name: str,
        process: int,
        content_type: ContentType,
        body: bytes,
        close: bool,
        seq: str | None,
        claim: tuple[str, int, int] | None,
    ) -> None:
        model = self.alive(name)
        asked = Append(data(len(body)), close, seq, Claim(*claim) if claim else None)
        expected = model.append(body, content_type, asked) if model else (StreamNotFound,)
        answer: Outcome | ProtocolError
        try:
            answer = self.processes[process].append(
                self.keys[name], body, content_type=content_type, close=close, seq=seq, claim=claim
            )
        except ProtocolError as refusal:
            answer = refusal
        assert answer_of(answer) == expected
        if model is not None and expected[0] is Kind.APPENDED:
            self.touch(model)

    @rule(name=names, process=who, place=st.integers(0, 60), beyond=st.integers(-1, 2))
    def read(self, name: str, process: int, place: int, beyond: int) -> None:
        """From any end of a message, and now and then from one byte next to it."""
        model = self.alive(name)
        start = 0
        if model is not None:
            start = max(0, model.ends[place % len(model.ends)] + beyond)
        try:
            reading = read(self.processes[process].stores, self.keys[name], start)
        except ProtocolError as refusal:
            if model is None:
                assert refusal.status == 404
            else:
                assert refusal.status == 410  # Of another history.
                assert start > len(model.data)
            return
        assert model is not None
        self.touch(model)
        assert reading.data == model.data[start:]
        assert reading.page.end == len(model.data)
        assert (reading.page.up_to_date, reading.page.closed) == (True, model.appends.closed)
        self.seen[name, start] = reading.data

    @rule(name=names, process=who)
    def head(self, name: str, process: int) -> None:
        model = self.alive(name)
        try:
            known = load_head(self.processes[process].stores, self.keys[name])
        except ProtocolError as refusal:
            assert (refusal.status, model) == (404, None)
            return
        assert model is not None
        assert (known.tail.offset, known.tail.closed) == (len(model.data), model.appends.closed)

    @rule(name=names, process=who)
    def delete(self, name: str, process: int) -> None:
        model = self.alive(name)
        try:
            delete(self.processes[process].stores, self.keys[name])
        except ProtocolError as refusal:
            assert (refusal.status, model) == (404, None)
            return
        assert model is not None
        self.forget(name)

    @rule(process=who)
    def sweep(self, process: int) -> None:
        sweep(self.processes[process].stores)

    @rule(ms=st.sampled_from([1_000, SLACK_MS, 60_000, TTL_SECONDS * 1000, HOUR_MS]))
    def time_passes(self, ms: int) -> None:
        """Never to where the renewal rule leaves it open whether a stream is still there."""
        self.world.clock.advance(ms)
        for model in self.models.values():
            over_ms = self.world.clock() - model.touched_ms - TTL_SECONDS * 1000
            if model.ttl and 0 <= over_ms < SLACK_MS:
                self.world.clock.advance(SLACK_MS - over_ms)

    @invariant()
    def what_was_read_never_changes(self) -> None:
        for (name, start), seen in self.seen.items():
            model = self.models.get(name)
            assert model is not None
            assert model.data[start:].startswith(seen)

    @rule(process=who)
    def pack(self, process: int) -> None:
        self.time_passes(HOUR_MS)
        self.sweep(process)


def test_streams_behave_as_the_model_says() -> None:
    play(Streams, MemoryWorld(), games=200, steps=40)


def test_streams_on_an_engine_behave_as_the_model_says(services: LocalServices) -> None:
    play(Streams, make_world(services), games=10, steps=40)
