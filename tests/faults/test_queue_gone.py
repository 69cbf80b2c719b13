"""SQS is gone: readers that wait look for themselves, and nothing is lost.

The functions' own handlers, given the events that AWS sends. A long-poll here would last for
ten minutes: what ends it earlier is a look. (`tests/wake/test_receiver.py` has the rules of the receiver.)
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.faults.aws import Breakable, raises
from tests.lambdas.functions import Functions, http_event, load_event
from tests.stack.engines import LocalServices
from tests.support import Process, World, a_key
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.support import make_prefix
from tidemark.aws.clients import s3_client
from tidemark.aws.clock import CLOCK
from tidemark.aws.sqs import Queues, QueueUnavailable, receiving_client, sqs_client
from tidemark.wake.follow import Hub
from tidemark.wake.queue import RETRY_SECONDS, Receiver

NO_CONNECTION = raises(EndpointConnectionError)


@pytest.fixture
def process(world: World) -> Process:
    return world.process(clock=CLOCK.now_ms)


@pytest.fixture
def sqs(world: World, monkeypatch: pytest.MonkeyPatch) -> Breakable:
    """What makes, sends to and removes queues."""
    sqs = Breakable(sqs_client())
    monkeypatch.setenv("TABLE_NAME", world.table_name)
    monkeypatch.setenv("BUCKET_NAME", world.bucket_name)
    monkeypatch.setenv("LONG_POLL_SECONDS", "600")
    monkeypatch.setenv("QUEUE_PREFIX", make_prefix())
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("tidemark.http.backend.sqs_client", lambda: sqs.client)
    monkeypatch.setattr("tidemark.aws.sqs.sqs_client", lambda: sqs.client)
    return sqs


@pytest.fixture
def functions(sqs: Breakable) -> Iterator[Functions]:
    functions = Functions()
    functions.start()
    yield functions
    functions.stop()


def test_readers_go_on_if_no_queue_is_created(process: Process, functions: Functions, sqs: Breakable) -> None:
    key = a_key()
    process.create(key)
    event = http_event("GET", f"/v1/stream/{key.stream_id}", f"offset={0:016d}&live=long-poll")
    with sqs.failing(NO_CONNECTION, "CreateQueue"), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(functions, event)
        until(lambda: "CreateQueue" in sqs.asked)
        process.append(key, b"news")
        answer = waiting.result(PATIENCE_SECONDS)
    assert (answer.status, answer.body) == (200, b"news"), answer


def test_the_janitor_fails_without_sqs_and_works_with_it_again(functions: Functions, sqs: Breakable) -> None:
    with sqs.failing(NO_CONNECTION), pytest.raises(Exception, match="connect"):
        functions.invoke("janitor", load_event("janitor-schedule"))
    assert "queues" in functions.invoke("janitor", load_event("janitor-schedule"))


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
    monkeypatch.setattr("tidemark.wake.queue.time", SimpleNamespace(monotonic=lambda: clock.now))

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
