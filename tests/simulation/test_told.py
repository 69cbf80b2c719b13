"""What the simulation found, told one by one: the smallest interleaving of each kind."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.buckets import new_bucket
from tests.simulation.memory import MemoryWorld
from tests.support import BYTES, HOUR_MS, Process, World, a_key, before
from tidemark.aws.retry import NoAnswer
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import BucketNotEmpty, OutcomeUnknown, SoftDeleted, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES
from tidemark.service.buckets import delete_bucket, describe_bucket
from tidemark.service.catalog import load_times
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.service.stores import Stores


@pytest.fixture
def world() -> World:
    return MemoryWorld()


def before_call(process: Process, operation: str, number: int, action: Callable[[], Any]) -> None:
    """Let `action` happen just before the process's call of `operation` of that number (from 1)."""
    calls = []

    def act(sent: str) -> None:
        if sent == operation:
            calls.append(sent)
            if len(calls) == number:
                action()

    before(process.dynamodb, act)


def test_a_large_append_to_a_re_created_stream_stays_when_the_old_log_is_reclaimed(world: World) -> None:
    """The writer still knows the deleted stream, and puts the body into S3 before it learns better. The
    body must not lie where the janitor removes everything an hour later."""
    writer, rival, key = world.process(), world.process(), a_key()
    writer.create(key)
    writer.append(key, b"old")
    delete(rival.stores, key)
    world.clock.advance(1)
    rival.create(key)
    body = b"~" * (INLINE_BYTES + 1)
    writer.append(key, body)
    world.clock.advance(2 * HOUR_MS)
    sweep(rival.stores)
    assert world.process().read_all(key) == body


def test_a_read_of_an_expired_stream_does_not_take_its_end_for_a_use(world: World) -> None:
    """Between the page and the look at the tail somebody ends the stream: the tombstone is dated now, and
    says nothing about when the stream was used."""
    reader, rival, key = world.process(), world.process(), a_key()
    rival.create(key, expiry=Expiry(ttl_seconds=10), body=b"old")
    world.clock.advance(60_000)
    before_call(reader, "Query", 2, lambda: rival.create(key))
    with pytest.raises(StreamNotFound):
        read(reader.stores, key, 0)


def test_an_offset_beyond_an_expired_stream_is_answered_as_every_other_one(world: World) -> None:
    """404, not 400: of a stream that is gone no offset is right or wrong."""
    writer, key = world.process(), a_key()
    writer.create(key, expiry=Expiry(ttl_seconds=10), body=b"old")
    world.clock.advance(60_000)
    for process in (world.process(), writer):
        with pytest.raises(StreamNotFound):
            read(process.stores, key, 99)


def test_a_stream_that_was_forked_and_deleted_meanwhile_is_gone_and_not_unknown(world: World) -> None:
    """410, not 404: what the stream's item said before the fork was made is no longer true."""
    reader, rival, key, fork = world.process(), world.process(), a_key(), a_key("fork")
    rival.create(key)

    def fork_and_delete() -> None:
        rival.fork(fork, key)
        delete(rival.stores, key)

    before_call(reader, "Query", 1, fork_and_delete)
    with pytest.raises(SoftDeleted):
        load_head(reader.stores, key)


@pytest.mark.parametrize("forked", ["before", "after"])
@pytest.mark.parametrize(
    ("ask", "query"),
    [
        (lambda stores, key: read(stores, key, 0), 1),
        (lambda stores, key: load_times(stores, key, 0), 1),
        (lambda stores, key: publish_snapshot(stores, key, PublishRequest(4, BYTES, b"")), 1),
        # The first query finds an old batch, so the second one looks whether the stream has expired.
        (lambda stores, key: publish_snapshot(stores, key, PublishRequest(1, BYTES, b"")), 2),
    ],
    ids=["read", "times", "publish", "publish, expiry"],
)
def test_forks_at_another_time_do_not_make_a_deleted_stream_gone(
    world: World, ask: Callable[[Stores, StreamKey], object], query: int, forked: str
) -> None:
    """404, not 410: the name was free. The forks were there only before the stream was deleted, or they are
    those of the next stream of that name."""
    reader, rival, key, fork = world.process(), world.process(), a_key(), a_key("fork")
    rival.create(key, expiry=Expiry(ttl_seconds=60), body=b"ab")
    if forked == "before":
        rival.fork(fork, key, expiry=Expiry(ttl_seconds=600))
    world.clock.advance(50_000)
    rival.append(key, b"cd")
    world.clock.advance(50_000)

    def delete_and_go_on() -> None:
        if forked == "before":
            delete(rival.stores, fork)
        delete(rival.stores, key)
        if forked == "after":
            rival.create(key, body=b"new")
            rival.fork(fork, key)

    before_call(reader, "Query", query, delete_and_go_on)
    with pytest.raises(StreamNotFound):
        ask(reader.stores, key)


class HeldBack:
    """Keeps the first write of a process to itself, as if the network had; `arrive` lets it go."""

    def __init__(self, process: Process) -> None:
        self._send = process.dynamodb.send
        self._held: list[tuple[str, bytes]] = []
        process.dynamodb.send = self._maybe_hold
        process.dynamodb.sleep = lambda _: None

    def _maybe_hold(self, operation: str, body: bytes) -> tuple[int, bytes]:
        if not self._held and operation not in {"GetItem", "Query"}:
            self._held.append((operation, body))
            raise NoAnswer("held back")
        return self._send(operation, body)

    def arrive(self) -> None:
        for operation, body in self._held:
            self._send(operation, body)


def test_a_bucket_whose_deletion_was_refused_is_not_deleted_later(world: World) -> None:
    """The first request for it may still be under way when the second is refused. It must not carry out
    what the client was told is refused; or the client is told that the outcome is unknown."""
    process, rival = world.process(), world.process()
    bucket = new_bucket(rival)
    key = StreamKey(bucket, "a")
    rival.create(key)
    held, refused = HeldBack(process), True
    try:
        delete_bucket(process.stores, bucket)
    except OutcomeUnknown:
        refused = False
    except BucketNotEmpty:
        pass
    delete(rival.stores, key)
    held.arrive()
    if refused:
        assert describe_bucket(rival.stores, bucket).streams == 0


@pytest.mark.parametrize("body", [b"", b"content"], ids=["empty", "with content"])
def test_a_creation_that_lost_a_race_does_not_land_after_the_winner(world: World, body: bytes) -> None:
    """Its first request is still under way when the second meets the winner and is answered. A token of the
    transaction is no help: DynamoDB remembers those that were carried out."""
    process, rival, key = world.process(), world.process(), a_key()
    held = HeldBack(process)
    for operation in ("PutItem", "TransactWriteItems"):
        before_call(process, operation, 2, lambda: rival.create(key, body=b"winner"))
    with suppress(OutcomeUnknown):
        assert not process.create(key, body=body).is_new
    world.clock.advance(1)
    delete(rival.stores, key)
    held.arrive()
    with pytest.raises(StreamNotFound):
        load_head(world.process().stores, key)
