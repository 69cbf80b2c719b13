"""Whatever happens, in any order: no delivery is lost, and none is acted upon twice under one generation.

Appends, records that come late, twice and in any order, messages of the queue that are worked off or lost
(timers), workers that claim, ack, release, call back late or never, and a crash before or after any write of
any step. In the end everything that is still on its way arrives, and a diligent worker must find all that
was appended.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from tests.simulation.memory import MemoryWorld
from tests.subscriptions.scene import POOL, Receiver, Scene
from tidemark.protocol.errors import ProtocolError, StreamNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.delete import delete
from tidemark.subscriptions import lifecycle
from tidemark.subscriptions.notices import TimeCame, decode_notice
from tidemark.subscriptions.pending import acked_in, find_head, remind
from tidemark.subscriptions.state import DeliveryFailure
from tidemark.subscriptions.storage import load_links, load_subscription
from tidemark.subscriptions.webhook import DeliveryFailed, WebhookResponse
from tidemark.wake.queue import WakeMessage

pytestmark = pytest.mark.slow

WRITES = {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem"}
LEASE_MS = 10_000
#: What a webhook answers, or what becomes of the call.
ANSWERS: dict[str, WebhookResponse | DeliveryFailed] = {
    "ok": WebhookResponse(200, b""),
    "done": WebhookResponse(200, b'{"done":true}'),
    "no": WebhookResponse(500, b""),
    "cut": DeliveryFailed("cut", DeliveryFailure.DROPPED),
    "silent": DeliveryFailed("silent", DeliveryFailure.SILENT),
    "unreached": DeliveryFailed("unreached"),
}


class Crashed(Exception):
    """The process died here."""


CRASHES = st.one_of(st.none(), st.none(), st.tuples(st.integers(1, 8), st.booleans()))
"""None, or before which write of the step, or after which one."""


class Subscribed(stateful.RuleBasedStateMachine):
    """One subscription to three streams. `records` is what the table's stream still holds."""

    webhook: bool

    def __init__(self) -> None:
        super().__init__()
        self.paths = [f"events/{letter}" for letter in "abc"]
        self.scene = Scene(MemoryWorld())
        self.scene.receiver = Receiver(self.answer)
        self.scene.deliverer = self.scene.make_deliverer(self.scene.worker)
        self.records: list[WakeMessage] = []
        self.changes = 0
        self.seen_version: int | None = None
        self.mood = "ok"
        self.claims: list[Any] = []
        self.claimed: set[int] = set()
        self.calls: list[dict[str, Any]] = []
        #: Generations that a receiver may be working on, as far as the server can know.
        self.working: set[int] = set()
        self.finished: set[int] = set()
        self.acked: dict[tuple[str, str], int] = {}
        #: Of each stream, up to where deliveries have named it.
        self.told: dict[tuple[str, str], int] = {}
        self.read_events = 0
        self._arm(None)
        send = self.scene.worker.dynamodb.send

        def crashing(operation: str, body: bytes) -> tuple[int, bytes]:
            is_write = operation in WRITES
            if is_write and self.crash is not None:
                self.count += 1
                if self.count == self.crash[0] and not self.crash[1]:
                    raise Crashed
            reply = send(operation, body)
            if is_write and self.crash is not None and self.count == self.crash[0]:
                raise Crashed
            return reply

        self.scene.worker.dynamodb.send = crashing

    # --- the world ---

    def answer(self, body: dict[str, Any]) -> WebhookResponse:
        generation = body["generation"]
        assert generation not in self.working, "called again while the receiver may still be working"
        assert generation not in self.finished
        self.calls.append(body)
        self.tell_of(each["path"] for each in body["streams"])
        outcome = ANSWERS[self.mood]
        if self.mood not in {"no", "unreached"}:
            self.working.add(generation)
        if isinstance(outcome, DeliveryFailed):
            raise outcome
        return outcome

    def tell_of(self, paths: Iterable[str]) -> None:
        for path in paths:
            head = find_head(self.scene.writer.stores, path)
            assert head is not None
            self.told[path, head.record.incarnation] = head.tail.offset

    def _arm(self, crash: tuple[int, bool] | None) -> None:
        self.crash, self.count = crash, 0

    @contextmanager
    def step(self, crash: tuple[int, bool] | None = None) -> Iterator[None]:
        """A step of the server, which may die in it; a refusal is an answer. What was committed to the
        subscription's item comes out of the table's stream."""
        self._arm(crash)
        try:
            yield
        except (Crashed, ProtocolError):
            pass
        finally:
            self._arm(None)
            version = self.scene.version()
            if version != self.seen_version:
                self.seen_version = version
                self.changes += 1

    @stateful.initialize(crash=CRASHES, empty=st.booleans())
    def begin(self, crash: tuple[int, bool] | None, empty: bool) -> None:
        self.scene.stream(POOL)
        for path in self.paths[:2]:
            self.scene.stream(path, *([] if empty else ["old"]))
            self.tell_of([path])
        writer, self.scene.writer = self.scene.writer, self.scene.worker
        for each in (crash, None):
            with self.step(each):
                self.scene.subscribe(lease_ttl_ms=LEASE_MS, webhook=self.webhook)
        self.scene.writer = writer

    @stateful.rule(index=st.integers(0, 2))
    def append(self, index: int) -> None:
        path = self.paths[index]
        if find_head(self.scene.writer.stores, path) is None:
            self.scene.stream(path)
        self.records.append(self.scene.append(path))

    @stateful.precondition(lambda self: self.records)
    @stateful.rule(data=st.data(), again=st.booleans())
    def record(self, data: st.DataObject, again: bool) -> None:
        record = data.draw(st.sampled_from(self.records))
        if not again:
            self.records.remove(record)
        self.scene.tell(record)

    @stateful.precondition(lambda self: self.changes)
    @stateful.rule(again=st.booleans())
    def changed(self, again: bool) -> None:
        self.changes -= not again
        self.scene.changed()

    @stateful.precondition(lambda self: self.scene.queue.messages)
    @stateful.rule(data=st.data(), crash=CRASHES, again=st.booleans(), mood=st.sampled_from(sorted(ANSWERS)))
    def handle(self, data: st.DataObject, crash: tuple[int, bool] | None, again: bool, mood: str) -> None:
        """Any message, due or not. One whose step has failed comes again."""
        message = data.draw(st.sampled_from(self.scene.queue.messages))
        self.mood, done = mood, False
        with self.step(crash):
            self.scene.deliverer.handle(decode_notice(message[1]))
            done = True
        if done and not again:
            self.scene.queue.messages.remove(message)

    @stateful.precondition(
        lambda self: any(isinstance(decode_notice(body), TimeCame) for _, body in self.scene.queue.messages)
    )
    @stateful.rule()
    def lose_timers(self) -> None:
        self.scene.queue.messages = [
            each for each in self.scene.queue.messages if not isinstance(decode_notice(each[1]), TimeCame)
        ]

    @stateful.rule(ms=st.sampled_from([1, 900, 3_000, LEASE_MS, 70_000]))
    def time_passes(self, ms: int) -> None:
        self.scene.clock.advance(ms)

    @stateful.rule(index=st.integers(0, 2))
    def end(self, index: int) -> None:
        """A stream is deleted; the next append creates another one of its name."""
        with suppress(StreamNotFound):
            delete(self.scene.writer.stores, StreamKey(PLAIN_BUCKET, self.paths[index]))

    # --- workers ---

    @stateful.precondition(lambda self: not self.webhook)
    @stateful.rule(crash=CRASHES, worker=st.sampled_from(["w1", "w2"]))
    def claim(self, crash: tuple[int, bool] | None, worker: str) -> None:
        with self.step(crash):
            claimed = self.scene.claim(worker)
            generation = claimed.record.delivery.generation
            assert generation not in self.claimed, "two workers have claimed one generation"
            self.claimed.add(generation)
            self.claims.append(claimed)
            self.tell_of(each.link.path for each in claimed.streams)

    @stateful.precondition(lambda self: self.claims)
    @stateful.rule(data=st.data(), crash=CRASHES, done=st.booleans(), everything=st.booleans())
    def ack(self, data: st.DataObject, crash: tuple[int, bool] | None, done: bool, everything: bool) -> None:
        claimed = data.draw(st.sampled_from(self.claims))
        with self.step(crash):
            path = None if everything else claimed.streams[0].link.path
            self.scene.ack(claimed, path, done=done)
            self.was_done(claimed.record.delivery.generation, done=done)

    @stateful.precondition(lambda self: self.claims)
    @stateful.rule(data=st.data(), crash=CRASHES)
    def release(self, data: st.DataObject, crash: tuple[int, bool] | None) -> None:
        claimed = data.draw(st.sampled_from(self.claims))
        with self.step(crash):
            self.scene.release(claimed)
            self.was_done(claimed.record.delivery.generation, done=True)

    @stateful.precondition(lambda self: self.calls)
    @stateful.rule(data=st.data(), crash=CRASHES, done=st.booleans(), acks=st.booleans())
    def callback(self, data: st.DataObject, crash: tuple[int, bool] | None, done: bool, acks: bool) -> None:
        body = data.draw(st.sampled_from(self.calls))
        with self.step(crash):
            self.scene.callback(body, done=done, acks=acks)
            self.was_done(body["generation"], done=done)

    def was_done(self, generation: int, *, done: bool) -> None:
        assert generation not in self.finished, "a delivery that is over was acted upon"
        if done:
            self.finished.add(generation)

    # --- what must hold ---

    @stateful.invariant()
    def cursors_never_go_back_nor_beyond_the_tail(self) -> None:
        stores = self.scene.writer.stores
        record = load_subscription(stores.table, "s")
        if record is None:
            return
        for link in load_links(stores.table, record.incarnation):
            head = find_head(stores, link.path)
            if head is None:
                continue
            key = (link.path, head.record.incarnation)
            acked = acked_in(link, head)
            assert self.acked.get(key, 0) <= acked <= self.told.get(key, 0), "past what nobody was told of"
            self.acked[key] = acked

    def teardown(self) -> None:
        """Everything arrives in the end, nobody dies any more, and a worker does what it is told."""
        if self.seen_version is None:
            return
        self.mood = "done"
        for _ in range(8):
            self.scene.tell(*self.records)
            for _ in range(3):
                with self.step():
                    self.scene.changed()
                    self.scene.work_off()
                    self.work()
            if not self.scene.left(*self.paths):
                break
            self.scene.clock.advance(70_000)
            remind(self.scene.worker.stores, self.scene.queue.send)
        assert self.scene.left(*self.paths) == {}, "appended, and nobody was told"
        lifecycle.unsubscribe(self.scene.worker.stores, "s")
        self.scene.changed()
        self.scene.work_off()

    def work(self) -> None:
        """A worker of the pool claims only for an event that it has not read before."""
        if self.webhook:
            return
        events = self.scene.events()
        unread, self.read_events = events[self.read_events :], len(events)
        assert len({event["generation"] for event in events}) == len(events), (
            "a generation was announced twice"
        )
        for _ in unread:
            try:
                claimed = self.scene.claim("diligent")
            except ProtocolError:
                continue
            self.tell_of(each.link.path for each in claimed.streams)
            self.scene.ack(claimed)


@pytest.mark.parametrize("webhook", [False, True], ids=["pull-wake", "webhook"])
def test_no_delivery_is_lost_and_none_is_acted_upon_twice(webhook: bool) -> None:
    stateful.run_state_machine_as_test(
        type("Played", (Subscribed,), {"webhook": webhook}),
        settings=settings(
            max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck),
            print_blob=True, database=None,
        ),
    )  # fmt: skip
