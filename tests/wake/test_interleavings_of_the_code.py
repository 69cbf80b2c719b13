"""No wake-up is lost: every order in which a reader, and a writer with its trigger, can make their calls. The
reader waits by its queue, begins to poll because data came fast, or goes back to its queue after that.

Every call to the table or the queue waits for its turn, on a real engine. What would rescue a reader whose
wake message got lost, the end of a receive that brings nothing, is counted: there must be none.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from tests.support import World, a_key
from tests.waiting import PATIENCE_SECONDS
from tests.wake.support import make_prefix, shared_sqs
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, Queues
from tidemark.http.backend import lambda_backend
from tidemark.log.schema import log_pk
from tidemark.service.read import Reading
from tidemark.service.stores import Stores
from tidemark.settings import Settings
from tidemark.wake import follow
from tidemark.wake.notifier import Notifier
from tidemark.wake.queue import FAST_NEWS, QUIET_MS, WakeByQueue, WakeMessage

pytestmark = pytest.mark.slow

#: Commit, waiters, send. A reader's steps: stream item, log, register, log, receive; a reader that begins
#: to poll counts the waiters before the registration, and reads the log in place of the receive.
TRIGGER_STEPS = 3
WAITS, BEGINS_TO_POLL, HAS_POLLED = "waits", "begins to poll", "has polled"
READER_STEPS = {WAITS: 5, BEGINS_TO_POLL: 6, HAS_POLLED: 5}


def orders_of(reader_steps: int) -> list[str]:
    steps = range(reader_steps + TRIGGER_STEPS)
    return [
        "".join("T" if step in places else "R" for step in steps)
        for places in itertools.combinations(steps, TRIGGER_STEPS)
    ]


class Turns:
    """Lets each step begin when the order says so, and only after the one before has ended."""

    def __init__(self, order: str) -> None:
        self._order = list(order)
        self._busy = False
        self._finished: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, actor: str, *, may_last: bool = False) -> Iterator[None]:
        """`may_last`: others go on while this step is under way."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._may(actor), PATIENCE_SECONDS)
            if self._order:
                self._order.pop(0)
            self._busy = not may_last
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy = self._busy and may_last
                self._changed.notify_all()

    def _may(self, actor: str) -> bool:
        while self._order and self._order[0] in self._finished:
            self._order.pop(0)
        return not self._busy and (not self._order or self._order[0] == actor)

    def finish(self, actor: str) -> None:
        with self._changed:
            self._finished.add(actor)
            self._changed.notify_all()

    def take(self, dynamodb: DynamoDB, actor: str) -> None:
        """Its calls take turns. None of them may see what was there a while ago: an order of the calls says
        what each of them finds only where every read is consistent."""
        send = dynamodb.send

        def turned(operation: str, body: bytes) -> tuple[int, bytes]:
            if operation in {"GetItem", "Query"}:
                assert orjson.loads(body)["ConsistentRead"] is True
            with self.turn(actor):
                return send(operation, body)

        dynamodb.send = turned


class TurnedQueues(Queues):
    """The reader and the trigger take turns. Counts receives that bring nothing, however they end."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(shared_sqs, make_prefix())
        self.turns = turns
        self.vain_receives = 0

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        with self.turns.turn("R", may_last=True):
            self.vain_receives += 1
            bodies = super().receive(url, wait_seconds)
        self.vain_receives -= bool(bodies)
        return bodies

    def send(self, url: str, bodies: Any, delay_seconds: int = 0) -> None:
        with self.turns.turn("T"):
            super().send(url, bodies, delay_seconds)


def read_and_append(world: World, order: str, receive_seconds: int, reader_is: str = WAITS) -> int:
    """One reader that waits at the beginning, and one append: the reader must get it. Returns how many
    receives brought nothing."""
    turns = Turns(order)
    queues, key = TurnedQueues(turns), a_key("order")
    reader, trigger = world.process(), world.process()
    # The writer knows the tail, as if it had created the stream itself.
    known = world.process().create(key).head
    trigger.stores.tails.learn(known)
    wake = WakeByQueue(reader.stores.table, queues, world.clock, receive_seconds)
    log, url = known.record.incarnation, wake._receiver.queue().url
    if reader_is != WAITS:
        wake._waiters.ensure(log, url)
        wake._waiters._registrations[log, url].news_ms.extend([world.clock()] * FAST_NEWS)
    if reader_is == HAS_POLLED:
        assert wake._waiters.ensure(log, url)
        world.clock.advance(QUIET_MS)
    turns.take(reader.dynamodb, "R")
    turns.take(trigger.dynamodb, "T")
    backend = lambda_backend(reader.stores, Settings(), wake)
    got: list[bytes] = []

    def read() -> None:
        got.append(asyncio.run(follow.read_or_wait(backend, key, 0, None, PATIENCE_SECONDS)).data)
        turns.finish("R")

    def append_and_wake() -> None:
        trigger.append(key, b"news")
        notifier = Notifier(trigger.stores.table, queues, world.clock)
        assert notifier.notify([WakeMessage(log_pk(key, known.record.incarnation), 0)]) == {}
        turns.finish("T")

    together(read, append_and_wake)
    vain_receives = queues.vain_receives
    wake.close()
    assert got == [b"news"]
    return vain_receives


def together(*calls: Callable[[], None]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS * 2)
        assert not thread.is_alive()


@pytest.mark.parametrize(("reader_is", "orders"), [(WAITS, 56), (BEGINS_TO_POLL, 84), (HAS_POLLED, 56)])
def test_in_every_order_of_calls_the_reader_gets_the_append_by_its_message_or_a_poll(
    world: World, reader_is: str, orders: int
) -> None:
    assert len(set(orders_of(READER_STEPS[reader_is]))) == orders
    for order in orders_of(READER_STEPS[reader_is]):
        assert read_and_append(world, order, MAX_RECEIVE_SECONDS, reader_is) == 0, (
            f"{order}: the wake message was lost, and only the end of the receive helped"
        )


def test_reading_before_registering_loses_the_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append between the two wakes no reader. The reader still gets it when its receive returns empty."""
    register_and_read = follow.register_and_read

    def read_then_register(
        stores: Stores, wake: WakeByQueue | None, place: Reading, *, small: bool = False
    ) -> tuple[Reading, float]:
        reading, read_at = register_and_read(stores, None, place, small=small)
        return reading, read_at + (wake.ensure_registered(place.record.incarnation) if wake else 0.0)

    monkeypatch.setattr(follow, "register_and_read", read_then_register)
    assert read_and_append(world, "RRR" + "TTT" + "RR", receive_seconds=1) > 0
