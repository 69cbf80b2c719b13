"""Streams that let go of their beginning: never of what nobody keeps, whenever a process dies."""

import contextlib
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from tests.janitor.scene import BREAKS, FORK, KEY, Scene, before_the_next, break_call, counted, die
from tests.simulation.tasks import Crashed
from tests.support import BYTES, HOUR_MS, JSON, append_request, create_request
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.protocol import errors
from tidemark.protocol.expiry import Retention
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import PublishRequest, bootstrap, publish_snapshot
from tidemark.service.stores import Stores

pytestmark = pytest.mark.slow

PACKING = Packing(HOUR_MS, every_bytes=64, pack_bytes=200, min_batches=2, block_bytes=40)


def a_scene(*bodies: bytes, packing: Packing | None = None, **asked: object) -> Scene:
    scene = Scene(packing, **asked)  # type: ignore[arg-type]
    scene.write(*bodies)
    return scene


def test_below_the_offset_reads_are_410_and_the_batches_go_an_hour_later() -> None:
    scene = a_scene(b"one", b"two", b"three")
    assert trim_below(scene.process(), KEY, 6)
    with pytest.raises(errors.RetentionGone) as gone:
        read(scene.process(), KEY, 0)
    assert gone.value.headers == {"Stream-Next-Offset": "0000000000000006"}
    assert [part.body for part in bootstrap(scene.process(), KEY).parts] == [b"", b"three"]
    assert scene.starts() == [0, 3, 6], "a reader may still be on its way through them"
    assert scene.sweep_after().trimmed == 1
    assert scene.starts() == [6]
    assert scene.read_from(6) == b"three"
    before = [*scene.world.table.items()]
    for again in (6, 3, 0):
        assert not trim_below(scene.process(), KEY, again)
    assert [*scene.world.table.items()] == before


def test_only_the_end_of_a_message_that_is_there_is_taken() -> None:
    scene = Scene(None, JSON)
    append(scene.stores, KEY, [append_request(b"[1,22,333]", content_type=JSON)])
    for offset, error in ((3, errors.Malformed), (10, errors.OffsetBeyondTail)):
        with pytest.raises(error):
            trim_below(scene.process(), KEY, offset)
    with pytest.raises(errors.StreamNotFound):
        trim_below(scene.process(), KEY, 5, incarnation="another")
    with pytest.raises(errors.StreamNotFound):
        trim_below(scene.process(), StreamKey("v1", "nowhere"), 0)
    assert scene.record().retained == 0
    assert trim_below(scene.process(), KEY, 5)
    assert scene.read_from(5) == b"333,"


@pytest.mark.parametrize("during", [False, True])
def test_a_stream_with_a_snapshot_is_not_trimmed_as_bootstrap_needs_the_rest(during: bool) -> None:
    scene = a_scene(b"one", b"two")
    trimmer = scene.process()
    publish = partial(publish_snapshot, scene.process(), KEY, PublishRequest(3, BYTES, b"<one>"))
    before_the_next(trimmer, "TransactWriteItems", publish) if during else publish()
    with pytest.raises(errors.Conflict, match="has a snapshot at 0000000000000003"):
        trim_below(trimmer, KEY, 6)
    assert [part.body for part in bootstrap(scene.process(), KEY).parts] == [b"<one>", b"two"]
    assert scene.record().retained == 3


def test_a_reader_at_the_retained_offset_is_answered_while_the_batch_before_it_goes() -> None:
    """Between its two queries: what comes behind the offset, and which batch ends there. An append makes the
    batch before the offset one that may go."""
    scene, swept = a_scene(b"one"), list[int]()
    trim_below(scene.process(), KEY, 3)
    scene.world.advance(HOUR_MS)
    reader = scene.process()

    def go() -> None:
        scene.write(b"two")
        swept.append(sweep(scene.process()).trimmed)

    before_the_next(reader, "Query", lambda: before_the_next(reader, "Query", go))
    assert read(reader, KEY, 3).data in {b"", b"two"}
    assert swept == [1]
    assert scene.read_from(3) == b"two"


def test_a_snapshot_below_what_was_let_go_of_meanwhile_is_refused() -> None:
    """Else what is retained would go back to where no message is any more."""
    scene = a_scene(b"one", b"two")
    publisher = scene.process()
    before_the_next(publisher, "TransactWriteItems", lambda: trim_below(scene.process(), KEY, 6))
    with pytest.raises(errors.RetentionGone):
        publish_snapshot(publisher, KEY, PublishRequest(3, BYTES, b"<one>"))
    assert (scene.record().retained, scene.record().snapshot) == (6, None)


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_that_ends_meanwhile_or_is_another_by_now_is_not_trimmed(again: bool) -> None:
    scene = a_scene(b"one")
    trimmer = scene.process()

    def end() -> None:
        delete(scene.process(), KEY)
        if again:
            scene.world.advance(1)
            create(scene.process(), KEY, create_request(BYTES, body=b"new"))

    before_the_next(trimmer, "TransactWriteItems", end)
    with pytest.raises(errors.StreamNotFound):
        trim_below(trimmer, KEY, 3)
    if again:
        assert scene.record().retained == 0
        assert scene.read_from(0) == b"new"


# --- an age, and a size ------------------------------------------------------------------------------


def test_messages_go_within_an_hour_after_their_age() -> None:
    scene = Scene(None, retention=Retention(seconds=3 * 3600))
    for _ in range(12):
        scene.write(b"four")
        scene.sweep_after()
        now_ms, retained = scene.world.now_ms, scene.record().retained
        assert min(at for end, at in scene.times.items() if end > retained) >= now_ms - 4 * HOUR_MS
        assert all(at < now_ms - 3 * HOUR_MS for end, at in scene.times.items() if end <= retained)
        assert scene.read_from(retained) == scene.data[retained:]
        assert len(scene.due("retain")) == 1
    assert scene.record().retained >= 28
    assert len(scene.starts()) <= 6, "and an hour later their batches go"


def test_a_stream_keeps_at_least_its_last_bytes_and_whole_messages() -> None:
    scene = Scene(None, retention=Retention(size=10))
    for _ in range(30):
        scene.write(b"four")
        scene.sweep_after()
        assert len(scene.data) - scene.record().retained in {len(scene.data), 12, 16, 20}
    scene.sweep_after(3 * HOUR_MS)
    assert scene.record().retained == 30 * 4 - 12
    assert scene.read_from(108) == b"four" * 3


@pytest.mark.parametrize(
    ("retention", "most"), [(Retention(size=10), 50), (Retention(seconds=30 * 86_400), 12)]
)
def test_a_stream_that_nobody_writes_to_is_looked_at_seldom(retention: Retention, most: int) -> None:
    scene, looks = a_scene(b"four", retention=retention), set[str]()
    for _ in range(30 * 24):
        scene.sweep_after()
        looks |= {item["sk"]["S"] for item in scene.due("retain")}
    assert 1 < len(looks) <= most


def test_a_look_that_is_asked_for_twice_becomes_one() -> None:
    """A write of the queue may land late, so that the entry is there twice."""
    scene = a_scene(b"four", retention=Retention(seconds=86_400, size=1000))
    [again] = scene.due("retain")
    for _ in range(7):
        scene.sweep_after()
    scene.world.table.store(again)
    assert len(scene.due("retain")) == 2
    for _ in range(33):
        scene.sweep_after()
    assert len(scene.due("retain")) == 1


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("during", [False, True])
def test_a_stream_with_a_snapshot_or_that_has_ended_is_looked_at_no_more(ends: bool, during: bool) -> None:
    """Also if that comes during a look, which does not stop the janitor."""
    scene = a_scene(b"one", b"two", retention=Retention(seconds=3600))
    scene.world.advance(5 * HOUR_MS)
    janitor, publish = scene.process(), PublishRequest(3, BYTES, b"<one>")

    def change() -> None:
        delete(scene.process(), KEY) if ends else publish_snapshot(scene.process(), KEY, publish)

    before_the_next(janitor, "TransactWriteItems", change) if during else change()
    sweep(janitor)
    scene.sweep_after()
    assert scene.due("retain") == []
    assert ends or scene.record().retained == 3


def test_a_packed_stream_lets_go_of_blocks_that_are_old_as_a_whole() -> None:
    scene = Scene(PACKING, retention=Retention(seconds=4 * 3600))
    for _ in range(10):
        scene.write(*(b"%09d" % number for number in range(30)))
        scene.sweep_after()
    retained = scene.record().retained
    assert 270 * 2 <= retained <= 270 * 6
    assert scene.read_from(retained) == scene.data[retained:]


def test_an_offset_below_what_is_retained_is_refused_as_such_while_a_pack_there_is_half_removed() -> None:
    """The janitor dies between the removal of an object and that of its item."""
    scene = Scene(PACKING)
    scene.write(*(b"%09d" % number for number in range(60)))
    scene.sweep_after()
    [*_, second] = scene.packs()
    assert trim_below(scene.process(), KEY, second.start)
    scene.world.advance(2 * HOUR_MS)
    janitor = scene.process()
    before_the_next(janitor, "BatchWriteItem", die)
    with contextlib.suppress(Crashed):
        sweep(janitor)
    with pytest.raises(errors.RetentionGone):
        publish_snapshot(scene.process(), KEY, PublishRequest(second.start - 9, BYTES, b"late"))


def test_of_the_trims_that_wait_for_a_fork_one_stays_and_removes_all() -> None:
    scene = Scene(None, retention=Retention(size=1))
    scene.write(b"one")
    scene.fork(3)
    for _ in range(20):
        scene.write(b"more")
        scene.sweep_after(2 * HOUR_MS)
        assert len(scene.due("trim")) <= 2
    assert len(scene.items()) == 21
    delete(scene.process(), FORK)
    scene.sweep_after(2 * HOUR_MS)
    assert len(scene.items()) == 1


def test_a_pack_whose_object_is_missing_does_not_stop_the_janitor(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(PACKING, retention=Retention(seconds=4 * 3600))
    scene.write(*(b"%09d" % number for number in range(30)))
    scene.sweep_after()
    objects = scene.world.bucket.objects
    stored = dict(objects)
    objects.clear()
    scene.sweep_after(9 * HOUR_MS)
    assert "a pack cannot be read" in caplog.text
    assert scene.record().retained == 0
    objects.update(stored)
    scene.sweep_after()
    assert scene.record().retained > 0


LOOKS: dict[str, Callable[[Stores], object]] = {
    "by the janitor": sweep,
    "by a trim, and the janitor": lambda stores: (trim_below(stores, KEY, 11), sweep(stores)),
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_look_may_die_at_each_of_its_calls_and_is_made_again(
    look: Callable[[Stores], object], how: str
) -> None:
    """What it lets go of is what was to go, and all the rest can be read."""
    for at in count():
        scene = a_scene(b"one", b"two", b"three", retention=Retention(seconds=3600, size=8))
        scene.world.advance(3 * HOUR_MS)
        scene.write(b"four", b"five")
        stores = scene.process()
        calls = break_call(stores, at, how)
        with contextlib.suppress(Crashed, errors.OutcomeUnknown):
            look(stores)
        assert scene.record().retained in {0, 11}
        scene.check(1, retained=scene.record().retained)
        for _ in range(2):
            scene.sweep_after()
        assert scene.record().retained >= 11
        scene.check(1, retained=scene.record().retained)
        assert len(scene.due("retain")) == 1
        if len(calls) <= at:
            break
    assert at > 4


def test_appends_to_a_stream_with_limits_are_one_call_each() -> None:
    scene = Scene(None, retention=Retention(seconds=3600, size=8))
    stores, calls = counted(scene)
    append(stores, KEY, [append_request(b"first")])
    calls.clear()
    for _ in range(5):
        append(stores, KEY, [append_request(b"more")])
    assert calls == {"PutItem": 5}
