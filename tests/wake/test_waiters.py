"""Registrations and waiters: few writes while a reader waits, and nothing left behind."""

import threading
import uuid
from dataclasses import dataclass

import pytest

from tests.support import Process, World
from tidemark.log.records import Waiter
from tidemark.log.schema import encode_waiter
from tidemark.log.table import Table
from tidemark.log.waiters import all_waiters, load_waiters, put_waiter, remove_lapsed, remove_waiters
from tidemark.wake.follow import Hub
from tidemark.wake.queue import FAST_NEWS, LIFE_MS, MOST_POLLING, QUIET_MS, RENEW_MS, Waiters

pytestmark = pytest.mark.each_engine

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/tidemark-wake-1"


@dataclass
class Scene:
    """A process, and what its registry has written."""

    process: Process

    def __post_init__(self) -> None:
        self.clock = self.process.stores.clock_ms
        self.table: Table = self.process.stores.table
        hub, self.begun = Hub(), list[str]()
        hub.wake_all = self.begun.append  # type: ignore[method-assign,assignment]
        self.own = Waiters(self.table, self.clock, hub)
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


def test_a_registration_whose_write_failed_is_written_again(scene: Scene, world: World) -> None:
    """Otherwise a reader would wait for messages that nobody sends."""

    def refuse(operation: str, body: bytes) -> tuple[int, bytes]:
        raise ConnectionError

    dynamodb = scene.process.dynamodb
    send, dynamodb.send = dynamodb.send, refuse
    for polls in (False, True, False):
        dynamodb.send = refuse
        with pytest.raises(ConnectionError):
            scene.own.ensure("failed", URL)
        dynamodb.send = send
        assert scene.own.ensure("failed", URL) is polls
        assert [waiter.polls for waiter in scene.waiters("failed")] == [polls]
        if polls:
            world.clock.advance(QUIET_MS)
        else:
            read_at(scene, world, "failed", *[0] * (FAST_NEWS - 1))
            scene.own._registrations["failed", URL].news_ms.append(scene.clock())


def read_at(scene: Scene, world: World, name: str, *after_ms: int | str) -> bool:
    """Make reads these milliseconds apart, which find data; a text's read finds none."""
    found = scene.own._registrations.get((name, URL))
    polls, offset = False, found.offset if found else -1
    for ms in after_ms:
        offset += isinstance(ms, int)
        world.clock.advance(int(ms))
        polls = scene.own.ensure(name, URL, offset)
    return polls


@pytest.mark.parametrize(
    ("after_ms", "polls", "calls"),
    [
        pytest.param((0, 0, 0), False, {"PutItem": 1}, id="twice, after the first read"),
        pytest.param((0, 0, 0, 0), True, {"PutItem": 2, "Query": 1}, id="in one millisecond"),
        pytest.param((0, 9, 750, 750), True, {"PutItem": 2, "Query": 1}, id="in a second and a half"),
        pytest.param((0, 9, 750, 751, 750), False, {"PutItem": 1}, id="slower"),
        pytest.param((0, 9, *["0"] * 9), False, {"PutItem": 1}, id="reads that find nothing"),
        pytest.param((*[0] * 4, 1400, 1400, "1499"), True, {"PutItem": 2, "Query": 1}, id="goes on"),
        pytest.param((*[0] * 4, "1500"), False, {"PutItem": 3, "Query": 1}, id="falls quiet"),
        pytest.param((*[0] * 4, "1500", 0, 0), False, {"PutItem": 3, "Query": 1}, id="begins again"),
        pytest.param((*[0] * 4, -5000, "9000"), False, {"PutItem": 3, "Query": 1}, id="clock set back"),
    ],
)
def test_a_process_polls_while_data_come_fast(
    scene: Scene, world: World, after_ms: tuple[int | str, ...], polls: bool, calls: dict[str, int]
) -> None:
    """The registration shows the polls, so that no message is sent. Waiting readers are woken once."""
    name = uuid.uuid4().hex
    assert read_at(scene, world, name, *after_ms) is polls
    assert scene.process.calls.taken() == calls
    assert [waiter.polls for waiter in scene.waiters(name)] == [polls]
    assert scene.begun == [name] * calls.get("Query", 0)


def test_a_crowd_does_not_poll_and_is_counted_once_in_half_a_life(scene: Scene, world: World) -> None:
    for number in range(MOST_POLLING):
        put_waiter(scene.table, Waiter("crowd", f"{URL}{number}", scene.clock() + LIFE_MS, polls=True))
    scene.process.calls.taken()
    assert not read_at(scene, world, "crowd", *[0] * 20)
    assert scene.process.calls.taken() == {"PutItem": 1, "Query": 1}
    world.clock.advance(LIFE_MS)
    assert read_at(scene, world, "crowd", *[0] * 4), "the others have left"


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
