"""SQS is gone, or the trigger is behind: readers that wait look for themselves, and nothing is lost.

The functions' own handlers, given the events that AWS sends. A long-poll here would last for
ten minutes: what ends it earlier is a look.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from tests.faults.aws import Breakable, Fault, answers, raises
from tests.http.asgi import Answer
from tests.lambdas.functions import Functions, http_event, load_event
from tests.support import World, make_world
from tests.wake.live_process import running
from tests.wake.support import PATIENCE_SECONDS, make_prefix, until
from tidemark.aws.sqs import receiving_client, sqs_client
from tidemark.local.engines import LocalServices
from tidemark.log.schema import log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.stores import wall_clock_ms
from tidemark.wake.wake import Wake

_serial = itertools.count()
TEXT = {"content-type": "text/plain"}
FAULTS: dict[str, Fault] = {
    "no connection": raises(EndpointConnectionError),
    "silence": raises(ReadTimeoutError),
    "internal error": answers(500, "InternalError"),
    "forbidden": answers(403, "AccessDenied"),
}


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)


@dataclass
class Scene:
    """Writers and readers in environments of their own, and the SQS that they share."""

    world: World
    writer: Functions
    reader: Functions
    #: What makes, sends to and removes queues, and what receives.
    sqs: Breakable
    receiving: Breakable
    pool: ThreadPoolExecutor

    def stream(self) -> str:
        path = f"/v1/stream/queue-gone/{next(_serial)}"
        assert self.writer(http_event("PUT", path, headers=TEXT)).status == 201
        return path

    def append(self, path: str, body: bytes) -> None:
        assert self.writer(http_event("POST", path, headers=TEXT, body=body)).status == 204

    def wait(self, path: str, offset: int) -> Future[Answer]:
        event = http_event("GET", path, f"offset={offset:016d}&live=long-poll")
        return self.pool.submit(self.reader, event)

    def records(self, path: str, *starts: int) -> dict[str, Any]:
        """What the table's stream would say."""
        key = StreamKey("v1", path.removeprefix("/v1/stream/"))
        record = load_head(self.world.process(clock=wall_clock_ms).stores, key).record
        [template, *_] = load_event("stream-records")["Records"]
        made = []
        for number, start in enumerate(starts):
            each = json.loads(json.dumps(template))
            each["dynamodb"]["Keys"] = {
                "pk": {"S": log_pk(key, record.incarnation)},
                "sk": {"S": f"{start:016d}"},
            }
            each["dynamodb"]["SequenceNumber"] = str(number)
            made.append(each)
        return {"Records": made}


@pytest.fixture
def scene(world: World, services: LocalServices) -> Iterator[Scene]:
    writer, reader = Functions(), Functions()
    sqs, receiving = Breakable(sqs_client()), Breakable(receiving_client())
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("TABLE_NAME", world.table_name)
        patch.setenv("BUCKET_NAME", world.bucket_name)
        patch.setenv("LONG_POLL_SECONDS", "600")
        patch.setenv("QUEUE_PREFIX", make_prefix())
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
        patch.setattr("tidemark.http.backend.sqs_client", lambda: sqs.client)
        patch.setattr("tidemark.http.backend.receiving_client", lambda: receiving.client)
        patch.setattr("tidemark.aws.sqs.sqs_client", lambda: sqs.client)
        # Short, because tests wait for receives to end.
        patch.setattr(Wake.__init__, "__defaults__", (1,))
        writer.start()
        reader.start()
        yield Scene(world, writer, reader, sqs, receiving, pool)
        writer.stop()
        reader.stop()


def check_delivered(waiting: Future[Answer], body: bytes) -> None:
    answer = waiting.result(PATIENCE_SECONDS)
    assert (answer.status, answer.body) == (200, body), answer


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_readers_go_on_when_no_queue_can_be_created(scene: Scene, fault: Fault) -> None:
    path = scene.stream()
    with scene.sqs.failing(fault, "CreateQueue"):
        waiting = scene.wait(path, 0)
        until(lambda: "CreateQueue" in scene.sqs.asked)
        scene.append(path, b"news")
        check_delivered(waiting, b"news")
    assert scene.receiving.asked == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_readers_go_on_when_no_message_can_be_received(scene: Scene, fault: Fault) -> None:
    path = scene.stream()
    with scene.receiving.failing(fault):
        waiting = scene.wait(path, 0)
        until(lambda: "ReceiveMessage" in scene.receiving.asked)
        scene.append(path, b"news")
        check_delivered(waiting, b"news")


def test_readers_go_on_when_their_queue_is_removed(scene: Scene) -> None:
    """It makes another one."""
    path = scene.stream()
    waiting = scene.wait(path, 0)
    until(lambda: "ReceiveMessage" in scene.receiving.asked)
    for url in scene.sqs.client.list_queues(QueueNamePrefix=os.environ["QUEUE_PREFIX"])["QueueUrls"]:
        scene.sqs.client.delete_queue(QueueUrl=url)
    until(lambda: scene.sqs.asked.count("CreateQueue") == 2)
    scene.append(path, b"news")
    check_delivered(waiting, b"news")


def test_readers_are_woken_again_once_sqs_is_back(scene: Scene) -> None:
    """Who has waited without a queue gets one, and is woken through it."""
    path = scene.stream()
    with scene.sqs.failing(FAULTS["no connection"]):
        waiting = scene.wait(path, 0)
        until(lambda: "CreateQueue" in scene.sqs.asked)
    until(lambda: "ReceiveMessage" in scene.receiving.asked)
    scene.append(path, b"news")
    notifier = scene.writer.load("notifier")
    assert notifier(scene.records(path, 0), None) == {"batchItemFailures": []}
    check_delivered(waiting, b"news")


def test_appends_make_no_call_to_sqs_and_go_on_without_it(scene: Scene) -> None:
    """An append has nothing to do with SQS."""
    path = scene.stream()
    with scene.sqs.failing(FAULTS["no connection"]), scene.receiving.failing(FAULTS["no connection"]):
        for number in range(5):
            scene.append(path, b"%d" % number)
    assert scene.sqs.asked == scene.receiving.asked == []
    assert scene.reader(http_event("GET", path, "offset=-1")).body == b"01234"


def test_notifications_that_cannot_be_sent_are_delivered_again(scene: Scene) -> None:
    """The records of the streams that somebody waits for, and of no others; later all is well."""
    awaited, other = scene.stream(), scene.stream()
    waiting = scene.wait(awaited, 0)
    until(lambda: "ReceiveMessage" in scene.receiving.asked)
    with scene.receiving.failing(FAULTS["internal error"]):
        scene.append(awaited, b"news")
        scene.append(other, b"news")
    check_delivered(waiting, b"news")
    notifier = scene.writer.load("notifier")
    event = {"Records": [*scene.records(awaited, 0)["Records"], *scene.records(other, 0)["Records"]]}
    event["Records"][1]["dynamodb"]["SequenceNumber"] = "1"
    with scene.sqs.failing(FAULTS["no connection"]):
        assert notifier(event, None) == {"batchItemFailures": [{"itemIdentifier": "0"}]}
    assert notifier(event, None) == {"batchItemFailures": []}


def test_the_janitor_fails_without_sqs_and_works_once_it_is_back(scene: Scene) -> None:
    with scene.sqs.failing(FAULTS["no connection"]), pytest.raises(Exception, match="connect"):
        scene.writer.invoke("janitor", load_event("janitor-schedule"))
    assert "queues" in scene.writer.invoke("janitor", load_event("janitor-schedule"))


def test_readers_go_on_when_the_trigger_is_late(scene: Scene) -> None:
    """No message wakes the reader: an empty receive is enough, and a late message wakes nobody."""
    path = scene.stream()
    waiting = scene.wait(path, 0)
    until(lambda: "ReceiveMessage" in scene.receiving.asked)
    scene.append(path, b"news")
    check_delivered(waiting, b"news")
    notifier = scene.writer.load("notifier")
    assert notifier(scene.records(path, 0, 0), None) == {"batchItemFailures": []}
    waiting = scene.wait(path, 4)
    scene.append(path, b" and more")
    check_delivered(waiting, b" and more")


def test_event_streams_go_on_without_sqs(scene: Scene, world: World) -> None:
    """The live function's own process, to which nobody answers at SQS's address."""
    path, deaf = scene.stream(), {"AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:1"}
    with running(world, variables=deaf) as function, function.get(f"{path}?offset=-1&live=sse") as response:
        received = b""
        for number in range(3):
            scene.append(path, b"message %d" % number)
            while b"message %d" % number not in received:
                received += response.read1()


def test_calls_to_an_sqs_that_does_not_answer_end_in_time(services: LocalServices) -> None:
    """Making a queue is part of a reader's request, and sending to one of a notifier's thirty seconds.
    Who receives waits for as long as a receive lasts, and a little longer."""
    prompt, patient = sqs_client().meta.config, receiving_client().meta.config
    assert prompt.retries["total_max_attempts"] * prompt.read_timeout + 1 < 10
    assert patient.read_timeout > 20


def test_a_failure_that_took_long_is_not_repeated_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look would wait for it again: from its end on there is a pause, however long it took."""
    made: list[float] = []
    create: Callable[..., Any] = scene.sqs.client.create_queue

    def slow(**arguments: Any) -> Any:
        time.sleep(1.5)
        made.append(time.monotonic())
        return create(**arguments)

    monkeypatch.setattr(scene.sqs.client, "create_queue", slow)
    path = scene.stream()
    with scene.sqs.failing(FAULTS["no connection"], "CreateQueue"):
        waiting = scene.wait(path, 0)
        until(lambda: len(made) == 3)
        scene.append(path, b"news")
        check_delivered(waiting, b"news")
    assert all(later - sooner >= 2.5 for sooner, later in itertools.pairwise(made))
