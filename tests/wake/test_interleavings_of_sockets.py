"""No socket misses an append: every order in which a watch, an append with its trigger, a lost connection and
the sweep can make their calls. Each rule of the proof is taken out once, and an append is missed then.

Every call to the table, each answer and each post waits for its turn, on a real engine.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tests.support import Process, World, a_key
from tests.wake.support import make_queues
from tests.wake.test_interleavings_of_the_code import Turns, together
from tidemark.http.socket import SocketEvents
from tidemark.log.read import load_last, read_page
from tidemark.log.records import Waiter
from tidemark.log.schema import log_pk, waiters_of
from tidemark.log.waiters import load_waiters, put_waiter
from tidemark.protocol.socket import MAX_LEASE_SECONDS, Message
from tidemark.service.stores import Stores
from tidemark.service.watch import Watched, begin_watches
from tidemark.wake.notifier import LAPSED_MS, Notifier, SocketApi, SocketGone, sweep_queues
from tidemark.wake.queue import WakeMessage

pytestmark = pytest.mark.slow

#: Of a watch: stream item, the connection's streams (read, then noted), register, tail, answer. Of an append:
#: commit, waiters, tail, post. Of the sweep: waiters, removal.
WATCH, APPEND, SWEEP = "WWWWWW", "AAAA", "SS"
#: The connection is lost, and the watch repeated on another one.
AGAIN = "W" + WATCH
OLD, NEW = "old", "new"


def orders(steps: str) -> Iterator[str]:
    """Every way to shuffle the steps of several actors."""
    left = Counter(steps)
    for actor in sorted(left):
        rest = "".join((left - Counter(actor)).elements())
        yield from (actor + others for others in orders(rest)) if rest else (actor,)


@dataclass
class Client:
    """It compares what it is told with what it has read to, and reads if they differ."""

    connection: str
    has_read: int
    read: Callable[[], int]
    compares_answers: bool = True

    def told(self, connection: str, message: Message) -> None:
        """What was on its way to a connection that is lost is lost, too."""
        is_heard = connection == self.connection and ("seconds" not in message or self.compares_answers)
        if is_heard and int(message["offset"]) != self.has_read:
            self.has_read = self.read()


@dataclass
class TurnedSockets(SocketApi):
    turns: Turns
    client: Client | DataClient
    #: API Gateway knows that they are.
    gone: set[str] = field(default_factory=set)
    actor: str = "A"

    def send(self, connection_id: str, frames: Sequence[str]) -> None:
        with self.turns.turn(self.actor):
            if connection_id in self.gone:
                raise SocketGone
            for frame in frames:
                self.client.told(connection_id, json.loads(frame))


class Scene:
    """One order of the steps: processes, a stream with one byte in it, and a client that has read that."""

    def __init__(self, world: World, order: str) -> None:
        self.clock, self.turns, self.key = world.clock, Turns(order), a_key("order")
        self.watcher, self.trigger, self.sweeper = (world.process() for _ in range(3))
        self.head = self.trigger.create(self.key, body=b".").head
        self.incarnation = self.head.record.incarnation
        self.log = log_pk(self.key, self.incarnation)
        reader = world.process().stores.table
        self.new = f"{NEW}-{self.key.stream_id}"  # A connection watches a thousand streams at most.
        self.client = Client(self.new, self.head.tail.offset, lambda: _tail_of(reader, self.log))
        self.sockets = TurnedSockets(self.turns, self.client)
        self.watcher.stores.check_format()

    def was_watched(self, connection: str, ago_ms: int) -> None:
        """The lease began as long ago."""
        asked_ms = self.clock() - ago_ms
        until_ms = asked_ms + MAX_LEASE_SECONDS * 1000
        waiter = Waiter(self.incarnation, connection, until_ms, self.name, asked_ms)
        put_waiter(self.trigger.stores.table, waiter)

    @property
    def name(self) -> str:
        return f"/v1/stream/{self.key.stream_id}"

    def misses(self, *, loses: bool = False, knows: bool = True, sweeps: bool = False) -> bool:
        """Whether the client has missed the append, once everybody is done."""
        self.turns.take(self.watcher.dynamodb, "W")
        self.turns.take(self.trigger.dynamodb, "A")
        self._take_of_sweep()

        def watch() -> None:
            if loses:
                with self.turns.turn("W"):
                    self.client.connection = self.new
                    self.sockets.gone |= {OLD} if knows else set()
            context = {"connectionId": self.new, "requestTimeEpoch": self.clock()}
            events = SocketEvents(self.watcher.stores, self.watcher.settings)
            event = {"requestContext": context, "body": json.dumps({"watch": [self.name]})}
            answers = asyncio.run(events.answer(event))
            with self.turns.turn("W"):
                for answer in answers:
                    self.client.told(self.new, answer)
            self.turns.finish("W")

        def append_and_tell() -> None:
            self.trigger.append(self.key, b"news")
            table = self.trigger.stores.table
            notifier = Notifier(table, make_queues(), self.clock, self.sockets)
            assert notifier.notify([WakeMessage(self.log, 1)]) == {}
            self.turns.finish("A")

        def sweep() -> None:
            if sweeps:
                queues = make_queues()
                queues.create(1_000)  # With an old queue, all waiters are looked at.
                sweep_queues(self.sweeper.stores.table, queues, self.clock())
            self.turns.finish("S")

        together(watch, append_and_tell, sweep)
        return self.client.has_read != self.client.read()

    def _take_of_sweep(self) -> None:
        """The waiters of other streams are no concern."""
        dynamodb, pk = self.sweeper.dynamodb, waiters_of(self.incarnation)[0]
        plain = dynamodb.send
        self.turns.take(dynamodb, "S")
        turned = dynamodb.send

        def chosen(operation: str, body: bytes) -> tuple[int, bytes]:
            send = turned if f'"{pk}"'.encode() in body else plain
            return send(operation, body)

        dynamodb.send = chosen

    def see_stale(self, process: Process, ask: Callable[[Any], object]) -> None:
        """From now on the process is answered to this query as it is now."""
        send, asked = process.dynamodb.send, list[tuple[bytes, tuple[int, bytes]]]()

        def recorded(operation: str, body: bytes) -> tuple[int, bytes]:
            asked.append((body, send(operation, body)))
            return asked[-1][1]

        def stale(operation: str, body: bytes) -> tuple[int, bytes]:
            answer = send(operation, body)
            return next((before for known, before in asked if known == body), answer)

        process.dynamodb.send = recorded
        ask(process.stores.table)
        process.dynamodb.send = stale


def _tail_of(table: Any, log: str) -> int:
    last = load_last(table, log)
    assert last is not None
    return last.end


def test_no_order_of_a_watch_and_an_append_misses_it(world: World) -> None:
    tried = list(orders(WATCH + APPEND))
    assert len(set(tried)) == 210
    assert [order for order in tried if Scene(world, order).misses()] == []


@pytest.mark.parametrize("knows", [True, False])
def test_no_order_misses_an_append_when_the_connection_is_lost(world: World, *, knows: bool) -> None:
    """Whether API Gateway knows that it is, or sends into the void."""
    missed = []
    for order in orders(AGAIN + APPEND):
        scene = Scene(world, order)
        scene.was_watched(OLD, ago_ms=1000)
        scene.client.connection = OLD
        missed += [order] * scene.misses(loses=True, knows=knows)
    assert missed == []


def test_no_order_misses_an_append_when_the_sweep_meets_a_watch_that_is_repeated_late(world: World) -> None:
    """The sweep has seen it as lapsed. A removal behind the renewal would end the watch; the append comes
    then."""
    missed = []
    for order in orders(WATCH + SWEEP):
        scene = Scene(world, order + APPEND)
        scene.was_watched(scene.new, ago_ms=MAX_LEASE_SECONDS * 1000 + LAPSED_MS)
        missed += [order] * scene.misses(sweeps=True)
    assert missed == []


@dataclass
class DataClient:
    """It takes data that begin where it has read to, and reads if it is told of more."""

    read: Callable[[], bytes]
    text: bytes = b"."
    checks_start: bool = True

    def told(self, _connection: str, message: Message) -> None:
        assert "data" in message
        if int(message["from"]) == len(self.text) or not self.checks_start:
            self.text += message["data"].encode()
        elif int(message["offset"]) > len(self.text):
            self.text = self.read()


def text_after(world: World, order: str, *, checks_start: bool = True) -> bytes:
    """Two appends, P, and the messages of their records, A and B, which retries may turn around."""
    turns, key, writer = Turns(order), a_key("data"), world.process()
    record = writer.create(key, body=b".").head.record
    log, now_ms = log_pk(key, record.incarnation), world.clock()
    table = world.process().stores.table
    lasts_ms = now_ms + MAX_LEASE_SECONDS * 1000
    put_waiter(
        table, Waiter(record.incarnation, NEW, lasts_ms, "/s", now_ms, content_type=record.content_type)
    )

    def read_all() -> bytes:
        return read_page(table, record, 0, fill=writer.stores.fill).data

    client = DataClient(read_all, checks_start=checks_start)
    turns.take(writer.dynamodb, "P")

    def write() -> None:
        for body in (b"a", b"b"):
            writer.append(key, body)
        turns.finish("P")

    def tell(actor: str, start: int) -> None:
        process = world.process()
        turns.take(process.dynamodb, actor)
        sockets = TurnedSockets(turns, client, actor=actor)
        notifier = Notifier(process.stores.table, make_queues(), world.clock, sockets)
        assert notifier.notify([WakeMessage(log, start)]) == {}
        turns.finish(actor)

    together(write, partial(tell, "A", 1), partial(tell, "B", 2))
    return client.text


def orders_of_data() -> Iterator[str]:
    """A record comes after its append."""
    for order in orders("PP" + "AAA" + "BBB"):
        first, second = (at for at, actor in enumerate(order) if actor == "P")
        if first < order.index("A") and second < order.index("B"):
            yield order


def test_no_order_of_messages_loses_or_doubles_their_data(world: World) -> None:
    assert {text_after(world, order) for order in orders_of_data()} == {b".ab"}


# --- each rule, taken out -----------------------------------------------------------------------


def some_order_misses(world: World, change: Callable[[Scene], object] = lambda _: None) -> bool:
    for order in orders(WATCH + APPEND):
        scene = Scene(world, order)
        change(scene)
        if scene.misses():
            return True
    return False


def test_a_tail_read_before_registering_misses_appends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_then_register(stores: Stores, keys: Any, register: Any) -> Any:
        watches = begin_watches(stores, keys, lambda _: None)
        register([watched.record for watched in watches.values() if isinstance(watched, Watched)])
        return watches

    monkeypatch.setattr("tidemark.http.socket.begin_watches", read_then_register)
    assert some_order_misses(world)


def test_a_client_that_does_not_compare_the_answer_misses_an_append(world: World) -> None:
    def change(scene: Scene) -> None:
        scene.client.compares_answers = False

    assert some_order_misses(world, change)


def test_a_stale_read_of_the_tail_or_of_the_waiters_misses_an_append(world: World) -> None:
    def tail(scene: Scene) -> Callable[[Any], object]:
        return lambda table: load_last(table, scene.log)

    def waiters(scene: Scene) -> Callable[[Any], object]:
        return lambda table: load_waiters(table, scene.incarnation, scene.clock())

    assert some_order_misses(world, lambda scene: scene.see_stale(scene.watcher, tail(scene)))
    assert some_order_misses(world, lambda scene: scene.see_stale(scene.trigger, tail(scene)))
    assert some_order_misses(world, lambda scene: scene.see_stale(scene.trigger, waiters(scene)))


def test_data_that_are_taken_wherever_they_begin_are_doubled(world: World) -> None:
    texts = {text_after(world, order, checks_start=False) for order in orders_of_data()}
    assert texts - {b".ab"}
