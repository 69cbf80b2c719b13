"""Subscriptions on a real engine, with a stepped clock, a queue and a table's stream that the test plays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from tests.support import JSON, Process, World, append_request
from tidemark.log.schema import log_pk
from tidemark.outbound.request import Url
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import append
from tidemark.service.load import load_head
from tidemark.settings import Settings
from tidemark.subscriptions import notices
from tidemark.subscriptions.configuration import SubscriptionConfiguration, SubscriptionKind, normalize
from tidemark.subscriptions.deliveries import Deliverer
from tidemark.subscriptions.lifecycle import require_subscription, subscribe
from tidemark.subscriptions.pending import acked_in, find_head
from tidemark.subscriptions.signing_keys import SigningKeys
from tidemark.subscriptions.state import DeliveryState
from tidemark.subscriptions.storage import load_links
from tidemark.subscriptions.webhook import WebhookResponse
from tidemark.subscriptions.workers import Answer, answer, claim
from tidemark.wake.queue import WakeMessage

POOL = "wake/pool"
URL = "https://worker.example.com/hook"


class PrivateKeysInMemory:
    """One place for all scenes of a process: on a real engine they share the table, which names the keys."""

    kept: ClassVar[dict[str, str]] = {}

    def save(self, kid: str, pem: str) -> None:
        assert kid not in self.kept
        self.kept[kid] = pem

    def load(self, kid: str) -> str:
        return self.kept[kid]

    def remove(self, kid: str) -> None:
        self.kept.pop(kid, None)


@dataclass
class Queue:
    """What was sent, and when it may be received."""

    clock: Callable[[], int]
    messages: list[tuple[int, str]] = field(default_factory=list)

    def send(self, bodies: Sequence[str], delay_seconds: int = 0) -> None:
        assert 0 <= delay_seconds <= 900
        self.messages += [(self.clock() + delay_seconds * 1000, body) for body in bodies]

    def due(self) -> list[str]:
        now_ms = self.clock()
        due = [body for at_ms, body in self.messages if at_ms <= now_ms]
        self.messages = [each for each in self.messages if each[0] > now_ms]
        return due


@dataclass
class Receiver:
    """A webhook: what it got, and what it answers."""

    answer: Callable[[dict[str, Any]], WebhookResponse] = lambda _: WebhookResponse(200, b"{}")
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def __call__(
        self, url: Url, body: bytes, headers: Mapping[str, str], timeout_seconds: float
    ) -> WebhookResponse:
        assert url.host == "worker.example.com"
        self.seconds.append(timeout_seconds)
        self.bodies.append(orjson.loads(body))
        self.headers.append(headers)
        return self.answer(self.bodies[-1])


class Scene:
    """`records` is the table's stream of what concerns subscriptions, which `settle` hands on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = world.clock
        self.writer, self.worker = world.process(), world.process()
        self.queue = Queue(self.clock)
        self.receiver = Receiver()
        self.keys = SigningKeys(self.worker.stores.table, PrivateKeysInMemory())
        self.subscribers = notices.Subscribers(self.worker.stores.table, self.queue.send)
        self.deliverer = self.make_deliverer(self.worker)
        #: How often this worker has written a subscription's item.
        self.commits = 0
        self._count_commits()

    def _count_commits(self) -> None:
        send: Any = self.worker.dynamodb.send

        def counting(operation: str, body: bytes) -> tuple[int, bytes]:
            reply: tuple[int, bytes] = send(operation, body)
            if reply[0] == 200 and operation in {"PutItem", "TransactWriteItems"} and b'{"S":"sub/' in body:
                self.commits += 1
            return reply

        self.worker.dynamodb.send = counting

    def make_deliverer(self, process: Process) -> Deliverer:
        return Deliverer(
            process.stores, self.queue.send, self.keys, Settings(public_url="https://streams.example.com"),
            call=self.receiver, chance=lambda: 0.5,
        )  # fmt: skip

    def begin(self, *paths: str, **asked: Any) -> None:
        """Streams, `events/a` by default, that are empty, and a subscription to all of `events/`."""
        for path in (*(paths or ("events/a",)), POOL):
            self.stream(path)
        self.subscribe(**asked)

    def news(self, *paths: str) -> None:
        """An append to each stream, `events/a` by default, and all that follows from their records."""
        self.tell(*map(self.append, paths or ("events/a",)))
        self.work_off()

    # --- what clients do ---

    def stream(self, path: str, *messages: object) -> None:
        self.writer.create(StreamKey(PLAIN_BUCKET, path), content_type=JSON)
        for message in messages:
            self.append(path, message)

    def append(self, path: str, message: object = 1) -> WakeMessage:
        """The record of the append, not handed on yet."""
        key = StreamKey(PLAIN_BUCKET, path)
        start = load_head(self.writer.stores, key).tail.offset
        [outcome] = append(
            self.writer.stores, key, [append_request(orjson.dumps(message), content_type=JSON)]
        )
        assert not isinstance(outcome, Exception)
        return WakeMessage(log_pk(key, outcome.incarnation), start)

    def subscribe(self, name: str = "s", **asked: Any) -> bool:
        webhook = {"webhook_url": URL} if asked.pop("webhook", False) else {"wake_stream": POOL}
        kind = SubscriptionKind.WEBHOOK if "webhook_url" in webhook else SubscriptionKind.PULL_WAKE
        wanted = SubscriptionConfiguration(kind, **{"pattern": "events/*"} | webhook | asked)
        return subscribe(self.writer.stores, name, normalize(wanted))

    def claim(self, worker: str = "w1", name: str = "s") -> Any:
        return claim(self.worker.stores, name, worker)

    def ack(self, claimed: Any, path: str | None = None, *, done: bool = True, name: str = "s") -> bool:
        tails = {each.link.path: render_offset(each.tail) for each in claimed.streams}
        acks = {each: tail for each, tail in tails.items() if path in {None, each}}
        delivery = claimed.record.delivery
        asked = Answer(claimed.token, delivery.generation, delivery.wake_id, acks, done)
        return answer(self.worker.stores, name, SubscriptionKind.PULL_WAKE, asked)

    def callback(
        self, body: dict[str, Any], *, done: bool = True, acks: bool = True, name: str = "s"
    ) -> bool:
        """As the receiver of this webhook calls back."""
        acked = {each["path"]: each["tail_offset"] for each in body["streams"]} if acks else {}
        asked = Answer(body["callback_token"], body["generation"], body["wake_id"], acked, done)
        return answer(self.worker.stores, name, SubscriptionKind.WEBHOOK, asked)

    def release(self, claimed: Any, name: str = "s") -> bool:
        delivery = claimed.record.delivery
        asked = Answer(claimed.token, delivery.generation, delivery.wake_id, done=True)
        return answer(self.worker.stores, name, SubscriptionKind.PULL_WAKE, asked)

    # --- what the platform does ---

    def tell(self, *records: WakeMessage) -> None:
        """The notifier gets these records of appends."""
        self.subscribers.notify(records, [])

    def changed(self, name: str = "s") -> None:
        """The notifier gets a record of the subscription's item."""
        self.queue.send([notices.encode_notice(notices.Changed(name))])

    def work_off(self, rounds: int = 20) -> None:
        """The delivery function gets every message that is due. Each leads to the record of a transition."""
        for _ in range(rounds):
            due = self.queue.due()
            if not due:
                return
            for body in due:
                before = self.commits
                self.deliverer.handle(notices.decode_notice(body))
                if self.commits != before:
                    self.changed(notices.decode_notice(body).subscription_id)
        raise AssertionError("messages without end")

    # --- what came of it ---

    @property
    def delivery(self) -> DeliveryState:
        return require_subscription(self.worker.stores, "s").delivery

    def links(self) -> dict[str, tuple[bool, int]]:
        """Of each stream: whether it was named, and up to where it is acked."""
        record = require_subscription(self.worker.stores, "s")
        found = load_links(self.worker.stores.table, record.incarnation)
        return {link.path: (link.explicit, link.acked) for link in found}

    def left(self, *paths: str) -> dict[str, tuple[int, int]]:
        """Of these streams that have more than what is acked: up to where it is, and the tail."""
        stores, found = self.writer.stores, dict[str, tuple[int, int]]()
        record = require_subscription(stores, "s")
        linked = {link.path: link for link in load_links(stores.table, record.incarnation)}
        for path in paths:
            head = find_head(stores, path)
            if head is not None:
                acked = acked_in(linked[path], head) if path in linked else 0
                if acked < head.tail.offset:
                    found[path] = (acked, head.tail.offset)
        return found

    def called(self) -> list[int]:
        """The generations with which the webhook was called."""
        return [body["generation"] for body in self.receiver.bodies]

    def version(self) -> int | None:
        try:
            return require_subscription(self.worker.stores, "s").version
        except Exception:  # noqa: BLE001 - it may be gone
            return None

    def events(self, path: str = POOL) -> list[dict[str, Any]]:
        """What was written to the wake stream."""
        data = self.worker.read_all(StreamKey(PLAIN_BUCKET, path))
        found: list[dict[str, Any]] = orjson.loads(b"[" + data.rstrip(b",") + b"]")
        return found
