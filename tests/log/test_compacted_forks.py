"""Forks and compaction at once: a fork has the whole state at its end, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import orjson
import pytest

from tests.log.scene import FORK, KEY, SMALL, Scene, before_the_next, each_call
from tests.support import HOUR_MS, JSON, append_request, create_request
from tidemark.janitor.sweep import sweep
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import ForkBelowCompacted
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.stores import Stores

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


def fold(data: bytes) -> State:
    return {row["key"]: row["value"] for row in orjson.loads(b"[" + data[:-1] + b"]")}


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
    """No fork of it begins below that."""
    scene = a_scene()
    inherited = scene.data
    fork(scene.process(), len(inherited))
    for row in ROWS:
        append(scene.stores, FORK, [append_request(orjson.dumps(row), content_type=JSON)])
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
