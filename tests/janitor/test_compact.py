"""Compaction: whoever reads, from wherever and whenever, ends with the state of the whole log."""

import math
import random
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count as count_up
from itertools import product
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from tests.janitor import scene
from tests.simulation.tasks import Crashed
from tests.support import HOUR_MS, JSON, append_request, create_request
from tidemark.janitor import compact
from tidemark.janitor.sweep import sweep
from tidemark.log.chain import cut_batch
from tidemark.log.due import Packing
from tidemark.log.records import Batch
from tidemark.log.tails import RecentBatches
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import Damaged, HistoryGone, Malformed, StorageUnavailable
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import append
from tidemark.service.catalog import load_stats, load_times
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import messages
from tidemark.service.start_point import find_start, read_back
from tidemark.service.stores import Stores

DAY_MS = 24 * HOUR_MS
HOURLY = Compaction(after_seconds=3600, tombstone_seconds=24 * 3600)
State = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A message as it was written, and where it ends."""

    end: int
    body: bytes
    time_ms: int
    key: str | None
    deletes: bool


def apply(state: State, body: bytes) -> None:
    change = orjson.loads(body)
    if "key" not in change:
        state.setdefault("", []).append(change)
    elif change["headers"]["operation"] == "delete":
        state.pop(change["key"], None)
    else:
        state[change["key"]] = change["value"]


def fold(bodies: Sequence[bytes]) -> State:
    state: State = {}
    for body in bodies:
        apply(state, body)
    return state


@dataclass
class Reader:
    """It has read up to `offset`, and last at `at_ms`."""

    stores: Stores
    offset: int
    at_ms: int
    state: State = field(default_factory=dict)


class Rows:
    """A stream of changes to rows, what was written to it, and readers on their way."""

    def __init__(self, seed: int, packing: Packing = scene.SMALL, compaction: Compaction = HOURLY) -> None:
        self.chance = random.Random(seed)
        self.scene = scene.Scene(packing, JSON, compaction=compaction)
        self.compaction = compaction
        self.log: list[Change] = []
        self.readers: list[Reader] = []

    # --- what happens ---

    def change(self, key: str | None = None, operation: str | None = None) -> None:
        chance = self.chance
        key = key or chance.choice("abcdefgh")
        operation = operation or chance.choice(("insert", "update", "upsert", "delete"))
        value = {} if operation == "delete" else {"value": chance.randrange(1000) * 10 ** chance.randrange(9)}
        self._write({"type": "row", "key": key, **value, "headers": {"operation": operation}}, key)

    def remark(self) -> None:
        self._write({"headers": {"control": "snapshot-end", "number": len(self.log)}}, None)

    def _write(self, message: Any, key: str | None) -> None:
        body = orjson.dumps(message)
        self.scene._write([(body, [body + b","])])
        deletes = message["headers"].get("operation") == "delete"
        self.log.append(Change(self.scene.ends[-1], body, self.now_ms, key, deletes))

    @property
    def now_ms(self) -> int:
        return self.scene.world.now_ms

    def write(self, keys: str) -> None:
        for key in keys:
            self.change(key.lower(), "delete" if key.isupper() else "upsert")
        self.remark()
        self.remark()

    def wait(self, ms: int) -> None:
        self.scene.world.advance(ms)

    def sweep(self) -> Any:
        return sweep(self.scene.process())

    def sweep_broken(self) -> None:
        stores = self.scene.process()
        scene.break_call(stores, self.chance.randrange(40), self.chance.choice(scene.BREAKS))
        with suppress(Crashed):
            sweep(stores)

    def sweep_at_once(self) -> None:
        """Janitors that make packs of other sizes; some stop before they remove what theirs replace."""

        def janitor() -> None:
            pack_bytes = self.chance.choice((60, 150, 300, 650))
            stores = self.scene.process(replace(scene.SMALL, pack_bytes=pack_bytes))
            if self.chance.random() < 0.5:
                scene.before_the_next(stores, "BatchWriteItem", scene.die)
            with suppress(Crashed):
                sweep(stores)

        tasks = [self.scene.world.scheduler.spawn(janitor) for _ in range(2)]
        self.scene.world.scheduler.run()
        assert [task.failure for task in tasks] == [None, None]

    def step(self) -> None:
        """Some reader reads a page, or another one comes."""
        window_ms = 1000 * self.compaction.tombstone_seconds
        self.readers = [each for each in self.readers if self.now_ms - each.at_ms < window_ms]
        if len(self.readers) < 4:
            stores = self.readers[0].stores if self.readers and self.chance.random() < 0.5 else None
            self.readers.append(Reader(stores or self.scene.process(), 0, self.now_ms))
        self.read_page(self.chance.choice(self.readers))

    def read_page(self, reader: Reader) -> bool:
        reading = read(reader.stores, scene.KEY, reader.offset, small=True)
        for _, body in messages(reading):
            apply(reader.state, body)
        reader.offset, reader.at_ms = reading.page.end, self.now_ms
        return reading.page.up_to_date

    def wait_and_sweep(self, times: int = 1, ms: int = HOUR_MS) -> None:
        for _ in range(times):
            self.wait(ms)
            self.sweep()

    # --- what is right ---

    def state(self, up_to: float = math.inf) -> State:
        """Of the whole log up to there."""
        return fold([change.body for change in self.log if change.end <= up_to])

    def state_read(self, stores: Stores | None = None, key: StreamKey = scene.KEY) -> State:
        return fold([body for _, body in self.found(0, stores, key)])

    def found(
        self, offset: int, stores: Stores | None = None, key: StreamKey = scene.KEY
    ) -> list[tuple[int, bytes]]:
        stores, found, at_tail = stores or self.scene.process(), list[tuple[int, bytes]](), False
        while not at_tail:
            reading = read(stores, key, offset)
            found += messages(reading)
            offset, at_tail = reading.page.end, reading.page.up_to_date
        return found

    def check(self) -> None:
        state = self.state()
        for reader in self.readers:
            window_ms = 1000 * self.compaction.tombstone_seconds
            copy = replace(reader, state=dict(reader.state), stores=self.scene.process())
            if "" in copy.state:
                copy.state[""] = list(copy.state[""])
            while self.now_ms - reader.at_ms < window_ms and not self.read_page(copy):
                pass
            assert self.now_ms - reader.at_ms >= window_ms or copy.state == state
        for offset in {0, *self.chance.sample(self.scene.ends, min(4, len(self.scene.ends)))}:
            found = self.found(offset)
            self.check_read(offset, found)
            assert offset or fold([body for _, body in found]) == state

    def check_read(self, offset: int, found: list[tuple[int, bytes]]) -> None:
        written = [change for change in self.log if change.end > offset]
        kept = dict(found)
        assert [end for end, _ in found] == sorted(kept)
        assert kept.items() <= {(change.end, change.body) for change in written}
        last = {change.key: change.end for change in written}
        for change in written:
            if change.end in kept:
                continue
            assert change.key is not None, "what has no key stays"
            is_superseded = last[change.key] > change.end
            assert is_superseded or change.deletes
            limit = self.compaction.after_seconds if is_superseded else self.compaction.tombstone_seconds
            assert self.now_ms - change.time_ms >= 1000 * limit


STEPS: Sequence[tuple[int, Callable[[Rows], object]]] = (
    (40, Rows.change),
    (2, Rows.remark),
    (8, Rows.step),
    (3, Rows.sweep),
    (3, Rows.sweep_broken),
    (3, Rows.sweep_at_once),
    (4, lambda rows: rows.wait(HOUR_MS)),
    (1, lambda rows: rows.wait(DAY_MS)),
)


@pytest.mark.parametrize("seed", range(32))
def test_every_reader_ends_with_the_state_of_the_whole_log(seed: int) -> None:
    rows = Rows(seed)
    weights, acts = zip(*STEPS, strict=True)
    for act in rows.chance.choices(acts, weights, k=400):
        act(rows)
        if act in {Rows.sweep, Rows.sweep_broken, Rows.sweep_at_once} or rows.chance.random() < 0.05:
            rows.check()
    assert rows.scene.record().compacted, "something was compacted"


@pytest.mark.parametrize("how", scene.BREAKS)
def test_a_pass_may_be_killed_or_lose_a_reply_at_any_call(how: str) -> None:
    for at in count_up():
        rows = of_rows("abcAdaBe" * 4)
        stores = rows.scene.process()
        calls = scene.break_call(stores, at, how)
        rows.wait(HOUR_MS)
        with suppress(Crashed):
            sweep(stores)
        rows.check()
        rows.wait_and_sweep(2)
        rows.check()
        assert rows.scene.record().compacted
        if len(calls) <= at:
            break
    assert at > 40, "every call was broken once"


# --- what is asked of a compacted stream --------------------------------------------------


def of_passes() -> Rows:
    """Compacted, and more of it since: plain batches follow packs that no pass has seen."""
    rows = Rows(3, compaction=SLOWER)
    for changes, sweeps in ((90, 3), (40, 3), (30, 1), (9, 0)):
        for _ in range(changes):
            rows.change()
        rows.remark()
        rows.wait_and_sweep(sweeps)
    assert {bool(pack.compacted) for pack in rows.scene.packs()} == {True, False}
    assert isinstance(rows.scene.entries()[-1], Batch)
    return rows


def test_a_read_from_any_offset_has_what_is_left_behind_it() -> None:
    rows = of_passes()
    knowing, left, tail = rows.scene.process(), rows.found(0), rows.scene.ends[-1]
    places = [(end - len(body) - 1, end) for end, body in left]
    beside = {end + by for end in rows.scene.ends for by in (-1, 0, 1)}
    for offset, is_fresh in product(sorted(beside & set(range(tail + 1))), (True, False)):
        stores = rows.scene.process() if is_fresh else knowing
        if any(start < offset < end for start, end in places):
            with pytest.raises(Malformed, match="is not the end of a message"):
                read(stores, scene.KEY, offset, small=True)
        else:
            reading = read(stores, scene.KEY, offset, small=True)
            assert list(messages(reading)) == [(e, b) for e, b in left if offset < e <= reading.page.end]
            assert reading.page.end > offset or offset == tail
    with pytest.raises(HistoryGone):
        rows.found(tail + 1)


def test_start_points_and_times_are_those_of_what_is_left() -> None:
    rows = of_passes()
    left, stores = rows.found(0), rows.scene.process()
    counting, calls = scene.counted(rows.scene)
    middle = left[len(left) // 2]
    assert list(messages(read_back(counting, scene.KEY, middle[0], 1))) == [middle]
    assert calls == {"GetItem": 1, "Query": 2, "GetRange": 1}
    oldest = read_back(stores, scene.KEY, left[1][0], 2)
    assert (list(messages(oldest)), oldest.page.compacted) == (left[:2], True), "its entity tag depends on it"
    written = {change.end: change.time_ms for change in rows.log}
    for count in range(1, len(left), 5):
        found = find_start(stores, scene.KEY, count)
        assert found.messages == count or not found.complete
        last = found.messages or 0
        assert rows.found(found.offset) == left[-last:]
        place = next(i for i, (end, _) in enumerate(left) if end > found.offset)
        before = read_back(stores, scene.KEY, found.offset, count)
        assert list(messages(before)) == [each for each in left[:place] if each[0] > before.page.start]
        assert before.page.start < found.offset or place == 0
        times = load_times(stores, scene.KEY, found.offset)
        each = [ms for ms, count in zip(times.times_ms, times.messages, strict=True) for _ in range(count)]
        ends = [end for end, _ in left[-last:]]
        assert each == [written[end] for end in ends]
        is_whole = sum(times.sizes) == times.end - times.start
        assert times.message_ends == (None if is_whole else ends)
    for change in rows.log[::20]:
        behind = rows.found(find_start(stores, scene.KEY, None, change.time_ms).offset)
        assert {end for end, _ in behind} >= {end for end, _ in left if written[end] >= change.time_ms}


def test_a_block_is_cut_between_the_messages_that_are_left() -> None:
    """As a reader from the end on meets it beside a pack that it has replaced."""
    batch = Batch(100, Tail(200), "id", 1, b"abcdef", lengths=(2, 1, 3), gaps=array("Q", [10, 0, 40]))
    for end, data in ((105, b""), (112, b"ab"), (113, b"abc"), (150, b"abc"), (156, b"abcdef")):
        cut = cut_batch(batch, end)
        assert (cut.end, cut.data, cut.data_bytes) == (end, data, len(data))
        assert cut.message_ends() == [each for each in (112, 113, 156) if each <= end]


def test_what_a_process_remembers_is_not_read_below_what_is_compacted() -> None:
    """It has read a row, and not that the row was deleted; both are gone a few seconds later."""
    rows = Rows(0, replace(scene.SMALL, after_ms=0), Compaction(after_seconds=0, tombstone_seconds=0))
    rows.write("ab")
    knowing = rows.scene.process()
    assert rows.state_read(knowing).keys() == {"a", "b", ""}
    rows.write("Ac")
    rows.wait_and_sweep(5, ms=1000)
    assert rows.state_read().keys() == {"b", "c", ""}
    assert rows.state_read(knowing) == rows.state()


def test_a_body_that_is_packed_is_forgotten_before_its_object_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.service.append.INLINE_BYTES", 32)
    rows = Rows(0)
    rows.write("abcd")
    rows.scene.fork(rows.log[-1].end)
    knowing = rows.scene.process()
    knowing.recent = RecentBatches(0, lambda: rows.now_ms)
    assert rows.state_read(knowing) == rows.state()
    [body] = knowing.recent.chain_with_pack(rows.scene.record().incarnation, 0, 0)
    rows.wait_and_sweep()
    rows.scene.wait_until_removed()
    assert body.blob not in rows.scene.world.bucket.objects
    assert rows.state_read(knowing) == rows.state()


def test_the_number_of_messages_is_estimated_by_what_is_left() -> None:
    rows = of_passes()
    stats, left = load_stats(rows.scene.process(), scene.KEY), len(rows.found(0))
    assert not stats.messages_exact
    assert left * 0.8 <= stats.messages <= left * 1.25 < len(rows.log) / 2


def test_a_page_from_before_the_compaction_has_another_entity_tag() -> None:
    rows = of_rows("abab")
    before = read(rows.scene.process(), scene.KEY, 0).page
    rows.wait_and_sweep(2)
    after = read(rows.scene.process(), scene.KEY, 0).page
    assert (before.start, before.end) == (after.start, after.end)
    assert len(before.data) > len(after.data)
    assert before.crc != after.crc


# --- what a pass does ---------------------------------------------------------------------


def test_a_deletion_goes_a_day_after_what_it_deletes_also_if_nothing_more_is_written() -> None:
    rows = of_rows("abAB", SLOWER)
    rows.wait_and_sweep(2)
    assert [orjson.loads(body).get("key") for _, body in rows.found(0)] == ["a", "b", None, None]
    rows.wait_and_sweep(22)
    assert len(rows.found(0)) == 4
    rows.wait_and_sweep(2)
    assert len(rows.found(0)) == 2
    rows.wait_and_sweep(30)
    assert rows.scene.due("pack") == [], "there is no more to look for"


def test_a_fork_keeps_deletions_of_what_it_inherits() -> None:
    rows = Rows(0)
    rows.write("ab")
    rows.scene.compaction, fork_at = None, rows.log[-1].end
    asked = create_request(None, fork=ForkPoint(scene.KEY, fork_at), compaction=HOURLY)
    create(rows.scene.process(), scene.FORK, asked)
    for key in "AcAcAcdd":
        operation = "delete" if key.isupper() else "upsert"
        change = {"type": "row", "key": key.lower(), "value": 1, "headers": {"operation": operation}}
        append(rows.scene.stores, scene.FORK, [append_request(orjson.dumps(change), content_type=JSON)])
    rows.wait_and_sweep(80)
    assert rows.state_read(key=scene.FORK).keys() == {"b", "c", "d", ""}
    assert rows.scene.record(scene.FORK).compacted > fork_at


def test_a_stream_is_compacted_once_its_last_fork_is_gone_also_if_nothing_more_is_written() -> None:
    rows = of_rows("abab")
    rows.scene.fork(rows.log[-1].end)
    rows.wait_and_sweep(60)
    assert rows.scene.record().compacted == 0
    assert len(rows.scene.due("pack")) == 1, "one look is asked for, a day later"
    delete(rows.scene.process(), scene.FORK)
    rows.wait_and_sweep(26)
    assert rows.scene.record().compacted
    assert all_is_read(rows)


def test_a_map_of_keys_that_is_full_ends_a_pass_and_another_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "MOST_KEYS", 2)
    rows = of_rows("abcdefghabcdefgh" * 8)
    passes = list[int]()
    learn = compact._Pass._learn_keys

    def counting(self: Any) -> None:
        learn(self)
        passes.append(self._plan.bound)

    monkeypatch.setattr(compact._Pass, "_learn_keys", counting)
    rows.wait_and_sweep(2)
    assert len(passes) > 2
    assert passes == sorted(passes)
    assert len(rows.found(0)) < 24
    assert all_is_read(rows)


@pytest.mark.parametrize("looks", [12, 20, 33])
def test_a_pass_without_time_goes_on_where_it_was(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round has time for so many looks at the clock, and more is written in between."""
    rows = of_rows("".join(map(chr, range(ord("a"), ord("z") + 1))) * 12)
    monkeypatch.setattr(compact, "MOST_BYTES", 1500)
    left, bounds = 0, list[int]()

    def has_time_left() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    rows.wait(HOUR_MS)
    for _ in range(60):
        left = looks
        sweep(rows.scene.process(), has_time_left)
        assert all_is_read(rows)
        rows.change()
        rows.wait(1000)
        bounds.append(rows.scene.record().compacted)
    assert bounds == sorted(bounds)
    assert len(set(bounds)) > 5
    assert len(rows.found(0)) < 150


def test_what_is_retained_bounds_a_pass() -> None:
    """A pack that lies on both sides of the bound stays, and so does what deletes a key of it."""
    rows = of_rows("abcdABCDabcd" * 3)
    [first, *_] = rows.scene.packs()
    inside = next(change.end for change in rows.log if first.start < change.end < first.end)
    assert trim_below(rows.scene.process(), scene.KEY, inside)
    rows.wait_and_sweep(60)
    assert rows.scene.record().compacted
    assert [pack.compacted > 0 for pack in rows.scene.packs()][:2] == [False, True]
    whole = fold([change.body for change in rows.log if change.end > inside])
    assert fold([body for _, body in rows.found(inside)]) == whole


def sweep_without_removal(janitor: Stores) -> None:
    """It dies once the first pack is made, and what that one replaces is still there."""
    scene.before_the_next(janitor, "BatchWriteItem", scene.die)
    with suppress(Crashed):
        sweep(janitor)


def test_a_pack_that_was_replaced_and_is_not_removed_yet_is_in_no_pass() -> None:
    rows = of_rows("uvwxyzabcdefghijklmnopq")
    rows.scene.pack_by(replace(scene.SMALL, pack_bytes=500))
    _, retained, *_ = rows.scene.starts()
    rows.wait(HOUR_MS + 1000)
    sweep_without_removal(rows.scene.process())
    assert trim_below(rows.scene.process(), scene.KEY, retained)
    rows.wait_and_sweep(2)
    assert [end for end, _ in rows.found(retained)] == [each.end for each in rows.log if each.end > retained]


def test_a_deletion_stays_for_a_day_after_a_trim_has_taken_what_it_deletes() -> None:
    """That lay in a pack on both sides of what was retained before, which no pass has rewritten."""
    rows = of_rows("zabcdeAbcdef")
    _, second, *_ = rows.scene.starts()
    assert trim_below(rows.scene.process(), scene.KEY, rows.log[0].end)
    rows.wait_and_sweep(30)
    reader = Reader(rows.scene.process(), second, rows.now_ms, rows.state(second))
    assert trim_below(rows.scene.process(), scene.KEY, second)
    rows.write("ghij")
    rows.wait_and_sweep(4)
    while not rows.read_page(reader):
        pass
    assert reader.state.keys() == {*"zbcdefghij", ""}
    rows.wait_and_sweep(26)
    assert b'"delete"' not in read(rows.scene.process(), scene.KEY, second).data


def test_a_stream_is_trimmed_to_where_any_of_its_messages_ended() -> None:
    rows = of_passes()
    left = rows.found(0)
    for offset in rows.scene.ends[1:]:
        assert trim_below(rows.scene.process(), scene.KEY, offset)
        assert rows.found(offset) == [(end, body) for end, body in left if end > offset]
    rows = of_passes()
    (end, body) = rows.found(0)[3]
    with pytest.raises(Malformed, match="is not the end of a message"):
        trim_below(rows.scene.process(), scene.KEY, end - len(body))


def test_a_pack_that_cannot_be_read_is_told_and_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    rows = of_rows("abab")
    [pack] = rows.scene.packs()
    stored = rows.scene.world.bucket.objects.pop(str(pack.blob))
    rows.wait_and_sweep(2)
    assert "is not compacted" in caplog.text
    assert rows.scene.record().compacted == 0
    rows.scene.world.bucket.objects[str(pack.blob)] = stored
    rows.wait_and_sweep(2)
    assert rows.scene.record().compacted


def test_large_bodies_are_packed_and_compacted(caplog: pytest.LogCaptureFixture) -> None:
    rows, large = Rows(0, Packing(HOUR_MS)), "x" * 70_000
    for key in "aab":
        change = {"type": "row", "key": key, "value": large + key, "headers": {"operation": "upsert"}}
        rows._write(change, key)
    rows.remark()
    objects = rows.scene.world.bucket.objects
    stored = dict(objects)
    objects.clear()
    rows.wait_and_sweep(2)
    assert "is not packed" in caplog.text, "and the janitor goes on"
    objects.update(stored)
    rows.wait_and_sweep(4)
    assert [orjson.loads(body).get("key") for _, body in rows.found(0)] == ["a", "b", None]
    assert all_is_read(rows)


def test_the_calls_of_a_pass() -> None:
    """A pack that no pass has seen is read twice. One that is made is an object and a transaction, one that
    goes an entry of the queue; and the horizon is moved, and another look asked for."""
    rows = of_rows("abcdefgh" * 4)
    stores, calls = scene.counted(rows.scene)
    before = len(rows.scene.packs())
    rows.wait(HOUR_MS)
    sweep(stores)
    made = len(rows.scene.packs())
    assert (before, made) == (8, 2)
    assert (calls["GetRange"], calls["PutObject"]) == (2 * before, made)
    assert (calls["TransactWriteItems"], calls["PutItem"]) == (made + 1, before + 1)


def test_a_pass_that_is_resumed_compacts_all_of_it() -> None:
    """It was killed when it had made its first pack. Else a deletion would go before what it deletes."""
    rows = of_rows("ijklmnop" + "abcdefgh" * 2 + "ABCD")
    janitor, write = rows.scene.process(scene.SMALL), "TransactWriteItems"
    scene.before_the_next(janitor, write, lambda: scene.before_the_next(janitor, write, scene.die))
    rows.wait(HOUR_MS)
    with suppress(Crashed):
        sweep(janitor)
    assert len({pack.compacted > 0 for pack in rows.scene.packs()}) == 2
    rows.wait_and_sweep()
    keys = [orjson.loads(body).get("key") for _, body in rows.found(0)]
    assert len(keys) - keys.count(None) == len(set(keys) - {None}), keys
    rows.wait_and_sweep(3, DAY_MS)
    assert rows.state_read() == rows.state()


def test_a_pass_that_storage_interrupts_is_made_in_the_next_round(caplog: pytest.LogCaptureFixture) -> None:
    """It is not put off for an hour, as a pass over a pack that cannot be read is."""
    rows = of_rows("abab")
    stores = rows.scene.process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores.blobs, "get_range", Mock(side_effect=StorageUnavailable))
        rows.wait(HOUR_MS)
        with pytest.raises(StorageUnavailable):
            sweep(stores)
    assert "cannot be read" not in caplog.text
    sweep(stores)
    assert rows.scene.record().compacted


# --- the rules, each of which `tests/mutations` takes out --------------------------------

#: Messages stay for two hours, so that packs are made an hour before a pass may look at them.
SLOWER = replace(HOURLY, after_seconds=2 * 3600)


def of_rows(keys: str, compaction: Compaction = SLOWER, packing: Packing = scene.SMALL) -> Rows:
    """In packs that no pass has seen: an upsert of each key, of a capital letter a deletion, and remarks."""
    rows = Rows(0, packing, compaction)
    rows.write(keys)
    rows.wait_and_sweep()
    assert rows.scene.packs()
    return rows


def all_is_read(rows: Rows) -> bool:
    with suppress(Damaged):
        return rows.state_read() == rows.state()
    return False


def a_pack_takes_in_nothing_that_a_pass_replaces() -> bool:
    """It is to take in the last pack before it. The pass found that one earlier, and no batch to pack."""
    rows = of_rows("abababab")
    rows.write("cdcd")
    rows.wait(HOUR_MS)
    packer = rows.scene.process(replace(scene.ONE, pack_bytes=650))
    other = rows.scene.process(replace(scene.ONE, after_ms=3 * HOUR_MS))
    scene.before_the_next(packer, "TransactWriteItems", lambda: sweep_without_removal(other))
    sweep(packer)
    rows.wait_and_sweep(2)
    return all_is_read(rows)


def of_two_passes_at_once_one_goes_on() -> bool:
    """The later one lets go of deletions as well, so that its packs end elsewhere."""
    rows = of_rows("abcdefghGH")
    rows.wait_and_sweep(3)
    rows.scene.pack_by(replace(scene.SMALL, pack_bytes=100))
    rows.wait(18 * HOUR_MS)
    rows.write("abcmnopqrstuvwxyz")
    rows.wait_and_sweep()
    rows.wait(rows.scene.record().horizon.next_ms - rows.now_ms - 1)
    janitor, other = rows.scene.process(scene.SMALL), rows.scene.process(scene.SMALL)

    def look_later() -> None:
        rows.wait(1)
        sweep_without_removal(other)

    write = "TransactWriteItems"
    scene.before_the_next(janitor, write, lambda: scene.before_the_next(janitor, write, look_later))
    sweep(janitor)
    rows.wait_and_sweep(2)
    return all_is_read(rows)


@pytest.mark.parametrize(
    "is_right", [a_pack_takes_in_nothing_that_a_pass_replaces, of_two_passes_at_once_one_goes_on]
)
def test_all_is_read_though(is_right: Callable[[], bool]) -> None:
    assert is_right()
