"""Puts that share one write: each keeps its own condition, its own answer and its own fate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from tests.support import Faults, Process, World, a_key, append_request, refusal, table_of
from tidemark.aws.retry import NoAnswer
from tidemark.local.configuration import LocalEngines
from tidemark.local.on_loop.greenlets import greenlet_spawn
from tidemark.local.on_loop.grouped_puts import MAX_PUTS
from tidemark.local.on_loop.stores import OnLoop
from tidemark.log.schema import PK, SK, Item
from tidemark.log.table import IF_ABSENT, ConditionFailed
from tidemark.protocol.errors import OutcomeUnknown
from tidemark.service.append import append


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


@pytest.fixture
def stores(process: Process) -> OnLoop:
    made = OnLoop(process.stores, process.settings, ThreadPoolExecutor(4), LocalEngines(group_puts=True))
    process.dynamodb = table_of(made.stores).dynamodb
    return made


def item(number: int, partition: str = "group", **more: Any) -> Item:
    return {PK: {"S": partition}, SK: {"S": f"{number:04d}"}, **more}


def together(stores: OnLoop, *calls: Callable[[], Any]) -> list[Any]:
    """What becomes of calls that begin in the same turn of the loop; failures as they are."""

    async def run() -> list[Any]:
        try:
            return await asyncio.gather(*map(greenlet_spawn, calls), return_exceptions=True)
        finally:
            await stores.close()

    return asyncio.run(run())


def put(stores: OnLoop, of: Item) -> Callable[[], None]:
    return lambda: stores.stores.table.put(of, IF_ABSENT)


def operations(process: Process) -> list[str]:
    """Every call to the table from now on."""
    send, sent = process.dynamodb.send, list[str]()

    def noting(operation: str, body: bytes) -> tuple[int, bytes]:
        sent.append(operation)
        return send(operation, body)

    process.dynamodb.send = noting
    return sent


def items_of(process: Process, partition: str = "group") -> list[Item]:
    found, more = process.stores.table.query(partition)
    assert not more
    return found


def test_puts_that_find_one_under_way_share_the_next_write(process: Process, stores: OnLoop) -> None:
    sent = operations(process)
    items = [item(number) for number in range(10)]
    assert together(stores, *(put(stores, each) for each in items)) == [None] * 10
    assert sent == ["PutItem", "TransactWriteItems"]
    assert items_of(process) == items


def test_a_single_put_that_waited_is_not_a_transaction(process: Process, stores: OnLoop) -> None:
    sent = operations(process)
    assert together(stores, put(stores, item(1)), put(stores, item(2))) == [None, None]
    assert sent == ["PutItem", "PutItem"]


def test_a_group_is_no_larger_than_a_transaction_may_be(process: Process, stores: OnLoop) -> None:
    sent = operations(process)
    count = 1 + MAX_PUTS + 2
    assert together(stores, *(put(stores, item(number)) for number in range(count))) == [None] * count
    assert sent == ["PutItem", "TransactWriteItems", "TransactWriteItems"]
    large = {"data": {"S": "x" * 390_000}}
    puts = [put(stores, item(number, "large", **large)) for number in range(13)]
    assert together(stores, *puts) == [None] * 13
    assert sent[3:] == ["PutItem", "TransactWriteItems", "TransactWriteItems"]
    assert len(items_of(process)) == count


def test_a_refused_put_is_told_what_is_there_and_the_others_land(process: Process, stores: OnLoop) -> None:
    there = item(3, own={"S": "first"})
    process.stores.table.put(there)
    answers = together(stores, *(put(stores, item(number)) for number in range(6)))
    refused = answers.pop(3)
    assert answers == [None] * 5
    assert isinstance(refused, ConditionFailed)
    assert (refused.existing, refused.maybe_landed) == (there, False)
    assert items_of(process) == [item(0), item(1), item(2), there, item(4), item(5)]


def test_of_two_puts_of_one_item_one_lands_and_the_other_sees_it(process: Process, stores: OnLoop) -> None:
    one, other = item(1, own={"S": "one"}), item(1, own={"S": "other"})
    first, landed, refused = together(stores, put(stores, item(0)), put(stores, one), put(stores, other))
    assert (first, landed) == (None, None)
    assert isinstance(refused, ConditionFailed)
    assert refused.existing == one


def test_a_put_that_no_table_takes_does_not_harm_the_others(process: Process, stores: OnLoop) -> None:
    too_large = item(2, data={"S": "x" * 410_000})
    answers = together(stores, *(put(stores, each) for each in (item(0), item(1), too_large, item(3))))
    refused = answers.pop(2)
    assert answers == [None] * 3
    assert "ValidationException" in str(refused)
    assert items_of(process) == [item(0), item(1), item(3)]


def test_a_put_whose_reply_was_lost_is_not_written_twice(process: Process, stores: OnLoop) -> None:
    """The transaction has landed, and its copy finds the same token or its own items."""
    faults = Faults(process.dynamodb, seed=1, lost=0.4)
    keys = [a_key() for _ in range(8)]
    for key in keys:
        process.create(key)

    def write(number: int) -> Callable[[], None]:
        def writing() -> None:
            for count in range(6):
                [answer] = append(stores.stores, keys[number], [append_request(b"<%d>" % count)])
                assert not isinstance(answer, Exception), answer

        return writing

    assert together(stores, *map(write, range(8))) == [None] * 8
    assert faults.injected["lost"] > 3
    for key in keys:
        assert process.read_all(key) == b"<0><1><2><3><4><5>"


def test_a_transaction_that_landed_unseen_is_recognised_by_each_of_its_puts(
    process: Process, stores: OnLoop
) -> None:
    """The engine has forgotten the token: what is sent again is refused by what it has written itself."""
    send, lost = process.dynamodb.send, list[str]()

    def losing_once(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "TransactWriteItems" and not lost:
            lost.append(operation)
            token = orjson.loads(body)["ClientRequestToken"].encode()
            assert send(operation, body.replace(token, token[::-1]))[0] == 200
            raise NoAnswer("injected")
        return send(operation, body)

    process.dynamodb.send = losing_once
    first, *answers = together(stores, *(put(stores, item(number)) for number in range(4)))
    assert first is None
    for number, answer in enumerate(answers, start=1):
        assert isinstance(answer, ConditionFailed)
        assert (answer.existing, answer.maybe_landed) == (item(number), True)


def test_without_an_answer_the_outcome_of_each_is_unknown(process: Process, stores: OnLoop) -> None:
    send = process.dynamodb.send

    def silent(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "TransactWriteItems":
            raise NoAnswer("injected")
        return send(operation, body)

    process.dynamodb.send, process.dynamodb.sleep = silent, lambda _: None
    first, *answers = together(stores, *(put(stores, item(number)) for number in range(4)))
    assert first is None
    assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3


def test_a_transaction_that_meets_another_one_is_sent_again(process: Process, stores: OnLoop) -> None:
    send, refused = process.dynamodb.send, list[str]()

    def refusing_once(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "TransactWriteItems" and not refused:
            refused.append(operation)
            reasons = [{"Code": "TransactionConflict"}, {"Code": "None"}, {"Code": "None"}]
            return refusal("TransactionCanceledException", CancellationReasons=reasons)
        return send(operation, body)

    process.dynamodb.send = refusing_once
    assert together(stores, *(put(stores, item(number)) for number in range(4))) == [None] * 4
    assert len(items_of(process)) == 4


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_cancelled_request_cancels_no_other(process: Process, stores: OnLoop, cancelled: int) -> None:
    """Also where its put is the one under way, or is not sent yet."""

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(greenlet_spawn(put(stores, item(number)))) for number in range(5)]
        await asyncio.sleep(0)
        tasks[cancelled].cancel()
        answers: Awaitable[list[Any]] = asyncio.gather(*tasks, return_exceptions=True)
        try:
            return await asyncio.wait_for(answers, 60)
        finally:
            await stores.close()

    answers = asyncio.run(run())
    assert isinstance(answers.pop(cancelled), asyncio.CancelledError)
    assert answers == [None] * 4
    assert {each[SK]["S"] for each in items_of(process)} >= {
        f"{number:04d}" for number in range(5) if number != cancelled
    }
