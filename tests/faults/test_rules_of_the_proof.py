"""Each rule that the proof needs, kept and taken out.

A scenario plays the one interleaving that a rule is there for and says whether an
acknowledged append was lost, doubled or put in the wrong place. With the rule it must be
right. The same scenario without the rule must go wrong: that is how we know that it tests
the rule, and it runs every time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation.world import combining
from tests.support import HOUR_MS, MINUTE_MS, Faults, Process, World, a_key, before
from tidemark.aws.retry import Breaker, NoAnswer
from tidemark.janitor.sweep import sweep
from tidemark.log import append as log_append
from tidemark.log import lifecycle, tails
from tidemark.log.append import TailMoved
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import decode_batch
from tidemark.log.table import Table, Write
from tidemark.protocol.errors import Busy, OutcomeUnknown, ProtocolError, SequenceGap, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.mail import ChainEnd
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import append as service_append
from tidemark.service import combine
from tidemark.service.delete import delete


def acknowledged_and_readable(process: Process, key: StreamKey, body: bytes) -> tuple[bool, bool]:
    """Whether an append was acknowledged, and whether anybody can read it afterwards."""
    try:
        process.append(key, body)
    except StreamNotFound:
        return False, False
    try:
        return True, body in process.read_all(key)
    except StreamNotFound:
        return True, False


# --- vacated keys: no write lands where a batch used to be ---------------------------


def append_long_after_a_deletion(world: World, minutes: int) -> tuple[bool, bool]:
    sleeper, rival, key = world.process(), world.process(), a_key()
    sleeper.create(key)
    sleeper.append(key, b"x")
    delete(rival.stores, key)
    world.clock.advance(minutes * MINUTE_MS)
    sweep(rival.stores)
    return acknowledged_and_readable(sleeper, key, b"late")


@pytest.mark.parametrize("minutes", [0, 4, 6, 59, 61, 600])
def test_a_deleted_log_takes_no_more_appends(world: World, minutes: int) -> None:
    assert append_long_after_a_deletion(world, minutes) == (False, False)


def test_if_old_tails_are_not_forgotten_an_append_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "MAX_AGE_MS", 24 * HOUR_MS)
    assert append_long_after_a_deletion(world, 61) == (True, False)


def test_if_tombstones_are_not_kept_an_append_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "RECLAIM_AFTER_MS", 0)
    assert append_long_after_a_deletion(world, 4) == (True, False)


def test_the_two_limits_leave_room_for_slow_calls_and_skewed_clocks() -> None:
    assert tails.RECLAIM_AFTER_MS >= 10 * tails.MAX_AGE_MS


# --- lost replies: a write that meets itself has landed ------------------------------


def append_whose_reply_is_lost(world: World) -> bytes:
    process, key = world.process(), a_key()
    process.create(key)
    process.append(key, b"<")
    faults = Faults(process.dynamodb, seed=1, lost=0.3)
    for _ in range(12):
        process.append(key, b"x")
    assert faults.injected["lost"] >= 2
    return world.process().read_all(key)


def test_an_append_whose_reply_was_lost_lands_once(world: World) -> None:
    assert append_whose_reply_is_lost(world) == b"<" + b"x" * 12


def test_if_a_write_does_not_recognise_itself_an_append_lands_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always_somebody_else(_batch: Batch, existing: dict[str, Any]) -> None:
        raise TailMoved(decode_batch(existing))

    monkeypatch.setattr(log_append, "check_landed", always_somebody_else)
    assert append_whose_reply_is_lost(world).count(b"x") > 12


# --- delete against append -----------------------------------------------------------


def no_tombstone(table: Table, _last: Batch, _record: StreamRecord, writes: list[Write]) -> None:
    """An end that changes the stream's item, and leaves the log as it is."""
    table.transact(writes)


def test_an_append_racing_a_deletion_is_refused(world: World) -> None:
    assert append_long_after_a_deletion(world, minutes=0) == (False, False)


def test_without_a_tombstone_an_append_racing_a_deletion_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_end", no_tombstone)
    assert append_long_after_a_deletion(world, minutes=0) == (True, False)


def test_a_deletion_that_races_an_append_deletes_it_too(world: World) -> None:
    """The append came first: the deletion finds the moved tail and goes behind it."""
    deleter, writer, key = world.process(), world.process(), a_key()
    deleter.create(key)
    insert_before_first(deleter, "TransactWriteItems", lambda: writer.append(key, b"x"))
    delete(deleter.stores, key)
    with pytest.raises(StreamNotFound):
        writer.append(key, b"y")


# --- expire against append -----------------------------------------------------------


def append_by_a_clock_that_is_behind(world: World) -> tuple[bool, bool]:
    """For the writer the stream is still alive when somebody else has replaced it."""
    slow_clock = lambda: world.clock() - 2_000  # noqa: E731
    writer, rival, key = world.process(clock=slow_clock), world.process(), a_key()
    writer.create(key, expiry=Expiry(ttl_seconds=10))
    writer.append(key, b"old")
    world.clock.advance(10_000)
    assert rival.create(key).is_new
    return acknowledged_and_readable(writer, key, b"late")


def test_an_append_racing_an_expiry_goes_to_the_new_stream(world: World) -> None:
    assert append_by_a_clock_that_is_behind(world) == (True, True)


def test_without_a_tombstone_an_append_racing_an_expiry_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_end", no_tombstone)
    assert append_by_a_clock_that_is_behind(world) == (True, False)


# --- create against delete -----------------------------------------------------------


def append_across_a_re_creation(world: World) -> bytes:
    """The writer still knows the old stream's tail when the new stream is there."""
    writer, rival, key = world.process(), world.process(), a_key()
    writer.create(key)
    writer.append(key, b"old")
    delete(rival.stores, key)
    rival.create(key)
    try:
        writer.append(key, b"new")
        return world.process().read_all(key)
    except StreamNotFound:
        return b"gone"


def test_a_re_created_stream_has_none_of_the_old_data(world: World) -> None:
    assert append_across_a_re_creation(world) == b"new"


def test_without_incarnations_a_re_created_stream_is_broken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = World.process

    def without_incarnations(world: World, **kwargs: Any) -> Process:
        made = process(world, **kwargs)
        made.stores.new_id = lambda: "always-the-same"
        return made

    monkeypatch.setattr(World, "process", without_incarnations)
    assert append_across_a_re_creation(world) != b"new"


def test_of_racing_creations_one_makes_the_stream(world: World) -> None:
    one, other, key = world.process(), world.process(), a_key()
    insert_before_first(one, "PutItem", lambda: other.create(key))
    made = one.create(key)
    assert not made.is_new
    assert made.head.record.incarnation == other.create(key).head.record.incarnation


def test_a_creation_whose_reply_was_lost_made_the_stream(world: World) -> None:
    for body in (b"", b"content"):
        process, key = world.process(), a_key()
        Faults(process.dynamodb, seed=3, lost=0.5)
        assert process.create(key, body=body).is_new
        assert process.read_all(key) == body


# --- refusals on remembered state ----------------------------------------------------


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


# --- producers pushed out of the batch -----------------------------------------------


def test_any_number_of_producers_can_write_to_one_stream(world: World) -> None:
    """Forty producers take turns; each repeats its last append, none of them lands twice."""
    process, key = world.process(), a_key()
    process.create(key)
    expected = b""
    for seq in range(3):
        for producer in range(40):
            body = b"%d.%d;" % (producer, seq)
            for _ in range(2):
                process.append(key, body, claim=(f"p{producer}", 0, seq))
            expected += body
    assert world.process().read_all(key) == expected


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


# --- combining: mail is committed once, and for whoever waits for it --------------------


@pytest.fixture
def combining_writers(world: World) -> Iterator[World]:
    """Every single append begins as mail, as on a crowded stream."""
    with combining(forced=True):
        yield world


def mail_that_the_next_but_one_finds_again(world: World) -> bytes:
    """One batch has committed it. Its writer is not awake yet, and the next one looks into the same box."""
    writer, one, other, key = world.process(), world.process(), world.process(), a_key()
    writer.create(key)

    def meanwhile() -> None:
        one.append(key, b"1")
        other.append(key, b"2")

    act_behind_the_post(writer, meanwhile)
    writer.append(key, b"<mail>")
    return world.process().read_all(key)


def test_mail_that_a_batch_names_is_not_committed_again(combining_writers: World) -> None:
    assert mail_that_the_next_but_one_finds_again(combining_writers).count(b"<mail>") == 1


def test_if_the_last_batch_does_not_name_its_mail_the_mail_lands_twice(
    combining_writers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChainEnd, "is_open", lambda end, box, _mail_id: box in {end.offset, end.last_start})
    assert mail_that_the_next_but_one_finds_again(combining_writers).count(b"<mail>") == 2


def writer_that_is_cut_off_behind_its_post(world: World) -> tuple[type[Exception], bool]:
    """What it is told, and whether its append is in the log after another writer's."""
    writer, one, key = world.process(), world.process(), a_key()
    writer.create(key)
    writer.dynamodb.breaker, writer.dynamodb.sleep = Breaker(), lambda _seconds: None

    def never_answered() -> None:
        def silent(_operation: str, _body: bytes) -> tuple[int, bytes]:
            raise NoAnswer("injected")

        writer.dynamodb.send = silent

    act_behind_the_post(writer, never_answered)
    with pytest.raises(ProtocolError) as told:
        writer.append(key, b"<mail>")
    one.append(key, b"1")
    return told.type, b"<mail>" in one.read_all(key)


def test_a_writer_whose_mail_is_open_is_told_that_the_outcome_is_unknown(combining_writers: World) -> None:
    assert writer_that_is_cut_off_behind_its_post(combining_writers) == (OutcomeUnknown, True)


def test_if_a_writer_of_open_mail_is_not_told_unknown_a_refused_append_is_in_the_log(
    combining_writers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_if_nothing_had_changed(self: Any) -> Any:
        try:
            return self._run()
        except ProtocolError as failure:
            raise Busy from failure

    monkeypatch.setattr(combine._Combining, "run", as_if_nothing_had_changed)
    assert writer_that_is_cut_off_behind_its_post(combining_writers) == (Busy, True)


def append_refused_for_a_gap_that_is_filled_later(world: World) -> bytes:
    """Its client was told to send the append before it first."""
    early, one, other, key = world.process(), world.process(), world.process(), a_key()
    early.create(key)
    with pytest.raises(SequenceGap):
        early.append(key, b"<1>", claim=("p", 0, 1))
    one.append(key, b"<0>", claim=("p", 0, 0))
    other.append(key, b"x")
    return other.read_all(key)


def test_an_append_that_is_refused_leaves_no_mail_behind(combining_writers: World) -> None:
    assert append_refused_for_a_gap_that_is_filled_later(combining_writers) == b"<0>x"


def test_if_mail_is_posted_before_it_is_decided_a_refused_append_is_in_the_log(
    combining_writers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = service_append._Attempt.run

    def run_behind_the_post(self: Any) -> Any:
        head, _ = service_append._remembered_or_read(self._stores, self._key)
        combine._Combining(self._stores, head, self.parse(head.record)[0], self._append_id)._post()
        return run(self)

    monkeypatch.setattr(service_append._Attempt, "run", run_behind_the_post)
    assert b"<1>" in append_refused_for_a_gap_that_is_filled_later(combining_writers)


def mail_of_a_stream_that_is_created_again(world: World) -> bytes:
    """Its writer is killed behind the post."""
    writer, other, key = world.process(), world.process(), a_key()
    writer.create(key)

    def killed() -> None:
        raise KeyboardInterrupt

    act_behind_the_post(writer, killed)
    with pytest.raises(KeyboardInterrupt):
        writer.append(key, b"<old>")
    delete(other.stores, key)
    world.clock.advance(1)
    other.create(key)
    other.append(key, b"<new>")
    return other.read_all(key)


def test_mail_of_an_old_stream_does_not_reach_the_new_one(combining_writers: World) -> None:
    assert mail_of_a_stream_that_is_created_again(combining_writers) == b"<new>"


def test_if_incarnations_share_a_mailbox_the_new_stream_gets_old_mail(
    combining_writers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    box_of_all = f"mail/{uuid.uuid4().hex}"
    for place in ("tidemark.log.schema.mail.mail_pk", "tidemark.log.mailbox.mail_pk"):
        monkeypatch.setattr(place, lambda _incarnation, box: f"{box_of_all}/{box:016d}")
    assert b"<old>" in mail_of_a_stream_that_is_created_again(combining_writers)


def act_behind_the_post(process: Process, action: Callable[[], Any]) -> None:
    """Let `action` happen once the process's next mail is posted, before the process knows of it."""
    send, pending = process.dynamodb.send, [action]

    def acting(operation: str, body: bytes) -> tuple[int, bytes]:
        answer = send(operation, body)
        if operation == "PutItem" and b'"mail/' in body and pending:
            pending.pop()()
        return answer

    process.dynamodb.send = acting


def insert_before_first(process: Process, operation: str, action: Callable[[], Any]) -> None:
    """Let `action` happen just before the process's first call of `operation` is sent."""
    pending = [action]

    def act(sent: str) -> None:
        if sent == operation and pending:
            pending.pop()()

    before(process.dynamodb, act)
