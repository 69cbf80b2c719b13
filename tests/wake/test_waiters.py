"""Registrations and waiters: few writes while a reader waits, and nothing left behind."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from tests.support import Process, World
from tidemark.log.records import Waiter
from tidemark.log.schema import encode_waiter
from tidemark.log.table import Table
from tidemark.log.waiters import all_waiters, load_waiters, put_waiter, remove_lapsed, remove_waiters
from tidemark.wake.queue import LIFE_MS, RENEW_MS, Waiters

pytestmark = pytest.mark.each_engine

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/tidemark-wake-1"


@dataclass
class Scene:
    """A process, and what its registry has written."""

    process: Process

    def __post_init__(self) -> None:
        self.clock = self.process.stores.clock_ms
        self.table: Table = self.process.stores.table
        self.own = Waiters(self.table, self.clock)
        self.process.calls.taken()

    def waiters(self, incarnation: str) -> list[Waiter]:
        return load_waiters(self.table, incarnation, self.clock())

    def stored(self, prefix: str) -> set[Waiter]:
        """Those that have lapsed, too."""
        return {each for each in all_waiters(self.table) if each.incarnation.startswith(prefix)}


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world.process())


def test_a_registration_is_one_write_for_all_readers_of_a_stream(scene: Scene) -> None:
    """However many of them register, and from however many threads."""
    threads = [threading.Thread(target=scene.own.ensure, args=("many", URL)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scene.process.calls.taken() == {"PutItem": 1}
    assert scene.waiters("many") == [Waiter("many", URL, scene.clock() + LIFE_MS)]


def test_a_registration_is_renewed_after_half_of_its_life(scene: Scene, world: World) -> None:
    """So a minute of waiting costs two writes at most, and no registration lapses while a reader waits."""
    scene.own.ensure("renewed", URL)
    world.clock.advance(RENEW_MS - 1)
    scene.own.ensure("renewed", URL)
    assert scene.process.calls.taken() == {"PutItem": 1}
    world.clock.advance(1)
    scene.own.ensure("renewed", URL)
    assert scene.process.calls.taken() == {"PutItem": 1}
    assert scene.waiters("renewed") == [Waiter("renewed", URL, scene.clock() + LIFE_MS)]


def test_a_new_queue_is_registered_at_once(scene: Scene) -> None:
    """A process whose queue is gone registers the one that it has created instead."""
    for url in (URL, URL + "1"):
        scene.own.ensure("moved", url)
    assert {waiter.address for waiter in scene.waiters("moved")} == {URL, URL + "1"}


def test_a_lapsed_registration_is_written_again_and_forgotten(scene: Scene, world: World) -> None:
    """The wall clock decides: a frozen process goes on minutes later. One that serves a million streams,
    one after another, does not remember them all."""
    names = [f"lapsed-{number}" for number in range(100)]
    for name in names:
        scene.own.ensure(name, URL)
    world.clock.advance(LIFE_MS)
    assert scene.waiters(names[0]) == []
    scene.own.ensure(names[0], URL)
    assert len(scene.waiters(names[0])) == 1
    assert len(scene.own._registrations) == 1


def test_a_process_that_ends_removes_its_registrations(scene: Scene) -> None:
    for number in range(60):
        scene.own.ensure(f"withdrawn-{number}", URL)
    scene.own.withdraw()
    assert scene.stored("withdrawn") == set()


def test_a_registration_whose_write_failed_is_written_again(scene: Scene) -> None:
    """Otherwise a reader would wait for messages that nobody sends."""

    def refuse(operation: str, body: bytes) -> tuple[int, bytes]:
        raise ConnectionError

    dynamodb = scene.process.dynamodb
    send, dynamodb.send = dynamodb.send, refuse
    with pytest.raises(ConnectionError):
        scene.own.ensure("failed", URL)
    dynamodb.send = send
    scene.own.ensure("failed", URL)
    assert len(scene.waiters("failed")) == 1


def test_the_waiters_of_a_stream_are_its_own_that_have_not_lapsed(scene: Scene) -> None:
    """Streams share partitions, and one name may begin with another. A sweep finds the lapsed ones, too."""
    now = scene.clock()
    put = {Waiter(name, URL, now + 1) for name in ("name", "name-", "name0", "nam", "name_", "nameA")}
    put |= {Waiter("name", URL + "lapsed", now)} | {Waiter(f"name-{n}", URL, now - n) for n in range(200)}
    for waiter in put:
        put_waiter(scene.table, waiter)
    assert scene.waiters("name") == [Waiter("name", URL, now + 1)]
    assert scene.stored("nam") == put


def test_many_waiters_are_found_page_by_page(scene: Scene, world: World) -> None:
    """A query returns a megabyte at most; a thousand processes may wait at one stream."""
    long_url = URL + "x" * 800
    put = [Waiter("paged", f"{long_url}{number:04}", scene.clock() + 1) for number in range(1500)]
    for start in range(0, len(put), 25):
        requests = [{"PutRequest": {"Item": encode_waiter(waiter)}} for waiter in put[start : start + 25]]
        scene.process.dynamodb.call("BatchWriteItem", {"RequestItems": {world.table_name: requests}})
    scene.process.calls.taken()
    assert scene.waiters("paged") == put
    assert scene.process.calls.taken()["Query"] > 1
    remove_waiters(scene.table, put)
    assert scene.waiters("paged") == []


def test_a_waiter_that_was_renewed_meanwhile_is_not_removed(scene: Scene) -> None:
    """The sweep has read it as lapsed; its process has renewed it since."""
    lapsed, renewed = (Waiter("race", URL, scene.clock() + ms) for ms in (-1, LIFE_MS))
    put_waiter(scene.table, renewed)
    remove_lapsed(scene.table, lapsed)
    put_waiter(scene.table, lapsed)
    assert scene.waiters("race") == [renewed], "one that lands late does not shorten it"
    remove_lapsed(scene.table, renewed)
    assert scene.stored("race") == set()
