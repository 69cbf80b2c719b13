"""The notifier, called through the function's own handler: which queues get messages, which calls it makes,
what fails."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.stack.environments import Handler, InvocationFailed, call_handler, load_handler, make_context
from tests.stack.template import Function
from tests.support import World, before, table_of
from tests.wake.support import ROOT, make_prefix, notifier_function, shared_sqs
from tidemark.aws.clock import CLOCK
from tidemark.aws.sqs import Queues, QueueUnavailable
from tidemark.log.records import Waiter
from tidemark.log.waiters import load_waiters, put_waiter
from tidemark.service.stream_registry import StreamRegistry, Written
from tidemark.wake.notifier import Notifier
from tidemark.wake.queue import WakeMessage, decode_message

pytestmark = pytest.mark.each_engine

FAR_MS = CLOCK.now_ms() + 3_600_000


class Notified:
    """The function with its environment, and every call that it makes to the table and to SQS."""

    def __init__(self, world: World) -> None:
        self.prefix = make_prefix()
        self.queues = Queues(shared_sqs, self.prefix)
        self.function: Function = notifier_function(world, self.prefix)
        self.handler: Handler = load_handler(self.function)
        self.notifier: Notifier = self.handler.__globals__["_notifier"]
        self.table = self.notifier._table
        self.calls: list[str] = []
        # There is no registry of streams, and that is remembered: looked at once, here.
        registry: StreamRegistry = self.handler.__globals__["_registry"]
        registry.remember_ms = math.inf
        registry.append_changes(Written(batches={"log/v1/a#before": 0}))
        self.handler.__globals__["_stores"].check_format()  # Once in the life of a process.
        before(table_of(self).dynamodb, self.calls.append)
        client = self.notifier._queues._client
        client.meta.events.register("before-send", self._count)

    def _count(self, event_name: str, **_: Any) -> None:
        self.calls.append(event_name.rpartition(".")[2])

    def wait(self, incarnation: str, url: str | None = None, until_ms: int = FAR_MS) -> str:
        """Register a waiter at this stream; returns the URL of its queue."""
        url = url or self.queues.create(CLOCK.now_ms())
        put_waiter(self.table, Waiter(incarnation, url, until_ms))
        self.calls.clear()
        return url

    def __call__(self, *records: Mapping[str, Any]) -> list[str]:
        """The sequence numbers that are reported as failed."""
        event = json.dumps({"Records": records}).encode()
        answer = json.loads(call_handler(self.function, self.handler, event, make_context(self.function)))
        return [each["itemIdentifier"] for each in answer["batchItemFailures"]]

    def received(self, url: str) -> list[WakeMessage]:
        messages: list[WakeMessage] = []
        while bodies := self.queues.receive(url, 0):
            messages += map(decode_message, bodies)
        return messages


@pytest.fixture
def notified(world: World) -> Iterator[Notified]:
    scene = Notified(world)
    yield scene
    for url in scene.queues.all():
        scene.queues.delete(url)


_numbers = itertools.count(1)


def record(incarnation: str, start: int = 0, *, name: str = "INSERT", **keys: str) -> dict[str, Any]:
    """A stream record as AWS sends it, numbered."""
    keys = {"pk": f"log/v1/a#{incarnation}", "sk": f"{start:016}"} | keys
    attributes = {key: {"S": value} for key, value in keys.items()}
    return {"eventName": name, "dynamodb": {"Keys": attributes, "SequenceNumber": f"{next(_numbers):021}"}}


def number_of(record: Mapping[str, Any]) -> str:
    return str(record["dynamodb"]["SequenceNumber"])


@pytest.mark.parametrize("sk", ["0000000000000005", "0000000000000005."], ids=["append", "tombstone"])
def test_an_append_or_a_tombstone_sends_a_message_to_a_waiting_process(notified: Notified, sk: str) -> None:
    url = notified.wait(f"one{sk[16:]}")
    assert notified(record(f"one{sk[16:]}", sk=sk)) == []
    assert notified.calls == ["Query", "SendMessageBatch"]
    assert notified.received(url) == [WakeMessage(f"log/v1/a#one{sk[16:]}", 5)]


def test_a_process_that_polls_gets_no_message(notified: Notified) -> None:
    url = notified.wait("polled")
    put_waiter(notified.table, Waiter("polled", url, FAR_MS + 1, polls=True))
    notified.calls.clear()
    assert notified(record("polled")) == []
    assert notified.calls == ["Query"]


def test_many_records_of_a_stream_cost_one_query_and_one_message(notified: Notified) -> None:
    """The newest record is enough: a reader that has not read it has not read what follows the others.
    Records come out of order, and twice."""
    url = notified.wait("busy")
    records = [record("busy", start) for start in (10, 70, 30, 70, *range(60))]
    assert notified(*records) == []
    assert notified.calls == ["Query", "SendMessageBatch"]
    assert notified.received(url) == [WakeMessage("log/v1/a#busy", 70)]


def test_records_that_are_not_new_batches_send_no_message(notified: Notified) -> None:
    """If the filter of the trigger were missing: neither other items nor removals by the janitor send a
    message."""
    url = notified.wait("quiet")
    others = [record("quiet", name=name) for name in ("MODIFY", "REMOVE")]
    others += [
        record("quiet", pk=pk, sk=sk) for pk, sk in (("bucket/v1", "stream/a"), ("wait/1", "quiet/url"))
    ]
    assert notified(*others) == []
    assert notified.calls == ["GetItem"], "a stream's item: is there a registry to tell?"
    assert notified.received(url) == []


def test_every_process_that_waits_gets_a_message_and_none_that_has_lapsed(notified: Notified) -> None:
    """An append for which none waits, as most are, is one query."""
    lapsed = notified.wait("late", until_ms=CLOCK.now_ms() - 1)
    assert notified(record("late")) == []
    assert notified.calls == ["Query"]
    current = [notified.wait("late") for _ in range(12)]
    assert notified(record("late")) == []
    assert notified.calls == ["Query", *["SendMessageBatch"] * 12]
    assert notified.received(lapsed) == []
    assert [len(notified.received(url)) for url in current] == [1] * 12


@pytest.mark.parametrize("streams", [10, 11])
def test_messages_to_a_queue_are_sent_ten_at_a_time(notified: Notified, streams: int) -> None:
    """One process waits at many streams, so its messages are sent in batches."""
    names = [f"shared-{streams}-{number}" for number in range(streams)]
    url = notified.queues.create(CLOCK.now_ms())
    for name in names:
        notified.wait(name, url)
    assert notified(*map(record, names)) == []
    assert notified.calls.count("Query") == streams
    assert notified.calls.count("SendMessageBatch") == math.ceil(streams / 10)
    assert {message.log_pk for message in notified.received(url)} == {f"log/v1/a#{name}" for name in names}


def test_a_missing_queue_is_not_a_failure_and_its_waiter_is_removed(notified: Notified) -> None:
    """Its process is gone too. The other queues get their messages."""
    gone, living = notified.wait("left"), notified.wait("left")
    notified.queues.delete(gone)
    assert notified(record("left")) == []
    assert len(notified.received(living)) == 1
    waiters = load_waiters(notified.table, "left", CLOCK.now_ms())
    assert [waiter.address for waiter in waiters] == [living]


def break_query(notified: Notified, incarnation: str) -> None:
    """The table refuses the query for this stream's waiters."""
    send = table_of(notified).dynamodb.send

    def breaking(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "Query" and f'"{incarnation}."'.encode() in body:
            return 400, b'{"__type": "x#AccessDeniedException", "message": "broken by the test"}'
        return send(operation, body)

    table_of(notified).dynamodb.send = breaking


def test_only_records_whose_query_or_messages_fail_are_reported_as_failed(
    notified: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue's failure is not another's."""
    refused, fine, both = notified.wait("stuck"), notified.wait("sound"), notified.wait("both")
    notified.wait("both", refused)
    notified.wait("broken")
    break_query(notified, "broken")
    send = Queues.send

    def refusing(queues: Queues, url: str, bodies: Any) -> None:
        if url == refused:
            raise QueueUnavailable("broken by the test")
        send(queues, url, bodies)

    monkeypatch.setattr(Queues, "send", refusing)
    records = [record(name, start) for start in (1, 2) for name in ("stuck", "sound", "both", "broken")]
    failed = [number_of(each) for each in records if "sound" not in each["dynamodb"]["Keys"]["pk"]["S"]]
    assert sorted(notified(*records)) == failed
    assert notified.received(fine) == [WakeMessage("log/v1/a#sound", 2)]
    assert len(notified.received(both)) == 1


def test_a_record_that_cannot_be_read_fails_alone(notified: Notified) -> None:
    """An unreadable record does not hold up the others."""
    url = notified.wait("healthy")
    bad = [record("bad"), record("bad", sk="not an offset")]
    del bad[0]["dynamodb"]["Keys"]["sk"]
    assert notified(bad[0], record("healthy"), bad[1]) == [number_of(each) for each in bad]
    assert len(notified.received(url)) == 1


def test_the_invocation_fails_if_every_record_fails(notified: Notified) -> None:
    """Then Lambda counts an error, which an alarm sees, and delivers the whole batch again."""
    notified.wait("alone")
    break_query(notified, "alone")
    with pytest.raises(InvocationFailed):
        notified(record("alone"))


def test_the_sample_event_is_understood(notified: Notified) -> None:
    """`sam local invoke NotifierFunction -e events/stream-records.json` sends it."""
    event = json.loads((ROOT / "events" / "stream-records.json").read_text())
    url = notified.wait("WG7KCNdq5BW2agcN")
    assert notified(*event["Records"]) == []
    assert notified.received(url) == [WakeMessage("log/v1/tides/cuxhaven#WG7KCNdq5BW2agcN", 18)]
