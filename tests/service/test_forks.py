"""Forks: no copy, the same bytes at the same offsets, and an independent life."""

from typing import Any

import pytest

from tests import support
from tests.buckets import insert_before_commit, move_compacted, publish
from tidemark.janitor.sweep import sweep
from tidemark.log.lifecycle import StreamChanged, bury
from tidemark.log.read import load_stream
from tidemark.protocol import errors
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.create import MAX_GENERATIONS
from tidemark.protocol.expiry import NEVER, Expiry
from tidemark.service.append import append
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.snapshots import PublishRequest, publish_snapshot, read_snapshot

pytestmark = pytest.mark.each_engine


# --- what it costs --------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 300])
def test_a_fork_is_one_transaction_and_an_append_to_it_one_write(world: support.World, batches: int) -> None:
    process, source = support.filled(world, *[b"x" * 1000] * batches)
    process.calls.taken()
    process.fork(fork := support.a_key(), source)
    # Is the name free, is the source there, where is its tail.
    assert process.calls.taken() == {"GetItem": 2, "Query": 1, "TransactWriteItems": 1}
    process.append(fork, b"d")
    assert process.calls.taken() == {"PutItem": 1}


@pytest.mark.parametrize("generations", [0, 1, 5])
def test_a_read_costs_one_query_more_for_each_fork_boundary(world: support.World, generations: int) -> None:
    process, key = support.filled(world, b"0")
    for generation in range(1, generations + 1):
        process.fork(fork := support.a_key(f"generation-{generation}"), key)
        process.append(fork, b"%d" % generation)
        key = fork
    reader, cold = world.process(), world.process()
    assert read(reader.stores, key, 0).data == b"012345"[: generations + 1]
    assert reader.calls.taken() == {"GetItem": 1, "Query": 1 + generations}
    assert read(cold.stores, key, generations).data == b"%d" % generations
    assert cold.calls.taken() == {"GetItem": 1, "Query": 1}, "its own data lies in its own log"


# --- what is inherited ----------------------------------------------------------------


@pytest.mark.parametrize("warm", [True, False])
def test_every_offset_of_a_fork_reads_on_across_its_lineage(world: support.World, warm: bool) -> None:
    """abcd from the first, ef from the second (cut within a batch), gh its own."""
    process, first = support.filled(world, b"ab", b"cd", b"never")
    second, third = support.a_key(), support.a_key()
    process.fork(second, first, 4)
    process.append(second, b"efxxx")
    process.fork(third, second, 4, sub=2)
    process.append(third, b"gh")
    process.append(first, b"later")
    process.append(second, b"later")
    for start in range(9):
        reading = read((process if warm else world.process()).stores, third, start)
        assert reading.data == b"abcdefgh"[start:]
        assert (reading.page.end, reading.page.up_to_date, reading.page.closed) == (8, True, False)


def test_a_json_stream_is_forked_at_message_ends_and_sub_offsets_count_messages(world: support.World) -> None:
    """Two appends in one batch, as the group commit writes them, are still two appends."""
    process, source = world.process(), support.a_key()
    process.create(source, content_type=support.JSON)
    append(
        process.stores,
        source,
        [support.append_request(body, content_type=support.JSON) for body in (b"[1,2]", b"3")],
    )
    # By the offset, what the fork has with the sub-offsets 0, 1, 2 …; None where it is refused.
    forks: dict[int, list[bytes | None]] = {
        0: [b"", b"1,", b"1,2,", None],
        1: [None],
        2: [b"1,", b"1,2,", None],
        3: [None],
        4: [b"1,2,", b"1,2,3,", None],
        6: [b"1,2,3,", None],
    }
    asked = [(anchor, *each) for anchor, contents in forks.items() for each in enumerate(contents)]
    for anchor, sub, expected in asked:
        if expected is None:
            with pytest.raises(errors.Malformed):
                process.fork(support.a_key(), source, anchor, sub)
            continue
        process.fork(fork := support.a_key(), source, anchor, sub)
        assert world.process().read_all(fork) == expected
        with pytest.raises(errors.HistoryGone, match="beyond the end"):
            read(world.process().stores, fork, len(expected) + 1)


# --- made again -----------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, Expiry(ttl_seconds=5)])
@pytest.mark.parametrize("source_expiry", [Expiry(), Expiry(ttl_seconds=50)])
def test_a_fork_inherits_the_expiry_unless_it_has_its_own(
    world: support.World, source_expiry: Expiry, asked: Expiry | None
) -> None:
    process, source = world.process(), support.a_key()
    process.create(source, expiry=source_expiry)
    made = process.fork(support.a_key(), source, expiry=asked or NEVER)
    assert made.head.record.expiry == (asked or source_expiry)


def test_a_fork_is_created_again_without_effect_even_when_its_source_is_gone(
    world: support.World,
) -> None:
    process, source = support.filled(world, b"abc")
    fork = support.a_key()
    assert process.fork(fork, source, 1).is_new
    process.append(source, b"more")
    assert not process.fork(fork, source).is_new, "an open offset matches wherever it was made"
    delete(process.stores, source)
    assert not process.fork(fork, source, 1).is_new
    with pytest.raises(errors.Conflict):
        process.fork(fork, source, 2)


# --- what goes wrong ------------------------------------------------------------------


def test_a_refused_fork_writes_nothing(world: support.World) -> None:
    process, source = support.filled(world, b"abc")
    target, present = support.a_key("target"), support.items_left(process)
    refusals: list[tuple[type[errors.ProtocolError], str, dict[str, Any]]] = [
        (errors.StreamNotFound, "source", {"source": support.a_key("nowhere")}),
        (errors.Malformed, "beyond", {"offset": 4}),
        (errors.Malformed, "Sub-Offset", {"offset": 3, "sub": 1}),
        (errors.ContentTypeMismatch, "(?i)type", {"content_type": support.TEXT}),
        (errors.Malformed, "itself", {"source": target}),
    ]
    for error, says, asked in refusals:
        with pytest.raises(error, match=says):
            process.fork(target, **{"source": source} | asked)
    assert support.items_left(process) == present
    delete(process.stores, source)
    with pytest.raises(errors.StreamNotFound):
        load_head(process.stores, source)


def test_a_fork_beyond_the_last_generation_is_refused(world: support.World) -> None:
    process, key = support.filled(world, b"a")
    for _ in range(MAX_GENERATIONS):
        process.fork(fork := support.a_key(), key)
        key = fork
    with pytest.raises(errors.Malformed, match="generations"):
        process.fork(support.a_key(), key)


# --- how it ends ----------------------------------------------------------------------


@pytest.mark.parametrize("as_fork", [False, True])
def test_a_name_is_free_after_its_last_fork_ended_even_if_that_process_died(
    world: support.World, monkeypatch: pytest.MonkeyPatch, *, as_fork: bool
) -> None:
    """A PUT need not wait for the janitor: every other request gets 404 for the deleted sources."""
    process, first = support.filled(world, b"a")
    process.fork(second := support.a_key(), first)
    process.fork(third := support.a_key(), second)
    delete(process.stores, first)
    delete(process.stores, second)
    with monkeypatch.context() as killed:
        killed.setattr("tidemark.service.delete.try_release", lambda *_: None)
        delete(process.stores, third)
    with pytest.raises(errors.StreamNotFound):
        load_head(process.stores, second)
    process.create(other := support.a_key())
    if as_fork:
        assert process.fork(second, other).is_new
    else:
        assert process.create(second).is_new
    for key in (first, third):
        assert process.create(key).is_new
    for key in (first, second, third, other):
        delete(process.stores, key)
    world.clock.advance(2 * support.HOUR_MS)
    sweep(process.stores)
    assert support.items_left(process) == [], "nothing is left behind but end marks"


@pytest.mark.parametrize("first", ["fork", "source"])
def test_nothing_is_left_of_a_source_deleted_with_its_last_fork(world: support.World, first: str) -> None:
    """Whichever deletion is decided first: before its commit comes the other."""
    process, source = support.filled(world, b"a")
    process.fork(fork := support.a_key(), source)
    ended, other = (fork, source) if first == "fork" else (source, fork)
    insert_before_commit(process, lambda: delete(world.process().stores, other))
    delete(process.stores, ended)
    world.clock.advance(2 * support.HOUR_MS)
    sweep(process.stores)
    assert support.items_left(process) == []


def test_a_fork_that_is_made_while_its_source_is_deleted_keeps_what_it_inherits(world: support.World) -> None:
    process, source = support.filled(world, b"a")
    fork = support.a_key()
    insert_before_commit(process, lambda: world.process().fork(fork, source))
    delete(process.stores, source)
    for _ in range(2):
        world.clock.advance(2 * support.HOUR_MS)
        sweep(process.stores)
    assert world.process().read_all(fork) == b"a"


def test_a_creation_is_acknowledged_if_storage_fails_right_after_it(world: support.World) -> None:
    """The janitor does the rest: it releases the source of the stream that was replaced."""
    process, source = support.filled(world, b"abc")
    process.fork(fork := support.a_key(), source, expiry=Expiry(ttl_seconds=10))
    delete(process.stores, source)
    world.clock.advance(60_000)
    send = process.dynamodb.send
    created: list[str] = []

    def refusing_what_follows(operation: str, body: bytes) -> tuple[int, bytes]:
        if created:
            return support.refusal("ProvisionedThroughputExceededException")
        answer = send(operation, body)
        if operation == "TransactWriteItems" and answer[0] == 200:
            created.append(operation)
        return answer

    process.dynamodb.send, process.dynamodb.sleep = refusing_what_follows, lambda _: None
    assert process.create(fork).is_new
    process.dynamodb.send = send
    assert process.create(source).is_new


def test_a_source_that_expires_is_kept_for_its_forks(world: support.World) -> None:
    process, source = world.process(), support.a_key()
    process.create(source, expiry=Expiry(ttl_seconds=10), body=b"abc")
    process.fork(fork := support.a_key(), source, expiry=Expiry(ttl_seconds=1_000_000))
    world.clock.advance(60_000)
    with pytest.raises(errors.SoftDeleted):
        read(process.stores, source, 0)
    with pytest.raises(errors.Conflict):
        process.create(source)
    for _ in range(3):
        sweep(process.stores)
        world.clock.advance(2 * support.HOUR_MS)
    assert world.process().read_all(fork) == b"abc"
    delete(process.stores, fork)
    # The janitor's note to look at the fork when its window ends is kept until then.
    world.clock.advance(1_100_000_000)
    sweep(process.stores)
    assert support.items_left(process) == []


def test_an_expired_fork_can_be_created_again_from_the_same_source(world: support.World) -> None:
    """One count goes down and up again: the old fork releases the source, and the new one takes it."""
    process, source = support.filled(world, b"abc")
    fork = support.a_key()
    process.fork(fork, source, 1, expiry=Expiry(ttl_seconds=10))
    world.clock.advance(60_000)
    assert process.fork(fork, source, 2).is_new
    assert process.read_all(fork) == b"ab"
    assert load_head(process.stores, source).record.references == 1


def test_a_late_creation_leaves_a_log_behind(world: support.World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the item before the deletion, and the tombstone after it. The process that ends the last
    fork dies before it releases the stream; if the creation put an end mark, nobody would reclaim the log."""
    process, source, fork = world.process(), support.a_key("source"), support.a_key("fork")
    process.create(source)
    process.fork(fork, source)
    seen = load_stream(process.stores.table, source)
    assert seen is not None
    delete(process.stores, source)
    with monkeypatch.context() as dying:
        dying.setattr("tidemark.service.delete.try_release", lambda *_: None)
        delete(process.stores, fork)
    with pytest.raises(StreamChanged):
        bury(process.stores.table, seen, world.clock())
    world.clock.advance(2 * support.HOUR_MS)
    for _ in range(3):
        sweep(process.stores)
        world.clock.advance(2 * support.HOUR_MS)
    assert support.items_left(process) == []


# --- a source that lets go of its beginning ---------------------------------------------


def test_a_fork_is_made_of_what_its_source_keeps_when_the_fork_is_made(world: support.World) -> None:
    process, source = support.filled(world, b"one", b"two", b"three")
    rival, fork = world.process(), support.a_key("fork")
    insert_before_commit(process, lambda: trim_below(rival.stores, source, 3))
    assert process.fork(fork, source).is_new
    assert load_head(rival.stores, fork).record.retained == 3
    insert_before_commit(process, lambda: trim_below(rival.stores, source, 6))
    with pytest.raises(errors.RetentionGone):
        process.fork(support.a_key("another"), source, 3)
    assert load_head(rival.stores, source).record.references == 1


def test_a_fork_that_took_hours_to_make_says_what_is_gone(world: support.World) -> None:
    """Its process slept between a look at the source and the write, and the janitor has removed the batches
    meanwhile: a reader gets 410, and no gap."""
    process, source = support.filled(world, b"one", b"two", b"three")
    rival, fork = world.process(), support.a_key("fork")

    def sleep() -> None:
        trim_below(rival.stores, source, 3)
        world.clock.advance(2 * support.HOUR_MS)
        assert sweep(rival.stores).trimmed == 1

    insert_before_commit(process, sleep)
    process.fork(fork, source)
    with pytest.raises(errors.RetentionGone):
        read(world.process().stores, fork, 0)
    assert read(world.process().stores, fork, 3).data == b"twothree"


def test_a_fork_begins_with_the_snapshot_that_its_source_has_when_it_is_made(world: support.World) -> None:
    """Also where the later one is at the same offset: the object of the earlier one goes an hour later."""
    process, source = support.filled(world, b"one", b"two")
    rival, fork = world.process(), support.a_key("fork")
    publish_snapshot(process.stores, source, PublishRequest(3, support.BYTES, b"first"))

    def sleep() -> None:
        publish_snapshot(rival.stores, source, PublishRequest(3, support.BYTES, b"second"))
        world.clock.advance(2 * support.HOUR_MS)
        sweep(rival.stores)

    insert_before_commit(process, sleep)
    process.fork(fork, source)
    assert read_snapshot(world.process().stores, fork, 3).data == b"second"


# --- a compacted source -----------------------------------------------------------------


def test_a_fork_of_a_fork_does_not_begin_below_what_its_first_source_compacted(world: support.World) -> None:
    process, source = support.filled(world, b"1", b"2", b"3", content_type=support.JSON)
    move_compacted(process, source, 4)
    with pytest.raises(errors.ForkBelowCompacted, match=f"{4:016}"):
        process.fork(support.a_key(), source, 2)
    with pytest.raises(errors.ForkBelowCompacted):
        process.fork(support.a_key(), source, 2, sub=1)
    process.fork(fork := support.a_key("fork"), source, 6)
    process.append(fork, b"4", content_type=support.JSON)
    with pytest.raises(errors.ForkBelowCompacted, match=f"{4:016}"):
        process.fork(support.a_key(), fork, 2)
    for offset in (4, 6, None):
        made = process.fork(support.a_key(), fork, offset)
        assert made.head.record.compacted == 4


@pytest.mark.parametrize("fork_begins", [2, 6], ids=["below it", "above it"])
def test_a_fork_is_made_of_its_source_as_compacted_by_then(world: support.World, fork_begins: int) -> None:
    """A compaction comes between the look at the source and the write. A fork above it must know of it, for
    the forks that are made of the fork."""
    process, source = support.filled(world, b"1", b"2", b"3", content_type=support.JSON)
    rival, fork = world.process(), support.a_key("fork")
    insert_before_commit(process, lambda: move_compacted(rival, source, 4))
    if fork_begins < 4:
        with pytest.raises(errors.ForkBelowCompacted):
            process.fork(fork, source, fork_begins)
        assert load_stream(rival.stores.table, fork) is None
        assert load_head(rival.stores, source).record.references == 0
    else:
        process.fork(fork, source, fork_begins)
        assert load_head(rival.stores, fork).record.compacted == 4


def test_a_compacted_fork_is_not_made_of_a_source_that_gets_a_snapshot(world: support.World) -> None:
    process, source = support.filled(world, b"1", b"2", content_type=support.JSON)
    rival, fork = world.process(), support.a_key("fork")
    insert_before_commit(process, lambda: publish(rival, source, 2))
    with pytest.raises(errors.Conflict, match="snapshot"):
        process.fork(fork, source, compaction=Compaction())
    assert load_stream(rival.stores.table, fork) is None
    assert process.fork(fork, source).head.record.snapshot is not None
