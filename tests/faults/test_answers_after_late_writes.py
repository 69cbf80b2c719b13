"""What a use case answers when it meets a write that came late, or the work of a clock that is ahead."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from tests.faults.lives import (
    Life,
    a_moment,
    append,
    create_for_ten_minutes,
    create_plain,
    delete_it,
    make_a_bucket,
    read_it,
    remove_the_bucket,
)
from tests.support import MINUTE_MS, World, items_left
from tidemark.aws.retry import NoAnswer
from tidemark.log.schema import stream_key
from tidemark.protocol.errors import (
    BucketNotFound,
    OutcomeUnknown,
    StreamNotFound,
)
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket
from tidemark.service.delete import delete


def lose_the_reply(life: Life, operation: str, then: Callable[[], object]) -> None:
    """The next call of this operation is carried out; its reply is lost, and something else happens
    before it is sent again."""
    pending = [then]
    send = life.process.dynamodb.send

    def losing(sent: str, body: bytes) -> tuple[int, bytes]:
        answer = send(sent, body)
        if sent == operation and pending:
            pending.pop()()
            raise NoAnswer("injected")
        return answer

    life.process.dynamodb.send = losing


@pytest.mark.parametrize("body", [b"", b"content"])
def test_a_creation_that_landed_and_was_deleted_before_its_retry_is_not_made_twice(
    world: World, body: bytes
) -> None:
    life, rival = Life(world.process(), world), world.process()
    operation = "TransactWriteItems" if body else "PutItem"
    lose_the_reply(life, operation, lambda: delete(rival.stores, life.key))
    assert life.process.create(life.key, body=body).is_new
    with pytest.raises(StreamNotFound):
        rival.append(life.key, b"x")
    assert [item["pk"]["S"] for item in items_left(rival) if item["pk"]["S"].startswith("bucket/")] == []


def test_a_creation_does_not_say_200_where_its_own_stream_may_have_been_replaced(world: World) -> None:
    """Its stream landed, was deleted, and another one was created: nobody can tell any more what the
    retry of the creation should answer, so it says so."""
    life, rival = Life(world.process(), world), world.process()

    def replace_it() -> None:
        world.clock.advance(1)
        delete(rival.stores, life.key)
        world.clock.advance(1)
        rival.create(life.key)

    lose_the_reply(life, "PutItem", replace_it)
    with pytest.raises(OutcomeUnknown):
        life.process.create(life.key)


def test_a_creation_by_a_slow_clock_finds_the_name_free(world: World) -> None:
    """The deletion is dated by a clock that is ahead: the creation is dated behind it."""
    fast = world.process(clock=lambda: world.clock() + 5_000)
    life = Life(world.process(), world)
    fast.create(life.key)
    delete(fast.stores, life.key)
    assert life.process.create(life.key).is_new
    assert life.process.create(life.key).is_new is False


def test_a_bucket_by_a_slow_clock_is_created_and_deleted(world: World) -> None:
    fast, slow = world.process(clock=lambda: world.clock() + 5_000), world.process()
    name = f"skewed-{secrets.token_hex(4)}"
    for _ in range(2):
        create_bucket(fast.stores, name)
        delete_bucket(slow.stores, name)
        create_bucket(slow.stores, name)
        delete_bucket(fast.stores, name)


def test_a_bucket_deletion_whose_reply_was_lost_has_deleted_it(world: World) -> None:
    life = Life(world.process(), world)
    make_a_bucket(life)
    a_moment(life)
    lose_the_reply(life, "PutItem", lambda: None)
    remove_the_bucket(life)
    with pytest.raises(BucketNotFound):
        describe_bucket(life.process.stores, life.notes["bucket"])


def test_a_renewal_that_lands_late_does_not_shorten_a_streams_life(world: World) -> None:
    """Two reads renew; the first one's write lands once more, after the second one's."""
    life = Life(world.process(), world)
    create_for_ten_minutes(life)
    for _ in range(2):
        world.clock.advance(5 * MINUTE_MS)
        read_it(life)
    renewals = [sent for sent in life.recorded if sent[0] == "UpdateItem"]
    assert len(renewals) == 2
    life.repeat(renewals[0])
    world.clock.advance(8 * MINUTE_MS)
    read_it(life)


def test_a_stream_whose_item_came_late_does_not_block_its_name(world: World) -> None:
    """The item of a stream whose log has ended, as a version without end marks may have left it: the
    next creation takes its place."""
    life = Life(world.process(), world)
    create_plain(life)
    item = life.process.stores.table.get(stream_key(life.key))
    assert item is not None
    delete_it(life)
    life.process.stores.table.put(item)
    with pytest.raises(StreamNotFound):
        append(life)
    assert life.process.create(life.key).is_new
    append(life)
