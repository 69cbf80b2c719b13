"""A write whose reply is lost is sent again, meets what it has left itself, and knows that it has landed.

Each life of `tests/faults/lives.py` is lived twice, step by step: once undisturbed, and once with the first
reply to every single write lost. Nobody may see a difference.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import orjson
import pytest

from tests.buckets import objects
from tests.faults.lives import LIVES, WRITES, Life
from tests.stack.engines import LocalServices
from tests.subscriptions.scene import Scene
from tests.support import Process, World, create_request, items_left, make_world
from tidemark.aws.retry import NoAnswer
from tidemark.log.records import BucketRecord
from tidemark.protocol import errors
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.buckets import create_bucket, delete_bucket
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import SubscriptionConfiguration, SubscriptionKind
from tidemark.subscriptions.lifecycle import subscribe, unsubscribe


def lose_replies(process: Process, then: Callable[[], object] = lambda: None, writes: float = inf) -> None:
    """The first try of each of so many writes is carried out, and `then` something else happens. The next try
    is sent as if the ten minutes were over for which DynamoDB remembers a transaction by its token."""
    send = process.dynamodb.send
    unanswered: set[bytes] = set()
    left = writes

    def losing(operation: str, body: bytes) -> tuple[int, bytes]:
        nonlocal left
        if operation in WRITES and body not in unanswered and left > 0:
            left -= 1
            unanswered.add(body)
            send(operation, body)
            then()
            raise NoAnswer("injected")
        if operation == "TransactWriteItems" and body in unanswered:
            body = orjson.dumps(orjson.loads(body) | {"ClientRequestToken": secrets.token_hex(18)})
        return send(operation, body)

    process.dynamodb.send = losing
    process.dynamodb.sleep = lambda _: None


def shape(seen: list[Any], names: dict[str, str]) -> list[Any]:
    """Without what is random: an incarnation is named after its place among those seen so far."""

    def named(incarnation: str) -> str:
        return names.setdefault(incarnation, f"incarnation {len(names)}")

    def plain(each: Any) -> Any:
        if isinstance(each, BucketRecord):
            return replace(each, bucket="a bucket", creation_id=named(each.creation_id))
        return (named(each[0]), *each[1:]) if isinstance(each, tuple) else each

    return [plain(each) for each in seen]


@pytest.fixture
def other_world(services: LocalServices) -> World:
    return make_world(services)


@pytest.mark.parametrize("name", list(LIVES))
def test_nobody_sees_that_each_reply_to_a_write_is_lost(world: World, other_world: World, name: str) -> None:
    calm, troubled = Life(world.process(), world), Life(other_world.process(), other_world)
    lose_replies(troubled.process)
    names: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for number, step in enumerate(LIVES[name]):
        seen = []
        for life, own in zip((calm, troubled), names, strict=True):
            # A creation that meets what was made or ended at the same moment could not tell whether it was
            # there first.
            life.world.clock.advance(1)
            step(life)
            # The janitor's queue may have an entry more: it looks for itself whether there is anything to do.
            items = sum(not partition.startswith("due/") for partition, _ in life.table())
            blobs = len(objects(life.process, life.world, ""))
            seen.append([items, blobs, *shape(life.visible(), own)])
        assert seen[1] == seen[0], f"step {number}: {step}"


# --- where others came between the tries, nobody can tell any more whether the first one was carried out ---


KEY = StreamKey(PLAIN_BUCKET, "between")


def make(stores: Stores) -> None:
    create_bucket(stores, "between")


def remove(stores: Stores) -> None:
    delete_bucket(stores, "between")


def follow(stores: Stores) -> None:
    subscribe(
        stores, "between", SubscriptionConfiguration(SubscriptionKind.PULL_WAKE, "a/*", wake_stream="pool")
    )


def begin(stores: Stores) -> None:
    create(stores, KEY, create_request())


def end(stores: Stores) -> None:
    delete(stores, KEY)


Step = Callable[[Stores], object]
UNKNOWN: dict[str, tuple[list[Step], Step, list[Step]]] = {
    "the new stream was replaced": ([], begin, [end, begin]),
    "the new stream was replaced, and that one deleted": ([], begin, [end, begin, end]),
    "the new bucket was deleted": ([], make, [remove]),
    "the new bucket was replaced": ([], make, [remove, make]),
    "the deleted bucket was made again": ([make], remove, [make]),
    "the deleted bucket was made again and deleted": ([make], remove, [make, remove]),
    "the new subscription was deleted": ([], follow, [partial(unsubscribe, subscription_id="between")]),
}
KNOWN: dict[str, tuple[list[Step], Step, type[Exception]]] = {
    "the bucket was there long before": ([make], make, errors.BucketExists),
    "there was no bucket": ([], remove, errors.BucketNotFound),
    "the bucket was deleted long before": ([make, remove], remove, errors.BucketNotFound),
}


def lived(world: World, steps: list[Step]) -> None:
    for step in steps:
        world.clock.advance(1)
        step(world.process().stores)


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_answer_is_not_made_up_where_others_came_between(world: World, case: str) -> None:
    before, step, between = UNKNOWN[case]
    lived(world, before)
    life = Life(world.process(), world)
    lose_replies(life.process, lambda: lived(world, between), writes=1)
    world.clock.advance(1)
    with pytest.raises(errors.OutcomeUnknown):
        step(life.process.stores)


@pytest.mark.parametrize("body", [b"", b"content"])
def test_a_creation_that_is_deleted_before_its_retry_is_not_made_twice(world: World, body: bytes) -> None:
    life = Life(world.process(), world)
    lose_replies(life.process, lambda: lived(world, [end]), writes=1)
    assert life.process.create(KEY, body=body).is_new
    rival = world.process()
    with pytest.raises(errors.StreamNotFound):
        rival.append(KEY, b"x")
    assert [item["pk"]["S"] for item in items_left(rival) if item["pk"]["S"].startswith("bucket/")] == []


def test_a_worker_has_what_it_claimed_and_what_it_answered(world: World) -> None:
    scene = Scene(world)
    scene.begin()
    scene.news()
    lose_replies(scene.worker)
    scene.ack(scene.claim())
    with pytest.raises(errors.NoPendingWork):
        scene.claim()


@pytest.mark.parametrize("case", KNOWN)
def test_a_refusal_whose_reply_was_lost_is_one_still(world: World, case: str) -> None:
    before, step, refusal = KNOWN[case]
    lived(world, before)
    life = Life(world.process(), world)
    lose_replies(life.process)
    world.clock.advance(1)
    with pytest.raises(refusal):
        step(life.process.stores)
