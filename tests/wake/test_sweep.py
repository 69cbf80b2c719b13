"""The sweep removes what dead processes left, and keeps what living ones need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import HOUR_MS, MINUTE_MS, Process, World, make_world
from tests.wake.support import ROOT, make_prefix, make_queues, shared_sqs, template
from tidemark.aws.sqs import Queues
from tidemark.janitor.backstops import LAPSED_MS, ORPHAN_MS, WakeSwept, sweep_wake
from tidemark.local.engines import LocalServices
from tidemark.local.environments import call_handler, load_handler, make_context
from tidemark.log.records import Waiter
from tidemark.log.waiters import all_waiters, put_waiter
from tidemark.wake.wake import LIFE_MS


@pytest.fixture
def world(services: LocalServices) -> World:
    """A sweep goes through the whole table: one for each test."""
    return make_world(services)


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


@pytest.fixture
def queues(world: World) -> Iterator[Queues]:
    queues = make_queues()
    yield queues
    for url in queues.all():
        queues.delete(url)


def sweep(process: Process, queues: Queues) -> WakeSwept:
    return sweep_wake(process.stores.table, queues, process.stores.clock_ms())


def left(process: Process) -> set[str]:
    return {waiter.incarnation for waiter in all_waiters(process.stores.table)}


def test_a_queue_without_waiters_is_removed_once_it_is_old(
    process: Process, world: World, queues: Queues
) -> None:
    """A young one may belong to a process that has not registered yet."""
    url = queues.create(world.clock())
    world.clock.advance(ORPHAN_MS - 1000)
    assert sweep(process, queues) == WakeSwept()
    assert list(queues.all()) == [url]
    world.clock.advance(1000)
    assert sweep(process, queues) == WakeSwept(queues=1)
    assert list(queues.all()) == []


def test_a_queue_in_use_is_kept_however_old_it_is(process: Process, world: World, queues: Queues) -> None:
    url = queues.create(world.clock())
    world.clock.advance(HOUR_MS)
    put_waiter(process.stores.table, Waiter("living", url, world.clock() + LIFE_MS))
    assert sweep(process, queues).queues == 0
    world.clock.advance(LIFE_MS)
    assert sweep(process, queues).queues == 1


def test_queues_of_another_system_are_kept(process: Process, world: World, queues: Queues) -> None:
    """Two systems in one account have queues with different prefixes, and a queue's name must have the right
    form."""
    other = make_queues(make_prefix())
    foreign = [
        other.create(world.clock()),
        shared_sqs().create_queue(QueueName=f"{queues._prefix}orders")["QueueUrl"],
    ]
    world.clock.advance(HOUR_MS)
    assert sweep(process, queues) == WakeSwept()
    for url in foreign:
        shared_sqs().delete_queue(QueueUrl=url)


def test_lapsed_waiters_are_removed_if_dynamodb_has_not_removed_them(
    process: Process, world: World, queues: Queues
) -> None:
    """Removing them costs a write; DynamoDB's own expiry does not."""
    now = world.clock()
    put_waiter(process.stores.table, Waiter("just-lapsed", "u", now - LAPSED_MS + 1))
    put_waiter(process.stores.table, Waiter("long-lapsed", "u", now - LAPSED_MS))
    put_waiter(process.stores.table, Waiter("standing", "u", now + LIFE_MS))
    assert sweep(process, queues).waiters == 1
    assert left(process) >= {"just-lapsed", "standing"}
    assert "long-lapsed" not in left(process)


def test_a_sweep_can_stop_at_any_point_and_be_repeated(
    process: Process, world: World, queues: Queues
) -> None:
    for number in range(5):
        queues.create(world.clock())
        put_waiter(process.stores.table, Waiter(f"old-{number}", "u", world.clock() - 2 * HOUR_MS))
    world.clock.advance(HOUR_MS)
    steps = iter([True] * 3)
    swept = sweep_wake(process.stores.table, queues, world.clock(), lambda: next(steps, False))
    assert (swept.waiters, swept.queues) == (3, 0)
    assert sweep(process, queues) == WakeSwept(waiters=2, queues=5)
    assert sweep(process, queues) == WakeSwept()


def test_a_sweep_costs_the_same_however_many_streams_there_are(
    process: Process, world: World, queues: Queues
) -> None:
    """One query for each partition of waiters, whatever else is in the table."""
    process.calls.taken()
    sweep(process, queues)
    assert process.calls.taken() == {"Query": 64}


def test_the_janitor_function_removes_lapsed_queues(world: World, queues: Queues) -> None:
    """The function as it is deployed, by the real clock."""
    process = world.process()
    put_waiter(process.stores.table, Waiter("ancient", "u", 1_000_000))
    orphan = queues.create(1_000_000)
    variables = {
        "TABLE_NAME": world.table_name,
        "BUCKET_NAME": world.bucket_name,
        "QUEUE_PREFIX": queues._prefix,
    }
    function = replace(template().functions["JanitorFunction"], variables=variables)
    event = (ROOT / "events" / "janitor-schedule.json").read_bytes()
    answer = json.loads(call_handler(function, load_handler(function), event, make_context(function)))
    assert answer["queues"] == 1
    assert answer["waiters"] >= 1
    assert orphan not in list(queues.all())
    assert "ancient" not in left(process)


def test_no_living_process_can_lose_its_queue() -> None:
    """A registration is renewed long before the sweep would remove its queue."""
    assert LIFE_MS + MINUTE_MS < ORPHAN_MS
