"""The sweep removes what dead processes left, and keeps what living ones need."""

import json
from collections.abc import Iterator

import pytest

from tests.stack.engines import LocalServices
from tests.stack.environments import call_handler, load_handler, make_context
from tests.support import HOUR_MS, MINUTE_MS, World, make_world
from tests.wake.support import ROOT, deployed, make_queues, shared_sqs
from tidemark.log.due import TURN_MS
from tidemark.log.records import Waiter
from tidemark.log.waiters import all_waiters, put_waiter
from tidemark.wake.notifier import LAPSED_MS, ORPHAN_MS, QueuesSwept, sweep_queues
from tidemark.wake.queue import LIFE_MS

pytestmark = pytest.mark.each_engine


class Scene:
    """A table of its own, because a sweep goes through all of it."""

    def __init__(self, services: LocalServices) -> None:
        self.world: World = make_world(services)
        self.process, self.queues = self.world.process(), make_queues()
        self.clock = self.world.clock

    def wait(self, name: str, until_ms: int, url: str = "u") -> None:
        put_waiter(self.process.stores.table, Waiter(name, url, until_ms))

    def sweep(self, steps: int = 10**6) -> QueuesSwept:
        left = iter(range(steps))
        table = self.process.stores.table
        return sweep_queues(table, self.queues, self.clock(), lambda: next(left, None) is not None)

    def waiters(self) -> set[str]:
        return {waiter.incarnation for waiter in all_waiters(self.process.stores.table)}


@pytest.fixture
def scene(services: LocalServices) -> Iterator[Scene]:
    made = Scene(services)
    yield made
    for url in made.queues.all():
        made.queues.delete(url)


def test_a_queue_without_waiters_is_removed_once_it_is_old(scene: Scene) -> None:
    """A young one may belong to a process that has not registered yet."""
    url = scene.queues.create(scene.clock())
    scene.clock.advance(ORPHAN_MS - 1000)
    assert scene.sweep() == QueuesSwept()
    assert list(scene.queues.all()) == [url]
    scene.clock.advance(1000)
    assert scene.sweep() == QueuesSwept(queues=1)
    assert list(scene.queues.all()) == []


def test_a_queue_in_use_is_kept_however_old_it_is(scene: Scene) -> None:
    """Its registration is renewed long before the sweep would remove it."""
    url = scene.queues.create(scene.clock())
    scene.clock.advance(HOUR_MS)
    scene.wait("living", scene.clock() + LIFE_MS, url)
    assert scene.sweep().queues == 0
    scene.clock.advance(LIFE_MS)
    assert scene.sweep().queues == 1
    assert LIFE_MS + MINUTE_MS < ORPHAN_MS


def test_queues_of_another_system_are_kept(scene: Scene) -> None:
    """Two systems in one account have queues with different prefixes, and a queue's name must have the right
    form."""
    foreign = [
        make_queues().create(scene.clock()),
        shared_sqs().create_queue(QueueName=f"{scene.queues._prefix}orders")["QueueUrl"],
    ]
    scene.clock.advance(HOUR_MS)
    assert scene.sweep() == QueuesSwept()
    for url in foreign:
        shared_sqs().delete_queue(QueueUrl=url)


def test_lapsed_waiters_are_removed_if_dynamodb_has_not_removed_them(scene: Scene) -> None:
    """Removing them costs a write; DynamoDB's own expiry does not."""
    scene.queues.create(scene.clock() - ORPHAN_MS)
    for name, ms in (("just lapsed", 1 - LAPSED_MS), ("long lapsed", -LAPSED_MS), ("standing", LIFE_MS)):
        scene.wait(name, scene.clock() + ms)
    assert scene.sweep().waiters == 1
    assert scene.waiters() == {"just lapsed", "standing"}


def test_a_sweep_can_stop_at_any_point_and_be_repeated(scene: Scene) -> None:
    for number in range(5):
        scene.queues.create(scene.clock())
        scene.wait(f"old-{number}", scene.clock() - 2 * HOUR_MS)
    scene.clock.advance(HOUR_MS)
    assert scene.sweep(steps=3) == QueuesSwept(waiters=3)
    assert scene.sweep() == QueuesSwept(waiters=2, queues=5)


def test_while_there_is_no_old_queue_the_waiters_are_read_in_turn(scene: Scene) -> None:
    """Each round of an idle stack would else pay for all 64 shards of them."""
    scene.queues.create(scene.clock())
    scene.wait("lapsed", scene.clock() - LAPSED_MS)
    scene.process.calls.taken()
    swept = 0
    for _ in range(64):
        swept += scene.sweep().waiters
        scene.clock.advance(TURN_MS)
    assert swept == 1
    assert scene.process.calls.taken() == {"Query": 64, "DeleteItem": 1}
    rounds = {number * 5 * MINUTE_MS // TURN_MS % 64 for number in range(200)}
    assert len(rounds) == 64, "the schedule reaches all"


def test_the_janitor_function_removes_lapsed_queues(scene: Scene) -> None:
    """The function as it is deployed, by the real clock."""
    scene.wait("ancient", 1_000_000)
    scene.queues.create(1_000_000)
    function = deployed(scene.world, "JanitorFunction", scene.queues._prefix)
    event = (ROOT / "events" / "janitor-schedule.json").read_bytes()
    answer = json.loads(call_handler(function, load_handler(function), event, make_context(function)))
    assert (answer["queues"], answer["waiters"]) == (1, 1)
    assert list(scene.queues.all()) == []
    assert scene.waiters() == set()
