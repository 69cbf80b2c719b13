"""Registrations and waiters: few writes while a reader waits, and nothing left behind."""

from __future__ import annotations

import threading

import pytest

from tests.support import Process, World
from tidemark.log.records import Waiter
from tidemark.log.schema import decode_waiter, encode_waiter
from tidemark.log.waiters import all_waiters, load_waiters, put_waiter, remove_lapsed, remove_waiters
from tidemark.wake.wake import LIFE_MS, RENEW_MS, Registry

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/tidemark-wake-1"


@pytest.fixture
def process(world: World) -> Process:
    process = world.process()
    process.calls.taken()
    return process


def registry(process: Process) -> Registry:
    return Registry(process.stores.table, process.stores.clock_ms)


def test_a_registration_is_one_write_for_all_readers_of_a_stream(process: Process) -> None:
    """However many of them register, and from however many threads."""
    registered = registry(process)
    threads = [threading.Thread(target=registered.ensure, args=("many", URL)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.calls.taken() == {"PutItem": 1}
    [waiter] = load_waiters(process.stores.table, "many", process.stores.clock_ms())
    assert waiter == Waiter("many", URL, process.stores.clock_ms() + LIFE_MS)


def test_a_registration_is_renewed_after_half_of_its_life(process: Process, world: World) -> None:
    """So a minute of waiting costs two writes at most, and no registration lapses while a reader waits."""
    registered = registry(process)
    registered.ensure("renewed", URL)
    world.clock.advance(RENEW_MS - 1)
    registered.ensure("renewed", URL)
    assert process.calls.taken() == {"PutItem": 1}
    world.clock.advance(1)
    registered.ensure("renewed", URL)
    assert process.calls.taken() == {"PutItem": 1}
    [waiter] = load_waiters(process.stores.table, "renewed", world.clock())
    assert waiter.until_ms == world.clock() + LIFE_MS


def test_a_new_queue_is_registered_at_once(process: Process, world: World) -> None:
    """A process whose queue is gone registers the one that it has created instead."""
    registered = registry(process)
    registered.ensure("moved", URL)
    registered.ensure("moved", URL + "1")
    assert {waiter.queue_url for waiter in load_waiters(process.stores.table, "moved", world.clock())} == {
        URL,
        URL + "1",
    }


def test_a_registration_that_lapsed_during_a_freeze_is_written_again(process: Process, world: World) -> None:
    """The wall clock decides: a frozen process goes on minutes later."""
    registered = registry(process)
    registered.ensure("frozen", URL)
    world.clock.advance(10 * LIFE_MS)
    assert load_waiters(process.stores.table, "frozen", world.clock()) == []
    registered.ensure("frozen", URL)
    assert len(load_waiters(process.stores.table, "frozen", world.clock())) == 1


def test_lapsed_registrations_are_forgotten(process: Process, world: World) -> None:
    """A process that serves a million streams, one after another, does not remember them all."""
    registered = registry(process)
    for number in range(100):
        registered.ensure(f"lapsed-{number}", URL)
    world.clock.advance(LIFE_MS)
    registered.ensure("last", URL)
    assert len(registered._registrations) == 1


def test_a_process_that_ends_removes_its_registrations(process: Process, world: World) -> None:
    registered = registry(process)
    for number in range(60):
        registered.ensure(f"withdrawn-{number}", URL)
    registered.withdraw()
    assert [
        each for each in all_waiters(process.stores.table) if each.incarnation.startswith("withdrawn")
    ] == []


def test_a_registration_whose_write_failed_is_written_again(process: Process) -> None:
    """Otherwise a reader would wait for messages that nobody sends."""
    registered = registry(process)

    def refuse(operation: str, body: bytes) -> tuple[int, bytes]:
        raise ConnectionError

    send, process.dynamodb.send = process.dynamodb.send, refuse
    with pytest.raises(ConnectionError):
        registered.ensure("failed", URL)
    process.dynamodb.send = send
    registered.ensure("failed", URL)
    assert len(load_waiters(process.stores.table, "failed", process.stores.clock_ms())) == 1


def test_the_waiters_of_a_stream_are_its_own_that_have_not_lapsed(process: Process, world: World) -> None:
    """Streams share partitions, and one name may begin with another."""
    table, now = process.stores.table, world.clock()
    for incarnation in ("name", "name-", "name0", "nam", "name_", "nameA"):
        put_waiter(table, Waiter(incarnation, URL, now + 1))
    put_waiter(table, Waiter("name", URL + "lapsed", now))
    assert load_waiters(table, "name", now) == [Waiter("name", URL, now + 1)]


def test_a_sweep_finds_all_waiters_including_lapsed_ones(process: Process, world: World) -> None:
    table = process.stores.table
    put = {Waiter(f"found-{number}", URL, world.clock() - number) for number in range(200)}
    for waiter in put:
        put_waiter(table, waiter)
    assert {each for each in all_waiters(table) if each.incarnation.startswith("found-")} == put


def test_many_waiters_are_found_page_by_page(process: Process, world: World) -> None:
    """A query returns a megabyte at most; a thousand processes may wait at one stream."""
    table = process.stores.table
    long_url = URL + "x" * 800
    put = [Waiter("paged", f"{long_url}{number:04}", world.clock() + 1) for number in range(1500)]
    for start in range(0, len(put), 25):
        requests = [{"PutRequest": {"Item": encode_waiter(waiter)}} for waiter in put[start : start + 25]]
        process.dynamodb.call("BatchWriteItem", {"RequestItems": {world.table_name: requests}})
    process.calls.taken()
    assert load_waiters(table, "paged", world.clock()) == put
    assert process.calls.taken()["Query"] > 1
    remove_waiters(table, put)
    assert load_waiters(table, "paged", world.clock()) == []


def test_a_waiter_that_was_renewed_meanwhile_is_not_removed(process: Process, world: World) -> None:
    """The sweep has read it as lapsed; its process has renewed it since."""
    table, now = process.stores.table, world.clock()
    lapsed, renewed = Waiter("race", URL, now - 1), Waiter("race", URL, now + LIFE_MS)
    put_waiter(table, renewed)
    remove_lapsed(table, lapsed)
    assert load_waiters(table, "race", now) == [renewed]
    put_waiter(table, lapsed)
    assert load_waiters(table, "race", now) == [renewed], "one that lands late does not shorten it"
    remove_lapsed(table, renewed)
    assert [each for each in all_waiters(table) if each.incarnation == "race"] == []


def test_a_waiter_is_read_back_and_its_ttl_is_rounded_up_to_seconds() -> None:
    """`ttl` is in whole seconds and not before the waiter lapses: DynamoDB must not remove one that is
    valid."""
    waiter = Waiter("incarnation", URL, 1_800_000_000_001)
    item = encode_waiter(waiter)
    assert decode_waiter(item) == waiter
    assert item["ttl"] == {"N": "1800000001"}
