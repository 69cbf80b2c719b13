"""SQS is gone: readers that wait look for themselves, and nothing is lost.

The functions' own handlers, given the events that AWS sends. A long-poll here would last for
ten minutes: what ends it earlier is a look.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.faults.aws import Breakable, raises
from tests.http.asgi import Answer
from tests.lambdas.functions import Functions, http_event, load_event
from tests.support import World, make_world
from tests.wake.live_process import running
from tests.wake.support import PATIENCE_SECONDS, make_prefix, until
from tidemark.aws.clients import s3_client
from tidemark.aws.sqs import Queues, QueueUnavailable, receiving_client, sqs_client
from tidemark.local.engines import LocalServices
from tidemark.wake.hub import Hub
from tidemark.wake.wake import RETRY_SECONDS, Receiver, Wake

_serial = itertools.count()
TEXT = {"content-type": "text/plain"}
NO_CONNECTION = raises(EndpointConnectionError)


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


def test_readers_go_on_when_no_queue_can_be_created(scene: Scene) -> None:
    path = scene.stream()
    with scene.sqs.failing(NO_CONNECTION, "CreateQueue"):
        waiting = scene.wait(path, 0)
        until(lambda: "CreateQueue" in scene.sqs.asked)
        scene.append(path, b"news")
        check_delivered(waiting, b"news")
    assert scene.receiving.asked == []


def test_appends_make_no_call_to_sqs_and_go_on_without_it(scene: Scene) -> None:
    path = scene.stream()
    with scene.sqs.failing(NO_CONNECTION), scene.receiving.failing(NO_CONNECTION):
        for number in range(5):
            scene.append(path, b"%d" % number)
    assert scene.sqs.asked == scene.receiving.asked == []
    assert scene.reader(http_event("GET", path, "offset=-1")).body == b"01234"


def test_the_janitor_fails_without_sqs_and_works_once_it_is_back(scene: Scene) -> None:
    with scene.sqs.failing(NO_CONNECTION), pytest.raises(Exception, match="connect"):
        scene.writer.invoke("janitor", load_event("janitor-schedule"))
    assert "queues" in scene.writer.invoke("janitor", load_event("janitor-schedule"))


def test_event_streams_go_on_without_sqs(scene: Scene, world: World) -> None:
    """The live function's own process, to which nobody answers at SQS's address."""
    path, deaf = scene.stream(), {"AWS_ENDPOINT_URL_SQS": "http://127.0.0.1:1"}
    with running(world, variables=deaf) as function, function.get(f"{path}?offset=-1&live=sse") as response:
        received = b""
        for number in range(3):
            scene.append(path, b"message %d" % number)
            while b"message %d" % number not in received:
                received += response.read1()


def test_calls_to_an_aws_that_does_not_answer_end_in_time(services: LocalServices) -> None:
    """Of the thirty seconds that a gateway and a notifier have, all tries and the pauses between them. Who
    receives waits for as long as a receive lasts, and a little longer."""
    for client, most_seconds in (sqs_client(), 10), (s3_client(), 25):
        config = client.meta.config
        tries = config.retries["total_max_attempts"]
        longest = max(config.connect_timeout, config.read_timeout)
        assert config.retries["mode"] == "standard"
        assert tries * longest + sum(2**tried for tried in range(tries - 1)) < most_seconds
    assert receiving_client().meta.config.read_timeout > 20


def test_a_queue_that_took_long_to_fail_is_not_made_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look would wait for it again: from its end on there is a pause, however long it took."""
    clock, made = SimpleNamespace(now=100.0), list[float]()
    monkeypatch.setattr("tidemark.wake.wake.time", SimpleNamespace(monotonic=lambda: clock.now))

    class Failing(Queues):
        def create(self, now_ms: int) -> str:
            made.append(clock.now)
            clock.now += 9
            raise QueueUnavailable("down")

    receiver = Receiver(Hub(), Failing(sqs_client, ""), lambda: 0, 20)
    for pause in (0.0, 0.0, RETRY_SECONDS / 2, RETRY_SECONDS / 2):
        clock.now += pause
        with pytest.raises(QueueUnavailable):
            receiver.queue()
    assert made == [100.0, 109.0 + RETRY_SECONDS]
