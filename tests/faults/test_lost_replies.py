"""A write whose reply is lost is sent again, meets what it has left itself, and knows that it has landed.

Each life of `tests/faults/lives.py` is lived twice, step by step: once undisturbed, and once with the first
reply to every single write lost. Nobody may see a difference.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.faults.lives import LIVES, WRITES, Life
from tests.support import World, make_world
from tidemark.aws.retry import NoAnswer
from tidemark.local.engines import LocalServices
from tidemark.log.records import BucketRecord


def lose_the_reply_to_each_write(life: Life) -> None:
    """Its first try is carried out. The second one is sent as if the ten minutes were over for which DynamoDB
    remembers a transaction by its token."""
    send = life.process.dynamodb.send
    unanswered: set[bytes] = set()

    def losing(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation not in WRITES:
            return send(operation, body)
        if body not in unanswered:
            unanswered.add(body)
            send(operation, body)
            raise NoAnswer("injected")
        unanswered.remove(body)
        if operation == "TransactWriteItems":
            body = orjson.dumps(orjson.loads(body) | {"ClientRequestToken": secrets.token_hex(18)})
        return send(operation, body)

    life.process.dynamodb.send = losing
    life.process.dynamodb.sleep = lambda _: None


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
def test_nobody_sees_that_the_reply_to_each_write_was_lost(
    world: World, other_world: World, name: str
) -> None:
    calm, troubled = Life(world.process(), world), Life(other_world.process(), other_world)
    lose_the_reply_to_each_write(troubled)
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
            seen.append([items, *shape(life.visible(), own)])
        assert seen[1] == seen[0], f"step {number}: {step}"
