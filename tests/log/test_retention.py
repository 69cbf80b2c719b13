"""Streams that let go of their beginning: never of what nobody keeps, whenever a process dies."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.simulation.scheduler import Crashed
from tests.simulation.world import SimulatedWorld
from tests.support import BYTES, HOUR_MS, JSON, append_request, create_request, table_of
from tidemark.aws.retry import NoAnswer
from tidemark.janitor.sweep import sweep
from tidemark.log.lifecycle import load_stream
from tidemark.log.records import StreamRecord
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import (
    Conflict,
    Malformed,
    OffsetBeyondTail,
    OutcomeUnknown,
    RetentionGone,
    StreamNotFound,
)
from tidemark.protocol.pack import Packing
from tidemark.protocol.retention import FOREVER, Retention, contiguous_end
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.service.stores import Stores

KEY, FORK = StreamKey("v1", "a"), StreamKey("v1", "fork")
PACKING = Packing(HOUR_MS, every_bytes=64, pack_bytes=200, min_batches=2, block_bytes=40)


@dataclass
class Scene:
    """A stream, and what was appended to it."""

    packing: Packing | None = None
    retention: Retention = FOREVER
    data: bytes = b""
    ends: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.world = SimulatedWorld(random.Random(7), None, packing=self.packing)
        create(self.process(), KEY, create_request(BYTES, retention=self.retention))

    def process(self) -> Stores:
        return self.world.process()[1]

    def append(self, *bodies: bytes) -> None:
        for body in bodies:
            (answer,) = append(self.process(), KEY, [append_request(body)])
            assert not isinstance(answer, Exception)
            self.data += body
            self.ends.append(len(self.data))

    def record(self, key: StreamKey = KEY) -> StreamRecord:
        found = load_stream(self.process().table, key)
        assert found is not None
        return found

    def read_from(self, start: int, key: StreamKey = KEY) -> bytes:
        stores, data, at_tail = self.process(), b"", False
        while not at_tail:
            reading = read(stores, key, start)
            data, start, at_tail = data + reading.data, reading.page.end, reading.page.up_to_date
        return data

    def sweep(self) -> int:
        self.world.advance(HOUR_MS)
        return sweep(self.process()).trimmed

    def batches(self) -> list[int]:
        items = [item for item in self.world.table.items() if item["pk"]["S"].startswith("log/v1/a#")]
        return sorted(int(item["sk"]["S"][:16]) for item in items)


def test_below_the_offset_reads_are_410_and_the_batches_go_an_hour_later() -> None:
    scene = Scene()
    scene.append(b"one", b"two", b"three")
    assert trim_below(scene.process(), KEY, 6)
    with pytest.raises(RetentionGone) as gone:
        read(scene.process(), KEY, 0)
    assert gone.value.headers == {"Stream-Next-Offset": "0000000000000006"}
    assert scene.read_from(6) == b"three"
    assert scene.batches() == [0, 3, 6], "a reader may still be on its way through them"
    assert scene.sweep() == 1
    assert scene.batches() == [6]
    assert scene.read_from(6) == b"three"


def test_trimming_again_to_where_it_is_trimmed_changes_nothing() -> None:
    scene = Scene()
    scene.append(b"one", b"two")
    assert trim_below(scene.process(), KEY, 3)
    before = list(scene.world.table.items())
    assert not trim_below(scene.process(), KEY, 3)
    assert not trim_below(scene.process(), KEY, 0)
    assert list(scene.world.table.items()) == before


def test_a_stream_may_let_go_of_everything_and_goes_on() -> None:
    """The last batch stays, because the state of the tail is in it."""
    scene = Scene()
    scene.append(b"one", b"two")
    assert trim_below(scene.process(), KEY, 6)
    scene.sweep()
    assert scene.batches() == [3]
    scene.append(b"three")
    assert scene.read_from(6) == b"three"


def test_only_the_end_of_a_message_that_is_there_is_taken() -> None:
    scene = Scene()
    scene.append(b"one")
    for offset, error in ((2, Malformed), (4, OffsetBeyondTail)):
        with pytest.raises(error):
            trim_below(scene.process(), KEY, offset)
    with pytest.raises(StreamNotFound):
        trim_below(scene.process(), KEY, 3, incarnation="another")
    with pytest.raises(StreamNotFound):
        trim_below(scene.process(), StreamKey("v1", "nowhere"), 0)
    assert scene.record().retained == 0


def test_a_stream_with_a_snapshot_is_not_trimmed_because_bootstrap_needs_what_comes_behind_it() -> None:
    scene = Scene()
    scene.append(b"one", b"two")
    publish_snapshot(scene.process(), KEY, PublishRequest(3, BYTES, b"<one>"))
    with pytest.raises(Conflict, match="has a snapshot at 0000000000000003"):
        trim_below(scene.process(), KEY, 6)
    assert [part.body for part in bootstrap(scene.process(), KEY).parts] == [b"<one>", b"two"]


def test_bootstrap_without_a_snapshot_begins_with_what_is_retained() -> None:
    scene = Scene()
    scene.append(b"one", b"two")
    trim_below(scene.process(), KEY, 3)
    assert [part.body for part in bootstrap(scene.process(), KEY).parts] == [b"", b"two"]


def test_a_reader_at_the_retained_offset_is_answered_while_the_batch_before_it_goes() -> None:
    """Between its two queries: what comes behind the offset, and which batch ends there. An append makes the
    batch before the offset one that may go."""
    scene = Scene()
    scene.append(b"one")
    trim_below(scene.process(), KEY, 3)
    scene.world.advance(HOUR_MS)
    reader = scene.process()
    client: Any = table_of(reader).dynamodb
    send, queries = client.send, []

    def acting(operation: str, *more: Any) -> Any:
        if operation == "Query":
            queries.append(operation)
            if len(queries) == 2:
                scene.append(b"two")
                assert sweep(scene.process()).trimmed == 1
        return send(operation, *more)

    client.send = acting
    assert read(reader, KEY, 3).data in {b"", b"two"}
    assert len(queries) >= 2
    assert scene.read_from(3) == b"two"


def before_the_transaction(stores: Stores, act: Callable[[], object]) -> None:
    """Do this once, just before its next transaction."""
    client: Any = table_of(stores).dynamodb
    send, pending = client.send, [act]

    def acting(operation: str, *more: Any) -> Any:
        if operation == "TransactWriteItems" and pending:
            pending.pop()()
        return send(operation, *more)

    client.send = acting


def test_a_snapshot_that_is_published_meanwhile_wins_over_the_trim() -> None:
    scene = Scene()
    scene.append(b"one", b"two")
    trimmer = scene.process()
    publish = PublishRequest(3, BYTES, b"<one>")
    before_the_transaction(trimmer, lambda: publish_snapshot(scene.process(), KEY, publish))
    with pytest.raises(Conflict):
        trim_below(trimmer, KEY, 6)
    assert scene.record().retained == 3


def test_a_snapshot_below_what_was_let_go_of_meanwhile_is_refused() -> None:
    """Else what is retained would go back to where no message is any more."""
    scene = Scene()
    scene.append(b"one", b"two")
    publisher = scene.process()
    before_the_transaction(publisher, lambda: trim_below(scene.process(), KEY, 6))
    with pytest.raises(RetentionGone):
        publish_snapshot(publisher, KEY, PublishRequest(3, BYTES, b"<one>"))
    assert (scene.record().retained, scene.record().snapshot) == (6, None)


def test_a_stream_that_ends_meanwhile_or_is_another_by_now_is_not_trimmed() -> None:
    scene = Scene()
    scene.append(b"one")
    for again in (False, True):
        trimmer = scene.process()

        def end(again: bool = again) -> None:
            delete(scene.process(), KEY)
            if again:
                scene.world.advance(1)
                create(scene.process(), KEY, create_request(BYTES, body=b"new"))

        before_the_transaction(trimmer, end)
        with pytest.raises(StreamNotFound):
            trim_below(trimmer, KEY, 3)
        if not again:
            scene.world.advance(1)
            create(scene.process(), KEY, create_request(BYTES, body=b"two"))
    assert scene.record().retained == 0
    assert scene.read_from(0) == b"new"


def test_a_fork_keeps_what_its_source_lets_go_of() -> None:
    scene = Scene()
    scene.append(b"one", b"two", b"three")
    create(scene.process(), FORK, create_request(None, fork=ForkPoint(KEY, 6, 0)))
    trim_below(scene.process(), KEY, 6)
    scene.sweep()
    assert scene.read_from(0, FORK) == b"onetwo"
    delete(scene.process(), FORK)
    scene.sweep()
    scene.sweep()
    assert scene.batches() == [6]


def test_json_is_trimmed_between_its_messages() -> None:
    world = SimulatedWorld(random.Random(7), None)
    stores = world.process()[1]
    create(stores, KEY, create_request(JSON, body=b"[1,22,333]"))
    assert trim_below(stores, KEY, 5)
    assert read(stores, KEY, 5).data == b"333,"


# --- what is gone is in the lake -----------------------------------------------------------------


class Lake:
    """What an archive has committed, as stretches and as bytes by offset."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.stretches: list[tuple[int, int]] = []
        self.held: dict[int, int] = {}

    def archive(self, stores: Stores) -> None:
        """Reads from where it stopped, and commits when it has all; killed on the way, it has nothing."""
        start = max((end for _, end in self.stretches), default=0)
        reading = read(stores, KEY, start)
        self.held |= {reading.page.start + place: byte for place, byte in enumerate(reading.data)}
        self.stretches.append((reading.page.start, reading.page.end))

    def trim(self, stores: Stores) -> None:
        record = load_stream(stores.table, KEY)
        assert record is not None
        trim_below(stores, KEY, contiguous_end(record.retained, self.stretches), record.incarnation)

    def check(self) -> None:
        """What cannot be read any more is in the lake, and all the rest can be read."""
        scene = self.scene
        retained = scene.record().retained
        assert bytes(self.held[place] for place in range(retained)) == scene.data[:retained]
        left = [end for end in scene.ends if end >= retained]
        for start in [*left[:: max(1, len(left) // 5)], left[-1]]:
            assert scene.read_from(start) == scene.data[start:]


Step = Callable[[Scene, Lake, Stores], object]


def sweep_later(scene: Scene, _lake: Lake, stores: Stores) -> None:
    scene.world.advance(HOUR_MS)
    sweep(stores)


STEPS: dict[str, Step] = {
    "archive": lambda _scene, lake, stores: lake.archive(stores),
    "trim": lambda _scene, lake, stores: lake.trim(stores),
    "sweep": sweep_later,
}


def broken(stores: Stores, at: int, how: str) -> list[str]:
    """The call of that number is the last, lost on its way or carried out, or has its reply lost once.
    What is called."""
    calls: list[str] = []
    for client in (table_of(stores).dynamodb, stores.blobs._objects):  # type: ignore[attr-defined]

        def acting(operation: str, *more: Any, send: Any = client.send) -> Any:
            calls.append(operation)
            is_last = len(calls) == at + 1
            if is_last and how == "killed before":
                raise Crashed
            answer = send(operation, *more)
            if is_last and how == "killed behind":
                raise Crashed
            if is_last and how == "lost":
                raise NoAnswer("injected")
            return answer

        client.send = acting
    return calls


def play(seed: int) -> int:
    """Appends, archives, trims and sweeps in any order, each killed or cut at any of its calls. How many
    batches were removed."""
    chance = random.Random(seed)
    scene = Scene(PACKING)
    lake = Lake(scene)
    appended = 0
    for _ in range(40):
        step = chance.choice(["append", "append", *STEPS])
        if step == "append":
            scene.append(*(b"%d," % chance.randrange(1000) for _ in range(chance.randrange(1, 6))))
            appended = len(scene.ends) - 1
            continue
        stores = scene.process()
        how = chance.choice(["killed before", "killed behind", "lost", "", ""])
        broken(stores, chance.randrange(8), how)
        with contextlib.suppress(Crashed, OutcomeUnknown):
            STEPS[step](scene, lake, stores)
        lake.check()
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    lake.check()
    return appended - len(scene.batches())


def test_whatever_dies_what_is_gone_from_the_stream_is_in_the_lake() -> None:
    assert sum(play(seed) for seed in range(40)) > 400


@pytest.mark.parametrize("how", ["killed before", "killed behind", "lost"])
@pytest.mark.parametrize("step", STEPS)
def test_each_step_may_die_at_each_of_its_calls(step: str, how: str) -> None:
    for at in range(100):
        scene = Scene()
        lake = Lake(scene)
        scene.append(b"one", b"two", b"three")
        lake.archive(scene.process())
        scene.append(b"four")
        if step != "archive":
            lake.trim(scene.process())
            scene.append(b"five")
            lake.archive(scene.process())
        stores = scene.process()
        calls = broken(stores, at, how)
        with contextlib.suppress(Crashed, OutcomeUnknown):
            STEPS[step](scene, lake, stores)
        lake.check()
        for again in STEPS.values():
            again(scene, lake, scene.process())
            lake.check()
        if len(calls) <= at:  # The step came to its end before that call.
            break
    assert 1 < at < 99


def test_with_a_gap_in_the_lake_the_stream_is_kept_from_the_gap_on() -> None:
    scene = Scene()
    lake = Lake(scene)
    scene.append(b"one", b"two", b"three")
    lake.stretches = [(0, 3), (6, 11)]
    lake.held = dict(enumerate(b"one"))
    lake.trim(scene.process())
    assert scene.record().retained == 3
    lake.check()


def test_trimmed_beyond_the_gap_a_message_would_be_lost() -> None:
    """The rule taken out: so we know that the check sees it."""
    scene = Scene()
    lake = Lake(scene)
    scene.append(b"one", b"two", b"three")
    lake.stretches, lake.held = [(0, 3), (6, 11)], dict(enumerate(b"one"))
    trim_below(scene.process(), KEY, max(end for _, end in lake.stretches))
    with pytest.raises(KeyError):
        lake.check()


# --- an age, and a size ------------------------------------------------------------------------------


def entries(scene: Scene) -> list[int]:
    """When the janitor is to look at what a stream retains."""
    items = [item for item in scene.world.table.items() if item.get("kd", {}).get("S") == "retain"]
    return sorted(int(item["sk"]["S"][:16]) for item in items)


def test_messages_go_within_an_hour_after_their_age() -> None:
    scene = Scene(retention=Retention(seconds=3 * 3600))
    for _ in range(12):
        scene.append(b"four")
        scene.world.advance(HOUR_MS)
        sweep(scene.process())
        now_ms = scene.world.now_ms
        retained = scene.record().retained
        written_ms = [1_800_000_000_000 + number * HOUR_MS for number in range(len(scene.ends) - 1)]
        kept = [at for at, end in zip(written_ms, scene.ends[1:], strict=True) if end > retained]
        assert min(kept) >= now_ms - 4 * HOUR_MS
        gone = [at for at, end in zip(written_ms, scene.ends[1:], strict=True) if end <= retained]
        assert all(at < now_ms - 3 * HOUR_MS for at in gone)
        assert scene.read_from(retained) == scene.data[retained:]
        assert len(entries(scene)) == 1
    assert scene.record().retained >= 28
    assert len(scene.batches()) <= 6, "and an hour later their batches go"


def test_a_stream_keeps_at_least_its_last_bytes_and_whole_messages() -> None:
    scene = Scene(retention=Retention(size=10))
    for _ in range(30):
        scene.append(b"four")
        scene.world.advance(HOUR_MS)
        sweep(scene.process())
        assert len(scene.data) - scene.record().retained in {len(scene.data), 12, 16, 20}
    scene.world.advance(3 * HOUR_MS)
    sweep(scene.process())
    assert scene.record().retained == 30 * 4 - 12
    assert scene.read_from(108) == b"four" * 3


def test_a_stream_that_nobody_writes_to_is_looked_at_seldom() -> None:
    """With a size every sixteen hours, with an age a few times in it."""
    for retention, most in ((Retention(size=10), 50), (Retention(seconds=30 * 86_400), 12)):
        scene = Scene(retention=retention)
        scene.append(b"four")
        looks = 0
        for _ in range(30 * 24):
            scene.world.advance(HOUR_MS)
            before = entries(scene)
            sweep(scene.process())
            looks += entries(scene) != before
        assert 1 <= looks <= most


def test_a_look_that_is_asked_for_twice_becomes_one() -> None:
    """A write of the queue may land late, so that the entry is there twice."""
    scene = Scene(retention=Retention(seconds=86_400, size=1000))
    scene.append(b"four")
    again = [item for item in scene.world.table.items() if item.get("kd", {}).get("S") == "retain"]
    for hour in range(40):
        scene.world.advance(HOUR_MS)
        if hour == 7:
            stores = scene.process()
            for item in again:
                stores.table.put(item)
            assert len(entries(scene)) == 2
        sweep(scene.process())
    assert len(entries(scene)) == 1


def test_a_stream_with_a_snapshot_or_that_has_ended_is_looked_at_no_more() -> None:
    for ends in (False, True):
        scene = Scene(retention=Retention(seconds=3600))
        scene.append(b"one", b"two")
        if ends:
            delete(scene.process(), KEY)
        else:
            publish_snapshot(scene.process(), KEY, PublishRequest(3, BYTES, b"<one>"))
        scene.world.advance(5 * HOUR_MS)
        sweep(scene.process())
        assert entries(scene) == []
        assert ends or scene.record().retained == 3


def test_a_packed_stream_lets_go_of_blocks_that_are_old_as_a_whole() -> None:
    scene = Scene(PACKING, Retention(seconds=4 * 3600))
    for _ in range(10):
        scene.append(*(b"%09d" % number for number in range(30)))
        scene.world.advance(HOUR_MS)
        sweep(scene.process())
    retained = scene.record().retained
    assert 270 * 2 <= retained <= 270 * 6
    assert scene.read_from(retained) == scene.data[retained:]


@pytest.mark.parametrize("how", ["killed before", "killed behind", "lost"])
def test_a_look_may_die_at_each_of_its_calls_and_is_made_again(how: str) -> None:
    for at in range(100):
        scene = Scene(retention=Retention(seconds=3600, size=8))
        scene.append(b"one", b"two", b"three")
        scene.world.advance(3 * HOUR_MS)
        scene.append(b"four", b"five")
        stores = scene.process()
        calls = broken(stores, at, how)
        with contextlib.suppress(Crashed, OutcomeUnknown):
            sweep(stores)
        assert scene.record().retained in {0, 11}
        scene.world.advance(HOUR_MS)
        sweep(scene.process())
        scene.world.advance(HOUR_MS)
        sweep(scene.process())
        assert scene.record().retained >= 11
        assert len(entries(scene)) == 1
        if len(calls) <= at:
            break
    assert 4 < at < 99


def test_appends_to_a_stream_with_limits_are_one_call_each() -> None:
    scene = Scene(retention=Retention(seconds=3600, size=8))
    stores = scene.process()
    append(stores, KEY, [append_request(b"first")])
    calls = broken(stores, -1, "")
    for _ in range(5):
        append(stores, KEY, [append_request(b"more")])
    assert calls == ["PutItem"] * 5
