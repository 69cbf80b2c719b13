"""Forks and compaction at once: a fork has the whole state at its end, or is refused."""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any

import orjson
import pytest

from tests.janitor.scene import BREAKS, FORK, KEY, SMALL, Scene, before_the_next, break_call, each_call
from tests.simulation.tasks import Crashed
from tests.support import HOUR_MS, JSON, append_request, create_request
from tidemark.janitor.sweep import sweep
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import ForkBelowCompacted
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.stores import Stores

Row = dict[str, Any]
State = dict[str, int]
ROWS = [
    {"type": "row", "key": f"k{number % 5}", "value": number, "headers": {"operation": "upsert"}}
    for number in range(20)
]


def a_scene() -> Scene:
    """Twenty changes of five rows, two hours old."""
    scene = Scene(SMALL, JSON, compaction=Compaction())
    write_rows(scene)
    return scene


def write_rows(scene: Scene) -> None:
    for row in ROWS:
        body = orjson.dumps(row)
        scene._write([(body, [body + b","])])
    scene.world.advance(2 * HOUR_MS)


def append_json(row: Row) -> AppendRequest:
    return append_request(orjson.dumps(row), content_type=JSON)


def fold(data: bytes) -> State:
    return fold_rows(orjson.loads(b"[" + data[:-1] + b"]"))


def fold_rows(rows: Iterable[Row]) -> State:
    state: State = {}
    for row in rows:
        state[row["key"]] = row["value"]
        if row["headers"]["operation"] == "delete":
            del state[row["key"]]
    return state


Forked = int | ForkBelowCompacted
"""Where the fork begins its own log, or why it was refused."""


def fork(stores: Stores, offset: int, *, source: StreamKey = KEY, key: StreamKey = FORK) -> Forked:
    asked = create_request(None, fork=ForkPoint(source, offset), compaction=Compaction())
    try:
        return create(stores, key, asked).head.record.base
    except ForkBelowCompacted as refused:
        return refused


def act_before_write(stores: Stores, at: int, act: Callable[[], object]) -> None:
    """Do this before the process's transaction of that number."""
    writes = count()

    def before(operation: str) -> None:
        if operation == "TransactWriteItems" and next(writes) == at:
            act()

    each_call(stores, before)


def check(scene: Scene, forked: Forked, offset: int) -> None:
    compacted = scene.record().compacted
    assert fold(scene.read_from(0)) == fold(scene.data)
    if isinstance(forked, ForkBelowCompacted):
        assert offset < compacted
        assert forked.headers["Stream-Compacted-Offset"] == f"{compacted:016}"
    else:
        assert forked == offset >= compacted
        assert scene.record(FORK).compacted == compacted
        assert fold(scene.read_from(0, key=FORK)) == fold(scene.data[:offset])


#: Of the twenty messages: an early one, one near the end, and the last.
MESSAGES = (3, 15, 20)


@pytest.mark.parametrize("messages", MESSAGES)
def test_a_fork_that_is_made_before_any_write_of_a_pass_has_the_whole_state(messages: int) -> None:
    """A pass that has not committed yet is then refused, and goes on once the fork is gone."""
    outcomes = set()
    for at in count():
        scene, made = a_scene(), list[Forked]()
        offset, janitor = scene.ends[messages], scene.process()

        def make(scene: Scene = scene, offset: int = offset, made: list[Forked] = made) -> None:
            made.append(fork(scene.process(), offset))

        act_before_write(janitor, at, make)
        sweep(janitor)
        if not made:
            break
        check(scene, made[0], offset)
        outcomes.add(type(made[0]))
        if made[0] == offset:
            delete(scene.process(), FORK)
        write_rows(scene)
        sweep(scene.process())
        assert scene.record().compacted > scene.ends[15]
        assert fold(scene.read_from(0)) == fold(scene.data)
    assert outcomes == ({int, ForkBelowCompacted} if messages < 20 else {int})


@pytest.mark.parametrize("messages", MESSAGES)
def test_a_fork_whose_source_is_compacted_before_its_write_has_the_whole_state(messages: int) -> None:
    scene = a_scene()
    offset, creator = scene.ends[messages], scene.process()
    before_the_next(creator, "TransactWriteItems", lambda: sweep(scene.process()))
    check(scene, fork(creator, offset), offset)
    assert scene.record().compacted, "it was compacted meanwhile"


def test_a_fork_compacts_its_own_log_and_keeps_what_it_inherits() -> None:
    scene = a_scene()
    inherited = scene.data
    fork(scene.process(), len(inherited))
    for row in ROWS:
        append(scene.stores, FORK, [append_json(row)])
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    read = scene.read_from(0, key=FORK)
    assert read.startswith(inherited)
    assert len(read) < 1.5 * len(inherited)
    assert fold(read) == fold(inherited)
    compacted, other = scene.record(FORK).compacted, StreamKey("v1", "fork of the fork")
    assert len(inherited) < compacted <= 2 * len(inherited)
    assert isinstance(fork(scene.process(), len(inherited), source=FORK, key=other), ForkBelowCompacted)
    assert fork(scene.process(), compacted, source=FORK, key=other) == compacted
    assert fold(scene.read_from(0, key=other)) == {row["key"]: row["value"] for row in ROWS[:-1]}


class Family:
    """Streams that are forks of each other, and what was written to each: the ends and the rows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.scene = Scene(SMALL, JSON, compaction=Compaction())
        self.logs: dict[StreamKey, list[tuple[int, Row]]] = {KEY: []}
        self.made = self.refused = 0

    def change(self) -> None:
        key, chance = self.chance.choice([*self.logs]), self.chance
        operation = chance.choice(("upsert", "upsert", "delete"))
        row = {"type": "row", "key": chance.choice("abcde"), "value": chance.randrange(10**9)}
        row |= {"headers": {"operation": operation}}
        [outcome] = append(self.scene.stores, key, [append_json(row)])
        assert not isinstance(outcome, Exception)
        self.logs[key].append((outcome.next_offset, row))

    def fork(self) -> None:
        """Of any stream at any message, or one of the last, also while somebody compacts it."""
        source, key = self.chance.choice([*self.logs]), StreamKey("v1", f"fork-{self.made + self.refused}")
        behind = self.chance.choice((5, len(self.logs[source])))
        at = max(0, len(self.logs[source]) - self.chance.randrange(behind + 1))
        log, creator = self.logs[source][:at], self.scene.process()
        if self.chance.random() < 0.5:
            before_the_next(creator, "TransactWriteItems", self.sweep)
        forked = fork(creator, log[-1][0] if log else 0, source=source, key=key)
        if isinstance(forked, ForkBelowCompacted):
            self.refused += 1
        else:
            self.made += 1
            self.logs[key] = log

    def end_a_fork(self) -> None:
        if forks := [key for key in self.logs if key != KEY]:
            delete(self.scene.process(), key := self.chance.choice(forks))
            del self.logs[key]

    def sweep(self) -> None:
        sweep(self.scene.process())

    def sweep_broken(self) -> None:
        stores = self.scene.process()
        break_call(stores, self.chance.randrange(40), self.chance.choice(BREAKS))
        with suppress(Crashed):
            sweep(stores)

    def wait(self) -> None:
        self.scene.world.advance(self.chance.choice((HOUR_MS, 2 * HOUR_MS, 24 * HOUR_MS)))

    def check(self) -> None:
        for key, log in self.logs.items():
            assert fold(self.scene.read_from(0, key=key)) == fold_rows(row for _, row in log), key


STEPS = {Family.change: 40, Family.fork: 3, Family.end_a_fork: 3, Family.sweep: 3, Family.sweep_broken: 3}
STEPS |= {Family.wait: 5}


@pytest.mark.parametrize("seed", range(12))
def test_each_of_a_family_of_forks_has_its_state_whatever_is_compacted_and_killed(seed: int) -> None:
    family = Family(seed)
    for step in family.chance.choices([*STEPS], [*STEPS.values()], k=250):
        step(family)
        if step is not Family.change:
            family.check()
    assert family.made
