"""Forks, trims, deletions and the janitor in any order, with lost replies: reference counts are
right, no fork ever loses data, and once all is deleted nothing is left."""

# A rule judges a refusal where it meets it.
# ruff: noqa: PT017

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.properties.play import PACKING, bodies, play
from tests.simulation.memory import MemoryWorld
from tests.support import HOUR_MS, Faults, World, a_key, items_left, make_world
from tidemark.janitor.sweep import sweep
from tidemark.local.engines import LocalServices
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.retention import trim_below

NAMES = ("a", "b", "c")

names = st.sampled_from(NAMES)
who = st.sampled_from([0, 1])


@dataclass(eq=False)
class Model:
    """A stream and what it was forked from. `deleted` ones live on while a fork refers to them. What lies
    below `retained` was let go of."""

    data: bytes
    source: Model | None = None
    retained: int = 0
    references: int = 0
    deleted: bool = False


class Forks(RuleBasedStateMachine):
    world: World

    @initialize(seed=st.integers(0, 2**16))
    def start(self, seed: int) -> None:
        self.keys: dict[str, StreamKey] = {name: a_key(name) for name in NAMES}
        # No two things happen at the same instant, or nobody could tell what came first.
        self.processes = [self.world.process(clock=self.tick), self.world.process(clock=self.tick)]
        for number, process in enumerate(self.processes):
            process.stores.packing = PACKING
            Faults(process.dynamodb, seed + number, lost=0.05, conflicted=0.05)
        self.models: dict[str, Model] = {}
        # Most games that begin with nothing fork nothing.
        first, second, *_ = NAMES
        self.create(first, 0, b"1")
        self.append(first, 0, b"2")
        self.fork(second, first, 0, 1.0)

    def tick(self) -> int:
        self.world.clock.advance(1)
        return self.world.clock()

    def status(self, name: str) -> int:
        """What a request straight to the stream is answered with."""
        model = self.models.get(name)
        return 404 if model is None else 410 if model.deleted else 200

    @rule(name=names, process=who, body=bodies())
    def create(self, name: str, process: int, body: bytes) -> None:
        model = self.models.get(name)
        try:
            made = self.processes[process].create(self.keys[name], body=body)
        except ProtocolError as refusal:
            assert refusal.status == 409
            assert model is not None
            assert model.deleted or model.source is not None
            return
        assert made.is_new == (model is None)
        if model is None:
            self.models[name] = Model(body)

    @rule(name=names, source=names, process=who, share=st.floats(0, 1))
    def fork(self, name: str, source: str, process: int, share: float) -> None:
        origin, target = self.models.get(source), self.models.get(name)
        offset = int(len(origin.data) * share) if origin else 0
        try:
            made = self.processes[process].fork(self.keys[name], self.keys[source], offset)
        except ProtocolError as refusal:
            assert refusal.status in {400, 404, 409, 410}
            is_free = name != source and target is None
            assert not is_free or origin is None or origin.deleted or offset < origin.retained
            return
        if not made.is_new:
            assert target is not None
            return
        assert target is None
        assert origin is not None
        self.models[name] = Model(origin.data[:offset], origin, origin.retained)
        origin.references += 1

    @rule(name=names, process=who, body=bodies(min_size=1))
    def append(self, name: str, process: int, body: bytes) -> None:
        try:
            self.processes[process].append(self.keys[name], body)
        except ProtocolError as refusal:
            assert refusal.status == self.status(name)
            return
        assert self.status(name) == 200
        self.models[name].data += body

    @rule(name=names, process=who, hours=st.sampled_from([0, 2, 2]))
    def trim(self, name: str, process: int, hours: int) -> None:
        """Up to the tail. Forks that were made before keep what they have inherited."""
        model = self.models.get(name)
        try:
            trim_below(self.processes[process].stores, self.keys[name], len(model.data) if model else 0)
        except ProtocolError as refusal:
            assert refusal.status == self.status(name)
            return
        assert model is not None
        model.retained = len(model.data)
        self.sweep(process, hours)

    @rule(name=names, process=who)
    def delete(self, name: str, process: int) -> None:
        expected = self.status(name)
        try:
            delete(self.processes[process].stores, self.keys[name])
        except ProtocolError as refusal:
            assert refusal.status == expected
            return
        assert expected == 200
        self.end(self.models[name])

    def end(self, model: Model) -> None:
        model.deleted = True
        while model.deleted and not model.references:
            self.models = {name: other for name, other in self.models.items() if other is not model}
            if model.source is None:
                return
            model = model.source
            model.references -= 1

    @rule(process=who, hours=st.sampled_from([0, 2]))
    def sweep(self, process: int, hours: int) -> None:
        self.world.clock.advance(hours * HOUR_MS)
        sweep(self.processes[process].stores)

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        reader = self.world.process()
        for name, key in self.keys.items():
            model = self.models.get(name)
            try:
                record = load_head(reader.stores, key).record
            except ProtocolError as refusal:
                assert refusal.status == self.status(name)
                continue
            assert model is not None
            assert not model.deleted
            assert record.references == model.references
            assert record.retained == model.retained
            assert reader.read_all(key, model.retained) == model.data[model.retained :]

    def teardown(self) -> None:
        if not hasattr(self, "keys"):
            return
        process = self.world.process()
        for key in self.keys.values():
            try:
                delete(process.stores, key)
            except ProtocolError:
                continue
        for _ in range(2):
            self.world.clock.advance(2 * HOUR_MS)
            sweep(process.stores)
        assert items_left(process) == []


def test_forks_behave_as_the_model_says() -> None:
    play(Forks, MemoryWorld(), games=140, steps=25)


def test_forks_on_an_engine_behave_as_the_model_says(services: LocalServices) -> None:
    play(Forks, make_world(services), games=6, steps=25)
