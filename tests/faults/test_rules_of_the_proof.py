"""Each rule that the proof needs, kept and taken out.

A scenario plays the one interleaving that a rule is there for and says whether all is right. With the rule it
must be. Without it it must not: that is how we know that it tests the rule, and it runs every time.
`tests/simulation/test_combining.py` does the same for the rules of combining.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.buckets import insert_before_commit
from tests.simulation.world import combining
from tests.support import HOUR_MS, MINUTE_MS, Faults, Process, World, a_key
from tidemark.janitor.sweep import sweep
from tidemark.log import tails
from tidemark.log.append import TailMoved
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import decode_entry
from tidemark.log.table import Table, Write
from tidemark.protocol.errors import SequenceGap, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import append as service_append
from tidemark.service import combine
from tidemark.service.delete import delete
from tidemark.service.stores import Stores

Scenario = Callable[[World], bool]


def is_refused_or_readable(process: Process, key: StreamKey) -> bool:
    """What is acknowledged can be read."""
    try:
        process.append(key, b"late")
    except StreamNotFound:
        return True
    try:
        return b"late" in process.read_all(key)
    except StreamNotFound:
        return False


def append_after_a_deletion(minutes: int) -> Scenario:
    def play(world: World) -> bool:
        sleeper, rival, key = world.process(), world.process(), a_key()
        sleeper.create(key)
        sleeper.append(key, b"x")
        delete(rival.stores, key)
        world.clock.advance(minutes * MINUTE_MS)
        sweep(rival.stores)
        return is_refused_or_readable(sleeper, key)

    return play


def append_whose_reply_is_lost(world: World) -> bool:
    process, key = world.process(), a_key()
    process.create(key)
    process.append(key, b"<")
    faults = Faults(process.dynamodb, seed=1, lost=0.3)
    for _ in range(12):
        process.append(key, b"x")
    assert faults.injected["lost"] >= 2
    return world.process().read_all(key) == b"<" + b"x" * 12


def append_by_a_clock_that_is_behind(world: World) -> bool:
    """For the writer the stream is still alive when somebody else has replaced it."""
    writer, rival, key = world.process(clock=lambda: world.clock() - 2_000), world.process(), a_key()
    writer.create(key, expiry=Expiry(ttl_seconds=10))
    writer.append(key, b"old")
    world.clock.advance(10_000)
    assert rival.create(key).is_new
    return is_refused_or_readable(writer, key)


def append_across_a_re_creation(world: World) -> bool:
    """The writer still knows the old stream's tail when the new stream is there."""
    writer, rival, key = world.process(), world.process(), a_key()
    writer.create(key)
    writer.append(key, b"old")
    delete(rival.stores, key)
    rival.create(key)
    try:
        writer.append(key, b"new")
        return world.process().read_all(key) == b"new"
    except StreamNotFound:
        return False


def append_refused_for_a_gap_that_is_filled_later(world: World) -> bool:
    """As mail, on a crowded stream. Its client was told to send the append before it first."""
    early, one, other, key = world.process(), world.process(), world.process(), a_key()
    with combining(forced=True):
        early.create(key)
        with pytest.raises(SequenceGap):
            early.append(key, b"<1>", claim=("p", 0, 1))
        one.append(key, b"<0>", claim=("p", 0, 0))
        other.append(key, b"x")
        return other.read_all(key) == b"<0>x"


def always_somebody_else(_batch: Batch, existing: dict[str, Any]) -> None:
    raise TailMoved(decode_entry(existing))


def no_tombstone(table: Table, _last: Batch, _record: StreamRecord, writes: list[Write]) -> None:
    """An end that changes the stream's item, and leaves the log as it is."""
    table.transact(writes)


def step_behind_the_post(self: Any, known: Any, appends: Any) -> Any:
    combine._Combining(self._stores, known.head, appends[0], self._append_id)._post()
    return STEP(self, known, appends)


STEP = service_append._Attempt.step
ONE_INCARNATION = partial(Stores, new_id=lambda: "always-the-same")
#: The scenario, and what takes the rule out.
RULES: dict[str, tuple[Scenario, str, Any]] = {
    "old tails are forgotten": (append_after_a_deletion(61), "log.tails.MAX_AGE_MS", 24 * HOUR_MS),
    "tombstones are kept": (append_after_a_deletion(4), "log.lifecycle.RECLAIM_AFTER_MS", 0),
    "a deletion leaves a tombstone": (append_after_a_deletion(0), "log.lifecycle._end", no_tombstone),
    "an expiry leaves a tombstone": (append_by_a_clock_that_is_behind, "log.lifecycle._end", no_tombstone),
    "a write that meets itself has landed": (
        append_whose_reply_is_lost,
        "log.append.check_landed",
        always_somebody_else,
    ),
    "each creation has an incarnation": (
        append_across_a_re_creation,
        "tests.support.Stores",
        ONE_INCARNATION,
    ),
    "mail is decided before it is posted": (
        append_refused_for_a_gap_that_is_filled_later,
        "service.append._Attempt.step",
        step_behind_the_post,
    ),
}


@pytest.mark.parametrize(("scenario", "place", "broken"), RULES.values(), ids=RULES)
def test_all_is_right_with_a_rule_and_not_without_it(
    world: World, monkeypatch: pytest.MonkeyPatch, scenario: Scenario, place: str, broken: Any
) -> None:
    assert scenario(world)
    monkeypatch.setattr(place if place.startswith("tests.") else f"tidemark.{place}", broken)
    assert not scenario(world)


def test_the_two_limits_leave_room_for_slow_calls_and_skewed_clocks() -> None:
    assert tails.RECLAIM_AFTER_MS >= 10 * tails.MAX_AGE_MS


def test_a_deletion_that_races_an_append_deletes_it_too(world: World) -> None:
    """The append came first: the deletion finds the moved tail and goes behind it."""
    deleter, writer, key = world.process(), world.process(), a_key()
    deleter.create(key)
    insert_before_commit(deleter, lambda: writer.append(key, b"x"))
    delete(deleter.stores, key)
    with pytest.raises(StreamNotFound):
        writer.append(key, b"y")


def test_a_refusal_is_not_decided_on_what_this_process_remembers(world: World) -> None:
    """Another process took the producer's next append: what looks like a gap is none."""
    one, other, key = world.process(), world.process(), a_key()
    one.create(key)
    one.append(key, b"0", claim=("p", 0, 0))
    other.append(key, b"1", claim=("p", 0, 1))
    one.append(key, b"2", claim=("p", 0, 2))
    with pytest.raises(SequenceGap):
        one.append(key, b"9", claim=("p", 0, 9))
    assert one.read_all(key) == b"012"


def test_a_producer_pushed_out_by_another_process_is_looked_up_after_the_tail(world: World) -> None:
    """The item of a pushed-out producer is read only once the tail is known. Read before,
    an append and a push-out in between would hide the append."""
    one, other, key = world.process(), world.process(), a_key()
    one.create(key)
    for producer in range(12):
        one.append(key, b".", claim=(f"p{producer}", 0, 0))
    # p0 has an item. Now it appends again and is pushed out again, behind our back.
    other.append(key, b"!", claim=("p0", 0, 1))
    for producer in range(12, 24):
        other.append(key, b".", claim=(f"p{producer}", 0, 0))
    one.append(key, b"!", claim=("p0", 0, 1))
    assert one.read_all(key).count(b"!") == 1
